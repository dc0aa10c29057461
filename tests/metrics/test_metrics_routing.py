"""APGR and CPT against RouteLLM's definition, computed point by point."""

from __future__ import annotations

import numpy as np
import pytest

from l2h.metrics import frontier, routing_measures


def by_hand(score: list[float], client: list[int], server: list[int]) -> tuple[float, dict[float, float]]:
    """Sort, send k = 0..n, and read the recovered gap off the straight lines on a fine grid of shares."""
    n, order = len(score), sorted(range(len(score)), key=lambda i: -score[i])
    right = [sum(client) + sum(server[i] - client[i] for i in order[:k]) for k in range(n + 1)]
    recovered = [(r - right[0]) / (right[-1] - right[0]) for r in right]
    grid = np.linspace(0, 1, 100_001)
    curve = np.interp(grid, np.arange(n + 1) / n, recovered)
    return float(curve.mean()), {x: float(grid[np.argmax(curve >= x - 1e-9)]) for x in (0.5, 0.8)}


def test_they_are_those_of_the_definition() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        score, client, server = rng.normal(size=60), rng.random(60) < 0.5, rng.random(60) < 0.9
        found = routing_measures(frontier(score, client, server))
        apgr, cpt = by_hand(score.tolist(), client.astype(int).tolist(), server.astype(int).tolist())
        assert found is not None
        assert found.apgr == pytest.approx(apgr, abs=1e-4)  # the step of the grid is 1e-5, the slope below 10
        assert found.cpt_50 == pytest.approx(cpt[0.5], abs=2e-5)
        assert found.cpt_80 == pytest.approx(cpt[0.8], abs=2e-5)


def test_a_random_order_has_one_half_and_the_oracle_the_most() -> None:
    rng = np.random.default_rng(0)
    client, server = rng.random(500) < 0.6, rng.random(500) < 0.8
    flat = routing_measures(frontier(np.zeros(500), client, server))
    best = routing_measures(frontier(server.astype(float) - client, client, server))
    assert flat is not None
    assert best is not None
    assert (flat.apgr, flat.cpt_50, flat.cpt_80) == pytest.approx((0.5, 0.5, 0.8))
    some = routing_measures(frontier(rng.normal(size=500), client, server))
    assert some is not None
    assert best.apgr > some.apgr
    assert best.cpt_50 < best.cpt_80 < some.cpt_80


def test_without_a_gap_there_is_nothing_to_recover() -> None:
    assert routing_measures(frontier([1, 2], [True, False], [False, True])) is None
    assert routing_measures(frontier([1, 2], [True, True], [False, True])) is None
