"""The cap itself: permits at positions on a line, of which no window may hold too many.

A position is a time for a count in a time window, and the number of the request for a share of requests;
everything below is the same for both. A window is half open, ``(x - length, x]``. A permit is given at x only
if that window then holds no more than the cap, and x never decreases, so every window that ends at a permit
holds no more than the cap; and any window at all holds no more than the one that ends at its last permit.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction


class StoreUnavailableError(Exception):
    """Raised when permits could not be read or written: none may be given."""


class StoreBusyError(StoreUnavailableError):
    """Raised when other processes did not let go of the permits in time."""


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
        self,
        wanted: bool,
        clock: Callable[[], float],
        timeout: float | None,
        again: bool = False,
        confirm: Callable[[], bool] | None = None,
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
