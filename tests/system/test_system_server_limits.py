"""Limits of each server and over all through ``predict``, with servers that are functions and count what they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from clouds import Counting

from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.errors import CostError
from l2h.limits import LimitError
from l2h.remote import AnswerCache

FEATURES, CLASSES = 6, 3
TRUE = np.random.default_rng(1).normal(size=(FEATURES, CLASSES)).astype(np.float32)
OTHER = np.random.default_rng(2).normal(size=(FEATURES, CLASSES)).astype(np.float32)
PRICES = {"box": Costs(c_e=0.02), "cloud": Costs(c_e=0.1)}


def noisy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, FEATURES)).astype(np.float32)
    return inputs, (inputs @ TRUE + 0.3 * rng.normal(size=(n, CLASSES))).argmax(axis=1)


X_CAL, Y_CAL = noisy(3000, 11)
X_NEW, Y_NEW = noisy(3000, 12)
SERVERS = {
    "box": Counting(lambda x: np.where(x[:, :1] > 0, 2 * x @ TRUE, x @ OTHER).astype(np.float32)),
    "cloud": Counting(lambda x: 2 * x @ TRUE),
}


@pytest.fixture(scope="module")
def several() -> HelpSystem:
    settings = Settings(rejector=StageSettings(epochs=3, batch=128), device="cpu", seed=1)
    system = HelpSystem(lambda x: x @ (TRUE + 1.5 * OTHER), servers=SERVERS, settings=settings)
    return system.fit(*noisy(1500, 10)).calibrate(X_CAL, Y_CAL)


def asked(system: HelpSystem, X: np.ndarray, **named: Any) -> tuple[Any, dict[str, int]]:
    """Return the answers, and how many inputs each server really got."""
    for server in system.servers:
        server.fixed.cache = AnswerCache()
    for server in SERVERS.values():
        server.calls, server.asked = 0, []
    answers = system.predict(X, **named)
    return answers, {name: sum(map(len, server.asked)) for name, server in SERVERS.items()}


def test_the_cheapest_answerer_answers_and_is_named(several: HelpSystem) -> None:
    answers, got = asked(several, X_NEW, costs=PRICES)
    assert {name: int((answers.by == name).sum()) for name in SERVERS} == got
    assert min(got.values()) > 100
    assert set(answers.cost[answers.by == "cloud"].tolist()) == {0.1}
    assert set(answers.cost[answers.by == "box"].tolist()) == {0.02}
    assert ((answers.source == "local") == (answers.by == "client")).all()


def test_shares_of_servers_are_met_and_the_rest_is_over_the_limit(several: HelpSystem) -> None:
    free, _ = asked(several, X_NEW, costs=PRICES)
    answers, got = asked(several, X_NEW, costs=PRICES, limit={"cloud": "5%", "all": "30%"})
    # Four standard errors of a share met on 3000 fresh samples by a rule calibrated on 3000 others.
    assert got["cloud"] / 3000 == pytest.approx(0.05, abs=0.023)
    assert sum(got.values()) / 3000 == pytest.approx(0.30, abs=0.047)
    kept = (free.source == "remote") & (answers.source == "local")
    assert kept.any()
    assert set(answers.reason[kept].tolist()) == {"over_limit"}
    on_calibration, exact = asked(several, X_CAL, costs=PRICES, limit={"cloud": "5%", "all": "30%"})
    assert exact["cloud"] <= 151
    assert sum(exact.values()) <= 901
    assert len(on_calibration) == 3000


def test_one_limit_is_that_over_all(several: HelpSystem) -> None:
    plain, named = several.predict(X_NEW, limit="20%"), several.predict(X_NEW, limit={"all": "20%"})
    assert (plain.by == named.by).all()
    assert (several.predict(X_CAL, limit="20%").source == "remote").sum() == 600


def test_caps_of_each_server_and_over_all_hold_from_call_to_call(several: HelpSystem) -> None:
    limit = {"cloud": "5%/100", "all": "20%/100"}
    by = np.concatenate(
        [several.predict(X_NEW[i : i + 250], costs=PRICES, limit=limit).by for i in range(0, 1500, 250)]
    )
    in_a_row = np.ones(100)
    assert 1 <= np.convolve(by == "cloud", in_a_row).max() <= 5
    assert 10 <= np.convolve(by != "client", in_a_row).max() <= 20


def test_limits_and_prices_of_servers_that_do_not_exist_are_refused(several: HelpSystem) -> None:
    with pytest.raises(LimitError, match="clout; the servers are box, cloud"):
        several.predict(X_NEW[:5], limit={"clout": "5%"})
    with pytest.raises(CostError, match="the servers are box, cloud: name each"):
        several.predict(X_NEW[:5], costs={"box": Costs(0.1)})
