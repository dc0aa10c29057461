"""How long the model takes: measured at its start, followed while it runs, and used to tell how long one must wait."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Weight of the latest call in the running mean.
_NEW = 0.1


class Timing:
    """Seconds of a call with n inputs, as a line ``fixed + each * n`` times how it goes lately.

    Example:
        >>> timing = Timing({1: 0.002, 65: 0.066})
        >>> round(timing.of(33), 3)
        0.034
        >>> round(timing.wait(130, most=65), 3)
        0.132
    """

    def __init__(self, measured: dict[int, float]) -> None:
        few, many = min(measured), max(measured)
        self._each = max(0.0, (measured[many] - measured[few]) / max(1, many - few))
        self._fixed = max(1e-6, measured[few] - self._each * few)
        self._scale = 1.0

    def of(self, inputs: int) -> float:
        """Expected seconds of one call."""
        return (self._fixed + self._each * inputs) * self._scale

    def observe(self, inputs: int, seconds: float) -> None:
        """Learn from a call."""
        expected = self._fixed + self._each * inputs
        self._scale += _NEW * (min(max(seconds / expected, 0.1), 100.0) - self._scale)

    def wait(self, inputs: int, most: int) -> float:
        """Expected seconds until so many are done, ``most`` in a call."""
        calls, rest = divmod(inputs, most)
        return calls * self.of(most) + (self.of(rest) if rest else 0.0)


def measure(run: Callable[[int], object], sizes: tuple[int, ...], repeats: int = 3) -> dict[int, float]:
    """Seconds of calls with so many inputs, the best of some; a slow one is not repeated."""
    out: dict[int, float] = {}
    for size in sizes:
        for _ in range(repeats):
            start = time.perf_counter()
            run(size)
            out[size] = min(out.get(size, float("inf")), time.perf_counter() - start)
            if out[size] > 0.2:
                break
    return out
