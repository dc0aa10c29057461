"""The cap itself: permits on a line, and no stretch of the line that holds too many.

The line is time for a count in a time window and the number of the request for a share of requests;
everything below is the same for both. A window is half open, ``(x - length, x]``. A permit is given at x only
if that window then holds no more than the cap, and x never decreases, so every window that ends at a permit
holds no more than the cap; and any window at all holds no more than the one that ends at its last permit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from fractions import Fraction
from typing import Protocol


class Window:
    """The permits of the window that ends at the current position.

    Args:
        cap: the most it may hold.
        length: how long it is, in the unit of the positions.
    """

    def __init__(self, cap: int, length: float) -> None:
        self.cap = cap
        self.length = length
        self._at: list[float] = []
        self._head = 0

    @property
    def used(self) -> int:
        """Permits in the window."""
        return len(self._at) - self._head

    @property
    def full(self) -> bool:
        """Whether the cap is reached."""
        return self.used >= self.cap

    @property
    def newest(self) -> float | None:
        """Position of the last permit ever recorded, in the window or not."""
        return self._at[-1] if self._at else None

    def advance(self, position: float) -> None:
        """Move the end of the window to ``position`` and forget what has left it."""
        at, head = self._at, self._head
        # The last one is kept though it may have left, for `newest`; `_head` does not count it.
        while head < len(at) and self._left(at[head], position):
            head += 1
        if head > 512 and head * 2 > len(at):
            keep = min(head, len(at) - 1)
            del at[:keep]
            head -= keep
        self._head = head

    def record(self, positions: Iterable[float]) -> None:
        """Add permits, at positions that do not decrease."""
        self._at.extend(positions)

    def clear(self) -> None:
        """Forget every permit."""
        self._at.clear()
        self._head = 0

    def held_at(self, position: float) -> int:
        """How many of the present permits will still be in the window when it ends at ``position``."""
        return len(self._at) - bisect_right(self._at, position - self.length, lo=self._head)

    def _left(self, permit: float, position: float) -> bool:
        age = position - permit
        # A rounded difference above or below the length is so unrounded too; only where they are equal can
        # rounding have hidden that the permit is still inside.
        if age != self.length or isinstance(age, int):
            return age >= self.length
        return Fraction(position) - Fraction(permit) >= Fraction(self.length)


class Ledger(Protocol):
    """Where permits are kept. One request is ``arrive``, then ``settle``; the caller holds a lock around
    both."""

    window: Window
    position: float

    def arrive(self, now: float) -> None:
        """A request at time ``now``: sets ``position`` and brings ``window`` up to it."""

    def settle(self, wants: bool) -> bool:
        """Record the request, and a permit for it if it ``wants`` one and the cap allows; whether it was
        given."""

    def refresh(self, now: float) -> None:
        """Bring ``window`` up to date without a request."""

    def reopen(self) -> bool:
        """Go on in a forked process; false if the permits cannot be shared with the parent."""

    def close(self) -> None:
        """Let go of what is open."""


class MemoryLedger:
    """Permits in the memory of one process.

    Args:
        window: the empty window.
        by_time: whether positions are times; else they are numbers of requests.
    """

    def __init__(self, window: Window, by_time: bool) -> None:
        self.window = window
        self.position: float = -math.inf if by_time else 0
        self._by_time = by_time

    def arrive(self, now: float) -> None:
        """See :class:`Ledger`."""
        if self._by_time:
            self.refresh(now)
        else:
            self.position += 1
            self.window.advance(self.position)

    def settle(self, wants: bool) -> bool:
        """See :class:`Ledger`."""
        if not wants or self.window.full:
            return False
        self.window.record([self.position])
        return True

    def refresh(self, now: float) -> None:
        """See :class:`Ledger`."""
        if self._by_time:
            # Time never goes back for the limiter: a clock that does is waited for.
            self.position = max(now, self.position)
            self.window.advance(self.position)

    def reopen(self) -> bool:
        """See :class:`Ledger`."""
        return False

    def close(self) -> None:
        """See :class:`Ledger`."""
