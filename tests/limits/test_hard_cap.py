"""The cap: no window at any offset ever holds more, whatever comes and however many threads ask."""

import math
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from l2h.errors import DataError
from l2h.limits import Limiter, LimitError, RateLimit

Checker = Callable[[list[float], float], int]

#: Steps of the clock between requests: none, small ones that round, whole windows, jumps back and far ahead.
steps = st.one_of(
    st.just(0.0),
    st.sampled_from([0.1, 0.3, 1 / 3, 1.0, 7.0, 0.7]),
    st.floats(0.0, 3.0),
    st.floats(-30.0, 30.0),
    st.sampled_from([1e6, -1e6]),
)
lengths = st.sampled_from([0.1, 0.7, 1.0, 7.0]) | st.floats(0.01, 20.0)
arrivals = st.lists(st.tuples(steps, st.floats(-1, 1), st.integers(1, 6)), min_size=1, max_size=40)


@examples(300)
@given(
    events=arrivals,
    per=lengths,
    count=st.integers(0, 5),
    pacing=st.booleans(),
    start=st.sampled_from([0.0, 1e9]),
)
def test_no_time_window_exceeds_the_cap(
    events: list[tuple[float, float, int]],
    per: float,
    count: int,
    pacing: bool,
    start: float,
    make_clock: Any,
    most_in_a_window: Checker,
) -> None:
    clock = make_clock(start)
    limiter = Limiter(RateLimit(count, per=per), clock=clock, pacing=pacing)
    granted, latest = [], -math.inf
    for step, score, burst in events:
        clock.now += step
        latest = max(latest, clock.now)
        for _ in range(burst):
            permit = limiter.allow(score)
            assert permit.position == latest, "the limiter's time is the latest the clock has shown"
            if permit:
                granted.append(permit.position)
    assert most_in_a_window(granted, per) <= count
    assert limiter.status().permits == len(granted)


@examples(300)
@given(
    moves=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.integers(1, 4)), min_size=1, max_size=40),
    per=st.integers(1, 12),
    count=st.integers(0, 4),
)
def test_a_clock_that_jumps_back_never_frees_budget_in_true_time(
    moves: list[tuple[int, int, int]], per: int, count: int, make_clock: Any, most_in_a_window: Checker
) -> None:
    clock, true_time, lag = make_clock(), 0, 0
    limiter = Limiter(RateLimit(count, per=per), clock=clock, pacing=False)
    granted = []
    for passed, back, burst in moves:
        true_time += passed
        lag += back if back > 30 else 0
        clock.now = float(true_time - lag)
        granted += [true_time for _ in range(burst) if limiter.allow(0.0)]
    assert most_in_a_window(granted, per) <= count


@examples(60)
@given(events=arrivals, per=lengths, count=st.integers(0, 4), restarts=st.sets(st.integers(0, 39), max_size=6))
def test_no_time_window_exceeds_the_cap_across_restarts(
    events: list[tuple[float, float, int]],
    per: float,
    count: int,
    restarts: set[int],
    make_clock: Any,
    most_in_a_window: Checker,
) -> None:
    clock = make_clock(1e9)
    granted = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "permits")
        limiter = Limiter(RateLimit(count, per=per), clock=clock, pacing=False, path=path)
        for i, (step, score, burst) in enumerate(events):
            if i in restarts:
                limiter.close()
                limiter = Limiter(RateLimit(count, per=per), clock=clock, pacing=False, path=path)
            clock.now += step
            granted += [p.position for p in (limiter.allow(score) for _ in range(burst)) if p]
        limiter.close()
    assert most_in_a_window(granted, per) <= count


def test_a_window_is_half_open_to_the_last_digit(clock: Any) -> None:
    first = 2.0**-60
    assert 0.1 - first == 0.1, "rounded, the window has passed; unrounded, a little of it is left"
    limiter = Limiter(RateLimit(1, per=0.1), clock=clock, pacing=False)
    granted = {}
    for now in (first, 0.1, math.nextafter(0.1, 1)):
        clock.now = now
        granted[now] = bool(limiter.allow(0.0))
    assert list(granted.values()) == [True, False, True]


def test_a_clock_too_coarse_for_the_window_frees_nothing(clock: Any) -> None:
    clock.now = 1e18  # where neighbouring floats are 128 s apart
    limiter = Limiter(RateLimit(2, per="1s"), clock=clock, pacing=False)
    assert [bool(limiter.allow(0.0)) for _ in range(4)] == [True, True, False, False]


def test_budget_comes_back_exactly_when_its_window_has_passed(clock: Any) -> None:
    limiter = Limiter(RateLimit(2, per="1h"), clock=clock, pacing=False)
    times = {0.0: True, 10.0: True, 3599.0: False, 3600.0: True, 3609.0: False, 3610.0: True, 3611.0: False}
    for now, expected in times.items():
        clock.now = now
        assert limiter.allow(0.0).granted is expected, now
    clock.now = 20_000.0
    assert limiter.status().used == 0
    assert [limiter.allow(0.0).reason for _ in range(3)] == ["within_limit"] * 2 + ["limit_reached"]


def test_a_jump_back_is_waited_for_and_said(clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    limiter = Limiter(RateLimit(1, per="1h"), clock=clock, pacing=False)
    clock.now = 10_000.0
    assert limiter.allow(0.0)
    clock.now = 100.0
    assert [limiter.allow(0.0).reason for _ in range(3)] == ["limit_reached"] * 3
    assert limiter.status().clock_behind == 9900.0
    (record,) = caplog.records
    assert "the clock is 9900.000 s behind" in record.getMessage()
    assert "until the clock has caught up" in record.getMessage()
    clock.now = 13_600.0
    assert limiter.allow(0.0)
    assert limiter.status().clock_behind == 0.0


@examples(300)
@given(
    scores=st.lists(st.floats(-1, 1), min_size=1, max_size=200),
    window=st.integers(1, 30),
    percent=st.integers(0, 100),
    pacing=st.booleans(),
)
def test_no_run_of_requests_exceeds_its_share(scores: list[float], window: int, percent: int, pacing: bool) -> None:
    fraction = percent / 100
    if 0 < percent * window < 100:
        window = math.ceil(100 / percent)
    limiter = Limiter(RateLimit(fraction=fraction, window=window), pacing=pacing)
    permits = [limiter.allow(s) for s in scores]
    sent = [p.granted for p in permits]
    cap = percent * window // 100
    assert [p.position for p in permits] == list(range(1, len(scores) + 1))
    assert max(sum(sent[i : i + window]) for i in range(len(sent))) <= cap
    if not pacing:
        assert sent == first_come(len(sent), window, cap)


def first_come(n: int, window: int, cap: int) -> list[bool]:
    """Send whenever the last ``window - 1`` requests leave room, told by a full count each time."""
    sent: list[bool] = []
    for i in range(n):
        sent.append(sum(sent[max(0, i - window + 1) : i]) < cap)
    return sent


@pytest.mark.parametrize("with_path", [False, True])
def test_sixty_four_threads_never_break_the_cap(with_path: bool, tmp_path: Path, most_in_a_window: Checker) -> None:
    count, per, seconds = 20, 0.05, 1.5
    path = tmp_path / "permits" if with_path else None
    with Limiter(RateLimit(count, per=per), pacing=False, path=path) as limiter:
        granted, calls = hammer(limiter, threads=64, seconds=seconds)
        status = limiter.status()
    assert most_in_a_window(granted, per) <= count
    assert (status.permits, status.requests) == (len(granted), calls)
    assert len(granted) > 3 * count, "several windows must have passed for this to mean anything"


@pytest.mark.parametrize("with_path", [False, True])
def test_sixty_four_threads_take_exactly_what_one_window_holds(with_path: bool, tmp_path: Path) -> None:
    path = tmp_path / "permits" if with_path else None
    with Limiter(RateLimit(500, per="1h"), pacing=False, path=path) as limiter:
        granted, calls = hammer(limiter, threads=64, seconds=0.0, least=20)
    assert calls > len(granted) == 500


def test_threads_keep_the_share_of_any_run_of_requests() -> None:
    limiter = Limiter(RateLimit(fraction=0.2, window=50))
    granted, calls = hammer(limiter, threads=64, seconds=0.5)
    sent = [0] * (calls + 1)
    for position in granted:
        sent[int(position)] += 1
    assert max(sent) == 1
    assert max(sum(sent[i : i + 50]) for i in range(calls)) <= 10


def hammer(limiter: Limiter, threads: int, seconds: float, least: int = 1) -> tuple[list[float], int]:
    """Ask from many threads at once, each so often at least; positions of the permits, and how often was asked."""
    start, results = threading.Barrier(threads), []

    def work() -> None:
        mine, calls = [], 0
        start.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end or calls < least:
            calls += 1
            if permit := limiter.allow(0.5):
                mine.append(permit.position)
        results.append((mine, calls))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == threads
    return sorted(t for mine, _ in results for t in mine), sum(calls for _, calls in results)


def test_status_counts_what_happened(clock: Any) -> None:
    limiter = Limiter(RateLimit(2, per="1h"), clock=clock, pacing=False, min_score=0.0)
    for score in (-1.0, 1.0, 0.0, 1.0, -0.5):
        limiter.allow(score)
    status = limiter.status()
    assert (status.requests, status.permits) == (5, 2)
    assert status.refused == {"below_min_score": 2, "limit_reached": 1}
    assert (status.cap, status.used, status.remaining, status.limit) == (2, 2, 0, "2/1h")
    assert status.as_dict()["refused"] == status.refused


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (
            lambda: Limiter(RateLimit(fraction=0.2)),
            LimitError,
            "no window to keep it in at run time: add window=1000",
        ),
        (lambda: Limiter("20%"), LimitError, "no window to keep it in"),
        (lambda: Limiter("now and then"), LimitError, "cannot read the limit 'now and then'"),
        (lambda: Limiter(RateLimit(1, per="1h"), memory=0), LimitError, "memory=0 keeps no scores"),
        (
            lambda: Limiter(RateLimit(1, per="1h"), min_score=math.nan),
            LimitError,
            "min_score=nan is no score",
        ),
        (
            lambda: Limiter(RateLimit(1, per="1h"), calibration=[math.nan]),
            DataError,
            "calibration: score of sample 0 is NaN",
        ),
        (lambda: Limiter(RateLimit(1, per="1h")).allow(math.nan), DataError, "the score is NaN"),
        (
            lambda: Limiter(RateLimit(1, per="1h"), clock=lambda: math.nan).allow(0),
            LimitError,
            "the clock gave nan",
        ),
        (
            lambda: Limiter(RateLimit(1, per="1h"), clock=lambda: math.inf).allow(0),
            LimitError,
            "the clock gave inf",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_a_limit_may_be_text() -> None:
    assert Limiter("2/1h").limit == RateLimit(2, per="1h")
    assert Limiter("20%/1000").limit == RateLimit(fraction=0.2, window=1000)
