"""A tracked share: any requests in a row keep it, whoever chooses them, and it is spent on those that gain most."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from l2h.limits import Limiter, LimitError, Permit, RateLimit, threshold_for


def furthest(sent: list[bool], share: float) -> tuple[Fraction, Fraction]:
    """The most that any requests in a row are above the share, and below it; in exact arithmetic."""
    exact = Fraction(repr(share))
    at = least = most = above = below = Fraction(0)
    for one in sent:
        at += one - exact
        above, below = max(above, at - least), max(below, most - at)
        least, most = min(least, at), max(most, at)
    return above, below


scores = st.one_of(st.floats(-1, 1), st.sampled_from([0.0, 0.5]), st.floats(allow_nan=False, allow_infinity=False))


@examples(400)
@given(
    traffic=st.lists(st.tuples(scores, st.integers(1, 60)), min_size=1, max_size=25),
    share=st.sampled_from([0.0, 1.0, 0.5, 0.2, 1 / 3, 0.07, 0.999]) | st.floats(0.0, 1.0),
    within=st.integers(2, 60),
    memory=st.sampled_from([1, 7, 1000]),
    calibration=st.none() | st.lists(st.floats(-1, 1), min_size=1, max_size=20),
    pacing=st.booleans(),
)
def test_any_requests_in_a_row_keep_the_share_from_both_sides(
    traffic: list[tuple[float, int]],
    share: float,
    within: int,
    memory: int,
    calibration: list[float] | None,
    pacing: bool,
) -> None:
    limit = RateLimit(fraction=share, within=within)
    limiter = Limiter(limit, memory=memory, calibration=calibration, pacing=pacing)
    sent = [limiter.allow(score).granted for score, times in traffic for _ in range(times)]
    above, below = furthest(sent, share)
    assert above <= within
    assert below <= within
    assert sum(sent) <= limit.most(len(sent))


@pytest.mark.parametrize("wish", [True, False])
@pytest.mark.parametrize("within", [2, 20, 200])
def test_nobody_who_sees_every_threshold_can_break_the_bound(wish: bool, within: int) -> None:
    """The adversary gives scores just above or below the threshold, to have as many sent as possible, or as few."""
    limiter = Limiter(RateLimit(fraction=0.2, within=within), calibration=np.linspace(0, 1, 50))
    sent: list[bool] = []
    for _ in range(3000):
        threshold = limiter.status().threshold
        cut = 0.0 if threshold is None or math.isinf(threshold) else threshold
        sent.append(limiter.allow(math.nextafter(cut, math.inf if wish else -math.inf)).granted)
    above, below = furthest(sent, 0.2)
    assert max(above, below) <= within
    assert abs(sum(sent) / len(sent) - 0.2) <= within / len(sent)


@examples(100)
@given(st.lists(st.tuples(st.floats(-1, 1), st.sampled_from(["new", "unpaid", "again", "other"])), max_size=300))
def test_what_is_not_sent_for_other_reasons_is_never_made_up_for_beyond_the_bound(
    traffic: list[tuple[float, str]],
) -> None:
    limiter = Limiter(RateLimit(fraction=0.3, within=5), memory=20)
    sent: list[bool] = []
    for score, kind in [*traffic, *[(-1.0, "unpaid")] * 100, *[(1.0, "new")] * 30]:
        if kind == "again":
            if limiter.allow(score, again=True) and sent:
                sent[-1] += True  # a second request about the same input
            continue
        other = (lambda _: Permit(False, "limit_reached", 0)) if kind == "other" else None
        sent.append(limiter.allow(-math.inf if kind == "unpaid" else score, other=other).granted)
    assert furthest(sent, 0.3)[0] <= 5


def test_the_rate_comes_back_after_a_shift_where_a_calibrated_threshold_does_not() -> None:
    rng = np.random.default_rng(0)
    calibration = rng.normal(size=1000)
    parts = [rng.normal(0, 1, 2000), rng.normal(1.5, 1, 2000), rng.normal(-1.0, 0.5, 2000)]
    fixed = [threshold_for(calibration, 0.2).apply(part, 0).mean() for part in parts]
    assert fixed[0] == pytest.approx(0.2, abs=0.03)
    assert fixed[1] > 0.6
    assert fixed[2] < 0.01
    limiter = Limiter("20%+-50", calibration=calibration)
    for part in parts:
        sent = np.array([limiter.allow(score).granted for score in part.tolist()])
        assert abs(sent.mean() - 0.2) <= 50 / len(sent)
        # What is sent is what scores high: of the best possible sum of scores above the mean, nearly all.
        best = np.sort(part)[-int(sent.sum()) :].sum() - sent.sum() * part.mean()
        assert part[sent].sum() - sent.sum() * part.mean() > 0.85 * best
    assert limiter.drift() == "below", "the alarm compares with the calibration, whatever the level is"


def test_the_status_counts_what_can_be_sent_beyond_the_share() -> None:
    limiter = Limiter(RateLimit(fraction=0.5, within=10), pacing=False)
    for _ in range(100):
        limiter.allow(-math.inf)
    assert limiter.status().remaining == 10
    granted = 0
    while limiter.allow(0.0):
        granted += 1
    assert granted == 19, "of 20 all would be ten beyond a half"
    # The one that was refused has brought half of another back.
    assert (limiter.status().cap, limiter.status().used, limiter.status().remaining) == (10, 9, 1)


def test_a_tracked_share_is_of_one_process(tmp_path: object) -> None:
    with pytest.raises(LimitError, match=r"20%\+-50 is tracked in the memory of each process: leave out path"):
        Limiter("20%+-50", path=f"{tmp_path}/permits.sqlite")
