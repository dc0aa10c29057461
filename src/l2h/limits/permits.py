"""The cap itself: permits at positions on a line, of which no window may hold too many.

A position is a time for a count in a time window, and the number of the request for a share of requests;
everything below is the same for both. A window is half open, ``(x - length, x]``. A permit is given at x only
if that window then holds no more than the cap, and x never decreases, so every window that ends at a permit
holds no more than the cap; and any window at all holds no more than the one that ends at its last permit.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from l2h.limits.drift import Drift

Clock = Callable[[], float]
Confirm = Callable[[], bool]
#: Reason codes of a permit.
WITHIN_LIMIT = "within_limit"
LIMIT_REACHED = "limit_reached"
BELOW_PACE = "below_pace"
BELOW_MIN_SCORE = "below_min_score"
LEDGER_UNAVAILABLE = "ledger_unavailable"
TIMED_OUT = "timed_out"
OTHER_LIMIT = "other_limit"


class StoreUnavailableError(Exception):
    """Raised when permits could not be read or written: none may be given."""


class StoreBusyError(StoreUnavailableError):
    """Raised when other processes did not let go of the permits in time."""


class Permit(NamedTuple):
    """The answer to one request, true where the server may be asked."""

    granted: bool  # whether to ask
    #: ``within_limit``, or why not: ``limit_reached`` (the window is full), ``below_pace`` (the budget is kept for
    #: inputs that gain more), ``below_min_score``, ``ledger_unavailable`` (the file that holds the permits cannot be
    #: written, so none is given), ``timed_out`` (others did not let go of the limiter or its file in time),
    #: ``other_limit`` (another limiter, which had to agree, did not).
    reason: str
    #: Of the request: the limiter's time in seconds for a time window, the number of the request for a share of
    #: requests.
    position: float
    threshold: float | None = None  # the score that pacing required; ``None`` where pacing did not decide

    def __bool__(self) -> bool:
        return self.granted


@dataclass(frozen=True)
class LimiterStatus:
    """Counters of a limiter, for this process unless said otherwise."""

    limit: str  # as text
    requests: int  # calls of ``allow``
    permits: int  # requests that were granted
    refused: dict[str, int]  # those that were not, by reason
    cap: int  # the most a window may hold
    used: int  # permits in the window that ends now, including those of other processes on the same path
    remaining: int  # what is left of the cap
    threshold: float | None  # the score that pacing now requires; None without pacing or before the first request
    observed: float | None  # share of recent requests above the calibrated threshold; None where drift is not watched
    expected: float | None  # the calibrated share
    drift: Drift | None  # set while the observed share is out of its band
    clock_behind: float  # seconds; after a jump back the limiter stands still until the clock has caught up

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class PermitWindow:
    """The permits of the window that ends at the current position, in the memory of one process.

    One request is :meth:`begin_request`, then :meth:`end_request`, under the caller's lock.
    """

    def __init__(self, cap: int, length: float, by_time: bool) -> None:
        self.cap, self.length, self.by_time = cap, length, by_time
        self.position: float = -math.inf if by_time else 0  # a time, or the number of a request
        self._at: list[float] = []
        self._head = 0

    @property
    def used(self) -> int:
        return len(self._at) - self._head

    @property
    def full(self) -> bool:
        return self.used >= self.cap

    def begin_request(self, now: float, again: bool = False) -> None:
        """Move the window to a request at time ``now``; one that asks ``again`` is no new request of a share."""
        self._move(now if self.by_time else self.position + (not again))

    def end_request(
        self, wanted: bool, clock: Clock, timeout: float | None, again: bool = False, confirm: Confirm | None = None
    ) -> bool:
        """Record the request, with a permit if one is wanted and the cap allows it; return whether it was given.

        A store that waits for others does so for ``timeout`` seconds at most, and moves to the time of its turn. Where
        all is ready for a permit, ``confirm`` has the last word.
        """
        granted = wanted and not self.full and (confirm is None or confirm())
        if granted:
            self._at.append(self.position)
        return granted

    def refresh(self, now: float) -> None:
        """Bring the window up to date without a request."""
        if self.by_time:
            self._move(now)

    def reopen(self) -> bool:
        """Go on in a forked process; return False if the permits cannot be shared with the parent."""
        return False

    def close(self) -> None:
        """Close what is open."""

    def held_at(self, position: float) -> int:
        """Return how many of the present permits will still be in the window when it ends at ``position``."""
        return len(self._at) - bisect_right(self._at, position - self.length, lo=self._head)

    def _move(self, position: float) -> None:
        """Move the end of the window, never back, and forget what has left it; a clock that went back is awaited."""
        at, head = self._at, self._head
        self.position = position = max(position, self.position, at[-1] if at else -math.inf)
        # The last one is kept even if it has left the window; `_head` does not count it.
        while head < len(at) and self._left(at[head], position):
            head += 1
        if head > 512 and head * 2 > len(at):
            keep = min(head, len(at) - 1)
            del at[:keep]
            head -= keep
        self._head = head

    def _left(self, permit: float, position: float) -> bool:
        age = position - permit
        # Rounding cannot move a difference across the length; only where they are equal can it have hidden
        # that the permit is still inside.
        if age != self.length or isinstance(age, int):
            return age >= self.length
        return Fraction(position) - Fraction(permit) >= Fraction(self.length)
