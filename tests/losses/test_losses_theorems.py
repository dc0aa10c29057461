"""The theorems of the surrogate losses: consistent, convex and bounded; and where the paper's L2 is not."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from l2h.answers import Answerer
from l2h.costs import Costs
from l2h.decision import CLIENT, Judgement, bayes
from l2h.losses import KINDS, priced_loss, rejector_loss, weight_table

Array = npt.NDArray[np.float64]
PROBLEMS = 10_000
NEAR_TIE = 1e-6  # of the margin: golden section finds a minimum to about the root of the rounding, 1e-8
FAR = 30.0  # logits searched: a minimiser beyond it has p below 1e-13
#: Those whose minimiser is the Bayes rule; the authors' released code computes another.
CONSISTENT = tuple(kind for kind in KINDS if kind != "released")
OUTCOMES = [(False, False), (False, True), (True, False), (True, True)]


@dataclass(frozen=True)
class Problems:
    """Points of the input space, each with its own posterior, client label and prices."""

    eta: list[Array]
    label: npt.NDArray[np.int64]
    c_e: Array
    c_1: Array
    client_right: Array
    server_right: Array
    same: npt.NDArray[np.bool_]

    @property
    def costs(self) -> list[Costs]:
        return [Costs(c_e=e, c_1=one) for e, one in zip(self.c_e.tolist(), self.c_1.tolist(), strict=True)]

    @property
    def margin(self) -> Array:
        """Expected local loss less expected remote loss."""
        return (1 - self.client_right) - (self.c_e + self.c_1 * (1 - self.server_right))

    @property
    def clear(self) -> npt.NDArray[np.bool_]:
        return np.abs(self.margin) >= NEAR_TIE

    @property
    def outcome_probability(self) -> Array:
        """(n, 4), in the order of OUTCOMES, the server being the Bayes classifier."""
        m, e = self.client_right, self.server_right
        apart = np.stack([1 - m - e, e, m, np.zeros_like(m)], axis=1)
        agree = np.stack([1 - m, np.zeros_like(m), np.zeros_like(m), m], axis=1)
        return np.where(self.same[:, None], agree, apart)


@pytest.fixture(scope="module")
def problems() -> Problems:
    rng = np.random.default_rng(20250101)
    eta, label = [], []
    for _ in range(PROBLEMS):
        k = int(rng.integers(2, 11))
        eta.append(rng.dirichlet(np.full(k, rng.choice([0.1, 0.5, 1.0, 5.0, 50.0]))))
        # A client that is often the Bayes classifier itself, so that both decisions are common.
        label.append(int(eta[-1].argmax()) if rng.random() < 0.5 else int(rng.integers(k)))
    best = np.array([int(row.argmax()) for row in eta])
    labels = np.array(label)
    return Problems(
        eta=eta,
        label=labels,
        c_e=rng.uniform(0, 1, PROBLEMS),
        c_1=rng.uniform(0, 2, PROBLEMS),
        client_right=np.array([row[j] for row, j in zip(eta, labels, strict=True)]),
        server_right=np.array([row.max() for row in eta]),
        same=labels == best,
    )


@pytest.fixture(scope="module")
def bayes_remote(problems: Problems) -> npt.NDArray[np.bool_]:
    rows = zip(problems.eta, problems.label, problems.costs, strict=True)
    return np.array([bayes(eta[None], np.array([j]), costs)[0] for eta, j, costs in rows])


def expected_weights(problems: Problems, kind: str) -> tuple[Array, Array]:
    """Mean weights (local, remote), written out from the formulas of the losses."""
    c_e, c_1, m, e = problems.c_e, problems.c_1, problems.client_right, problems.server_right
    if kind == "paper":
        return m, 1 - c_e - c_1 + c_1 * e
    if kind == "shifted":
        highest = np.maximum(1, c_e + c_1)
        return highest - (1 - m), highest - c_e - c_1 * (1 - e)
    return c_e + c_1 * (1 - e), 1 - m


def expected_loss(t: Array, w_local: Array, w_remote: Array) -> Array:
    """``-w_remote ln p_remote - w_local ln p_local`` at ``t = r2 - r1``, by exp and log."""
    return w_remote * np.log1p(np.exp(-t)) + w_local * np.log1p(np.exp(t))


def golden_section(w_local: Array, w_remote: Array) -> Array:
    """The minimiser over [-FAR, FAR] of every problem at once.

    With ``w_local >= 0`` the loss falls up to one point and rises after it. Where ``w_remote <= 0`` it rises
    throughout, its infimum lies at minus infinity, and the search ends at -FAR; likewise the other way round.
    """
    ratio = (np.sqrt(5) - 1) / 2
    low, high = np.full_like(w_local, -FAR), np.full_like(w_local, FAR)
    for _ in range(80):  # leaves 60 * 0.618 ** 80, which is 1e-15
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        fall = expected_loss(left, w_local, w_remote) > expected_loss(right, w_local, w_remote)
        low, high = np.where(fall, left, low), np.where(fall, high, right)
    return (low + high) / 2


def test_the_problems_cover_what_the_theorem_is_about(problems: Problems, bayes_remote: npt.NDArray[np.bool_]) -> None:
    dear = problems.c_e + problems.c_1 > 1
    assert {len(row) for row in problems.eta} == set(range(2, 11))
    assert min(dear.sum(), (~dear).sum()) > PROBLEMS / 5
    assert min(bayes_remote.sum(), (~bayes_remote).sum()) > PROBLEMS / 20
    assert min(bayes_remote[dear].sum(), (~bayes_remote[dear]).sum()) > PROBLEMS / 50
    # Margins have a density of the order of 1: about 2e-6 of all problems are near-ties.
    assert (~problems.clear).sum() <= 5
    # Where even the expected weight is negative the paper's loss has no minimiser at all.
    assert (expected_weights(problems, "paper")[1] < 0).sum() > PROBLEMS / 50


@pytest.mark.parametrize("kind", CONSISTENT)
def test_the_minimiser_decides_as_the_bayes_rule(
    kind: str, problems: Problems, bayes_remote: npt.NDArray[np.bool_]
) -> None:
    w_local, w_remote = expected_weights(problems, kind)
    remote = golden_section(w_local, w_remote) > 0
    assert (remote == bayes_remote)[problems.clear].all()


@pytest.mark.parametrize("kind", CONSISTENT)
def test_the_library_loss_is_least_at_that_minimiser(kind: str, problems: Problems) -> None:
    w_local, w_remote = expected_weights(problems, kind)
    t = golden_section(w_local, w_remote)
    # Perturbed points stay within the interval searched, for the sake of losses that have no minimiser.
    points = np.clip(t[:, None] + np.array([0.0, -1.0, 1.0, -0.01, 0.01, -20.0, 20.0]), -FAR, FAR)
    common = np.random.default_rng(1).normal(0, 3, size=points.shape)  # adding to both scores must not matter
    scores = torch.as_tensor(np.stack([common, common + points], axis=-1))
    client = torch.tensor([m for m, _ in OUTCOMES]).repeat(points.shape[1])
    server = torch.tensor([e for _, e in OUTCOMES]).repeat(points.shape[1])
    probability = problems.outcome_probability
    losses = np.empty_like(points)
    for i, costs in enumerate(problems.costs):
        rows = scores[i].repeat_interleave(4, dim=0)
        each = rejector_loss(rows, client, server, costs, kind=kind, reduction="none").numpy().reshape(-1, 4)
        losses[i] = each @ probability[i]
    # Sums of a few terms of at most 3 * 40.
    by_hand = expected_loss(points, w_local[:, None], w_remote[:, None])
    np.testing.assert_allclose(losses, by_hand, rtol=0, atol=1e-12)
    # The search is exact to about 1e-8 in t, which is 1e-16 in the loss; the rest is rounding.
    assert (losses[:, :1] <= losses[:, 1:] + 1e-12).all()


def test_the_minimiser_of_the_priced_loss_states_the_two_probabilities(
    problems: Problems, bayes_remote: npt.NDArray[np.bool_]
) -> None:
    # Binary cross-entropy has the same form: weight q on ln sigmoid(t), 1 - q on ln sigmoid(-t).
    logits = np.stack([golden_section(1 - q, q) for q in (problems.client_right, problems.server_right)], axis=1)
    q = 1 / (1 + np.exp(-logits))
    # The search leaves 1e-8 in t, and q moves a quarter as much.
    np.testing.assert_allclose(q[:, 0], problems.client_right, atol=1e-7)
    np.testing.assert_allclose(q[:, 1], problems.server_right, atol=1e-7)
    decided = [Judgement(q[i : i + 1], q[i : i + 1]).remote(costs)[0] for i, costs in enumerate(problems.costs)]
    assert (np.array(decided) == bayes_remote)[problems.clear].all()


def test_the_priced_loss_is_least_at_the_two_probabilities(problems: Problems) -> None:
    q = np.stack([problems.client_right, problems.server_right], axis=1).clip(1e-12, 1 - 1e-12)
    best = np.log(q / (1 - q))
    probability = problems.outcome_probability

    def expected(logits: Array) -> Array:
        total = np.zeros(len(logits))
        for column, (m, e) in enumerate(OUTCOMES):
            targets = (torch.full((len(logits),), float(right)) for right in (m, e))
            each = priced_loss(torch.as_tensor(logits), *targets, reduction="none").numpy()
            total += probability[:, column] * each
        return total

    at_best = expected(best)
    rng = np.random.default_rng(2)
    for size in (0.01, 1.0, 10.0):
        # The clip of q moves the loss by about 1e-12 * 28 where a posterior is 0 or 1.
        assert (at_best <= expected(best + rng.normal(0, size, best.shape)) + 1e-10).all()


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_the_least_priced_loss_of_several_servers_decides_as_the_bayes_rule_at_every_price(servers: int) -> None:
    rng = np.random.default_rng(servers)
    n, classes = 60, 5
    eta = rng.dirichlet(np.ones(classes), size=n)
    label = rng.integers(classes, size=(n, 1 + servers))  # of the client and of each server, at n points

    def slope(logits: Array) -> Array:
        """Return the gradient of the expected loss: one class makes all answerers right or wrong together."""
        at = torch.tensor(logits, requires_grad=True)
        for y in range(classes):
            bits = torch.as_tensor(label == y)
            loss = priced_loss(at, bits[:, 0], bits[:, 1:], reduction="none")
            (torch.as_tensor(eta[:, y]) * loss).sum().backward()
        assert at.grad is not None
        return at.grad.numpy()

    low, high = np.full(label.shape, -FAR), np.full(label.shape, FAR)
    for _ in range(60):
        middle = (low + high) / 2
        falls = slope(middle) < 0
        low, high = np.where(falls, middle, low), np.where(falls, high, middle)
    right, found = np.take_along_axis(eta, label, axis=1), 1 / (1 + np.exp(-low))
    np.testing.assert_allclose(found, right, atol=1e-12)
    answerers = (CLIENT, *(Answerer(f"server-{k}", remote=True) for k in range(servers)))
    judgement = Judgement(found, found, answerers)
    chosen = set()
    for _ in range(50):
        c_e, c_1 = rng.uniform(0, 0.4, servers), rng.uniform(0, 2, servers)
        costs = {a.name: Costs(*pair) for a, *pair in zip(answerers[1:], c_e, c_1, strict=True)}
        paid = np.column_stack([1 - right[:, 0], c_e + c_1 * (1 - right[:, 1:])])
        order = np.sort(paid, axis=1)
        clear = order[:, 1] - order[:, 0] > NEAR_TIE
        choice = judgement.choose(costs, judgement.remote(costs))
        assert (choice == paid.argmin(axis=1))[clear].all()
        chosen |= set(choice.tolist())
    assert len(chosen) == 1 + servers


@pytest.mark.parametrize("kind", CONSISTENT)
def test_the_four_cost_losses_are_consistent_too(kind: str) -> None:
    rng = np.random.default_rng(3)
    n = 1000
    q_m, q_e = rng.random(n), rng.random(n)
    c_cc, c_sc = rng.uniform(0, 2, (2, n))
    c_ce, c_se = c_cc + rng.uniform(0.05, 2, n), c_sc + rng.uniform(0, 2, n)
    l_local, l_remote = c_cc * q_m + c_ce * (1 - q_m), c_sc * q_e + c_se * (1 - q_e)
    clear = np.abs(l_local - l_remote) >= NEAR_TIE
    assert clear.sum() >= n - 2
    weights = np.empty((n, 2))
    for i in range(n):
        costs = Costs.from_outcomes(c_cc[i], c_ce[i], c_sc[i], c_se[i])
        # Client and server right independently of each other: (1, 1) is the outcome [1, 1] of the table.
        joint = np.outer([1 - q_m[i], q_m[i]], [1 - q_e[i], q_e[i]])
        weights[i] = np.einsum("ms,msk->k", joint, weight_table(costs, kind))
    remote = golden_section(weights[:, 0], weights[:, 1]) > 0
    assert (remote == (l_remote < l_local))[clear].all()


def random_costs(n: int, seed: int) -> list[Costs]:
    rng = np.random.default_rng(seed)
    costs = [Costs(c_e=rng.uniform(0, 1), c_1=rng.uniform(0, 2)) for _ in range(n)]
    assert min(sum(c.c_se > 1 for c in costs), sum(c.c_se <= 1 for c in costs)) > n / 10
    return costs


def losses_of(scores: torch.Tensor, outcome: tuple[bool, bool], costs: Costs, kind: str) -> torch.Tensor:
    client, server = (torch.full((len(scores),), right) for right in outcome)
    return rejector_loss(scores, client, server, costs, kind=kind, reduction="none")


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("kind", ["shifted", "swapped"])
def test_bounded_losses_are_convex_and_not_negative(kind: str, outcome: tuple[bool, bool]) -> None:
    generator = torch.Generator().manual_seed(4)
    for costs in random_costs(60, seed=4):
        scores = 5 * torch.randn(16, 2, dtype=torch.float64, generator=generator)
        scores.requires_grad_(True)
        value = losses_of(scores, outcome, costs, kind)
        (slope,) = torch.autograd.grad(value.sum(), scores, create_graph=True)
        hessian = torch.stack(
            [torch.autograd.grad(slope[:, k].sum(), scores, retain_graph=True)[0] for k in (0, 1)], dim=1
        )
        # Entries are at most 3; an exact zero eigenvalue (adding to both scores) comes out as about 1e-16.
        assert torch.linalg.eigvalsh(hessian).min() >= -1e-12
        assert (value >= 0).all()
        other = 5 * torch.randn(16, 2, dtype=torch.float64, generator=generator)
        middle = losses_of((scores + other) / 2, outcome, costs, kind)
        # Values are below 3 * 50, their rounding below 1e-12.
        assert (middle <= (value + losses_of(other, outcome, costs, kind)) / 2 + 1e-12).all()


@pytest.mark.parametrize("client_right", [False, True])
def test_the_papers_loss_has_no_lower_bound_where_the_server_is_wrong_and_dear(client_right: bool) -> None:
    rng = np.random.default_rng(5)
    ray = torch.tensor([[s, 0.0] for s in (10.0, 1e3, 1e6, 1e9)], dtype=torch.float64)
    for _ in range(50):
        c_e = rng.uniform(0, 1)
        costs = Costs(c_e=c_e, c_1=rng.uniform(1.01 - c_e, 2.5))
        paper = losses_of(ray, (client_right, False), costs, "paper")
        # Along the ray ln p_remote is -s, so the loss is (1 - c_e - c_1) * s, and a vanishing rest.
        expected = (1 - costs.c_se) * ray[:, 0]
        assert paper.numpy() == pytest.approx(expected.numpy(), rel=1e-2)
        assert paper[-1] < -1e6
        assert (paper.diff() < 0).all()
        for kind in ("shifted", "swapped"):
            assert (losses_of(ray, (client_right, False), costs, kind) >= 0).all()
        # Not convex either: on a chord of the ray the middle lies above.
        near = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
        low, high, middle = losses_of(near, (False, False), costs, "paper")
        assert middle > (low + high) / 2


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_papers_loss_is_bounded_for_every_other_outcome(outcome: tuple[bool, bool]) -> None:
    scores = 100 * torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    checked = 0
    for costs in random_costs(60, seed=6):
        if costs.c_se > 1 and not outcome[1]:
            continue
        assert (losses_of(scores, outcome, costs, "paper") >= 0).all()
        checked += 1
    assert checked > 6


def test_the_papers_loss_is_the_shifted_one_exactly_where_c_e_and_c_1_do_not_exceed_1() -> None:
    for costs in [*random_costs(500, seed=7), Costs(0.25, 0.75), Costs(0.0, 1.0), Costs(1.0, 0.0)]:
        paper, shifted = weight_table(costs, "paper"), weight_table(costs, "shifted")
        assert (paper == shifted).all() == (costs.c_e + costs.c_1 <= 1)
        # One shift for every outcome and both sides; costs are at most 3.
        np.testing.assert_allclose(shifted - paper, max(1.0, costs.c_e + costs.c_1) - 1, atol=1e-15)
        assert (shifted >= 0).all()


def test_the_weights_are_those_of_the_formulas() -> None:
    for costs in random_costs(200, seed=8):
        c_e, c_1 = costs.c_e, costs.c_1
        for m, e in OUTCOMES:
            l_local, l_remote = float(not m), c_e + c_1 * (not e)
            highest = max(1.0, c_e + c_1)
            expected = {
                "paper": (float(m), 1 - c_e - c_1 + c_1 * e),
                "shifted": (highest - l_local, highest - l_remote),
                "swapped": (l_remote, l_local),
                "released": (float(m), 1 - c_e + c_1 * (not e)),
            }
            for kind in KINDS:
                # Sums of three numbers of at most 3.
                assert weight_table(costs, kind)[int(m), int(e)] == pytest.approx(expected[kind], abs=1e-14)


def test_the_released_loss_keeps_what_the_server_gets_right_and_asks_where_it_errs(problems: Problems) -> None:
    """Its minimiser keeps where P(m right) > 1 - c_e + c_1 P(e wrong): the better the server, the less it is asked."""
    c_e, c_1, m, e = problems.c_e, problems.c_1, problems.client_right, problems.server_right
    clear = np.abs(m - (1 - c_e + c_1 * (1 - e))) >= NEAR_TIE
    outcomes, weights = problems.outcome_probability, np.empty((PROBLEMS, 2))
    for i, costs in enumerate(problems.costs):
        table = weight_table(costs, "released")
        weights[i] = sum(p * table[int(m), int(e)] for p, (m, e) in zip(outcomes[i], OUTCOMES, strict=True))
    remote = golden_section(weights[:, 0], weights[:, 1]) > 0
    assert (remote == (m <= 1 - c_e + c_1 * (1 - e)))[clear].all()
    assert min(remote.sum(), (~remote).sum()) > PROBLEMS / 50


def test_shifted_and_swapped_complete_each_other() -> None:
    generator = torch.Generator().manual_seed(9)
    for costs in random_costs(100, seed=9):
        scores = 3 * torch.randn(20, 2, dtype=torch.float64, generator=generator)
        highest = max(1.0, costs.c_e + costs.c_1)
        probability = torch.exp(scores) / torch.exp(scores).sum(1, keepdim=True)
        both = -highest * torch.log(probability).sum(1)
        for outcome in OUTCOMES:
            # C - l on the one, l on the other with its scores exchanged: together C on each side.
            total = losses_of(scores, outcome, costs, "shifted") + losses_of(scores.flip(1), outcome, costs, "swapped")
            # Values below 3 * 30 * 2.
            torch.testing.assert_close(total, both, rtol=1e-12, atol=1e-12)


def test_all_kinds_pull_an_undecided_rejector_with_the_same_force() -> None:
    for costs in random_costs(100, seed=10):
        for m, e in OUTCOMES:
            saving = float(not m) - (costs.c_e + costs.c_1 * (not e))
            for kind in CONSISTENT:
                scores = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
                losses_of(scores, (m, e), costs, kind).sum().backward()
                # At p = 1/2 only the difference of the weights counts: l_local - l_remote in every kind.
                assert scores.grad is not None
                assert scores.grad[0].tolist() == pytest.approx([saving / 2, -saving / 2], abs=1e-14)
