"""Drift: found soon where there is some, and seldom seen where there is none."""

import math

import numpy as np
import pytest
from scipy import stats

from l2h.limits import DriftMonitor, Limiter, LimitError, RateLimit, guaranteed_threshold, threshold_for


def feed(monitor: DriftMonitor, exceeds: list[bool]) -> int | None:
    """After how many requests an alarm was raised."""
    for i, bit in enumerate(exceeds, start=1):
        if monitor.observe(bit) is not None:
            return i
    return None


@pytest.mark.long
def test_without_drift_alarms_are_as_rare_as_promised() -> None:
    runs = 100
    false = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        # The calibration set is drawn anew too, so its error is part of what is promised.
        cut = threshold_for(rng.random(1000), 0.2)
        monitor = DriftMonitor(cut.above, cut.samples, window=500, confidence=0.95, horizon=20_000)
        false += feed(monitor, (rng.random(20_000) > cut.value).tolist()) is not None
    # At most 5 in 100 are promised; 12 or more would then have a chance below one in 200.
    assert false <= 11


@pytest.mark.parametrize("samples", [None, 1000])
def test_a_rate_of_20_that_becomes_35_is_found_within_some_hundred_requests(samples: int | None) -> None:
    delays = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        monitor = DriftMonitor(0.2, samples, window=500, confidence=0.95)
        assert feed(monitor, (rng.random(2000) < 0.2).tolist()) is None
        found = feed(monitor, (rng.random(2000) < 0.35).tolist())
        assert monitor.drift == "above"
        assert found is not None
        delays.append(found)
    assert max(delays) <= 600
    assert np.mean(delays) <= 400


def test_a_rate_that_falls_is_found_too() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        monitor = DriftMonitor(0.2, 1000)
        assert feed(monitor, (rng.random(2000) < 0.2).tolist()) is None
        found = feed(monitor, (rng.random(1500) < 0.07).tolist())
        assert found is not None
        assert found <= 600
        assert monitor.drift == "below"


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.2, 0.5, 0.97, 1.0])
@pytest.mark.parametrize("n", [50, 500])
def test_the_band_is_the_exact_binomial_one_divided_among_the_looks(rate: float, n: int) -> None:
    monitor = DriftMonitor(rate, None, window=500, confidence=0.9, horizon=20_000)
    tail = 0.1 / 2 / 400  # two sides, and a look every 50 requests
    least, most = monitor.band(n)
    counts = np.arange(n + 1)
    assert most == counts[stats.binom.sf(counts, n, rate) <= tail * (1 + 1e-9)].min()
    assert least == counts[stats.binom.cdf(counts - 1, n, rate) <= tail * (1 + 1e-9)].max()


@pytest.mark.parametrize(("rate", "samples"), [(0.2, 100), (0.2, 10_000), (0.02, 500), (0.9, 30)])
def test_the_band_is_wider_by_the_error_of_the_calibration(rate: float, samples: int) -> None:
    n, k = 500, round(rate * samples)
    least, most = DriftMonitor(rate, samples, confidence=0.9).band(n)
    tail, counts = 0.1 / 2 / 400, np.arange(n + 1)
    # The upper side for a cut made from the calibration scores, the lower for one that was not.
    above = np.array([stats.betabinom.pmf(counts[c + 1 :], n, k + 1, samples - k).sum() for c in counts])
    below = np.array([stats.betabinom.pmf(counts[:c], n, k, samples - k + 1).sum() for c in counts])
    assert most == counts[above <= tail].min()
    assert least == counts[below <= tail].max()
    exact = DriftMonitor(rate, None, confidence=0.9).band(n)
    assert least <= exact[0] <= exact[1] <= most


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_a_rate_at_the_end_of_the_scale_can_only_leave_it_on_one_side(rate: float) -> None:
    least, most = DriftMonitor(rate, 200).band(500)
    assert (least == 0, most == 500) == (rate == 0, rate == 1)
    assert 0 <= least <= 500 * rate <= most <= 500


def test_the_limiter_warns_once_an_excursion(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    calibration = rng.random(2000)
    limiter = Limiter(RateLimit(fraction=0.2, window=1000), calibration=calibration)

    def traffic(n: int, shift: float) -> None:
        for score in (rng.random(n) + shift).tolist():
            limiter.allow(score)

    traffic(2000, 0.0)
    assert limiter.drift() is None
    assert not caplog.records
    for excursion in (1, 2):
        traffic(2000, 0.2)
        status = limiter.status()
        assert status.drift == limiter.drift() == "above"
        assert status.observed == pytest.approx(0.4, abs=4 * math.sqrt(0.24 / 500))
        assert status.expected == pytest.approx(0.2, abs=0.001)
        assert len(caplog.records) == excursion
        assert "above the band" in caplog.records[-1].getMessage()
        assert "calibrate again" in caplog.records[-1].getMessage()
        traffic(1500, 0.0)
        assert limiter.drift() is None
    assert {record.name for record in caplog.records} == {"l2h.limits"}
    traffic(1500, -0.2)
    assert limiter.drift() == "below"


def test_drift_is_measured_against_the_threshold_that_is_given(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(1)
    cut = guaranteed_threshold(rng.normal(size=3000), 0.1, 0.95)
    limiter = Limiter(RateLimit(10, per="1h"), threshold=cut)
    for score in rng.normal(size=3000).tolist():
        limiter.allow(score)
    assert limiter.status().expected == cut.above
    assert limiter.drift() is None
    for score in rng.normal(1.0, 1.0, size=600).tolist():
        limiter.allow(score)
    assert limiter.drift() == "above"
    assert len(caplog.records) == 1


def test_drift_is_not_watched_where_nothing_was_calibrated() -> None:
    for limiter in (
        Limiter(RateLimit(10, per="1h")),
        Limiter(RateLimit(fraction=0.0, window=10), calibration=[1.0, 2.0]),
        Limiter(RateLimit(10, per="1h"), threshold=threshold_for([1.0], 1.0)),
    ):
        limiter.allow(1.0)
        status = limiter.status()
        assert (status.observed, status.expected, status.drift) == (None, None, None)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(LimitError, match="give a window of 10 or more"):
        DriftMonitor(0.2, window=5)
    with pytest.raises(LimitError, match="horizon no shorter"):
        DriftMonitor(0.2, window=500, horizon=100)
    with pytest.raises(LimitError, match="samples=0 is no calibration set"):
        DriftMonitor(0.2, samples=0)
    with pytest.raises(LimitError, match=r"rate=1.2 is outside \[0, 1\]"):
        DriftMonitor(1.2)
    with pytest.raises(LimitError, match="confidence=2 is outside"):
        DriftMonitor(0.2, confidence=2)
