"""The frontier against sorting by hand, against random tie breaks, and at its known ends."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from l2h.errors import DataError
from l2h.metrics import frontier, frontier_gain, label_free_score

Bits = npt.NDArray[np.bool_]


def outcomes(n: int, seed: int) -> tuple[Bits, Bits]:
    rng = np.random.default_rng(seed)
    return rng.random(n) < 0.6, rng.random(n) < 0.8


def curve_by_hand(order: list[int], client: Bits, server: Bits) -> list[float]:
    """Joint accuracy with the first k of ``order`` sent, for k = 0..n."""
    n = len(order)
    points = []
    for k in range(n + 1):
        sent = set(order[:k])
        points.append(sum(bool(server[i] if i in sent else client[i]) for i in range(n)) / n)
    return points


def area_by_hand(points: list[float]) -> float:
    n = len(points) - 1
    return math.fsum((points[k] + points[k + 1]) / 2 for k in range(n)) / n


def test_without_ties_the_curve_is_that_of_sorting() -> None:
    for seed in range(20):
        client, server = outcomes(30, seed)
        score = np.random.default_rng(100 + seed).normal(size=30)
        order = sorted(range(30), key=lambda i: -score[i])
        points = curve_by_hand(order, client, server)
        got = frontier(score, client, server)
        # Quotients of counts, and a sum of thirty of them.
        assert got.rate.tolist() == pytest.approx([k / 30 for k in range(31)], abs=1e-15)
        assert got.accuracy.tolist() == pytest.approx(points, abs=1e-15)
        assert got.area == pytest.approx(area_by_hand(points), abs=1e-14)


def test_with_ties_the_area_is_the_mean_over_random_tie_breaks() -> None:
    rng = np.random.default_rng(0)
    for seed in range(3):
        client, server = outcomes(12, seed)
        score = rng.integers(0, 3, 12)
        areas = []
        for _ in range(3000):
            breaks = rng.random(12)
            order = sorted(range(12), key=lambda i: (-score[i], breaks[i]))
            gain = np.cumsum([int(server[i]) - int(client[i]) for i in order])
            points = (client.sum() + np.concatenate([[0], gain])) / 12
            areas.append(area_by_hand(points.tolist()))
        error = np.std(areas) / math.sqrt(len(areas))
        # Four standard errors of a mean: passed by chance all but once in 16,000.
        assert frontier(score, client, server).area == pytest.approx(np.mean(areas), abs=4 * error + 1e-12)


def test_samples_of_equal_score_are_one_step_whatever_their_order() -> None:
    client, server = outcomes(40, 1)
    score = np.random.default_rng(2).integers(0, 5, 40).astype(float)
    score[score == 4] = math.inf
    score[score == 0] = -math.inf
    got = frontier(score, client, server)
    assert len(got.rate) == len(np.unique(score)) + 1
    shuffled = np.random.default_rng(3).permutation(40)
    again = frontier(score[shuffled], client[shuffled], server[shuffled])
    assert (got.rate == again.rate).all()
    assert (got.accuracy == again.accuracy).all()


def test_the_ends_are_the_two_classifiers() -> None:
    for seed in range(10):
        client, server = outcomes(25, seed)
        got = frontier(np.random.default_rng(seed).normal(size=25), client, server)
        assert (got.rate[0], got.rate[-1]) == (0.0, 1.0)
        # The same quotient of counts, by a mean and by a sum.
        assert got.accuracy[0] == pytest.approx(client.mean(), abs=1e-15)
        assert got.accuracy[-1] == pytest.approx(server.mean(), abs=1e-15)


def test_the_order_matters_and_not_the_scale_of_the_score() -> None:
    client, server = outcomes(50, 4)
    score = np.random.default_rng(5).normal(size=50)
    assert frontier(score, client, server).area == frontier(np.exp(score) * 7, client, server).area


def gain_of(score: npt.NDArray[np.float64], client: Bits, server: Bits) -> float:
    gain = frontier_gain(frontier(score, client, server).area, client, server)
    assert gain is not None
    return gain


def test_the_gain_is_one_for_the_oracle_zero_for_chance_and_minus_one_for_the_reverse() -> None:
    for seed in range(10):
        client, server = outcomes(60, seed)
        oracle = server.astype(float) - client.astype(float)
        # A handful of sums of quotients, divided by an area of at least 0.05.
        assert gain_of(oracle, client, server) == pytest.approx(1.0, abs=1e-12)
        assert gain_of(np.zeros(60), client, server) == pytest.approx(0.0, abs=1e-12)
        assert gain_of(-oracle, client, server) == pytest.approx(-1.0, abs=1e-12)


def test_no_order_gains_more_than_the_oracle() -> None:
    rng = np.random.default_rng(6)
    for seed in range(30):
        client, server = outcomes(20, seed)
        gain = gain_of(rng.normal(size=20), client, server)
        # As above.
        assert -1 - 1e-12 <= gain <= 1 + 1e-12


def test_random_orders_gain_nothing_on_average() -> None:
    client, server = outcomes(30, 7)
    rng = np.random.default_rng(8)
    gains = [gain_of(rng.random(30), client, server) for _ in range(2000)]
    # Four standard errors of the mean.
    assert abs(np.mean(gains)) < 4 * np.std(gains) / math.sqrt(len(gains))


def test_there_is_no_gain_where_no_order_is_better_than_another() -> None:
    same = np.array([True, False, True])
    assert frontier_gain(2 / 3, same, same) is None
    assert frontier_gain(0.5, np.zeros(3, dtype=bool), np.ones(3, dtype=bool)) is None


def test_the_label_free_score_is_what_the_server_thinks_the_client_loses() -> None:
    rng = np.random.default_rng(9)
    p, label = rng.dirichlet(np.ones(5), size=40), rng.integers(5, size=40)
    expected = [max(row) - row[j] for row, j in zip(p.tolist(), label, strict=True)]
    got = label_free_score(p, label)
    assert got.tolist() == expected
    assert (got >= 0).all()
    assert ((got == 0) == (p.argmax(axis=1) == label)).all()


def test_the_label_free_order_is_the_best_without_labels() -> None:
    # Outcomes drawn from the server's own softmax: no ranking has a larger expected area than this one.
    rng = np.random.default_rng(10)
    p, label = rng.dirichlet(np.full(4, 0.5), size=4000), rng.integers(4, size=4000)
    y = np.array([rng.choice(4, p=row) for row in p])
    client, server = label == y, p.argmax(axis=1) == y
    bound = gain_of(label_free_score(p, label), client, server)
    # Gains of 4,000 samples scatter by about 0.02; the rivals know less and are further away than that.
    for rival in (p.max(axis=1), -p[np.arange(4000), label], rng.random(4000)):
        assert bound > gain_of(rival, client, server) + 0.02
    assert bound < 1


@pytest.mark.parametrize("score", [[0.1], [0.1, math.nan], [[0.1, 0.2]]])
def test_scores_that_rank_nothing_are_refused(score: object) -> None:
    with pytest.raises(DataError, match="score"):
        frontier(score, [True, False], [True, True])


def test_probabilities_that_do_not_fit_the_labels_are_refused() -> None:
    with pytest.raises(DataError):
        label_free_score([0.5, 0.5], [0])
    with pytest.raises(DataError):
        label_free_score([[0.5, 0.5]], [0, 1])
