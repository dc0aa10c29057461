"""How a limit on asking is written: a share of the requests, or a count in a time window."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from l2h.errors import L2HError

#: What :meth:`RateLimit.parse` reads, for messages and help texts.
ACCEPTED = (
    "'20%' or '0.2' (a share), '20%@95%' (a share, with confidence), '20%/1000' (a share of any 1000 "
    "requests in a row), '20%+-50' (a share that is tracked, at most 50 requests off), '100/1h' (a count in a time "
    "window; units d, h, m, s)"
)

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_DURATION = re.compile(rf"(?:{_NUMBER}[dhms])+")
_SHARE = re.compile(
    rf"(?P<share>[+-]?{_NUMBER}%?)(?:/(?P<window>[+-]?\d+))?(?:(?:\+-|±)(?P<within>[+-]?{_NUMBER}))?"
    rf"(?:@(?P<confidence>[+-]?{_NUMBER}%?))?"
)
_COUNT = re.compile(rf"(?P<count>[+-]?{_NUMBER})/(?P<per>[+-]?(?:{_NUMBER}[dhms])+)")


class LimitError(L2HError, ValueError):
    """A limit that cannot be read or met, or a limiter that cannot keep it."""


@dataclass(frozen=True, init=False)
class RateLimit:
    """How often the server may be asked: a share of the requests, or a count in a time window.

    Args:
        count: at most this many requests in any time window of length ``per``. Whole, 0 or more.
        per: length of that window: ``"30s"``, ``"15m"``, ``"1h"``, ``"1d"``, ``"1h30m"``, seconds, or a
            timedelta.
        fraction: at most this share of the requests, in [0, 1].
        window: makes the share a hard cap at run time: of any ``window`` requests in a row at most
            :attr:`cap` are sent.
        confidence: makes the share a guarantee: over repeated calibrations the true rate exceeds ``fraction``
            in at most ``1 - confidence`` of them (:func:`l2h.limits.guaranteed_threshold`). Within (0, 1).
        within: keeps the share at run time whatever the traffic becomes: of any n requests in a row,
            ``fraction * n`` are sent, and at most so many more or fewer (:mod:`l2h.limits.tracking`). Whole, 2 or more.

    Raises:
        LimitError: a value out of its range, or not exactly one of ``count`` and ``fraction``.

    Example:
        >>> RateLimit(100, per="1h30m")
        RateLimit(count=100, per=5400.0, fraction=None, window=None, confidence=None, within=None)
        >>> RateLimit.parse("20%/1000").cap
        200
        >>> str(RateLimit(fraction=0.2, confidence=0.95))
        '20%@95%'
        >>> RateLimit.parse("20%+-50").most(1000)
        250
    """

    count: int | None
    per: float | None
    fraction: float | None
    window: int | None
    confidence: float | None
    within: int | None

    def __init__(
        self,
        count: float | None = None,
        per: str | float | timedelta | None = None,
        *,
        fraction: float | None = None,
        window: int | None = None,
        confidence: float | None = None,
        within: float | None = None,
    ) -> None:
        if (count is None) == (fraction is None):
            given = "neither count nor fraction" if count is None else "both count and fraction"
            raise LimitError(f"{given} given: write RateLimit(100, per='1h') or RateLimit(fraction=0.2)")
        whole = share = seconds = requests = sure = off = None
        if count is not None:
            whole = _whole("count", count, least=0, hint="; for a share write RateLimit(fraction=0.2)")
            if per is None:
                raise LimitError(f"count={whole} has no time window: write RateLimit({whole}, per='1h')")
            seconds = _seconds(per)
            if window is not None or confidence is not None or within is not None:
                raise LimitError("window, confidence and within belong to a fraction: a count has per alone")
        if fraction is not None:
            share = checked_share("fraction", fraction)
            if per is not None:
                raise LimitError(f"per={per!r} belongs to a count: a fraction takes window")
            if window is not None:
                requests = _whole("window", window, least=1, hint=" of requests")
                if share > 0 and _floor(share, requests) == 0:
                    least = math.ceil(1 / exact(share))
                    raise LimitError(
                        f"fraction={share:g} of window={requests} is less than one request: none could be sent, "
                        f"give a window of {least} or more"
                    )
            if confidence is not None:
                sure = checked_confidence(confidence)
            if within is not None:
                off = _whole("within", within, least=2, hint=" of requests")
                if window is not None or confidence is not None:
                    other = "window" if window is not None else "confidence"
                    raise LimitError(f"within={off} holds for any requests in a row: leave out {other}")
        values = {"count": whole, "per": seconds, "fraction": share, "window": requests, "confidence": sure}
        values["within"] = off
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def cap(self) -> int | None:
        """The most requests any one window may hold; ``None`` for a fraction without a window."""
        if self.count is not None:
            return self.count
        if self.fraction is None or self.window is None:
            return None
        return _floor(self.fraction, self.window)

    @property
    def at_run_time(self) -> bool:
        """Whether a limiter keeps it, request by request; else a threshold is calibrated once."""
        return self.count is not None or self.counts_requests

    @property
    def counts_requests(self) -> bool:
        """Whether it is kept over requests in a row, so that those which are not sent count too."""
        return self.window is not None or self.within is not None

    def most(self, inputs: int) -> int:
        """Return how many of so many inputs in a row, all at once, may be asked about.

        Example:
            >>> RateLimit.parse("20%").most(1001), RateLimit.parse("20%/1000").most(1001)
            (200, 201)
        """
        if self.fraction is None:
            assert self.count is not None
            return min(self.count, inputs)
        if self.cap is None or self.window is None:
            return min(inputs, _floor(self.fraction, inputs) + (self.within or 0))
        windows, rest = divmod(inputs, self.window)
        return windows * self.cap + min(self.cap, rest)

    @classmethod
    def parse(cls, text: str) -> RateLimit:
        """Read a limit from text, as ``str`` writes it.

        Accepts ``20%`` or ``0.2``, ``20%/1000`` (window), ``20%@95%`` (confidence), ``20%+-50`` (within) and
        ``100/1h``.

        Raises:
            LimitError: the text is none of these, or a value is out of its range.
        """
        plain = "".join(str(text).split())
        if match := _COUNT.fullmatch(plain):
            return cls(_read_number(match["count"]), match["per"])
        match = _SHARE.fullmatch(plain)
        if match is None or (match["window"] is not None and not match["share"].endswith("%")):
            raise LimitError(f"cannot read the limit {text!r}: accepted are {ACCEPTED}")
        return cls(
            fraction=_read_share(match["share"]),
            within=None if match["within"] is None else _read_number(match["within"]),
            window=None if match["window"] is None else int(match["window"]),
            confidence=None if match["confidence"] is None else _read_share(match["confidence"]),
        )

    def __str__(self) -> str:
        if self.per is not None:
            return f"{self.count}/{_duration(self.per)}"
        assert self.fraction is not None
        window = "" if self.window is None else f"/{self.window}"
        confidence = "" if self.confidence is None else f"@{_percent(self.confidence)}"
        within = "" if self.within is None else f"+-{self.within}"
        return _percent(self.fraction) + window + within + confidence


def as_limit(value: RateLimit | str | None) -> RateLimit | None:
    """Return a limit that was given as an object or as text; raise :class:`LimitError` where it is neither."""
    if isinstance(value, str):
        return RateLimit.parse(value)
    if value is None or isinstance(value, RateLimit):
        return value
    raise LimitError(f"limit={value!r} is no limit: write a RateLimit, or a text: {ACCEPTED}")


def checked_share(name: str, value: Any) -> float:
    """Return the value as a float in [0, 1]; raise :class:`LimitError` where it is none."""
    number = _number(name, value)
    if not 0 <= number <= 1:
        hint = f"; {number:g}% is {number / 100:g}" if 2 <= number <= 100 else ""
        raise LimitError(f"{name}={number:g} is outside [0, 1]: give a share of the requests{hint}")
    return number


def checked_confidence(value: Any) -> float:
    """Return the value as a float within (0, 1); raise :class:`LimitError` where it is none."""
    number = _number("confidence", value)
    if not 0 < number < 1:
        raise LimitError(f"confidence={number:g} is outside (0, 1): give the chance that it holds, such as 0.95")
    return number


def exact(share: float) -> Fraction:
    """Return the decimal that was written: 0.29 as 29/100, so that 0.29 of 100 is 29 and not 28.99..."""
    return Fraction(repr(float(share)))


def _number(name: str, value: Any) -> float:
    if isinstance(value, str | bytes | bool):
        raise LimitError(f"{name}={value!r} is not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise LimitError(f"{name}={value!r} is not a number") from None
    if math.isnan(number):
        raise LimitError(f"{name}=nan is not a number")
    return number


def _whole(name: str, value: Any, least: int, hint: str) -> int:
    number = _number(name, value)
    if not math.isfinite(number) or number != int(number) or number < least:
        small = "negative" if number < 0 else "zero" if number == 0 else "too few"
        wrong = small if number < least else "not a whole number"
        raise LimitError(f"{name}={value!r} is {wrong}: give a whole number of {least} or more{hint}")
    return int(value)


def _seconds(per: Any) -> float:
    if isinstance(per, str):
        text = "".join(per.split())
        if not _DURATION.fullmatch(text.lstrip("+-")):
            raise LimitError(f"per={per!r} is no length of time: write '30s', '15m', '1h', '1d' or '1h30m'")
        parts = re.findall(rf"({_NUMBER})([dhms])", text)
        # In decimals: 0.1h is 360 seconds and not the neighbour that binary fractions give.
        seconds = float(sum(Decimal(number) * _UNITS[unit] for number, unit in parts))
        seconds = -seconds if text.startswith("-") else seconds
    else:
        seconds = per.total_seconds() if isinstance(per, timedelta) else _number("per", per)
    if not (0 < seconds < math.inf):
        raise LimitError(f"per={per!r} is no window: give a finite length above zero, such as '1h'")
    return seconds


def _duration(seconds: float) -> str:
    """Return text that :func:`_seconds` reads back as the same number."""
    if seconds != int(seconds) or seconds >= 2**53:
        return f"{seconds!r}s"
    left, text = int(seconds), ""
    for unit, length in _UNITS.items():
        number, left = divmod(left, length)
        text += f"{number}{unit}" if number else ""
    return text


def _read_number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


def _read_share(text: str) -> float:
    return float(Decimal(text[:-1]).scaleb(-2)) if text.endswith("%") else float(text)


def _percent(share: float) -> str:
    return f"{Decimal(repr(share)).scaleb(2).normalize():f}%"


def _floor(share: float, window: int) -> int:
    return math.floor(exact(share) * window)
