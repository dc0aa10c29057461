"""Losses of methods for several servers, written out here a sample at a time, and what their least scores decide."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from losses_maker import CPU, learned, make_pool
from torch import Tensor

from l2h.costs import Costs
from l2h.methods import Prices
from l2h.training import SamplePool

#: Of the box and of the cloud, for two rejectors; sums of powers of two, exact in single precision.
PRICES = [(Costs(0.0625, 0.5), Costs(0.25, 1.0)), (Costs(0.125, 1.25), Costs(0.25, 0.5))]
CLIENT = [(0.7, 0.2, 0.1), (0.1, 0.6, 0.3), (0.2, 0.3, 0.5), (0.45, 0.35, 0.2)]
Y = [0, 2, 1, 1]
RIGHT = [(True, True), (True, False), (False, True), (False, False)]  # the box, the cloud


def pool() -> SamplePool:
    one = make_pool(Y, CLIENT, CLIENT)
    return replace(one, server_correct=torch.tensor(RIGHT))


def outputs(seed: int) -> Tensor:
    return 2 * torch.randn(2, len(Y), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def psi(z: float) -> float:
    return math.log(1 + math.exp(-z))


def test_one_vs_all_with_two_servers_is_the_formula() -> None:
    """Verma, Barrejon and Nalisnick 2023: K + S binary classifiers."""
    scores = outputs(1)
    found = learned("ova-l2d").loss(scores, pool(), Prices.of_several(PRICES, CPU))
    for r in range(2):
        for i, (p, y, right) in enumerate(zip(CLIENT, Y, RIGHT, strict=True)):
            g = [math.log(q / (1 - q)) for q in p]
            by_hand = math.fsum(psi(g[k]) if k == y else psi(-g[k]) for k in range(3))
            for j in range(2):
                g_j = float(scores[r, i, 1 + j] - scores[r, i, 0])
                by_hand += psi(-g_j) + right[j] * (psi(g_j) - psi(-g_j))
            assert float(found[r, i]) == pytest.approx(by_hand, rel=1e-11)


def test_the_two_stage_loss_with_two_servers_is_the_formula() -> None:
    """Mao, Mohri, Mohri and Zhong 2023: a log-loss over the client's best score and a score per server."""
    scores = outputs(2)
    found = learned("two-stage-confidence").loss(scores, pool(), Prices.of_several(PRICES, CPU))
    for r, prices in enumerate(PRICES):
        highest = max(1.0, *(c.c_e + c.c_1 for c in prices))
        for i, (p, y, right) in enumerate(zip(CLIENT, Y, RIGHT, strict=True)):
            h = [math.log(max(p)), *(float(scores[r, i, 1 + j] - scores[r, i, 0]) for j in range(2))]
            total = math.log(math.fsum(math.exp(one) for one in h))
            costs = [float(p.index(max(p)) != y), *(c.c_e + c.c_1 * (not right[j]) for j, c in enumerate(prices))]
            by_hand = -math.fsum((highest - c) * (one - total) for c, one in zip(costs, h, strict=True))
            assert float(found[r, i]) == pytest.approx(by_hand, rel=1e-11)


@pytest.mark.parametrize("seed", range(6))
def test_the_least_scores_of_the_two_stage_loss_choose_as_bayes(seed: int) -> None:
    """At one x with every outcome of client, box and cloud at random probabilities, by gradient descent."""
    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.ones(8))  # of (client right, box right, cloud right)
    outcomes = [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    held = make_pool([0] * 8, [(0.6, 0.4) if a else (0.4, 0.6) for a, _, _ in outcomes], [(0.5, 0.5)] * 8)
    held = replace(held, server_correct=torch.tensor([(bool(b), bool(c)) for _, b, c in outcomes]))
    prices = Prices.of_several(PRICES, CPU)
    free = torch.zeros(2, 1, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        each = learned("two-stage-confidence").loss(free.expand(-1, 8, -1), held, prices)
        total = (each * torch.as_tensor(law)).sum()
        total.backward()
        return total

    optimizer.step(loss)
    log_p = torch.log(torch.tensor([[0.6, 0.4]], dtype=torch.float64))
    chosen = learned("two-stage-confidence").final(free.detach(), log_p).argmax(-1)[:, 0]
    wrong = 1 - np.array([law @ np.array(outcomes)[:, k] for k in range(3)])
    for r, own in enumerate(PRICES):
        expected = [wrong[0], *(c.c_e + c.c_1 * wrong[1 + j] for j, c in enumerate(own))]
        assert int(chosen[r]) == int(np.argmin(expected))


def test_of_one_server_the_prices_are_those_of_one() -> None:
    one = Prices.of([own[0] for own in PRICES], CPU)
    several = Prices.of_several([own[:1] for own in PRICES], CPU)
    right = torch.tensor([True, False, True])
    assert torch.equal(several.remote(right[:, None])[..., 0], one.remote(right))
    assert torch.equal(several.highest, one.highest)
