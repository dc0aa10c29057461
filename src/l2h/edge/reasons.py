"""Why the device or the server answered: the codes of the edge, and the faults of requests that lead to them."""

import random
from collections.abc import Mapping

import numpy as np

from l2h.answers import NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING
from l2h.metadata import retry_after

NO_SERVER = "no_server"  # the server should have been asked, but there is none
SERVER_UNREACHABLE = "server_unreachable"  # no connection, or one that broke: refused, reset, no such host, TLS
DEADLINE = "deadline"  # the time ran out
KEY_RATE = "key_rate"  # 429, and the server says that the key asks faster than its rate
KEY_QUOTA = "key_quota"  # 429, and the server says that the key's quota has no room left
SERVER_BUSY = "server_busy"  # 503, or a 429 that does not say more
SERVER_ERROR = "server_error"  # any other 5xx
REFUSED = "refused"  # any 4xx but 401, 403 and 429
NOT_AUTHORISED = "not_authorised"  # 401 or 403
BAD_ANSWER = (
    "bad_answer"  # an unusable answer: no message of the protocol, not finite, of another shape, from another model
)
CIRCUIT_OPEN = "circuit_open"  # the server failed too often just now and is not asked for a while
CROWDED = "crowded"  # so many requests were under way that this one was not sent: it could not have been in time
AUDIT = "audit"  # asked by chance, although it would have been kept; the better of both answers is given

#: Every reason; its place here is its code inside an edge client. The first are those of :mod:`l2h.answers`.
REASONS = (
    *(NOT_WORTH_ASKING, WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT),
    *(NO_SERVER, SERVER_UNREACHABLE, DEADLINE, SERVER_BUSY, SERVER_ERROR, REFUSED, NOT_AUTHORISED, BAD_ANSWER),
    *(CIRCUIT_OPEN, CROWDED, KEY_RATE, KEY_QUOTA, AUDIT),
)
CODE = {reason: np.int8(code) for code, reason in enumerate(REASONS)}
#: Those that count as failures of the server; a 503 does too, but not a 429.
_FAILURES = frozenset({SERVER_UNREACHABLE, DEADLINE, SERVER_ERROR, BAD_ANSWER})
#: What a 429 is for, by the header ``L2H-Reason``, which servers of other makes and older ones do not send.
_LIMITED = {"rate": KEY_RATE, "quota": KEY_QUOTA}
#: The longest wait before a repeat on a new connection; the wait is drawn between half of it and all of it.
_PAUSE = 0.02


class FaultError(Exception):
    """A request that brought no labels."""

    def __init__(
        self,
        reason: str,  # one of REASONS
        text: str,
        *,
        retry_in: float | None = None,  # seconds to wait before it may be repeated; None where a repeat is of no use
        healthy: bool | None = None,  # whether the server did its part; None: as the reason says
        stale: bool = False,  # whether it looks like a kept connection that the server had closed meanwhile
    ) -> None:
        super().__init__(text)
        self.reason, self.retry_in, self.stale = reason, retry_in, stale
        self.healthy = reason not in _FAILURES if healthy is None else healthy


def bad_answer(text: str) -> FaultError:
    """Return the fault of an answer that cannot be used; ``text`` says why."""
    return FaultError(BAD_ANSWER, text)


def broken(error: BaseException, *, stale: bool = False) -> FaultError:
    """Return the fault of a connection that could not be made or ended too early."""
    pause = random.uniform(_PAUSE / 2, _PAUSE)
    return FaultError(SERVER_UNREACHABLE, _cause(error), retry_in=pause, stale=stale)


def for_status(status: int, headers: Mapping[str, str], text: str) -> FaultError | None:
    """Return the fault that a status other than 200 means; None for 200."""
    if status == 200:
        return None
    if status in (429, 503):
        wait, limited = retry_after(headers.get("retry-after")), status == 429
        reason = _LIMITED.get(headers.get("l2h-reason", ""), SERVER_BUSY) if limited else SERVER_BUSY
        return FaultError(reason, text, retry_in=wait, healthy=limited)
    if status in (401, 403):
        return FaultError(NOT_AUTHORISED, text)
    if 400 <= status < 500:
        return FaultError(REFUSED, text)
    # Others are a redirect, which is not followed, or no answer to a POST at all.
    return FaultError(SERVER_ERROR if 500 <= status < 600 else BAD_ANSWER, text)


def _cause(error: BaseException) -> str:
    """Return what the operating system said, found below what the libraries made of it."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None or (isinstance(cause, OSError) and cause.strerror):
            break
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
    named = error if cause is None else cause
    return str(named) or type(named).__name__
