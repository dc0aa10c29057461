"""Limits in windows on a device with several servers: which inputs count as requests, and what is drift."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clouds import samples
from two_servers import PRICES, make

from l2h import Costs, EdgeClient
from l2h.bundle import DeviceBundle, ServerBundle


@pytest.fixture(scope="session")
def folder(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A bundle with a box, a cloud and a second opinion."""
    return once("two-opinion", lambda path: make(second_opinion=True).export(path, name="clouds", costs=PRICES))


@pytest.fixture(scope="session")
def device(folder: Path) -> DeviceBundle:
    return DeviceBundle(folder)


@pytest.mark.parametrize(
    "limit", ["5%/100", "5%+-4", {"cloud": "3%/100"}, {"box": "4%/100", "cloud": "2%/100", "all": "5%/50"}]
)
def test_a_share_of_inputs_in_a_row_is_the_same_one_by_one(device: DeviceBundle, folder: Path, limit: Any) -> None:
    run = {name: ServerBundle(folder, server=name).run for name in PRICES}
    many = samples(500, 9)[0]
    prices = {"box": Costs(c_e=0.1), "cloud": Costs(c_e=0.1)}
    with (
        EdgeClient(device, run, costs=prices, limit=limit, deadline=9) as one_by_one,
        EdgeClient(device, run, costs=prices, limit=limit, deadline=9) as at_once,
    ):
        apart = [one_by_one.predict(many[i : i + 1])[0].by for i in range(len(many))]
        together = at_once.predict(many)
        assert set(together.reason) >= {"not_worth_asking", "worth_asking", "over_limit"}
        assert apart == together.by.tolist()


@pytest.mark.parametrize("down", [None, "box", "cloud"])
@pytest.mark.parametrize(
    "limit", ["60%/100", {"box": "10%/100", "cloud": "5%/100"}, {"cloud": "5%/100", "all": "12%/100"}]
)
def test_what_limits_refuse_and_servers_fail_at_is_no_drift(
    device: DeviceBundle, folder: Path, limit: Any, down: str | None
) -> None:
    run: dict[str, Any] = {name: ServerBundle(folder, server=name).run for name in PRICES}
    if down is not None:
        run[down] = lambda inputs: 1 / 0
    many, _ = samples(1500, 9)
    with EdgeClient(device, run, costs=PRICES, limit=limit, deadline=9) as edge:
        for start in range(0, len(many), 50):
            edge.predict(many[start : start + 50])
        status = edge.stats().limit
        assert status is not None
        for each in [status] if isinstance(limit, str) else status.values():
            assert each["observed"] is not None
            assert each["drift"] is None
        strange = many * np.float32(-0.1)  # inputs that the calibration has not seen
        for start in range(0, len(many), 50):
            edge.predict(strange[start : start + 50])
        status = edge.stats().limit
        assert status is not None
        assert any(each["drift"] for each in ([status] if isinstance(limit, str) else status.values()))
