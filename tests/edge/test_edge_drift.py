"""``stats().drift``: every client says when its inputs are no longer like the calibration samples."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clouds import samples
from edge_maker import NONE

from l2h import Costs, EdgeClient
from l2h.bundle import ServerBundle

USUAL = samples(2000, 11)[0]
#: Inputs in the middle between the classes, about which the client is unsure, and far out, where it is sure.
UNSURE, SURE = USUAL * np.float32(0.2), USUAL * np.float32(8)


@pytest.mark.long
@pytest.mark.parametrize("limit", [None, "20%", "20%@95%", "20%+-50", "20%/100"])
@pytest.mark.parametrize("size", [1, 40])
def test_inputs_that_change_raise_an_alarm_and_those_that_do_not_none(
    connect: Callable[..., EdgeClient], folder: Path, limit: str | None, size: int
) -> None:
    edge = connect(ServerBundle(folder).run, limit=limit, costs=Costs(c_e=0.1), deadline=9)
    for inputs, wanted in ((USUAL, [None]), (UNSURE[:800], ["above", "below"])):
        for start in range(0, len(inputs), size):
            edge.predict(inputs[start : start + size])
        assert edge.stats().drift in wanted
    status = edge.stats().limit
    assert status is None or status["drift"] == edge.stats().drift


def test_new_prices_are_no_drift_and_calls_at_other_prices_do_not_count(connect: Callable[..., EdgeClient]) -> None:
    edge = connect(None, costs=Costs(c_e=0.1))
    for start in range(0, len(USUAL), 50):
        edge.predict(USUAL[start : start + 50], costs=NONE)
    assert edge.stats().drift is None
    for c_e in (0.01, 0.3):
        edge.costs = Costs(c_e=c_e)
        for start in range(0, len(USUAL), 50):
            edge.predict(USUAL[start : start + 50])
        assert edge.stats().drift is None
    for start in range(0, len(SURE), 50):
        edge.predict(SURE[start : start + 50])
    assert edge.stats().drift is not None
    edge.costs = Costs(c_e=0.1)
    assert edge.stats().drift is None, "a new price is watched anew"


def test_threads_lose_no_alarm(connect: Callable[..., EdgeClient]) -> None:
    edge = connect(None, costs=Costs(c_e=0.1))
    parts: list[Any] = [UNSURE[start : start + 1] for start in range(1500)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(edge.predict, parts))
    assert edge.stats().drift is not None
