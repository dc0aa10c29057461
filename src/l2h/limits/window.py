"""The cap itself: permits at positions on a line, of which no window may hold too many.

A position is a time for a count in a time window, and the number of the request for a share of requests;
everything below is the same for both. A window is half open, ``(x - length, x]``. A permit is given at x only
if that window then holds no more than the cap, and x never decreases, so every window that ends at a permit
holds no more than the cap; and any window at all holds no more than the one that ends at its last permit.
"""

from bisect import bisect_right
from collections.abc import Iterable
from fractions import Fraction


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
        """Position of the last permit ever recorded, in the window or not; ``None`` before the first."""
        return self._at[-1] if self._at else None

    def advance(self, position: float) -> None:
        """Move the end of the window to ``position`` and forget what has left it."""
        at, head = self._at, self._head
        # The last one is kept for `newest` even if it has left the window; `_head` does not count it.
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
        """Return how many of the present permits will still be in the window when it ends at ``position``."""
        return len(self._at) - bisect_right(self._at, position - self.length, lo=self._head)

    def _left(self, permit: float, position: float) -> bool:
        age = position - permit
        # Rounding cannot move a difference across the length; only where they are equal can it have hidden
        # that the permit is still inside.
        if age != self.length or isinstance(age, int):
            return age >= self.length
        return Fraction(position) - Fraction(permit) >= Fraction(self.length)
