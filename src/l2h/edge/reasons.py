"""Why the device or the server answered: the codes of the edge, beside those of :mod:`l2h.answers`."""

import numpy as np

from l2h.answers import NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING

#: The server should have been asked, but there is none.
NO_SERVER = "no_server"
#: No connection, or one that broke: refused, reset, no such host, TLS.
SERVER_UNREACHABLE = "server_unreachable"
#: The time ran out.
DEADLINE = "deadline"
#: 429 or 503.
SERVER_BUSY = "server_busy"
#: Any other 5xx.
SERVER_ERROR = "server_error"
#: Any 4xx but 401, 403 and 429.
REFUSED = "refused"
#: 401 or 403.
NOT_AUTHORISED = "not_authorised"
#: An unusable answer: no message of the protocol, not finite, of another shape, from another model.
BAD_ANSWER = "bad_answer"
#: The server failed too often just now and is not asked for a while.
CIRCUIT_OPEN = "circuit_open"

#: Every reason; its place here is its code inside an edge client.
REASONS = (
    NOT_WORTH_ASKING,
    WORTH_ASKING,
    OVER_LIMIT,
    WITHIN_LIMIT,
    NO_SERVER,
    SERVER_UNREACHABLE,
    DEADLINE,
    SERVER_BUSY,
    SERVER_ERROR,
    REFUSED,
    NOT_AUTHORISED,
    BAD_ANSWER,
    CIRCUIT_OPEN,
)
CODE = {reason: np.int8(code) for code, reason in enumerate(REASONS)}
#: Those that count as failures of the server; a 503 does too, but not a 429.
FAILURES = frozenset({SERVER_UNREACHABLE, DEADLINE, SERVER_ERROR, BAD_ANSWER})


def for_status(status: int) -> str | None:
    """Return the reason that an HTTP status stands for; None for 200."""
    if status == 200:
        return None
    if status in (401, 403):
        return NOT_AUTHORISED
    if status in (429, 503):
        return SERVER_BUSY
    if 400 <= status < 500:
        return REFUSED
    if 500 <= status < 600:
        return SERVER_ERROR
    return BAD_ANSWER  # a redirect, which is not followed, or no answer to a POST at all
