"""How long the model takes: measured at the start, corrected while it runs, and used to estimate the wait."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Weight of the latest call in the running mean.
_NEW = 0.1
_REPEATS = 3


class Timing:
    """Seconds of a call with n inputs: a line ``fixed + each * n``, scaled by what recent calls took.

    Example:
        >>> timing = Timing({1: 0.002, 65: 0.066})
        >>> round(timing.call(33), 3)
        0.034
        >>> round(timing.wait(130, most=65), 3)
        0.132
    """

    def __init__(self, measured: dict[int, float]) -> None:
        few, many = min(measured), max(measured)
        self._each = max(0.0, (measured[many] - measured[few]) / max(1, many - few))
        self._fixed = max(1e-6, measured[few] - self._each * few)
        self._scale = 1.0

    def call(self, inputs: int) -> float:
        """Return the expected seconds of one call."""
        return (self._fixed + self._each * inputs) * self._scale

    def observe(self, inputs: int, seconds: float) -> None:
        """Learn from the seconds that a call took."""
        expected = self._fixed + self._each * inputs
        self._scale += _NEW * (min(max(seconds / expected, 0.1), 100.0) - self._scale)

    def wait(self, inputs: int, most: int) -> float:
        """Return the expected seconds until so many inputs are done, ``most`` in a call."""
        calls, rest = divmod(inputs, most)
        return calls * self.call(most) + (self.call(rest) if rest else 0.0)


def measure(run: Callable[[int], object], sizes: tuple[int, ...]) -> dict[int, float]:
    """Return the seconds of calls with so many inputs, the best of a few; a slow one is not repeated."""
    out: dict[int, float] = {}
    for size in sizes:
        for _ in range(_REPEATS):
            start = time.perf_counter()
            run(size)
            out[size] = min(out.get(size, float("inf")), time.perf_counter() - start)
            if out[size] > 0.2:
                break
    return out
