"""Pacing: the budget goes to the inputs that gain most, and it is spent."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from l2h.limits import Limiter, RateLimit, threshold_for
from l2h.limits.pacing import RecentScores

HOUR = 3600.0
Floats = npt.NDArray[np.float64]


def send(limiter: Limiter, clock: Any, times: Floats, scores: Floats) -> npt.NDArray[np.bool_]:
    sent = []
    for t, score in zip(times.tolist(), scores.tolist(), strict=True):
        clock.now = t
        sent.append(limiter.allow(score).granted)
    return np.array(sent)


def steady(rng: np.random.Generator, per_hour: float, hours: float, start: float = 0.0) -> Floats:
    n = rng.poisson(per_hour * hours)
    return start + np.sort(rng.random(n)) * hours * HOUR


def bursty(rng: np.random.Generator, hours: float) -> Floats:
    """Ten bursts an hour of some hundred requests within seconds to minutes, over a trickle."""
    parts = [steady(rng, 200, hours)]
    for at in np.sort(rng.random(rng.poisson(10 * hours))) * hours * HOUR:
        parts.append(at + np.sort(rng.random(rng.poisson(100))) * rng.exponential(60.0))
    return np.sort(np.concatenate(parts))


def gain_of_sending(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Scores as a noisy rejector gives them, and what sending gains in right answers: 1, 0 or -1."""
    doubt = rng.beta(0.8, 3.2, n)
    client, server = rng.random(n) > doubt, rng.random(n) < 0.9
    noisy = np.log(doubt / (1 - doubt)) + rng.normal(0, 1, n)
    return 1 / (1 + np.exp(-noisy)) - 0.1, server.astype(float) - client


@pytest.mark.long
def test_pacing_is_more_accurate_than_first_come_on_bursty_streams(make_clock: Any) -> None:
    above = []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        times = bursty(rng, hours=4)
        scores, gain = gain_of_sending(rng, len(times))
        accuracy = {}
        for pacing in (False, True):
            clock = make_clock()
            limiter = Limiter(RateLimit(100, per="1h"), clock=clock, pacing=pacing, min_score=0.0)
            accuracy[pacing] = 100 * (gain * send(limiter, clock, times, scores)).sum() / len(times)
        above.append(accuracy[True] - accuracy[False])
    error = np.std(above, ddof=1) / math.sqrt(len(above))
    # In points of accuracy: above by three standard errors, and by half a point.
    assert np.mean(above) > 3 * error
    assert np.mean(above) > 0.5


@pytest.mark.parametrize(
    ("count", "kind"),
    [
        *((count, "continuous") for count in (20, 100, 500)),
        *((100, kind) for kind in ("all equal", "two values")),
        *(
            pytest.param(count, kind, marks=pytest.mark.long)
            for count in (20, 500)
            for kind in ("all equal", "two values")
        ),
    ],
)
def test_steady_traffic_uses_the_budget(count: int, kind: str, make_clock: Any) -> None:
    used = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        times = steady(rng, per_hour=1500, hours=5)
        n = len(times)
        scores = {
            "continuous": rng.normal(size=n),
            "all equal": np.zeros(n),
            "two values": (rng.random(n) < 0.5).astype(float),
        }
        clock = make_clock()
        sent = send(Limiter(RateLimit(count, per="1h"), clock=clock), clock, times, scores[kind])
        used.append(sent[times > HOUR].sum() / (4 * count))
    assert 0.85 <= np.mean(used) <= 1.0


def test_a_budget_larger_than_the_traffic_is_no_hindrance(clock: Any) -> None:
    rng = np.random.default_rng(0)
    times = steady(rng, per_hour=60, hours=5)
    sent = send(Limiter(RateLimit(100, per="1h"), clock=clock), clock, times, rng.normal(size=len(times)))
    assert sent.mean() > 0.95


def test_what_goes_is_what_scores_high(clock: Any) -> None:
    rng = np.random.default_rng(1)
    times = steady(rng, per_hour=1000, hours=5)
    scores = rng.random(len(times))
    sent = send(Limiter(RateLimit(100, per="1h"), clock=clock), clock, times, scores)
    # The best tenth of uniform scores has a mean of 0.95; first come, first served has 0.5.
    assert scores[sent].mean() > 0.93


def test_a_share_of_requests_is_paced_too() -> None:
    rng = np.random.default_rng(2)
    limiter = Limiter(RateLimit(fraction=0.2, window=500))
    scores = rng.random(10_000)
    sent = np.array([limiter.allow(s).granted for s in scores.tolist()])
    # The best fifth has a mean of 0.9.
    assert scores[sent].mean() > 0.88
    assert 0.85 * 0.2 <= sent.mean() <= 0.2


def test_after_a_lull_a_burst_finds_budget_and_soon_keeps_to_its_best(make_clock: Any) -> None:
    rng = np.random.default_rng(3)
    calm = steady(rng, per_hour=50, hours=3)
    burst = steady(rng, per_hour=20_000, hours=0.1, start=3 * HOUR)
    after = steady(rng, per_hour=100, hours=1, start=3.1 * HOUR)
    times = np.concatenate([calm, burst, after])
    scores = rng.random(len(times))
    in_burst = (times >= 3 * HOUR) & (times < 3.1 * HOUR)
    sent = {}
    for pacing in (False, True):
        clock = make_clock()
        limiter = Limiter(RateLimit(100, per="1h"), clock=clock, pacing=pacing)
        sent[pacing] = send(limiter, clock, times, scores)
    assert sent[True][(times >= 2.1 * HOUR) & (times < 3.1 * HOUR)].sum() >= 85
    # Nobody knows of a first burst before it comes: its first requests are taken for those of a quiet hour.
    assert scores[in_burst & sent[True]].mean() > scores[in_burst & sent[False]].mean() + 0.1
    late = in_burst & (times >= 3.02 * HOUR)
    assert scores[late & sent[True]].mean() > 0.95


def test_after_a_burst_the_limiter_comes_back_to_the_quiet_hours(clock: Any) -> None:
    rng = np.random.default_rng(4)
    times = np.concatenate([steady(rng, 20_000, 0.2), steady(rng, per_hour=150, hours=6, start=0.2 * HOUR)])
    sent = send(Limiter(RateLimit(100, per="1h"), clock=clock), clock, times, rng.random(len(times)))
    late = times > 2.2 * HOUR
    assert sent[late].sum() >= 0.85 * 4 * 100


def test_the_threshold_loosens_with_budget_left_and_tightens_with_budget_spent(clock: Any) -> None:
    rng = np.random.default_rng(5)
    limiter = Limiter(RateLimit(100, per="1h"), clock=clock)
    times = steady(rng, 1000, 2)
    send(limiter, clock, times, rng.random(len(times)))
    usual = limiter.status().threshold
    for _ in range(60):  # the best inputs ever seen, all at once
        limiter.allow(2.0)
    spent = limiter.status().threshold
    clock.now += 0.9 * HOUR
    rested = limiter.status().threshold
    assert usual is not None
    assert spent is not None
    assert rested is not None
    assert rested < usual < spent


def test_nothing_below_the_least_score_is_ever_sent(clock: Any) -> None:
    rng = np.random.default_rng(6)
    times = steady(rng, 50, 5)
    scores = rng.normal(size=len(times))
    sent = send(Limiter(RateLimit(100, per="1h"), clock=clock, min_score=0.0), clock, times, scores)
    assert scores[sent].min() >= 0.0
    assert sent.sum() > 0.9 * (scores >= 0).sum()


def test_calibration_scores_set_the_pace_from_the_first_request() -> None:
    rng = np.random.default_rng(7)
    limit = RateLimit(fraction=0.2, window=1000)
    poor = (0.5 * rng.random(100)).tolist()
    informed = Limiter(limit, calibration=rng.random(5000))
    assert {informed.allow(s).reason for s in poor} == {"below_pace"}
    blind = Limiter(limit)
    assert sum(bool(blind.allow(s)) for s in poor) > 10


def test_the_cut_is_the_exact_quantile_of_the_last_scores() -> None:
    rng = np.random.default_rng(8)
    scores = rng.integers(0, 30, 500).astype(float)
    recent = RecentScores(memory=100)
    for i, score in enumerate(scores.tolist()):
        recent.add(score)
        if i % 50 == 49:
            share = float(rng.uniform(0.01, 0.99))
            value, tie_share = recent.cut(share)
            reference = threshold_for(scores[max(0, i - 99) : i + 1], share)
            assert value == reference.value
            assert tie_share == pytest.approx(reference.tie_share, abs=1e-9)


def test_pacing_is_the_same_twice(make_clock: Any) -> None:
    rng = np.random.default_rng(9)
    times = bursty(rng, 2)
    scores = rng.integers(0, 5, len(times)).astype(float)
    runs = []
    for _ in range(2):
        clock = make_clock()
        runs.append(send(Limiter(RateLimit(50, per="1h"), clock=clock, seed=3), clock, times, scores))
    assert (runs[0] == runs[1]).all()
    assert runs[0].any()
