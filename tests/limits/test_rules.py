"""The calibrated rules: that they meet the bound, keep the best, and hold what they guarantee."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from scipy import stats

from l2h.errors import DataError
from l2h.limits import (
    LimitError,
    Threshold,
    binomial_cdf,
    guaranteed_threshold,
    samples_needed,
    stochastic,
    threshold_for,
)

BOUNDS = [round(0.05 * i, 2) for i in range(21)]


def within_binomial_error(rate: float, q: float, n: int, extra: float = 0.0) -> bool:
    """Four standard errors: one chance in 16,000 a comparison, and some hundred comparisons."""
    return abs(rate - q) <= 4 * math.sqrt(q * (1 - q) / n + extra) + 1e-12


@pytest.mark.parametrize("q1", [0.0, 0.03, 0.3, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("q", BOUNDS)
def test_the_stochastic_rule_meets_the_bound(q: float, q1: float) -> None:
    rng = np.random.default_rng(int(1000 * q + 10 * q1))
    n = 20_000
    sends = rng.random(n) < q1
    rate = stochastic(sends, q1, q, rng).mean()
    # The share that the rejector sends of fresh samples varies around q1 too.
    assert within_binomial_error(rate, q, n, extra=q1 * (1 - q1) / n)


def test_the_stochastic_rule_only_thins_or_only_fills_up() -> None:
    sends = np.random.default_rng(0).random(5000) < 0.4
    assert not (stochastic(sends, 0.4, 0.2, 1) & ~sends).any()
    assert (stochastic(sends, 0.4, 0.7, 1) | ~sends).all()
    assert (stochastic(sends, 0.4, 0.7, 1) == stochastic(sends, 0.4, 0.7, 1)).all()
    assert (stochastic(sends, 0.4, 0.4, 1) == sends).all()


@pytest.mark.parametrize("q1", [0.0, 1.0])
def test_nothing_and_everything_are_meant_literally_even_where_calibration_was_one_sided(q1: float) -> None:
    mixed = np.array([True, False] * 500)
    assert not stochastic(mixed, q1, 0.0, 0).any()
    assert stochastic(mixed, q1, 1.0, 0).all()


@pytest.mark.parametrize("kind", ["continuous", "four values", "all equal"])
@pytest.mark.parametrize("q", BOUNDS)
def test_the_threshold_meets_the_bound_on_fresh_samples_and_exactly_on_the_old(q: float, kind: str) -> None:
    rng = np.random.default_rng(int(100 * q))
    n = 20_000
    draw = {
        "continuous": lambda: rng.normal(size=n),
        "four values": lambda: rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1]).astype(float),
        "all equal": lambda: np.zeros(n),
    }[kind]
    old = draw()
    cut = threshold_for(old, q)
    expected = (old > cut.value).sum() + cut.tie_share * (old == cut.value).sum()
    assert expected / n == pytest.approx(q, abs=1e-12)
    # The quantile has an error of its own, as large as that of the rate it is tested with.
    assert within_binomial_error(cut.apply(draw(), rng).mean(), q, n, extra=q * (1 - q) / n)


def test_the_ends_of_the_scale_send_nothing_and_everything() -> None:
    extreme = np.array([-np.inf, -1.0, 0.0, 1.0, np.inf])
    for cut in (threshold_for(extreme, 0.0), guaranteed_threshold([], 0.0, 0.95)):
        assert not cut.apply(extreme).any()
    for cut in (threshold_for(extreme, 1.0), guaranteed_threshold([], 1.0, 0.95)):
        assert cut.apply(extreme).all()


@examples(200)
@given(
    scores=st.lists(st.integers(-3, 3) | st.floats(-2, 2), min_size=1, max_size=40),
    q=st.floats(0.0, 1.0),
)
def test_ties_are_sent_with_exactly_the_share_that_is_missing(scores: list[float], q: float) -> None:
    s = np.array(scores, dtype=float)
    cut = threshold_for(s, q)
    assert 0 <= cut.tie_share <= 1
    total = (s > cut.value).sum() + cut.tie_share * (s == cut.value).sum()
    assert total == pytest.approx(q * len(s), abs=1e-9)
    assert cut.above == (s > cut.value).mean()
    assert Threshold.from_dict(json.loads(json.dumps(cut.as_dict(), allow_nan=False))) == cut


def test_the_threshold_keeps_the_best_and_the_stochastic_rule_is_better_than_chance() -> None:
    rng = np.random.default_rng(5)
    n = 20_000
    gain = rng.normal(0.1, 1, n)
    score = gain + rng.normal(0, 1, n)
    old = rng.normal(0.1, 1, n) + rng.normal(0, 1, n)
    rejector = score > 0.5
    q1 = float((old > 0.5).mean())
    total = {"threshold": 0.0, "stochastic": 0.0, "random": 0.0}
    for q in BOUNDS:
        chosen = {
            "threshold": threshold_for(old, q).apply(score, rng),
            "stochastic": stochastic(rejector, q1, q, rng),
            "random": rng.random(n) < q,
        }
        value = {name: float((gain * sent).mean()) for name, sent in chosen.items()}
        # Two independent choices of the same share differ by chance by at most this much.
        error = 3 * math.sqrt(2 * q * (1 - q) / n) + 1e-12
        assert value["threshold"] >= value["stochastic"] - error
        assert value["stochastic"] >= value["random"] - error
        total = {name: total[name] + value[name] / len(BOUNDS) for name in total}
    assert total["threshold"] > total["stochastic"] + 0.02 > total["random"] + 0.04


@pytest.mark.parametrize(("n", "q"), [(100, 0.2), (500, 0.05), (200, 0.5), (60, 0.9)])
def test_the_guarantee_holds_over_two_thousand_calibrations(n: int, q: float) -> None:
    rng = np.random.default_rng(n)
    # Uniform scores: the true rate of a cut v is 1 - v, exactly.
    rates = np.array([1 - guaranteed_threshold(rng.random(n), q, 0.95).value for _ in range(2000)])
    broken = (rates > q).mean()
    assert broken <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    # Without ties the chance is known exactly: the bound is used up as far as whole samples allow.
    j = max(j for j in range(1, n + 1) if stats.binom.cdf(j - 1, n, q) <= 0.05)
    chance = stats.binom.cdf(j - 1, n, q)
    assert broken == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / 2000))
    assert rates.mean() == pytest.approx(j / (n + 1), abs=4 * math.sqrt(q * (1 - q) / n / 2000))


@pytest.mark.parametrize("levels", [2, 5, 20])
def test_the_guarantee_holds_with_ties(levels: int) -> None:
    rng = np.random.default_rng(levels)
    n, q = 150, 0.3
    rates = []
    for _ in range(2000):
        cut = guaranteed_threshold(rng.integers(levels, size=n).astype(float), q, 0.95)
        assert cut.tie_share == 0
        rates.append((levels - 1 - cut.value) / levels)
    assert np.mean(np.array(rates) > q) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_the_guarantee_costs_little_with_many_samples() -> None:
    rng = np.random.default_rng(0)
    rates = [1 - guaranteed_threshold(rng.random(50_000), 0.2, 0.95).value for _ in range(50)]
    # 1.645 standard errors of the quantile, sqrt(0.2 * 0.8 / 50,000) = 0.0018, and the error of this mean.
    assert 0.196 < np.mean(rates) < 0.2


@pytest.mark.parametrize("q", [0.001, 0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.95, pytest.param(0.999, marks=pytest.mark.long)])
def test_a_calibration_set_too_small_is_told_how_many_it_needs(q: float, confidence: float) -> None:
    needed = 1
    # In exact arithmetic on the decimals as written.
    while (1 - Fraction(str(q))) ** needed > 1 - Fraction(str(confidence)):
        needed += 1
    assert samples_needed(q, confidence) == needed
    scores = np.arange(needed, dtype=float)
    enough = guaranteed_threshold(scores, q, confidence)
    assert enough.value <= needed - 1
    if needed > 1:
        with pytest.raises(LimitError, match=f"at least {needed} calibration samples, got {needed - 1}"):
            guaranteed_threshold(scores[1:], q, confidence)


def test_a_tiny_bound_still_says_how_many_it_needs() -> None:
    assert samples_needed(5e-324, 0.95) > 10**323
    assert samples_needed(1e-20, 0.95) == pytest.approx(-math.log(0.05) / 1e-20)
    with pytest.raises(LimitError, match=f"at least {samples_needed(1e-20, 0.95)} calibration samples, got 3"):
        guaranteed_threshold([1.0, 2.0, 3.0], 1e-20, 0.95)


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (7, 0.3), (40, 0.01), (40, 0.99)])
def test_the_binomial_tail_is_exact(n: int, p: float) -> None:
    exact = np.cumsum([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
    np.testing.assert_allclose(binomial_cdf(n, p), exact, rtol=1e-12)


@pytest.mark.parametrize(("n", "p"), [(1000, 0.2), (100_000, 0.003), (1_000_000, 0.5)])
def test_the_binomial_tail_does_not_lose_digits_where_n_is_large(n: int, p: float) -> None:
    mean, deviation = n * p, math.sqrt(n * p * (1 - p))
    k = np.clip(np.arange(mean - 6 * deviation, mean + 6 * deviation, deviation / 3), 0, n).astype(int)
    np.testing.assert_allclose(binomial_cdf(n, p)[k], stats.binom.cdf(k, n, p), rtol=1e-7)


@pytest.mark.parametrize("q", [-0.01, 1.01, float("nan")])
def test_a_bound_out_of_range_is_refused_everywhere(q: float) -> None:
    for call in (
        lambda: stochastic([True], 0.5, q, 0),
        lambda: stochastic([True], q, 0.5, 0),
        lambda: threshold_for([1.0], q),
        lambda: guaranteed_threshold([1.0], q, 0.95),
        lambda: samples_needed(q, 0.95),
    ):
        with pytest.raises(LimitError, match=r"outside \[0, 1\]|not a number"):
            call()


def test_scores_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(LimitError, match="needs calibration samples, and there are none"):
        threshold_for([], 0.5)
    with pytest.raises(DataError, match="score of sample 1 is NaN"):
        threshold_for([0.0, float("nan")], 0.5)
    with pytest.raises(DataError, match=r"one score per sample; got shape \(2, 2\)"):
        guaranteed_threshold(np.zeros((2, 2)), 0.5, 0.95)
    with pytest.raises(LimitError, match="breaks ties at random: pass rng"):
        threshold_for([1.0, 2.0, 3.0], 0.5).apply([1.0])
    with pytest.raises(LimitError, match=r"confidence=1.5 is outside \(0, 1\)"):
        guaranteed_threshold([1.0], 0.5, 1.5)
