"""Every learned method's loss is the one of its paper: each formula written out here, a sample at a time."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from losses_maker import LEARNED, TrainedFor, answers, learned, loss_of, make_pool, prices_of, score_of
from torch import Tensor

from l2h.costs import Costs
from l2h.losses import weighted_log_loss
from l2h.methods.deferral import (
    exponential_loss,
    one_vs_all_logits,
    one_vs_all_loss,
    softmax_deferral_loss,
    two_stage_score_loss,
)
from l2h.methods.helping import binary_loss, calibrating_beta
from l2h.methods.learned import bounded_exp
from l2h.training import SamplePool

# All sums of powers of two: exact in the single precision that prices are kept in.
CHEAP, DEAR = Costs(c_e=0.125, c_1=0.5), Costs(c_e=0.25, c_1=1.25)
PRICES = [CHEAP, DEAR]
#: Of the server on calibration samples, which is all that learning with abstention knows of it: 1 in 4.
SERVER_ERROR = 0.25
ANY_PRICE = [name for name in LEARNED if learned(name).any_price]
UNBOUNDED = "l2h-paper"
#: Flat far away on one side or both: of a sigmoid, a tanh, or a sum in which the exponential of the score vanishes.
FLAT = ("diff-01", "diff-prob", "confidnet", "mixture-of-experts", "realizable-bayes", "realizable-surrogate")
FLAT += ("softmax-l2d-constant",)
#: Those whose deferral score stands beside the client's best one.
BESIDE = ("softmax-l2d", "softmax-l2d-constant", "two-stage-confidence")
OUTCOMES = [(True, True), (True, False), (False, True), (False, False)]


@dataclass(frozen=True)
class Sample:
    """One sample with what client and server say of it, and the targets of the priced heads."""

    client: tuple[float, ...]
    server: tuple[float, ...]
    y: int
    client_target: float
    server_target: float

    @property
    def client_right(self) -> bool:
        return self.client.index(max(self.client)) == self.y

    @property
    def server_right(self) -> bool:
        return self.server.index(max(self.server)) == self.y

    def remote(self, costs: Costs) -> float:
        """``c_e + c_1 1[e != y]``."""
        return costs.c_e + costs.c_1 * (not self.server_right)


THREE = [
    Sample((0.7, 0.2, 0.1), (0.8, 0.1, 0.1), 0, 1.0, 1.0),
    Sample((0.1, 0.6, 0.3), (0.2, 0.2, 0.6), 1, 0.85, 0.1),
    Sample((0.2, 0.3, 0.5), (0.15, 0.7, 0.15), 1, 0.0, 0.9),
    Sample((0.45, 0.35, 0.2), (0.3, 0.3, 0.4), 1, 0.35, 0.25),
    Sample((0.05, 0.9, 0.05), (0.02, 0.96, 0.02), 0, 0.05, 0.0),
    Sample((0.4, 0.3, 0.3), (0.1, 0.3, 0.6), 2, 0.2, 0.75),
]
TWO = [
    Sample((0.75, 0.25), (0.9, 0.1), 0, 1.0, 1.0),
    Sample((0.3, 0.7), (0.55, 0.45), 1, 0.5, 0.25),
    Sample((0.8, 0.2), (0.02, 0.98), 1, 0.0, 1.0),
    Sample((0.45, 0.55), (0.4, 0.6), 0, 0.1, 0.2),
    Sample((0.1, 0.9), (0.35, 0.65), 1, 0.9, 0.7),
]


def samples_of(name: str) -> list[Sample]:
    return TWO if learned(name).classes == 2 else THREE


def pool_of(samples: list[Sample], dtype: torch.dtype = torch.float64) -> SamplePool:
    return make_pool(
        [s.y for s in samples],
        [s.client for s in samples],
        [s.server for s in samples],
        client_target=[s.client_target for s in samples],
        server_target=[s.server_target for s in samples],
        dtype=dtype,
    )


def normal(*shape: int, seed: int) -> Tensor:
    return 2 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def trained_for(name: str, costs: list[Costs]) -> TrainedFor:
    """The method's prices on a bench whose server errs on one calibration sample in four."""
    return TrainedFor(tuple(costs), 6 / 8)


def psi(z: float) -> float:
    """The logistic loss."""
    return math.log(1 + math.exp(-z))


def log_softmax(scores: list[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(s) for s in scores))
    return [s - total for s in scores]


def cross_entropy(target: float, logit: float) -> float:
    return target * psi(logit) + (1 - target) * psi(-logit)


def abstain(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Cortes et al. 2016, exponential, alpha = beta = 1, at the mean cost of asking."""
    r, c = r_1 - r_2, costs.c_e + costs.c_1 * SERVER_ERROR
    return (not s.client_right) * math.exp(r) + c * math.exp(-r)


def softmax_l2d(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Mozannar and Sontag 2020, the cost-sensitive form: deferring is class K + 1."""
    log_p = log_softmax([*(math.log(p) for p in s.client), r_2 - r_1])
    cost = [*(float(i != s.y) for i in range(len(s.client))), s.remote(costs)]
    return -math.fsum((max(cost) - c) * log for c, log in zip(cost, log_p, strict=True))


def ova_l2d(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Verma and Nalisnick 2022: K + 1 binary classifiers."""
    g = [math.log(p / (1 - p)) for p in s.client]
    g_d = r_2 - r_1
    classes = psi(g[s.y]) + math.fsum(psi(-g[i]) for i in range(len(g)) if i != s.y)
    return classes + psi(-g_d) + s.server_right * (psi(g_d) - psi(-g_d))


def two_stage_confidence(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Mao et al. 2023, score-based, log-loss; the highest cost for 1 where it is above 1."""
    keep, send = log_softmax([math.log(max(s.client)), r_2 - r_1])
    highest = max(1.0, costs.c_e + costs.c_1)
    return -(highest - (not s.client_right)) * keep - (highest - s.remote(costs)) * send


def two_stage_separate(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Mao et al. 2023, predictor-rejector, exponential."""
    r = r_1 - r_2
    return (not s.client_right) * math.exp(r) + s.remote(costs) * math.exp(-r)


def selective_query(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Kag et al. 2023, the router's supervision: the client wrong and the server right."""
    return cross_entropy(not s.client_right and s.server_right, r_2 - r_1)


def appealnet(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Li et al. 2021, the loss of both heads with a classifier that is fixed."""
    q = 1 / (1 + math.exp(r_2 - r_1))
    return -q * math.log(s.client[s.y]) - (1 - q) * math.log(s.server[s.y]) - 0.1 * math.log(q)


def constant_l2d(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Mozannar and Sontag 2020 with one highest cost for all samples, the classes where it would leave them."""
    top = max(1.0, costs.c_e + costs.c_1)
    log_p = log_softmax([math.log(top - 1 + p) for p in (*s.client, math.exp(r_2 - r_1))])
    cost = [*(float(i != s.y) for i in range(len(s.client))), s.remote(costs)]
    return -math.fsum((top - c) * log for c, log in zip(cost, log_p, strict=True))


def posthoc_rejector(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Narasimhan et al. 2022, logistic: each side pays where the other would have cost nothing."""
    return (not s.client_right) * psi(r_2 - r_1) + s.remote(costs) * psi(r_1 - r_2)


def diff_01(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Jitkrittum et al. 2023: regression of the difference of two bits."""
    return (math.tanh(r_2 - r_1) - (s.server_right - s.client_right)) ** 2


def diff_prob(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """The same of two probabilities of the truth."""
    return (math.tanh(r_2 - r_1) - (s.server[s.y] - s.client[s.y])) ** 2


def confidnet(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Corbiere et al. 2019: regression of the true class probability."""
    return (1 / (1 + math.exp(r_2 - r_1)) - s.client[s.y]) ** 2


def diff_triage(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Okati et al. 2021, the policy's step: whose cross-entropy is the larger one."""
    return cross_entropy(-math.log(s.client[s.y]) > -math.log(s.server[s.y]), r_2 - r_1)


def mixture(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Madras et al. 2018: both log-losses, weighed by the chance to defer."""
    asks = 1 / (1 + math.exp(r_1 - r_2))
    return -(1 - asks) * math.log(s.client[s.y]) + asks * (costs.c_e - costs.c_1 * math.log(s.server[s.y]))


def realizable(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Mozannar et al. 2023: one logarithm of the softmax of all that is right."""
    scores = [*s.client, math.exp(r_2 - r_1)]
    right = scores[s.y] + (scores[-1] if s.server_right else 0.0)
    return -2 * math.log(right / math.fsum(scores))


def realizable_bayes(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Mao et al. 2024 with Psi(t) = 1 - t, the softmax of a client that is sure of its answer."""
    s_d, c = 1 / (1 + math.exp(r_1 - r_2)), s.remote(costs)
    s_y = (1 - s_d) * s.client_right
    return c * (1 - s_y) + (1 - c) * (1 - (s_y + s_d))


def asymmetric(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Cao et al. 2023: the largest class is left out of what deferring is compared with."""
    u = [*s.client, math.exp(r_2 - r_1)]
    q = u[-1] / (math.fsum(u) - max(s.client))
    return -math.log(s.client[s.y]) - (math.log(q) if s.server_right else math.log(1 - q))


def binary_l2h(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Wu and Sarwate 2024 with labels -1 and 1; e is the log-odds over beta, beta the root of p_min / p_max."""
    r, y = r_1 - r_2, 1 if s.y == 1 else -1
    beta = math.sqrt(min(s.server) / max(s.server))
    e = math.log(s.server[1] / s.server[0]) / beta
    server = costs.c_1 * math.exp(beta / 2 * (-e * y - r)) + costs.c_e * math.exp(-r)
    return server + (not s.client_right) * math.exp(r)


def paper(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    """Wu, Li and Sarwate 2025, L2."""
    log_local, log_remote = log_softmax([r_1, r_2])
    remote = 1 - costs.c_e - costs.c_1 + costs.c_1 * s.server_right
    return -remote * log_remote - s.client_right * log_local


def shifted(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    log_local, log_remote = log_softmax([r_1, r_2])
    highest = max(1.0, costs.c_e + costs.c_1)
    return -(highest - (not s.client_right)) * log_local - (highest - s.remote(costs)) * log_remote


def swapped(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    log_local, log_remote = log_softmax([r_1, r_2])
    return -s.remote(costs) * log_local - (not s.client_right) * log_remote


def priced(r_1: float, r_2: float, s: Sample, costs: Costs) -> float:
    return cross_entropy(s.client_target, r_1) + cross_entropy(s.server_target, r_2)


FORMULAS: dict[str, Callable[[float, float, Sample, Costs], float]] = {
    "lwa-separate": abstain,
    "softmax-l2d": softmax_l2d,
    "ova-l2d": ova_l2d,
    "two-stage-confidence": two_stage_confidence,
    "two-stage-separate": two_stage_separate,
    "softmax-l2d-constant": constant_l2d,
    "posthoc-rejector": posthoc_rejector,
    "diff-01": diff_01,
    "diff-prob": diff_prob,
    "confidnet": confidnet,
    "diff-triage": diff_triage,
    "mixture-of-experts": mixture,
    "realizable-surrogate": realizable,
    "realizable-bayes": realizable_bayes,
    "asymmetric-softmax": asymmetric,
    "selective-query": selective_query,
    "appealnet": appealnet,
    "binary-l2h": binary_l2h,
    "l2h-paper": paper,
    "shifted-separate": shifted,
    "swapped-separate": swapped,
    "priced-separate": priced,
    "shifted-attached": shifted,
    "swapped-attached": swapped,
    "priced-attached": priced,
}


def test_every_learned_method_has_its_formula_here_and_the_samples_have_every_outcome() -> None:
    assert set(FORMULAS) == set(LEARNED)
    for samples in (TWO, THREE):
        assert {(s.client_right, s.server_right) for s in samples} == set(OUTCOMES)
    assert CHEAP.c_se <= 1 < DEAR.c_se


@pytest.mark.parametrize("name", LEARNED)
def test_the_loss_is_that_of_the_formula(name: str) -> None:
    samples = samples_of(name)
    scores = normal(len(PRICES), len(samples), 2, seed=1)
    found = loss_of(learned(name), scores, pool_of(samples), trained_for(name, PRICES))
    by_hand = [
        [FORMULAS[name](*pair, sample, costs) for pair, sample in zip(row, samples, strict=True)]
        for row, costs in zip(scores.tolist(), PRICES, strict=True)
    ]
    assert found.shape == (len(PRICES), len(samples))
    # Prices are exact, the rest is double precision; values are below 1e3.
    np.testing.assert_allclose(found.numpy(), by_hand, rtol=1e-11)


@pytest.mark.parametrize("name", LEARNED)
def test_single_precision_gives_the_same_loss(name: str) -> None:
    samples = samples_of(name)
    scores = normal(len(PRICES), len(samples), 2, seed=2)
    prices = trained_for(name, PRICES)
    double = loss_of(learned(name), scores, pool_of(samples), prices)
    single = loss_of(learned(name), scores.float(), pool_of(samples, torch.float32), prices)
    assert single.dtype == torch.float32
    # float32 carries seven digits; exponents of up to 10 lose one of them.
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LEARNED)
def test_a_rejectors_loss_depends_on_its_own_price_only(name: str) -> None:
    samples, method = samples_of(name), learned(name)
    pool, scores = pool_of(samples), normal(1, len(samples), 2, seed=3)
    others = [Costs(0.0, 1.5), Costs(1.0, 2.0), DEAR]
    alone = loss_of(method, scores, pool, trained_for(name, [CHEAP]))[0]
    for other in others:
        both = loss_of(method, scores.expand(2, -1, -1), pool, trained_for(name, [CHEAP, other]))
        assert torch.equal(both[0], alone)
        turned = loss_of(method, scores.expand(2, -1, -1), pool, trained_for(name, [other, CHEAP]))
        assert torch.equal(turned[1], alone)
        # And on that it does depend, unless one rejector answers for every price.
        assert torch.equal(both[1], alone) == method.any_price


@pytest.mark.parametrize("name", LEARNED)
def test_only_the_priced_heads_are_two_scores(name: str) -> None:
    samples = samples_of(name)
    pool, scores = pool_of(samples), normal(2, len(samples), 2, seed=4)
    prices = trained_for(name, PRICES)
    before, after = (loss_of(learned(name), s, pool, prices) for s in (scores, scores + 3.0))
    # Adding to both scores rounds them by 1e-15, and exponentials carry that on.
    assert torch.allclose(before, after, rtol=1e-12) == (not name.startswith("priced"))


@pytest.mark.parametrize("name", LEARNED)
def test_a_method_learns_of_the_server_what_its_traits_say(name: str) -> None:
    samples, method = samples_of(name), learned(name)
    pool, scores = pool_of(samples), normal(2, len(samples), 2, seed=5)
    other = replace(
        pool,
        server_correct=~pool.server_correct,
        server_probability=pool.server_probability.flip(-1),
        server_target=1 - pool.server_target,
    )
    prices = trained_for(name, PRICES)
    assert method.traits is not None
    differ = not torch.equal(loss_of(method, scores, pool, prices), loss_of(method, scores, other, prices))
    assert differ == method.traits.learns_server


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("pair", [list(p) for p in itertools.product((-1e4, 0.0, 1e4), repeat=2)])
def test_losses_and_gradients_are_finite_at_extreme_scores(name: str, pair: list[float]) -> None:
    samples = samples_of(name)
    scores = torch.tensor(pair).expand(2, len(samples), 2).clone().requires_grad_()
    loss = loss_of(learned(name), scores, pool_of(samples, torch.float32), trained_for(name, PRICES))
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss).all()
    assert torch.isfinite(scores.grad).all()
    # No loss is below 0 but the paper's at the dear price.
    assert (loss[0] >= 0).all()
    assert (loss[1] >= 0).all() or name == UNBOUNDED


def slope(name: str, samples: list[Sample], sent: float) -> Tensor:
    """Of the summed loss in ``sent = r_2 - r_1``, the same for all samples; one a price, or one a price and head."""
    scores = torch.tensor([-sent / 2, sent / 2], dtype=torch.float32).expand(2, len(samples), 2)
    scores = scores.clone().requires_grad_()
    loss_of(learned(name), scores, pool_of(samples, torch.float32), trained_for(name, PRICES)).sum().backward()
    assert scores.grad is not None
    along = scores.grad.sum(dim=1) * torch.tensor([-0.5, 0.5])
    return along if name.startswith("priced") else along.sum(dim=1)


#: AppealNet's loss keeps all where the client's loss is the smaller one on the whole, as it is here.
@pytest.mark.parametrize("name", [name for name in LEARNED if name not in (UNBOUNDED, "appealnet", *FLAT)])
def test_from_far_off_the_gradient_leads_back(name: str) -> None:
    # With every outcome among the samples, sending all and keeping all are both wrong.
    for far in (50.0, 1e4):
        assert (slope(name, samples_of(name), far) > 0).all()
        assert (slope(name, samples_of(name), -far) < 0).all()


def test_from_far_off_the_papers_gradient_leads_further_away_where_the_server_errs_and_is_dear() -> None:
    errs = [s for s in THREE if not s.server_right]
    cheap, dear = slope(UNBOUNDED, errs, -1e4)
    # Its weight is 1 - c_e - c_1 on each of them; where all is LOCAL that is the whole slope, with the other sign.
    assert cheap.item() == pytest.approx(-len(errs) * (1 - CHEAP.c_se), rel=1e-6)
    assert dear.item() == pytest.approx(len(errs) * (DEAR.c_se - 1), rel=1e-6)
    assert cheap < 0 < dear


@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    samples = samples_of(name)
    pool, prices = pool_of(samples), trained_for(name, PRICES)
    scores = normal(2, len(samples), 2, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(lambda at: loss_of(learned(name), at, pool, prices), (scores,))


def test_the_gradients_of_the_functions_are_those_of_finite_differences() -> None:
    n, K = 6, 4
    right, server = torch.arange(n) % 2 == 0, torch.arange(n) % 3 == 0
    y, prices = torch.arange(n) % K, prices_of(PRICES).tensors()
    remote, highest = prices.remote(server).double(), prices.highest.double()
    free = normal(2, n, seed=7).requires_grad_()
    classes = normal(n, K, seed=8).requires_grad_()
    margin, beta = normal(n, seed=9).requires_grad_(), torch.rand(n, dtype=torch.float64).requires_grad_()
    posterior = torch.softmax(normal(n, K, seed=10), dim=-1).requires_grad_()
    check = torch.autograd.gradcheck
    assert check(lambda r: exponential_loss(r, right, torch.tensor([[0.2], [0.7]]).double()), (free,))
    assert check(lambda r: exponential_loss(r, right, remote), (free,))
    assert check(lambda g, h: softmax_deferral_loss(g, h, y, remote), (free, classes))
    one, cost = free[..., None], remote[..., None]  # of one server
    assert check(lambda g, h: one_vs_all_loss(g, h, y, server[:, None]), (one, classes))
    assert check(lambda g, h: two_stage_score_loss(g, h, right, cost, highest), (one, classes[:, 0].detach()))
    assert check(lambda g, h: two_stage_score_loss(g, h, right, cost, highest), (one.detach(), margin))
    assert check(lambda r, e, b: binary_loss(r, e, right, prices, b), (free, margin, beta))
    assert check(one_vs_all_logits, (torch.log(posterior).detach().requires_grad_(),))
    assert check(calibrating_beta, (posterior,))


def test_the_bounded_exponential_is_exp_up_to_15_and_its_tangent_beyond() -> None:
    x = torch.tensor([-1e4, -30.0, -1.0, 0.0, 3.0, 15.0, 15.0 + 1e-9, 16.0, 40.0, 1e4], dtype=torch.float64)
    x.requires_grad_()
    value = bounded_exp(x)
    value.sum().backward()
    top = math.exp(15)
    by_hand = [math.exp(t) if t <= 15 else top + top * (t - 15) for t in x.tolist()]
    # Doubles; the tangent is a product of two of them.
    assert value.tolist() == pytest.approx(by_hand, rel=1e-12)
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([math.exp(min(t, 15.0)) for t in x.tolist()], rel=1e-12)
    single = torch.tensor([-1e4, 1e4, 1e30], requires_grad=True)
    bounded_exp(single).sum().backward()
    assert torch.isfinite(bounded_exp(single)).all()
    assert torch.isfinite(single.grad).all()


def test_the_bounded_exponential_is_convex_and_rises() -> None:
    x = torch.linspace(-20, 40, 2001, dtype=torch.float64)
    steps = bounded_exp(x).diff()
    assert (steps > 0).all()
    # Beyond 15 the steps are equal, up to the rounding of values of 1e8.
    assert (steps.diff() >= -1e-6).all()


def test_softmax_deferral_is_the_familiar_loss_for_costs_of_at_most_1() -> None:
    n, K = 40, 5
    defer, classes, y = normal(3, n, seed=11), normal(n, K, seed=12), torch.arange(n) % K
    cost = torch.rand(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(13))
    cost[0, 0], cost[0, 1] = 0.0, 1.0
    found = softmax_deferral_loss(defer, classes, y, cost)
    for r, i in itertools.product(range(3), range(n)):
        log_p = log_softmax([*classes[i].tolist(), defer[r, i].item()])
        familiar = -log_p[int(y[i])] - (1 - cost[r, i].item()) * log_p[K]
        # Values of the order of 10.
        assert found[r, i].item() == pytest.approx(familiar, rel=1e-12)


def test_softmax_deferral_never_weighs_below_zero_whatever_it_costs() -> None:
    defer = torch.linspace(-50, 50, 101, dtype=torch.float64)[None]
    for cost in (0.0, 0.5, 1.0, 1.5, 4.0):
        value = softmax_deferral_loss(
            defer,
            torch.zeros(101, 3, dtype=torch.float64),
            torch.zeros(101, dtype=torch.long),
            torch.full((1, 101), cost),
        )
        assert (value >= 0).all()


def test_two_stage_scores_are_the_shifted_loss_with_the_best_class_in_the_place_of_local() -> None:
    scores = normal(2, len(THREE), seed=14)
    pool, prices = pool_of(THREE), prices_of(PRICES)
    best = torch.tensor([math.log(max(s.client)) for s in THREE], dtype=torch.float64)
    tensors = prices.tensors()
    remote = tensors.remote(pool.server_correct)
    found = two_stage_score_loss(scores[..., None], best, pool.client_correct, remote[..., None], tensors.highest)
    pairs = torch.stack([best.expand_as(scores), scores], dim=-1)
    # Values of the order of 10.
    torch.testing.assert_close(found, loss_of(learned("shifted-separate"), pairs, pool, prices), rtol=1e-12, atol=1e-12)


def test_with_a_logistic_phi_the_two_stage_rejector_would_be_the_swapped_loss() -> None:
    scores, pool, prices = normal(2, len(THREE), 2, seed=15), pool_of(THREE), prices_of(PRICES)
    r = (scores[..., 0] - scores[..., 1]).numpy()
    wrong, cost = (~pool.client_correct).numpy(), prices.tensors().remote(pool.server_correct).numpy()
    by_hand = wrong * np.log1p(np.exp(r)) + cost * np.log1p(np.exp(-r))
    # Values of the order of 10.
    np.testing.assert_allclose(loss_of(learned("swapped-separate"), scores, pool, prices).numpy(), by_hand, rtol=1e-12)


def test_the_papers_loss_is_the_shifted_one_only_where_asking_costs_1_at_most() -> None:
    scores, pool, prices = normal(2, len(THREE), 2, seed=16), pool_of(THREE), prices_of(PRICES)
    published, bounded = (loss_of(learned(name), scores, pool, prices) for name in ("l2h-paper", "shifted-separate"))
    assert torch.equal(published[0], bounded[0])
    assert not torch.isclose(published[1], bounded[1]).any()
    # They differ by the shift on both sides.
    extra = weighted_log_loss(scores[1], torch.full((len(THREE), 2), DEAR.c_se - 1))
    torch.testing.assert_close(bounded[1] - published[1], extra, rtol=1e-12, atol=1e-12)


def test_abstaining_costs_what_asking_costs_on_average() -> None:
    prices = trained_for("lwa-separate", PRICES).tensors("lwa-separate")
    for place in (prices.remote_right, prices.remote_wrong):
        assert place[:, 0].tolist() == [c.c_e + c.c_1 * SERVER_ERROR for c in PRICES]
    assert prices.local_right[:, 0].tolist() == [0.0, 0.0]
    assert prices.local_wrong[:, 0].tolist() == [1.0, 1.0]


def scored(name: str, defer: np.ndarray, stated: np.ndarray, costs: Costs) -> np.ndarray:
    """REMOTE by the rule of the paper, for deferral scores ``r_2 - r_1``."""
    scores = np.stack([np.zeros_like(defer), defer], axis=1).astype(np.float32)
    return score_of(learned(name), scores, answers(stated), costs) >= 0


@pytest.mark.parametrize("K", [2, 3, 10])
def test_the_one_vs_all_rule_without_prices_is_the_largest_score(K: int) -> None:
    rng = np.random.default_rng(17)
    stated, defer = rng.dirichlet(np.ones(K), size=500), rng.normal(0, 3, size=500)
    g = np.log(stated / (1 - stated)).max(axis=1)
    clear = np.abs(defer - g) > 1e-4  # single precision keeps seven digits of scores below 20
    assert clear.sum() > 490
    sent = scored("ova-l2d", defer, stated, Costs(c_e=0.0, c_1=1.0))
    assert (sent == (defer >= g))[clear].all()
    assert 0 < sent.sum() < 500


@pytest.mark.parametrize("costs", [CHEAP, DEAR, Costs(0.05, 1.0)])
def test_the_one_vs_all_rule_with_prices_compares_the_two_stated_losses(costs: Costs) -> None:
    rng = np.random.default_rng(18)
    stated, defer = rng.dirichlet(np.ones(4), size=500), rng.normal(0, 3, size=500)
    remote = costs.c_e + costs.c_1 * (1 - 1 / (1 + np.exp(-defer)))
    local = 1 - stated.max(axis=1)
    clear = np.abs(local - remote) > 1e-5  # single precision
    assert (scored("ova-l2d", defer, stated, costs) == (local >= remote))[clear].all()


@pytest.mark.parametrize("name", BESIDE)
def test_deferral_scores_compete_with_the_clients_best_one(name: str) -> None:
    rng = np.random.default_rng(19)
    stated, defer = rng.dirichlet(np.ones(4), size=500), rng.normal(-1, 1, size=500)
    everything = np.concatenate([np.log(stated), defer[:, None]], axis=1)
    clear = np.abs(defer - np.log(stated).max(axis=1)) > 1e-5  # single precision
    sent = scored(name, defer, stated, DEAR)
    assert (sent == (everything.argmax(axis=1) == 4))[clear].all()
    assert 0 < sent.sum() < 500


@pytest.mark.parametrize("name", [name for name in LEARNED if name not in BESIDE and name not in ANY_PRICE])
def test_every_other_rule_is_local_iff_the_first_score_is_above_the_second(name: str) -> None:
    stated = np.full((3, 2), 0.5)
    assert scored(name, np.array([-0.5, 0.0, 0.5]), stated, DEAR).tolist() == [False, True, True]


@pytest.mark.parametrize("name", ANY_PRICE)
def test_one_rejector_for_every_price_takes_prices_of_any_number(name: str) -> None:
    samples, scores = samples_of(name), normal(1, len(THREE), 2, seed=20)
    pool = pool_of(samples)
    one, two = (loss_of(learned(name), scores, pool, trained_for(name, costs)) for costs in ([CHEAP], PRICES))
    assert one.shape == (1, len(samples))
    assert torch.equal(one, two)
