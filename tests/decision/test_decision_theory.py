"""The theory of deciding between J answerers: the Bayes rule, what estimates cost, and the paper as the case J = 2."""

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from l2h.answers import Answerer
from l2h.costs import Costs, FloatArray
from l2h.decision import CLIENT, SERVER, STUDENT, Judgement, bayes
from l2h.decision.judgement import outcome_costs

SERVERS = tuple(Answerer(f"server-{k}", remote=True) for k in range(3))
CASES = [
    (CLIENT, SERVER),
    (CLIENT, STUDENT, SERVER),
    (CLIENT, *SERVERS[:2]),
    (CLIENT, STUDENT, *SERVERS[:2]),
    (CLIENT, STUDENT, *SERVERS),
]


@dataclass(frozen=True)
class Problem:
    """Points with masses and posteriors, what every answerer says at each, and prices."""

    mass: FloatArray  # (n,)
    eta: FloatArray  # (n, K)
    label: np.ndarray  # (n, J)
    answerers: tuple[Answerer, ...]
    costs: dict[str, Costs]

    @property
    def right(self) -> FloatArray:
        """(n, J), the true probability that each answerer is right."""
        return np.take_along_axis(self.eta, self.label, axis=1)

    @property
    def weight(self) -> FloatArray:
        """(J,), what a wrong answer of each costs more than a right one."""
        right, wrong = outcome_costs(self.answerers, self.costs).T
        return wrong - right

    def parts(self) -> list[list[float]]:
        """Return what every answerer adds to the risk at every point, by summing over the classes."""
        table = []
        for mass, eta, labels in zip(self.mass, self.eta, self.label, strict=True):
            row = []
            for answerer, said in zip(self.answerers, labels, strict=True):
                c_e, c_1 = 0.0, 1.0
                if answerer.remote:
                    c_e, c_1 = self.costs[answerer.name].c_e, self.costs[answerer.name].c_1
                row.append(mass * sum(p * (c_e + c_1 * (said != y)) for y, p in enumerate(eta)))
            table.append(row)
        return table

    def decide(self, probability: FloatArray) -> np.ndarray:
        judgement = Judgement(probability, probability, self.answerers)
        return judgement.choose(self.costs, judgement.remote(self.costs))


def random_problem(rng: np.random.Generator, answerers: tuple[Answerer, ...], n: int) -> Problem:
    classes = int(rng.integers(2, 6))
    eta = rng.dirichlet(np.full(classes, rng.choice([0.2, 1.0, 5.0])), size=n)
    label = rng.integers(classes, size=(n, len(answerers)))
    for k, answerer in enumerate(answerers):
        if answerer.remote and rng.random() < 0.5:  # some servers know the posterior
            label[:, k] = eta.argmax(axis=1)
    costs = {a.name: Costs(c_e=rng.uniform(0, 0.6), c_1=rng.uniform(0, 2)) for a in answerers if a.remote}
    return Problem(rng.dirichlet(np.ones(n)), eta, label, answerers, costs)


@pytest.mark.parametrize("answerers", CASES)
def test_no_choice_of_answerers_has_a_lower_risk_than_the_bayes_rule(answerers: tuple[Answerer, ...]) -> None:
    rng = np.random.default_rng(len(answerers))
    chosen = set()
    for _ in range(40):
        problem = random_problem(rng, answerers, n=4)
        parts = problem.parts()
        every = {
            choice: sum(row[k] for row, k in zip(parts, choice, strict=True))
            for choice in itertools.product(range(len(answerers)), repeat=4)
        }
        choice = tuple(problem.decide(problem.right).tolist())
        chosen |= set(choice)
        # Sums of some twenty numbers below 3.
        assert every[choice] == pytest.approx(min(every.values()), abs=1e-12)
    assert len(chosen) == len(answerers), "every answerer is the best somewhere"


@pytest.mark.parametrize("answerers", CASES)
def test_of_equal_answerers_a_server_is_asked_and_of_equal_servers_the_first(answerers: tuple[Answerer, ...]) -> None:
    rng = np.random.default_rng(7)
    first = sum(not a.remote for a in answerers)
    ties = 0
    for _ in range(40):
        # Eighths are exact in binary: every product and sum here is exact, and so is every tie.
        q = rng.integers(9, size=(20, len(answerers)))
        prices = [tuple(rng.integers(5, size=2) * 2) for _ in answerers[first:]]
        costs = {a.name: Costs(*(np.array(p) / 8)) for a, p in zip(answerers[first:], prices, strict=True)}
        judgement = Judgement(q / 8, q / 8, answerers)
        choice = judgement.choose(costs, judgement.remote(costs))
        for row, k in zip(q.tolist(), choice.tolist(), strict=True):
            wrong = [1 - Fraction(p, 8) for p in row]
            expected = wrong[:first] + [
                Fraction(int(c_e), 8) + Fraction(int(c_1), 8) * w
                for (c_e, c_1), w in zip(prices, wrong[first:], strict=True)
            ]
            best = [j for j, cost in enumerate(expected) if cost == min(expected)]
            ties += len(best) > 1
            assert k == next((j for j in best if answerers[j].remote), best[0])
    assert ties > 30


def test_two_answerers_decide_by_theorem_1_of_the_paper() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        problem = random_problem(rng, (CLIENT, SERVER), n=10)
        best = np.column_stack([problem.label[:, 0], problem.eta.argmax(axis=1)])
        problem = Problem(problem.mass, problem.eta, best, problem.answerers, problem.costs)
        remote = bayes(problem.eta, problem.label[:, 0], problem.costs["server"])
        assert (problem.decide(problem.right) == remote).all()
        costs = problem.costs["server"]
        threshold = 1 - costs.c_e - costs.c_1 + costs.c_1 * problem.eta.max(axis=1)
        clear = np.abs(problem.right[:, 0] - threshold) > 1e-9
        assert (remote == ~(problem.right[:, 0] > threshold))[clear].all()


def estimates(rng: np.random.Generator, right: FloatArray) -> FloatArray:
    """Return probabilities that are wrong in one of several ways: noise, bias, guesses, some answerers exact."""
    kind = rng.integers(4)
    if kind == 0:
        wrong = right + rng.normal(scale=rng.choice([0.01, 0.1, 0.5]), size=right.shape)
    elif kind == 1:
        wrong = right + rng.uniform(-0.5, 0.5, size=right.shape[1])
    elif kind == 2:
        wrong = rng.random(right.shape)
    else:
        wrong = np.where(rng.random(right.shape[1]) < 0.5, right, right[rng.permutation(len(right))])
    return np.clip(wrong, 0, 1)


@pytest.mark.parametrize("answerers", CASES)
def test_the_excess_risk_of_estimates_is_never_above_its_bound(answerers: tuple[Answerer, ...]) -> None:
    rng = np.random.default_rng(9)
    largest = 0.0
    for _ in range(600):
        problem = random_problem(rng, answerers, n=12)
        true, q = problem.right, estimates(rng, problem.right)
        expected = Judgement(true, true, answerers).expected_costs(problem.costs)
        rows = np.arange(12)
        excess = problem.mass @ (expected[rows, problem.decide(q)] - expected[rows, problem.decide(true)])
        bound = float(problem.mass @ np.abs(q - true) @ problem.weight)
        # Sums of some sixty numbers below 2.
        assert -1e-12 <= excess <= bound + 1e-12
        largest = max(largest, excess / bound if bound else 0.0)
    assert largest > 0.3, "the problems come near to the bound"


@pytest.mark.parametrize("answerers", CASES)
def test_the_bound_is_attained_between_every_pair_of_answerers(answerers: tuple[Answerer, ...]) -> None:
    # Where a wrong choice k looks as cheap as the best answerer j, all that is estimated wrongly is paid.
    costs = {a.name: Costs(c_e=0.125, c_1=0.5 + 0.25 * k) for k, a in enumerate(answerers) if a.remote}
    right, wrong = outcome_costs(answerers, costs).T
    attained = 0
    for j, k in itertools.permutations(range(len(answerers)), 2):
        if answerers[j].remote > answerers[k].remote or (answerers[j].remote == answerers[k].remote and j < k):
            continue  # a tie goes to j
        price = 0.5 * (max(right[j], right[k]) + min(wrong[j], wrong[k]))  # what both seem to cost
        cost = wrong.copy()  # of the others: the dearest they can be
        cost[j], cost[k] = price - 0.0625, price + 0.0625
        looks = cost.copy()
        looks[[j, k]] = price
        true, q = ((wrong - c) / (wrong - right) for c in (cost, looks))
        judgement = Judgement(q[None], q[None], answerers)
        chosen = judgement.choose(costs, judgement.remote(costs))[0]
        bound = (wrong - right) @ np.abs(q - true)
        assert chosen == k
        assert cost[chosen] - cost.min() == pytest.approx(bound, abs=1e-12)
        assert bound == pytest.approx(0.125)
        attained += 1
    assert attained == len(answerers) * (len(answerers) - 1) // 2
