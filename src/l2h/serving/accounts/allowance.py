"""What a key may use: a quota (inputs in a period) and a rate (inputs per second, with a burst)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from l2h.serving.errors import AllowanceError

_SECONDS = {
    "s": 1,
    "second": 1,
    "m": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "week": 604800,
}
_COUNT = re.compile(r"(\d{1,15})/([a-z]+)")
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)/([a-z]+)")
_UNITS = "second, minute, hour, day, week (or s, m, h, d)"


@dataclass(frozen=True)
class Quota:
    """At most ``count`` inputs in a period; periods follow one another from midnight UTC, weeks from a Thursday.

    Example:
        >>> Quota.parse("10000/day")
        Quota(count=10000, seconds=86400)
        >>> str(Quota.parse("20/h"))
        '20/hour'
    """

    count: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Parse ``10000/day``.

        Raises:
            AllowanceError: it cannot be read.
        """
        match = _COUNT.fullmatch(text.strip())
        if match is None or match[2] not in _SECONDS:
            raise AllowanceError(f"cannot read the quota {text!r}: write 10000/day; periods: {_UNITS}")
        return cls(int(match[1]), _SECONDS[match[2]])

    def __str__(self) -> str:
        period = next(name for name, length in _SECONDS.items() if length == self.seconds and len(name) > 1)
        return f"{self.count}/{period}"

    def window(self, now: float) -> int:
        """Return the number of the period that a time lies in."""
        return int(now // self.seconds)


@dataclass(frozen=True)
class Rate:
    """Inputs per second, and how many of them may come at once.

    Example:
        >>> Rate.parse("50/s")
        Rate(per_second=50.0, burst=50)
        >>> Rate.parse("30/minute", burst=5)
        Rate(per_second=0.5, burst=5)
    """

    per_second: float
    burst: int

    @classmethod
    def parse(cls, text: str, burst: int | None = None) -> Rate:
        """Parse ``50/s``; without a burst given it is one second's worth.

        Raises:
            AllowanceError: it cannot be read, or lets nothing through.
        """
        match = _RATE.fullmatch(text.strip())
        if match is None or match[2] not in _SECONDS:
            raise AllowanceError(f"cannot read the rate {text!r}: write 50/s or 30/minute; periods: {_UNITS}")
        per_second = float(match[1]) / _SECONDS[match[2]]
        if per_second <= 0:
            raise AllowanceError(f"the rate {text!r} lets nothing through: revoke the key instead")
        if burst is None:
            burst = max(1, math.ceil(per_second))
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise AllowanceError(f"a burst of {burst!r}: it is a whole number from 1")
        return cls(per_second, burst)
