"""How long the model takes: measured at the start, corrected while it runs, and used to estimate the wait."""

import math
import time
from collections.abc import Callable

#: Weight of the latest call in the running mean.
_NEW = 0.1
_REPEATS = 3
_SLOW = 0.2


class Timing:
    """Seconds of a call with n inputs: a line ``fixed + each * n``, scaled by what recent calls took.

    Args:
        one: seconds of a call with one input.
        many: seconds of one with ``most`` inputs.
        most: inputs of one call.

    Example:
        >>> timing = Timing(0.002, 0.066, most=65)
        >>> round(timing.call(33), 3)
        0.034
        >>> round(timing.wait(130), 3)
        0.132
    """

    def __init__(self, one: float, many: float, most: int) -> None:
        self._most = most
        self._each = max(0.0, (many - one) / max(1, most - 1))
        self._fixed = max(1e-6, one - self._each)
        self._scale = 1.0

    def call(self, inputs: int) -> float:
        """Return the expected seconds of one call."""
        return (self._fixed + self._each * inputs) * self._scale

    def observe(self, inputs: int, seconds: float) -> None:
        """Learn from the seconds that a call took."""
        expected = self._fixed + self._each * inputs
        self._scale += _NEW * (min(max(seconds / expected, 0.1), 100.0) - self._scale)

    def wait(self, inputs: int) -> float:
        """Return the expected seconds until so many inputs are done."""
        calls, rest = divmod(inputs, self._most)
        return calls * self.call(self._most) + (self.call(rest) if rest else 0.0)


def measure_timing(run: Callable[[int], object], most: int) -> Timing:
    """Time calls with one input and with ``most``, the best of a few; a slow one is not repeated."""
    seconds: dict[int, float] = {}
    for inputs in (1, most):
        for _ in range(_REPEATS):
            start = time.perf_counter()
            run(inputs)
            seconds[inputs] = min(seconds.get(inputs, math.inf), time.perf_counter() - start)
            if seconds[inputs] > _SLOW:
                break
    return Timing(seconds[1], seconds[most], most)
