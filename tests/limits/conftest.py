"""A clock that tests move by hand, and an independent check of the cap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest


class Clock:
    """Shows the time it was last set to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def make_clock() -> type[Clock]:
    return Clock


@pytest.fixture(scope="session")
def most_in_a_window() -> Callable[[Sequence[float], float], int]:
    """The most permits in any half-open window of a length, at any offset.

    In exact arithmetic: some window holds a set of permits exactly if they lie less than the length apart, so it is
    enough to start one at each permit.
    """

    def most(times: Sequence[float], length: float) -> int:
        exact = sorted(Fraction(t) for t in times)
        span = Fraction(length)
        return max((bisect_left(exact, first + span) - i for i, first in enumerate(exact)), default=0)

    return most
