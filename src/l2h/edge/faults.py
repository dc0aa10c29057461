"""What can come of a request instead of labels, and when it may be repeated."""

import json
import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from l2h.edge import reasons

#: The longest wait before a repeat on a new connection; the wait is drawn between half of it and all of it.
_PAUSE = 0.02


class FaultError(Exception):
    """A request that brought no labels.

    Attributes:
        reason: its code, one of :data:`l2h.edge.reasons.REASONS`.
        retry_in: seconds to wait before it may be repeated; None where a repeat is of no use.
        healthy: whether the server did its part all the same, for the circuit breaker.
        stale: whether it looks like a kept connection that the server had closed meanwhile.
    """

    def __init__(
        self,
        reason: str,
        text: str,
        *,
        retry_in: float | None = None,
        healthy: bool | None = None,
        stale: bool = False,
    ) -> None:
        super().__init__(text)
        self.reason, self.retry_in, self.stale = reason, retry_in, stale
        self.healthy = reason not in reasons.FAILURES if healthy is None else healthy


def bad_answer(text: str) -> FaultError:
    """Return the fault of an answer that cannot be used; ``text`` says why."""
    return FaultError(reasons.BAD_ANSWER, text)


def broken(error: BaseException, *, stale: bool = False) -> FaultError:
    """Return the fault of a connection that could not be made or ended too early."""
    pause = random.uniform(_PAUSE / 2, _PAUSE)
    return FaultError(reasons.SERVER_UNREACHABLE, _cause(error), retry_in=pause, stale=stale)


def for_status(status: int, headers: Mapping[str, str], text: str) -> FaultError | None:
    """Return the fault that a status other than 200 means; None for 200."""
    reason = reasons.for_status(status)
    if reason is None:
        return None
    wait = retry_after(headers.get("Retry-After")) if reason == reasons.SERVER_BUSY else None
    return FaultError(reason, text, retry_in=wait, healthy=False if status == 503 else None)


def retry_after(value: str | None) -> float | None:
    """Return the seconds that a busy server asks to wait; None where it does not say.

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


def describe_status(status: int, body: bytes, secret: str | None) -> str:
    """Return the status and the server's own message, on one line and without the key should it repeat that.

    Example:
        >>> describe_status(429, b'{"error": "quota of s3cret\\\\nused up"}', "s3cret")
        'status 429, quota of *** used up'
        >>> describe_status(500, b"<html>", None)
        'status 500'
    """
    try:
        message = json.loads(body).get("error")
    except (ValueError, RecursionError, AttributeError):
        message = None
    if not isinstance(message, str):
        return f"status {status}"
    if secret:
        message = message.replace(secret, "***")
    plain = "".join(c if c.isprintable() else " " for c in message[:300])
    return ", ".join(part for part in (f"status {status}", " ".join(plain.split())) if part)


def _cause(error: BaseException) -> str:
    """Return what the operating system said, found below what the libraries made of it."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None or (isinstance(cause, OSError) and cause.strerror):
            break
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
    named = error if cause is None else cause
    return str(named) or type(named).__name__
