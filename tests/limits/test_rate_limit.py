"""What a limit is: what it accepts, what it refuses and how it is written."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from l2h.errors import L2HError
from l2h.limits import LimitError, RateLimit

counts = st.builds(
    lambda count, per: RateLimit(count, per=per),
    st.integers(0, 10**12),
    st.one_of(st.floats(1e-9, 1e30), st.integers(1, 10**9).map(float)),
)
shares = st.builds(
    lambda fraction, window, confidence: RateLimit(fraction=fraction, window=window, confidence=confidence),
    st.floats(0.0, 1.0).filter(lambda f: f == 0 or f >= 1e-6),
    st.none() | st.integers(10**6 + 1, 10**9),
    st.none() | st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
)
tracked = st.builds(
    lambda fraction, within: RateLimit(fraction=fraction, within=within), st.floats(0.0, 1.0), st.integers(2, 10**9)
)


@examples(300)
@given(limit=st.one_of(counts, shares, tracked))
def test_a_limit_is_read_back_as_it_was_written(limit: RateLimit) -> None:
    assert RateLimit.parse(str(limit)) == limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("20%", RateLimit(fraction=0.2)),
        ("0.2", RateLimit(fraction=0.2)),
        ("0", RateLimit(fraction=0.0)),
        ("100%", RateLimit(fraction=1.0)),
        (" 12.5 % ", RateLimit(fraction=0.125)),
        ("20%@95%", RateLimit(fraction=0.2, confidence=0.95)),
        ("0.2@0.95", RateLimit(fraction=0.2, confidence=0.95)),
        ("20%/1000", RateLimit(fraction=0.2, window=1000)),
        ("20%/1000@95%", RateLimit(fraction=0.2, window=1000, confidence=0.95)),
        ("20%+-50", RateLimit(fraction=0.2, within=50)),
        ("20% ± 50", RateLimit(fraction=0.2, within=50)),
        ("100/1h", RateLimit(100, per=3600)),
        ("100 / 1h 30m", RateLimit(100, per=5400)),
        ("5/0.5s", RateLimit(5, per=0.5)),
    ],
)
def test_what_the_command_line_may_say(text: str, limit: RateLimit) -> None:
    assert RateLimit.parse(text) == limit


@pytest.mark.parametrize(
    ("per", "seconds"),
    [
        ("30s", 30),
        ("15m", 900),
        ("1h", 3600),
        ("1d", 86400),
        ("1h30m", 5400),
        ("0.1h", 360),
        ("1d2h3m4s", 93784),
        (90, 90),
        (0.25, 0.25),
        (timedelta(hours=2), 7200),
    ],
)
def test_a_window_may_be_given_in_any_of_these_ways(per: Any, seconds: float) -> None:
    assert RateLimit(1, per=per).per == seconds


def test_the_share_of_a_window_is_counted_in_decimals() -> None:
    assert 0.29 * 100 < 29, "in binary fractions it would be rounded down to 28"
    assert RateLimit(fraction=0.29, window=100).cap == 29
    for percent in range(1, 101):
        assert RateLimit(fraction=percent / 100, window=1000).cap == 10 * percent
    assert RateLimit(7, per="1m").cap == 7
    assert RateLimit(fraction=0.2).cap is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RateLimit(fraction=-0.1), r"fraction=-0.1 is outside \[0, 1\]"),
        (lambda: RateLimit(fraction=20), r"outside \[0, 1\].*20% is 0.2"),
        (lambda: RateLimit(fraction=float("nan")), "nan is not a number"),
        (lambda: RateLimit(fraction="0.2"), "'0.2' is not a number"),  # type: ignore[arg-type]
        (lambda: RateLimit(fraction=True), "True is not a number"),
        (lambda: RateLimit(10, per="0s"), "'0s' is no window.*above zero"),
        (lambda: RateLimit(10, per=0), "per=0 is no window"),
        (lambda: RateLimit(10, per=-5), "per=-5 is no window"),
        (lambda: RateLimit(10, per="-5m"), "'-5m' is no window"),
        (lambda: RateLimit(10, per=float("inf")), "per=inf is no window"),
        (lambda: RateLimit(10, per=timedelta(0)), "no window"),
        (lambda: RateLimit(10, per="an hour"), "'an hour' is no length of time: write '30s'"),
        (lambda: RateLimit(10, per="1h30"), "'1h30' is no length of time"),
        (lambda: RateLimit(-1, per="1h"), "count=-1 is negative"),
        (lambda: RateLimit(0.2, per="1h"), r"count=0.2 is not a whole number.*RateLimit\(fraction=0.2\)"),
        (lambda: RateLimit(float("inf"), per="1h"), "not a whole number"),
        (lambda: RateLimit(100), r"count=100 has no time window: write RateLimit\(100, per='1h'\)"),
        (RateLimit, "neither count nor fraction given"),
        (lambda: RateLimit(10, per="1h", fraction=0.2), "both count and fraction given"),
        (lambda: RateLimit(fraction=0.2, per="1h"), "per='1h' belongs to a count"),
        (lambda: RateLimit(10, per="1h", window=5), "belong to a fraction"),
        (lambda: RateLimit(10, per="1h", confidence=0.9), "belong to a fraction"),
        (lambda: RateLimit(fraction=0.2, window=0), "window=0 is zero"),
        (lambda: RateLimit(fraction=0.2, window=-3), "window=-3 is negative"),
        (lambda: RateLimit(fraction=0.2, window=2.5), "window=2.5 is not a whole number"),  # type: ignore[arg-type]
        (lambda: RateLimit(fraction=0.01, window=50), "less than one request.*window of 100 or more"),
        (lambda: RateLimit(fraction=0.2, confidence=1), r"confidence=1 is outside \(0, 1\)"),
        (lambda: RateLimit(fraction=0.2, confidence=0), r"confidence=0 is outside \(0, 1\)"),
        (lambda: RateLimit.parse("120%"), r"fraction=1.2 is outside \[0, 1\]"),
        (lambda: RateLimit.parse("-5%"), r"fraction=-0.05 is outside \[0, 1\]"),
        (
            lambda: RateLimit.parse("lots"),
            "cannot read the limit 'lots': accepted are '20%' or '0.2'.*'100/1h'",
        ),
        (lambda: RateLimit.parse(""), "cannot read the limit ''"),
        (lambda: RateLimit.parse("1/1000"), "cannot read the limit '1/1000'"),
        (lambda: RateLimit.parse("-1/1h"), "count=-1.0 is negative"),
        (lambda: RateLimit.parse("1.5/1h"), "count=1.5 is not a whole number"),
        (lambda: RateLimit.parse("1e999999/1h"), "not a whole number"),
        (lambda: RateLimit.parse("10/0s"), "'0s' is no window"),
        (lambda: RateLimit.parse("10/-1h"), "'-1h' is no window"),
        (lambda: RateLimit.parse("20%/0"), "window=0 is zero"),
        (lambda: RateLimit.parse("20%+-1"), "within=1 is too few: give a whole number of 2 or more of requests"),
        (lambda: RateLimit.parse("20%+-2.5"), "within=2.5 is not a whole number"),
        (lambda: RateLimit.parse("20%+--5"), "within=-5.0 is negative"),
        (lambda: RateLimit.parse("20%/100+-5"), "within=5 holds for any requests in a row: leave out window"),
        (lambda: RateLimit.parse("20%+-5@95%"), "within=5 .*leave out confidence"),
        (lambda: RateLimit(5, per="1h", within=5), "window, confidence and within belong to a fraction"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_the_reason(make: Any, says: str) -> None:
    with pytest.raises(LimitError, match=says) as caught:
        make()
    assert isinstance(caught.value, L2HError)
    assert isinstance(caught.value, ValueError)
