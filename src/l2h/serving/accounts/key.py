"""API keys, ``l2h_<id>_<secret>``, and what each may use: a quota and a rate.

A store holds a hash of a key and never the key itself. The id is public and finds the record. The secret has 256 random
bits, so a plain SHA-256 of the key is as good as a slow hash: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from l2h.serving.errors import AllowanceError, KeyStoreError

PREFIX = "l2h"
ID_LENGTH = 12
_PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_SECONDS = _PERIODS | {"s": 1, "m": 60, "h": 3600, "d": 86400}
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
        """Parse ``10000/day``."""
        match = _COUNT.fullmatch(text.strip())
        if match is None or match[2] not in _SECONDS:
            raise AllowanceError(f"cannot read the quota {text!r}: write 10000/day; periods: {_UNITS}")
        return cls(int(match[1]), _SECONDS[match[2]])

    def __str__(self) -> str:
        period = next(name for name, length in _PERIODS.items() if length == self.seconds)
        return f"{self.count}/{period}"

    def window(self, now: float) -> tuple[int, float]:
        """Return the number of the period that a time lies in, and the seconds until its end."""
        number = int(now // self.seconds)
        return number, (number + 1) * self.seconds - now


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
        """Parse ``50/s``; without a burst given it is one second's worth."""
        match = _RATE.fullmatch(text.strip())
        if match is None or match[2] not in _SECONDS:
            raise AllowanceError(f"cannot read the rate {text!r}: write 50/s or 30/minute; periods: {_UNITS}")
        per_second = float(match[1]) / _SECONDS[match[2]]
        if not float(f"{per_second:.9f}"):  # a store keeps nine digits
            raise AllowanceError(f"the rate {text!r} lets nothing through: revoke the key instead")
        if burst is None:
            burst = max(1, math.ceil(per_second))
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise AllowanceError(f"a burst of {burst!r}: it is a whole number from 1")
        return cls(per_second, burst)


@dataclass(frozen=True)
class Key:
    """What a store knows of a key."""

    id: str  # public; the ledger and the logs show it
    name: str  # whose it is
    sha256: str  # of the whole key
    created: str  # when, ISO
    enabled: bool = True  # false once revoked
    admin: bool = False  # may read the metrics
    quota: Quota | None = None  # inputs in a period, or None for no bound
    rate: Rate | None = None  # inputs per second, or None for no bound

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **asdict(self),
            "quota": None if self.quota is None else str(self.quota),
            "rate": None if self.rate is None else f"{self.rate.per_second:.9f}".rstrip("0").rstrip(".") + "/s",
            "burst": None if self.rate is None else self.rate.burst,
        }


#: Who is charged where the server asks for no keys.
ANONYMOUS = Key("anonymous", "anonymous", "", "")


def new_key(name: str, *, quota: Quota | None, rate: Rate | None, admin: bool) -> tuple[Key, str]:
    """Make a key; return its record and the key itself."""
    if not name.strip() or not name.isprintable() or len(name) > 100:
        raise KeyStoreError(f"a key's name has 1 to 100 printable characters; got {name!r}")
    key_id = secrets.token_hex(ID_LENGTH // 2)
    text = f"{PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    hashed = hashlib.sha256(text.encode()).hexdigest()
    return Key(key_id, name, hashed, now, admin=admin, quota=quota, rate=rate), text
