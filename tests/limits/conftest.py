"""A clock that tests move by hand, and an independent check of the cap."""

from __future__ import annotations

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

    By brute force in exact arithmetic: some window holds a set of permits exactly if they lie less than the
    length apart, so it is enough to start one at each permit.
    """

    def most(times: Sequence[float], length: float) -> int:
        exact = [Fraction(t) for t in times]
        span = Fraction(length)
        return max((sum(0 <= t - first < span for t in exact) for first in exact), default=0)

    return most
