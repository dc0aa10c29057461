"""What each learned method decides when nothing is left to learn.

On a law over finitely many x, every expectation is a sum and the scores of every x are free. The scores of least
expected loss must then decide as the Bayes rule does, for every method whose paper proves it, and on its conditions.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from losses_maker import (
    CPU,
    TrainedFor,
    World,
    bench_of,
    learned,
    loss_of,
    make_world,
    outcomes_by_right,
    prices_of,
    score_of,
)
from properties import examples
from torch import Tensor

from l2h.costs import Costs
from l2h.decision import Judgement, bayes
from l2h.methods import Choice, Inputs, Learned
from l2h.methods.deferral import softmax_deferral_loss
from l2h.methods.helping import PricedRule, calibrating_beta
from l2h.methods.posthoc import BETA

Decisions = npt.NDArray[np.bool_]

#: (c_e, c_1): asking is free, cheap, dear; a wrong answer of the server costs less than a local one, as much, more.
PRICES = [Costs(e, one) for e, one in ((0.0, 1.0), (0.05, 0.5), (0.1, 0.9), (0.3, 0.25), (0.1, 1.0), (0.25, 1.25))]
BOUNDED = [costs for costs in PRICES if costs.c_se <= 1]
DEAR = Costs(c_e=0.25, c_1=1.25)
NEAR_TIE = 1e-3  # of the two sides' expected losses: scores are rounded to float32, prices too
FAR = 14.0  # scores searched; exponentials are themselves up to 15
PROVEN = [
    "two-stage-confidence",
    "two-stage-separate",
    "shifted-separate",
    "shifted-attached",
    "swapped-separate",
    "swapped-attached",
    "priced-separate",
    "priced-attached",
    "posthoc-rejector",
]
BELIEVE = [
    "softmax-l2d",
    "softmax-l2d-constant",
    "ova-l2d",
    "asymmetric-softmax",
]  # they take the client's probabilities for true
#: Of 24 points each; for methods whose form is that of another with many.
few = examples(5)
laws = st.tuples(st.integers(0, 10_000), st.integers(2, 6))


def expected(method: Learned, world: World, prices: TrainedFor, scores: Tensor) -> Tensor:
    """The loss (R, n) expected at each x, for scores (R, n, 2)."""
    pool, probability = world.enumerated()
    n, K = probability.shape
    every = scores.repeat_interleave(K, dim=1)  # the same scores whatever y is
    return (loss_of(method, every, pool, prices).view(-1, n, K) * probability).sum(-1)


def least(method: Learned, world: World, prices: TrainedFor, rejectors: int) -> Tensor:
    """The scores (R, n, 2) of least expected loss, within FAR.

    The loss has one free score a sample, or two that do not mix, and its slope along each changes sign once: bisect
    it. Where the loss falls without end the search ends at FAR.
    """
    two = method.name.startswith("priced")
    low = torch.full((rejectors, len(world), 2), -FAR, dtype=torch.float64)
    high = -low
    if not two:
        low[..., 0] = high[..., 0] = 0.0  # one score: their difference
    for _ in range(40):  # leaves 28 / 2 ** 40
        middle = ((low + high) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(expected(method, world, prices, middle).sum(), middle)
        at = middle.detach()
        low, high = torch.where(slope < 0, at, low), torch.where(slope < 0, high, at)
        if not two:
            low[..., 0] = high[..., 0] = 0.0
    return (low + high) / 2


def decides(method: Learned, world: World, scores: Tensor, costs: Costs) -> Decisions:
    """By the rule of the method's paper."""
    numbers = scores.numpy().astype(np.float32)
    if method.name.startswith("priced"):
        return decides_by_price(method, world, numbers, costs).remote
    return np.asarray(score_of(method, numbers, world.client, costs) >= 0)


def decides_by_price(method: Learned, world: World, numbers: npt.NDArray[np.float32], costs: Costs) -> Choice:
    class Given(PricedRule):
        """The rule on scores that are given, calibrated already."""

        def __init__(self) -> None:
            self.method, self.platt, self.specs = method, [(1.0, 0.0), (1.0, 0.0)], method.specs(None)
            self.bench = bench_of(outcomes_by_right([True], [True], [[0.0]]), [costs])

        def scores(self, inputs: Inputs, which: int) -> npt.NDArray[np.float32]:
            return numbers

    return Given().decide(Inputs(np.zeros((len(world), 1)), world.client), costs)


def assert_decides_as_bayes(name: str, world: World, prices: Sequence[Costs]) -> None:
    method = learned(name)
    scores = least(method, world, prices_of(prices), len(prices))
    for at, costs in zip(scores, prices, strict=True):
        right = bayes(world.posterior, world.client_label, costs)
        clear = world.clear(costs, NEAR_TIE)
        assert (decides(method, world, at, costs) == right)[clear].all(), (name, costs)


def believed(world: World, costs: Costs) -> tuple[Decisions, Decisions]:
    """The best rule if the client's largest probability were that of its being right, and where it is no near-tie."""
    stated = world.client_probability.max(axis=1)
    clear = np.abs((1 - stated) - world.remote_loss(costs)) > NEAR_TIE
    right = np.stack([stated, world.server_right], axis=1)
    return Judgement(right, right).remote(costs), clear


def test_the_laws_ask_for_both_decisions_at_every_price() -> None:
    worlds = [make_world(seed, num_classes=K) for seed in range(20) for K in (2, 3, 6)]
    for costs in PRICES:
        sent = np.concatenate([bayes(w.posterior, w.client_label, costs) for w in worlds])
        clear = np.concatenate([w.clear(costs, NEAR_TIE) for w in worlds])
        assert 0.05 < sent[clear].mean() < 0.95 or costs.c_e == 0
        assert clear.mean() > (0.95 if costs.c_e else 0.3)  # where asking is free and both agree, all is one
    assert any(costs.c_se > 1 for costs in PRICES)
    assert len(BOUNDED) >= 3


@pytest.mark.parametrize("name", PROVEN)
def test_what_is_found_has_the_least_loss(name: str) -> None:
    method, world = learned(name), make_world(1)
    prices = prices_of(PRICES)
    scores = least(method, world, prices, len(PRICES))
    at = expected(method, world, prices, scores)
    rng = torch.Generator().manual_seed(2)
    for size in (0.01, 0.3, 3.0):
        moved = scores + size * torch.randn(scores.shape, dtype=torch.float64, generator=rng)
        # Values below 1e3 in double precision.
        assert (at <= expected(method, world, prices, moved) + 1e-12).all()


@pytest.mark.parametrize("name", PROVEN[:-1])
@examples(30)
@given(law=laws)
def test_least_loss_decides_as_the_bayes_rule(name: str, law: tuple[int, int]) -> None:
    assert_decides_as_bayes(name, make_world(law[0], num_classes=law[1]), PRICES)


@examples(30)
@given(laws)
def test_the_papers_loss_decides_as_the_bayes_rule_where_asking_costs_1_at_most(law: tuple[int, int]) -> None:
    assert_decides_as_bayes("l2h-paper", make_world(law[0], num_classes=law[1]), BOUNDED)


def test_the_papers_loss_runs_away_where_asking_is_dear_and_the_server_errs() -> None:
    world = make_world(3, n=60)
    weight = 1 - world.remote_loss(DEAR)  # of -ln p_remote, expected
    lost = weight < -NEAR_TIE
    assert min(lost.sum(), (~lost).sum()) > 5
    method, prices = learned("l2h-paper"), prices_of([DEAR])
    away = torch.tensor([0.0, -1.0], dtype=torch.float64)

    def at(distance: float) -> npt.NDArray[np.float64]:
        return expected(method, world, prices, (distance * away).expand(1, len(world), 2))[0].numpy()

    ray = [at(distance) for distance in (1e2, 1e4, 1e6)]
    for near, far in itertools.pairwise(ray):
        assert (far < near)[lost].all()
    # Beyond every bound: on the ray p_remote is exp(-distance). Prices are float32.
    np.testing.assert_allclose(ray[-1][lost], weight[lost] * 1e6, rtol=1e-4)
    (scores,) = least(method, world, prices, 1)
    assert np.allclose(scores[lost, 1], -FAR)
    # Elsewhere there is a minimum still, and it is right; a lost x is never to be sent, so the runaway is LOCAL.
    right = bayes(world.posterior, world.client_label, DEAR)
    assert not right[lost].any()
    clear = world.clear(DEAR, NEAR_TIE) & ~lost
    assert (decides(method, world, scores, DEAR) == right)[clear].all()
    # The bounded forms stay where they are.
    for name in ("shifted-separate", "swapped-separate"):
        (kept,) = least(learned(name), world, prices, 1)
        assert kept.abs().max() < FAR / 2


def test_for_a_single_sample_the_papers_loss_runs_away_whenever_the_server_is_wrong() -> None:
    # However rarely the server errs, a net that can tell samples apart finds those.
    world = World(np.array([[0.97, 0.03]]), np.array([[0.9, 0.1]]), np.array([0]))
    pool, _ = world.enumerated()
    wrong = ~pool.server_correct
    method, prices = learned("l2h-paper"), prices_of([DEAR])
    losses = [
        loss_of(method, torch.tensor([t, 0.0]).expand(1, 2, 2), pool, prices)[0, wrong].item() for t in (1e1, 1e3, 1e5)
    ]
    assert losses == pytest.approx([(1 - DEAR.c_se) * t for t in (1e1, 1e3, 1e5)], rel=1e-3)


@examples(30)
@given(st.integers(0, 10_000))
def test_the_binary_loss_decides_as_the_bayes_rule(seed: int) -> None:
    assert_decides_as_bayes("binary-l2h", make_world(seed, num_classes=2), PRICES)


def test_the_server_term_of_the_binary_loss_has_its_least_value_at_the_log_odds_over_beta() -> None:
    # c_1 exp(beta / 2 (-e y - r)), expected over y, as a function of e.
    posterior = make_world(4, num_classes=2).posterior
    beta = calibrating_beta(torch.as_tensor(posterior)).numpy()
    best = np.log(posterior[:, 1] / posterior[:, 0]) / beta

    def term(e: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return posterior[:, 1] * np.exp(-beta / 2 * e) + posterior[:, 0] * np.exp(beta / 2 * e)

    for step in (-1.0, -0.01, 0.01, 1.0):
        assert (term(best) < term(best + step)).all()
    # The slope at r = 0 is then what the server's error costs, which makes the whole loss calibrated.
    np.testing.assert_allclose(beta / 2 * term(best), posterior.min(axis=1), rtol=1e-12)


def test_with_one_beta_for_all_the_binary_loss_is_not_calibrated() -> None:
    # With beta = 1 the slope at r = 0 charges sqrt(p_min p_max) for the server's error in the place of p_min.
    posterior = np.array([[0.2, 0.8]])
    world = World(posterior, np.array([[0.7, 0.3]]), np.array([0]))
    costs = Costs(c_e=0.1, c_1=2.0)
    local, dear = 1 - 0.2, costs.c_e + costs.c_1 * np.sqrt(0.2 * 0.8)
    assert bayes(posterior, [0], costs)[0]
    assert local < dear
    assert_decides_as_bayes("binary-l2h", world, [costs])


@pytest.mark.parametrize("name", BELIEVE[:2])
@examples(30)
@given(law=laws)
def test_a_client_that_states_the_posterior_makes_deferral_right(name: str, law: tuple[int, int]) -> None:
    # Client and server agree everywhere here: where asking costs nothing more all is one, and no x is checked.
    assert_decides_as_bayes(name, make_world(law[0], num_classes=law[1], client="posterior"), PRICES)


@pytest.mark.parametrize(("name", "prices"), [("softmax-l2d", BOUNDED), ("ova-l2d", PRICES)])
@examples(30)
@given(law=laws)
def test_deferral_decides_by_what_the_client_says_of_itself(
    name: str, prices: list[Costs], law: tuple[int, int]
) -> None:
    world, method = make_world(law[0], num_classes=law[1]), learned(name)
    scores = least(method, world, prices_of(prices), len(prices))
    for at, costs in zip(scores, prices, strict=True):
        taken, clear = believed(world, costs)
        assert (decides(method, world, at, costs) == taken)[clear].all(), costs


@pytest.mark.parametrize("costs", [Costs(0.1, 0.9), Costs(0.05, 0.5), Costs(0.25, 1.25)])
def test_an_overconfident_client_misleads_deferral_and_nothing_else(costs: Costs) -> None:
    # The client is sure and mostly wrong; the server is nearly always right.
    posterior = np.array([[0.05, 0.94, 0.01], [0.1, 0.02, 0.88]])
    stated = np.array([[0.98, 0.01, 0.01], [0.97, 0.02, 0.01]])
    world = World(posterior, stated, np.array([0, 0]))
    assert bayes(posterior, world.client_label, costs).all()
    for name in (*BELIEVE, *PROVEN):
        (scores,) = least(learned(name), world, prices_of([costs]), 1)
        sent = decides(learned(name), world, scores, costs)
        assert sent.tolist() == [name in PROVEN] * 2, name


def test_a_diffident_client_misleads_deferral_the_other_way() -> None:
    # The client is always right where it says that it guesses.
    posterior, stated = np.array([[0.98, 0.01, 0.01]]), np.array([[0.4, 0.3, 0.3]])
    world, costs = World(posterior, stated, np.array([0])), Costs(0.1, 0.9)
    assert not bayes(posterior, world.client_label, costs).any()
    for name in (*BELIEVE, *PROVEN):
        (scores,) = least(learned(name), world, prices_of([costs]), 1)
        assert decides(learned(name), world, scores, costs).tolist() == [name in BELIEVE], name


@pytest.mark.parametrize("K", [2, 3, 10])
def test_the_deferral_score_of_least_softmax_loss_in_closed_form(K: int) -> None:
    # The class scores stay at log-probabilities p. With w_i the expected max_j c_j - c_i, the loss is least in g_d
    # where softmax(g)_d is w_d / sum w, and since the p add up to 1, exp(g_d) = w_d / (w_1 + ... + w_K).
    rng = np.random.default_rng(K)
    eta, stated = rng.dirichlet(np.ones(K)), torch.as_tensor(np.log(rng.dirichlet(np.ones(K))))
    for right, wrong in ((0.1, 0.9), (0.0, 1.0), (0.25, 1.5), (0.9, 3.0)):
        cost = np.where(np.arange(K) == eta.argmax(), right, wrong)  # of deferring, for each y
        highest = eta @ np.maximum(1.0, cost)
        weights = highest - 1 + eta
        best = np.log((highest - eta @ cost) / weights.sum())
        at = torch.tensor([best], dtype=torch.float64, requires_grad=True)
        y = torch.arange(K)
        each = softmax_deferral_loss(at.expand(1, K), stated.expand(K, K), y, torch.as_tensor(cost)[None])
        (slope,) = torch.autograd.grad((each[0] * torch.as_tensor(eta)).sum(), at)
        # Slopes are sums of K terms of at most 2.
        assert abs(slope.item()) < 1e-12
        if wrong <= 1:
            assert np.exp(best) == pytest.approx(1 - eta @ cost, rel=1e-12)


def abstains(world: World, cost: float) -> Decisions:
    method = learned("lwa-separate")
    # Asking costs this on average, whoever is right.
    (scores,) = least(method, world, prices_of([Costs(c_e=cost, c_1=0.0)]), 1)
    return decides(method, world, scores, DEAR)


@examples(30)
@given(laws, st.sampled_from([0.05, 0.2, 0.5, 0.8]))
def test_abstention_keeps_what_the_client_gets_wrong_less_often_than_abstaining_costs(
    law: tuple[int, int], cost: float
) -> None:
    world = make_world(law[0], num_classes=law[1])
    error = 1 - world.client_right
    clear = np.abs(error - cost) > NEAR_TIE
    assert (abstains(world, cost) == (error > cost))[clear].all()


def test_abstention_does_not_see_where_the_server_is_good() -> None:
    # One client error, two servers: Bayes asks the good one only.
    posterior = np.array([[0.3, 0.68, 0.01, 0.01], [0.3, 0.31, 0.2, 0.19]])
    world = World(posterior, np.full((2, 4), 0.25), np.array([0, 0]))
    costs = Costs(c_e=0.2, c_1=1.0)
    assert bayes(world.posterior, world.client_label, costs).tolist() == [True, False]
    for cost in (0.3, 0.5, 0.69, 0.71, 0.9):
        assert len(set(abstains(world, cost).tolist())) == 1
    for name in PROVEN:
        (scores,) = least(learned(name), world, prices_of([costs]), 1)
        assert decides(learned(name), world, scores, costs).tolist() == [True, False]


def test_the_cost_of_abstaining_is_what_asking_costs_on_the_bench() -> None:
    right = np.arange(20) >= 3  # the server errs on 3 of 20
    prices = learned("lwa-separate").prices(PRICES, CPU, float(right.mean()))
    assert prices.remote_right.device == CPU
    by_hand = [[costs.c_e + costs.c_1 * 3 / 20] for costs in PRICES]
    for place in (prices.remote_right, prices.remote_wrong):
        np.testing.assert_allclose(place.numpy(), by_hand, rtol=1e-6)  # float32


# Rules of edge and cloud: what their numbers are when nothing is left to learn.


@examples(30)
@given(laws)
def test_the_router_states_how_likely_the_client_is_wrong_and_the_server_right(law: tuple[int, int]) -> None:
    world, method = make_world(law[0], num_classes=law[1]), learned("selective-query")
    scores = least(method, world, prices_of(PRICES[:1]), 1)[0]
    differ = world.client_label != world.posterior.argmax(axis=1)
    wanted = np.where(differ, world.server_right, 0.0)  # both cannot be right where they differ
    found = torch.sigmoid(scores[:, 1] - scores[:, 0]).numpy()
    np.testing.assert_allclose(found, wanted, atol=2e-6)  # a probability of 0 is found at FAR
    for costs in PRICES:
        send = score_of(method, scores.numpy().astype(np.float32), world.client, costs) >= 0
        assert (send == (found >= costs.c_e))[np.abs(found - costs.c_e) > 1e-5].all()


@examples(30)
@given(laws)
def test_an_appeal_is_as_likely_as_the_losses_differ(law: tuple[int, int]) -> None:
    world, method = make_world(law[0], num_classes=law[1]), learned("appealnet")
    scores = least(method, world, prices_of(PRICES[:1]), 1)[0]
    losses = [-(world.posterior * np.log(p)).sum(axis=1) for p in (world.client_probability, world.posterior)]
    more = losses[0] - losses[1]
    easy = np.where(more > BETA, BETA / np.maximum(more, BETA), 1.0)
    np.testing.assert_allclose(torch.sigmoid(scores[:, 0] - scores[:, 1]).numpy(), easy, atol=1e-3)


# Rules on top of a finished client and server: what their numbers are when nothing is left to learn.


@few
@given(laws)
def test_other_forms_decide_as_those_they_follow_at_every_price(law: tuple[int, int]) -> None:
    world = make_world(law[0], num_classes=law[1])
    assert_decides_as_bayes("posthoc-rejector", world, PRICES)
    for name in BELIEVE[2:]:
        assert_decides_as_bayes(name, make_world(law[0], num_classes=law[1], client="posterior"), PRICES)
        scores = least(learned(name), world, prices_of(PRICES), len(PRICES))
        for at, costs in zip(scores, PRICES, strict=True):
            taken, clear = believed(world, costs)
            assert (decides(learned(name), world, at, costs) == taken)[clear].all(), (name, costs)


@few
@given(laws)
def test_the_differences_are_those_expected_and_the_first_is_right_where_errors_cost_the_same(
    law: tuple[int, int],
) -> None:
    world = make_world(law[0], num_classes=law[1])
    values = {
        "diff-01": world.server_right - world.client_right,
        "diff-prob": (world.posterior * (world.posterior - world.client_probability)).sum(axis=1),
    }
    for name, expected in values.items():
        method = learned(name)
        (scores,) = least(method, world, prices_of(PRICES[:1]), 1)
        np.testing.assert_allclose(torch.tanh(scores[:, 1] - scores[:, 0]).numpy(), expected, atol=1e-9)
        for costs in (Costs(0.0), Costs(0.1), Costs(0.4)):
            saving = score_of(method, scores.numpy().astype(np.float32), world.client, costs)
            np.testing.assert_allclose(saving, expected - costs.c_e, atol=1e-6)
            if name == "diff-01":
                right = bayes(world.posterior, world.client_label, costs)
                assert ((saving >= 0) == right)[world.clear(costs, NEAR_TIE)].all()


@few
@given(laws)
def test_confidnet_states_the_probability_that_the_client_gives_to_the_truth(law: tuple[int, int]) -> None:
    world, method = make_world(law[0], num_classes=law[1]), learned("confidnet")
    (scores,) = least(method, world, prices_of(PRICES[:1]), 1)
    stated = torch.sigmoid(scores[:, 0] - scores[:, 1]).numpy()
    np.testing.assert_allclose(stated, (world.posterior * world.client_probability).sum(axis=1), atol=1e-6)


@few
@given(laws)
def test_triage_states_how_likely_the_server_loses_less(law: tuple[int, int]) -> None:
    world, method = make_world(law[0], num_classes=law[1]), learned("diff-triage")
    (scores,) = least(method, world, prices_of(PRICES[:1]), 1)
    pool, probability = world.enumerated()
    client, server = (
        torch.as_tensor(p).repeat_interleave(world.num_classes, dim=0).gather(1, pool.y[:, None])[:, 0].numpy()
        for p in (world.client_probability, world.posterior)
    )
    less = (client < server).reshape(len(world), -1)
    near = np.abs(client - server).reshape(len(world), -1).min(axis=1) < 1e-6
    stated = torch.sigmoid(scores[:, 1] - scores[:, 0]).numpy()
    np.testing.assert_allclose(stated[~near], (probability.numpy() * less).sum(axis=1)[~near], atol=2e-6)


@few
@given(laws)
def test_a_coin_that_asks_decides_as_the_bayes_rule_and_with_log_losses_by_these(law: tuple[int, int]) -> None:
    world = make_world(law[0], num_classes=law[1])
    assert_decides_as_bayes("realizable-bayes", world, PRICES)
    kept, asked = (-(world.posterior * np.log(p)).sum(axis=1) for p in (world.client_probability, world.posterior))
    method = learned("mixture-of-experts")
    for at, costs in zip(least(method, world, prices_of(PRICES), len(PRICES)), PRICES, strict=True):
        dearer = kept - costs.c_e - costs.c_1 * asked
        assert (decides(method, world, at, costs) == (dearer > 0))[np.abs(dearer) > NEAR_TIE].all()


@few
@given(laws)
def test_the_realizable_surrogate_beside_a_fixed_client_in_closed_form(law: tuple[int, int]) -> None:
    world, method = make_world(law[0], num_classes=law[1]), learned("realizable-surrogate")
    (scores,) = least(method, world, prices_of(PRICES[:1]), 1)
    best = world.posterior.argmax(axis=1)
    stated = world.client_probability[np.arange(len(world)), best]
    found = np.exp((scores[:, 1] - scores[:, 0]).numpy())
    expected = np.maximum(0.0, (world.server_right - stated) / (1 - world.server_right))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-6)  # 0 is found at FAR
    # At no price the rule of the paper: the deferral score against the client's best one.
    saving = score_of(method, scores.numpy().astype(np.float32), world.client, Costs(0.0))
    highest = world.client_probability.max(axis=1)
    clear = np.abs(expected - highest) > NEAR_TIE
    assert ((saving >= 0) == (expected >= highest))[clear].all()
