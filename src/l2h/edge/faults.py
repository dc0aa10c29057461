"""What can come of a request instead of labels, and how soon it may be repeated."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from l2h.edge import reasons

#: The longest wait before a repeat on a new connection; half to all of it is taken.
_PAUSE = 0.02


class FaultError(Exception):
    """A request that brought no labels.

    Attributes:
        reason: its code.
        again: seconds to wait before it may be repeated; None where a repeat is of no use.
        healthy: whether the server did its part all the same, for the circuit breaker.
        stale: whether a kept connection that had ended meanwhile would look so.
    """

    def __init__(
        self,
        reason: str,
        text: str,
        *,
        again: float | None = None,
        healthy: bool | None = None,
        stale: bool = False,
    ) -> None:
        super().__init__(text)
        self.reason, self.again, self.stale = reason, again, stale
        self.healthy = reason not in reasons.FAILURES if healthy is None else healthy


def broken(error: BaseException, *, stale: bool = False) -> FaultError:
    """No connection, or one that ended too early."""
    again = random.uniform(_PAUSE / 2, _PAUSE)
    return FaultError(reasons.SERVER_UNREACHABLE, _cause(error), again=again, stale=stale)


def _cause(error: BaseException) -> str:
    """What the system said, below what the libraries made of it."""
    told: BaseException | None = error
    for _ in range(10):
        if told is None or (isinstance(told, OSError) and told.strerror):
            break
        told = told.exceptions[0] if isinstance(told, BaseExceptionGroup) else told.__cause__ or told.__context__
    found = error if told is None else told
    return str(found) or type(found).__name__


def for_status(status: int, headers: Mapping[str, str], text: str) -> FaultError | None:
    """What a status other than 200 says; None for 200."""
    reason = reasons.for_status(status)
    if reason is None:
        return None
    again = retry_after(headers.get("Retry-After")) if reason == reasons.SERVER_BUSY else None
    return FaultError(reason, text, again=again, healthy=False if status == 503 else None)


def retry_after(value: str | None) -> float | None:
    """Seconds that a busy server asks to wait; None where it does not say.

    Example:
        >>> retry_after("2"), retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), retry_after("soon"), retry_after(None)
        (2.0, 0.0, None, None)
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
            seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)


def sentence(status: int, body: bytes, secret: str | None) -> str:
    """The status, and what the server said with it on one line; should it repeat the key, without that.

    Example:
        >>> sentence(429, b'{"error": "quota of s3cret\\\\nused up"}', "s3cret")
        'status 429, quota of *** used up'
        >>> sentence(500, b"<html>", None)
        'status 500'
    """
    try:
        said = json.loads(body).get("error")
    except (ValueError, RecursionError, AttributeError):
        said = None
    if not isinstance(said, str):
        return f"status {status}"
    if secret:
        said = said.replace(secret, "***")
    plain = "".join(c if c.isprintable() else " " for c in said[:300])
    return ", ".join(part for part in (f"status {status}", " ".join(plain.split())) if part)
