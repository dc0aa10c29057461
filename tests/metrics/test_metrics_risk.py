"""The risk and its baselines."""

import math

import numpy as np
import pytest

from l2h.costs import Costs
from l2h.metrics import risk, risks


def test_the_risk_is_the_mean_price_of_what_happened() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        client, server, remote = rng.random((3, 40)) < 0.6
        c_e, c_1 = rng.uniform(0, 1), rng.uniform(0, 2)
        paid = []
        for m, e, r in zip(client, server, remote, strict=True):
            if r:
                paid.append(c_e if e else c_e + c_1)
            else:
                paid.append(0.0 if m else 1.0)
        # A mean of forty numbers below 3.
        assert risk(client, server, remote, Costs(c_e, c_1)) == pytest.approx(math.fsum(paid) / 40, abs=1e-14)


def test_the_baselines_follow_from_the_accuracies() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        client, server, remote, confident = rng.random((4, 60)) < 0.6
        c_e, c_1 = rng.uniform(0, 1), rng.uniform(0, 2)
        got = risks(client, server, remote, Costs(c_e, c_1), confidence_remote=confident)
        acc_m, acc_e, rate = client.mean(), server.mean(), remote.mean()
        cheaper = [min(1 - m, c_e + c_1 * (1 - e)) for m, e in zip(client.astype(int), server.astype(int), strict=True)]
        # Means of sixty numbers below 3.
        close = {"abs": 1e-13}
        assert got.all_local == pytest.approx(1 - acc_m, **close)
        assert got.all_remote == pytest.approx(c_e + c_1 * (1 - acc_e), **close)
        assert got.random == pytest.approx(rate * (c_e + c_1 * (1 - acc_e)) + (1 - rate) * (1 - acc_m), **close)
        assert got.confidence == risk(client, server, confident, Costs(c_e, c_1))
        assert got.system == risk(client, server, remote, Costs(c_e, c_1))
        assert got.oracle == pytest.approx(np.mean(cheaper), **close)
        assert got.best_trivial == min(got.all_local, got.all_remote)
        assert got.oracle <= min(got.system, got.all_local, got.all_remote, got.random, got.confidence) + 1e-13


def test_the_random_baseline_is_the_mean_over_random_decisions_at_the_same_rate() -> None:
    rng = np.random.default_rng(2)
    client, server, remote = rng.random(50) < 0.6, rng.random(50) < 0.8, rng.random(50) < 0.3
    costs = Costs(c_e=0.1, c_1=1.25)
    drawn = [risk(client, server, rng.permutation(remote), costs) for _ in range(4000)]
    # Four standard errors of the mean.
    tolerance = 4 * np.std(drawn) / math.sqrt(len(drawn))
    assert risks(client, server, remote, costs).random == pytest.approx(np.mean(drawn), abs=tolerance)


def test_without_held_out_samples_the_confidence_rule_has_no_risk() -> None:
    got = risks([True, False], [True, True], [False, True], Costs(c_e=0.1))
    assert got.confidence is None
    assert set(got.as_dict()) == {"system", "all_local", "all_remote", "random", "confidence", "oracle"}
    assert got.as_dict()["confidence"] is None


@pytest.mark.parametrize("sent", [False, True])
def test_a_system_that_never_or_always_asks_is_its_own_baseline(sent: bool) -> None:
    client, server = [True, False, False], [True, True, False]
    got = risks(client, server, [sent] * 3, Costs(c_e=0.25, c_1=0.5))
    assert got.system == got.random == (got.all_remote if sent else got.all_local)
