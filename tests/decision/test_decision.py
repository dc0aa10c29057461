"""Who answers: the Bayes rule, ties, the oracle and the confidence threshold."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from l2h.costs import Costs
from l2h.decision import (
    CLIENT,
    SERVER,
    Answerer,
    Judgement,
    bayes,
    confidence,
    confidence_threshold,
    oracle,
)
from l2h.errors import CostError, DataError
from l2h.metrics import risk


def stated(q_m: object, q_e: object) -> Judgement:
    right = np.stack([np.asarray(q_m, dtype=float), np.asarray(q_e, dtype=float)], axis=1)
    return Judgement(right, right)


def from_scores(scores: object) -> np.ndarray:
    return Judgement(np.asarray(scores)).remote(Costs(0.1))


def test_the_bayes_rule_is_the_inequality_of_theorem_1() -> None:
    rng = np.random.default_rng(0)
    excluded = sent = 0
    for _ in range(2000):
        k = int(rng.integers(2, 11))
        eta = rng.dirichlet(np.full(k, rng.choice([0.1, 0.5, 1.0, 5.0])), size=5)
        label = rng.integers(k, size=5)
        c_e, c_1 = rng.uniform(0, 1), rng.uniform(0, 2)
        got = bayes(eta, label, Costs(c_e=c_e, c_1=c_1))
        for row, j, remote in zip(eta.tolist(), label, got, strict=True):
            right = 1 - c_e - c_1 + c_1 * max(row)
            # Both sides are sums of a few doubles of at most 3, so 1e-12 is far above their rounding.
            if abs(row[j] - right) < 1e-12:
                excluded += 1
                continue
            assert remote == (not row[j] > right)
            sent += bool(remote)
    assert excluded <= 5
    assert 1000 < sent < 9000


def test_the_bayes_rule_in_exact_arithmetic_sends_ties() -> None:
    # Eighths are exact in binary: every product and sum here is exact, and so is every tie.
    eighths = [Fraction(i, 8) for i in range(9)]
    ties = 0
    for c_e, c_1, eta_0 in itertools.product(eighths, [*eighths, Fraction(5, 4), Fraction(2)], eighths):
        eta = [eta_0, 1 - eta_0]
        costs = Costs(c_e=float(c_e), c_1=float(c_1))
        for j in (0, 1):
            right = 1 - c_e - c_1 + c_1 * max(eta)
            ties += eta[j] == right
            remote = bayes([[float(p) for p in eta]], [j], costs)[0]
            assert remote == (eta[j] <= right)
    assert ties > 50


def test_the_bayes_rule_has_no_better_rival() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        k = int(rng.integers(2, 6))
        eta, label = rng.dirichlet(np.ones(k), size=6), rng.integers(k, size=6)
        c_e, c_1 = rng.uniform(0, 1), rng.uniform(0, 2)
        best = eta.argmax(axis=1)
        local = [sum(eta[i, y] * (y != label[i]) for y in range(k)) for i in range(6)]
        remote = [sum(eta[i, y] * (c_e + c_1 * (y != best[i])) for y in range(k)) for i in range(6)]

        every = {
            sent: sum(r if s else m for s, m, r in zip(sent, local, remote, strict=True))
            for sent in itertools.product((False, True), repeat=6)
        }
        chosen = tuple(bayes(eta, label, Costs(c_e, c_1)).tolist())
        # Sums of six numbers below 3.
        assert every[chosen] == pytest.approx(min(every.values()), abs=1e-12)


def test_the_bayes_rule_of_a_random_client_has_no_better_rival() -> None:
    """Against every decision, its risk added up over the client's draw and the truth; they are independent given x."""
    rng = np.random.default_rng(7)
    for _ in range(100):
        k = int(rng.integers(2, 5))
        eta, drawn = rng.dirichlet(np.ones(k), size=4), rng.dirichlet(np.full(k, 0.5), size=4)
        c_e, c_1 = rng.uniform(0, 0.5), rng.uniform(0, 2)
        best = eta.argmax(axis=1)
        every = {
            sent: sum(
                eta[i, y] * drawn[i, said] * (c_e + c_1 * (y != best[i]) if goes else float(said != y))
                for i, goes in enumerate(sent)
                for y in range(k)
                for said in range(k)
            )
            for sent in itertools.product((False, True), repeat=4)
        }
        chosen = tuple(bayes(eta, drawn, Costs(c_e, c_1)).tolist())
        assert every[chosen] == pytest.approx(min(every.values()), abs=1e-12)
        label = rng.integers(k, size=4)
        assert (bayes(eta, np.eye(k)[label], Costs(c_e, c_1)) == bayes(eta, label, Costs(c_e, c_1))).all()


def test_the_priced_rule_is_the_bayes_rule_of_the_true_probabilities() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        eta, label = rng.dirichlet(np.ones(4), size=10), rng.integers(4, size=10)
        costs = Costs(c_e=rng.uniform(0, 1), c_1=rng.uniform(0, 2))
        by_heads = stated(eta[np.arange(10), label], eta.max(axis=1)).remote(costs)
        assert (by_heads == bayes(eta, label, costs)).all()


def test_ties_are_remote() -> None:
    assert from_scores([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-3.5, -3.5]]).tolist() == [
        True,
        False,
        True,
        True,
    ]
    assert from_scores([[0.0, -0.0], [math.inf, math.inf], [-math.inf, -math.inf]]).all()
    assert stated([0.5], [0.75]).remote(Costs(c_e=0.25, c_1=1.0)).tolist() == [True]
    # Equal chances at no price are a tie whatever their digits.
    chance = np.random.default_rng(3).random(1000)
    assert stated(chance, chance).remote(Costs(c_e=0.0, c_1=1.0)).all()
    assert confidence([0.5, 0.6], 0.5).tolist() == [True, False]


@examples(200)
@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, width=32), st.floats(allow_nan=False, width=32)),
        min_size=1,
        max_size=20,
    )
)
def test_scores_decide_sample_by_sample(scores: list[tuple[float, float]]) -> None:
    expected = [not r1 > r2 for r1, r2 in scores]
    assert from_scores(scores).tolist() == expected
    assert from_scores(np.array(scores, dtype=np.float32)).tolist() == expected


def test_nan_is_refused_with_its_sample() -> None:
    with pytest.raises(DataError, match="sample 1"):
        from_scores([[0.0, 1.0], [math.nan, 0.0]])
    with pytest.raises(DataError, match="sample 2"):
        stated([0.5, 0.5, math.nan], [0.5, 0.5, 0.5]).remote(Costs(0.1))
    with pytest.raises(DataError, match="sample 0"):
        stated([0.5], [math.nan]).remote(Costs(0.1))
    with pytest.raises(DataError, match="sample 1"):
        confidence([0.5, math.nan], 0.4)
    with pytest.raises(DataError, match="sample 0"):
        confidence_threshold([math.nan, 0.2], [True, True], [True, True], Costs(0.1))


@pytest.mark.parametrize(
    ("posterior", "label"),
    [
        ([0.5, 0.5], [0]),
        ([[0.5, 0.4]], [0]),
        ([[1.5, -0.5]], [0]),
        ([[math.nan, 1.0]], [0]),
        ([[0.5, 0.5]], [2]),
        ([[0.5, 0.5]], [-1]),
        ([[0.5, 0.5]], [0.0]),
        ([[0.5, 0.5]], [0, 1]),
        ([[0.5, 0.5]], [[0]]),
        ([[0.5, 0.5]], [[0.5, 0.4]]),
        ([[0.5, 0.5]], [[0.2, 0.3, 0.5]]),
        ([[0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]),
    ],
)
def test_what_is_no_posterior_or_no_label_is_refused(posterior: object, label: object) -> None:
    with pytest.raises(DataError):
        bayes(posterior, label, Costs(0.1))


@pytest.mark.parametrize("scores", [[0.0, 1.0], [[0.0, 1.0, 2.0]], [[[0.0, 1.0]]]])
def test_scores_of_another_shape_are_refused(scores: object) -> None:
    with pytest.raises(DataError, match="shape"):
        from_scores(scores)


def test_no_decision_beats_the_oracle() -> None:
    rng = np.random.default_rng(4)
    for n in range(1, 9):
        for _ in range(8):
            client, server = rng.random((2, n)) < 0.6
            costs = Costs(c_e=rng.uniform(0, 1.2), c_1=rng.uniform(0, 2))
            decisions = itertools.product((False, True), repeat=n)
            lowest = min(risk(client, server, list(sent), costs) for sent in decisions)
            best = risk(client, server, oracle(client, server, costs), costs)
            # Means of at most eight numbers below 4.
            assert best == pytest.approx(lowest, abs=1e-14)


@examples(200)
@given(
    outcomes=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=30),
    c_e=st.floats(0, 3),
    c_1=st.floats(0, 3),
)
def test_the_oracles_risk_bounds_every_decision(
    outcomes: list[tuple[bool, bool, bool]], c_e: float, c_1: float
) -> None:
    client, server, remote = (np.array(column) for column in zip(*outcomes, strict=True))
    costs = Costs(c_e=c_e, c_1=c_1)
    best = risk(client, server, oracle(client, server, costs), costs)
    # A mean of at most 30 numbers below 6.
    assert best <= risk(client, server, remote, costs) + 1e-14


@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_the_confidence_threshold_has_the_lowest_risk_of_all(levels: int) -> None:
    rng = np.random.default_rng(levels)
    kept_all = sent_all = cut = 0
    for _ in range(300):
        n = int(rng.integers(1, 13))
        p = rng.integers(levels, size=n) / levels  # few levels: many ties
        client, server = rng.random((2, n)) < 0.6
        costs = Costs(c_e=rng.uniform(0, 0.6), c_1=rng.uniform(0, 1.5))
        # Every threshold is equivalent to keeping all or to one that lies on a sample.
        every = [risk(client, server, p <= t, costs) for t in [-1.0, *p]]
        threshold = confidence_threshold(p, client, server, costs)
        kept_all += threshold == -math.inf
        sent_all += threshold == math.inf
        cut += math.isfinite(threshold)
        # Sums of at most twelve numbers below 3, in two orders.
        assert risk(client, server, confidence(p, threshold), costs) == pytest.approx(min(every), abs=1e-12)
    assert min(kept_all, sent_all, cut) > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("above", [1.0, 0.5, 0.7, 0.3, 0.9])
def test_the_threshold_separates_neighbouring_floats(above: float, dtype: type) -> None:
    # A saturated softmax gives 1 and its neighbour: the cut between them must not move onto either.
    p = np.array([above, above, above], dtype=dtype)
    p[0] = np.nextafter(p[1], dtype(0))
    for values in (p, np.nextafter(p, dtype(0))):
        client, server = [False, True, True], [True, False, False]
        threshold = confidence_threshold(values, client, server, Costs(c_e=0.1))
        assert confidence(values, threshold).tolist() == [True, False, False]


def test_a_threshold_needs_samples_with_outcomes() -> None:
    with pytest.raises(DataError, match="at least one"):
        confidence_threshold([], [], [], Costs(0.1))
    with pytest.raises(DataError, match="shape"):
        confidence_threshold([0.2, 0.4], [True, False, True], [True, True, True], Costs(0.1))


@examples(200)
@given(q_m=st.floats(0, 1), q_e=st.floats(0, 1), c_e=st.floats(0, 1), c_1=st.floats(0, 2), more=st.floats(0, 1))
def test_a_dearer_request_saves_less_by_what_it_is_dearer(
    q_m: float, q_e: float, c_e: float, c_1: float, more: float
) -> None:
    cheap = stated([q_m], [q_e]).saving(Costs(c_e=c_e, c_1=c_1))[0]
    dear = stated([q_m], [q_e]).saving(Costs(c_e=c_e + more, c_1=c_1))[0]
    # A handful of operations on numbers of at most 4.
    assert dear == pytest.approx(cheap - more, abs=1e-14)


STUDENT = Answerer("student", remote=False)


def test_of_many_answerers_the_cheapest_is_chosen_and_a_tie_between_the_sides_is_remote() -> None:
    rng = np.random.default_rng(5)
    answerers = (CLIENT, STUDENT, Answerer("box", remote=True), Answerer("cloud", remote=True))
    ties = 0
    for _ in range(300):
        # Eighths are exact in binary, so that ties are exact too.
        q = rng.integers(9, size=(6, 4)) / 8
        prices = {name: Costs(*(rng.integers(9, size=2) / 8)) for name in ("box", "cloud")}
        judgement = Judgement(q, q, answerers)
        chosen = judgement.choose(prices, judgement.remote(prices))
        for row, choice in zip(q.tolist(), chosen.tolist(), strict=True):
            expected = [1 - row[0], 1 - row[1]]
            expected += [
                prices[n].c_e + prices[n].c_1 * (1 - p) for n, p in zip(("box", "cloud"), row[2:], strict=True)
            ]
            local, remote = min(expected[:2]), min(expected[2:])
            ties += local == remote
            assert expected[choice] == min(expected)
            assert answerers[choice].remote == (remote <= local)
            assert expected.index(expected[choice], 2 if remote <= local else 0) == choice, "the first of equals"
        np.testing.assert_array_equal(
            judgement.saving(prices),
            judgement.expected_costs(prices)[:, :2].min(1) - judgement.expected_costs(prices)[:, 2:].min(1),
        )
    assert ties > 20


def test_several_scores_decide_by_the_largest() -> None:
    scores = np.random.default_rng(6).normal(size=(500, 3)).astype(np.float32)
    judgement = Judgement(scores, answerers=(CLIENT, STUDENT, SERVER))
    remote = judgement.remote(Costs(0.1))
    assert (remote == (scores.argmax(axis=1) == 2)).all()
    assert (judgement.choose(Costs(0.1), remote) == scores.argmax(axis=1)).all()


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"box": Costs(0.1), "clout": Costs(0.2)}, "clout"),
        ({"box": Costs(0.1)}, "cloud"),
        ({"box": Costs(0.1), "cloud": Costs.from_outcomes(0, 2, 1, 2)}, "one cost"),
    ],
)
def test_prices_of_other_servers_are_refused(prices: dict[str, Costs], message: str) -> None:
    answerers = (CLIENT, Answerer("box", remote=True), Answerer("cloud", remote=True))
    with pytest.raises(CostError, match=message):
        Judgement(np.ones((2, 3)), np.ones((2, 3)), answerers).saving(prices)


def test_one_input_is_judged_as_many_are() -> None:
    rng = np.random.default_rng(7)
    logits = (4 * rng.normal(size=(300, 2))).astype(np.float32)
    platt = [(1.3, -0.2), (0.7, 0.4)]
    together = Judgement.from_heads(logits, platt).probability
    alone = np.concatenate([Judgement.from_one_input(logits[i : i + 1], platt).probability for i in range(300)])
    # The same formula by another library: the last bit may differ.
    np.testing.assert_allclose(alone, together, rtol=4e-16)
