"""Pacing: which requests deserve the budget.

The first to come are no better than those that follow. So the pacer looks ahead by a horizon h, a part of the
window. Of the permits now in the window some will have left it by then; what the cap then leaves free may be
spent until then, on the requests that will come until then:

    p = (cap - permits still in the window at x + h) / (requests expected within h)

is the share of them that can be sent, and the threshold is the (1 - p)-quantile of the recent scores. Budget
left unspent raises p and lowers the threshold; near exhaustion p falls towards 0. On steady traffic with f
permits a unit of length, ``p * arrivals = f`` has the one solution ``f = cap / length``: the whole budget is
spent, evenly.

The requests expected within h are the most of three guesses: the average of the last window, so that a lull
does not squander what the next burst needs; as many as in the last h; and what comes just now, going on for a
quarter of the window, so that a burst does not eat the budget at its beginning.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right, insort
from collections import deque

import numpy as np

from l2h.costs import FloatArray
from l2h.limits.window import Window

#: Horizon, as a part of the window.
HORIZON = 0.5
#: How much window the belief counts for that the traffic just fills the budget, held before any was seen.
PRIOR = 0.02
#: Bins of the window in which requests are counted, how many are "just now", and how many a burst lasts.
_BINS = 64
_NOW = 2
_BURST = _BINS // 4


class Sketch:
    """The last scores, in order of size.

    Args:
        memory: how many are kept.
        calibration: scores to begin with; more than ``memory`` of them are thinned evenly.
    """

    def __init__(self, memory: int, calibration: FloatArray | None = None) -> None:
        self._memory = memory
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        if calibration is not None and len(calibration):
            kept = np.sort(calibration)
            if len(kept) > memory:
                kept = kept[((np.arange(memory) + 0.5) * len(kept) / memory).astype(int)]
            self._sorted = kept.tolist()
            # Live scores replace these one by one: in a mixed order, not from the lowest up.
            self._recent.extend(np.random.default_rng(0).permutation(kept).tolist())

    def add(self, score: float) -> None:
        """Take in a score, and let go of the oldest where there are enough."""
        if len(self._recent) >= self._memory:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(score)
        insort(self._sorted, score)

    def cut(self, share: float) -> tuple[float, float]:
        """The score that ``share`` of the recent ones reach, and the probability to send one equal to it."""
        scores = self._sorted
        n = len(scores)
        if share >= 1 or not n:
            return -math.inf, 1.0
        if share <= 0:
            return math.inf, 0.0
        wanted = share * n
        value = scores[n - math.ceil(wanted)]
        above = n - bisect_right(scores, value)
        ties = n - above - bisect_left(scores, value)
        return value, (wanted - above) / ties


class Traffic:
    """How many requests to expect, from counts in a ring of bins over the last window.

    Args:
        length: the window, in seconds.
        cap: its cap.
    """

    def __init__(self, length: float, cap: int) -> None:
        self._length = length
        self._width = length / _BINS
        self._cap = cap
        self._bins = [0] * _BINS
        self._bin = 0
        self._in_window = self._in_horizon = self._just_now = 0
        self._origin: float | None = None

    def add(self, now: float) -> None:
        """A request at ``now``, which never decreases."""
        self._turn_to(now)
        self._bins[self._bin % _BINS] += 1
        self._in_window += 1
        self._in_horizon += 1
        self._just_now += 1

    def expected(self, now: float) -> float:
        """Requests to expect within the horizon."""
        since = self._turn_to(now)
        # The current bin is not over yet.
        covered = min(since, since - (self._bin - _BINS + 1) * self._width)
        average = (self._cap * PRIOR + self._in_window) / (self._length * PRIOR + covered)
        # One request alone is no burst.
        burst = (self._just_now - 1) * (_BURST / _NOW)
        return max(average * HORIZON * self._length, self._in_horizon, burst)

    def _turn_to(self, now: float) -> float:
        """Bring the bins up to ``now``; the time since the first request."""
        if self._origin is None:
            self._origin = now
        since = now - self._origin
        target = int(since / self._width)
        if target != self._bin:
            for passed in range(max(self._bin, target - _BINS) + 1, target + 1):
                self._bins[passed % _BINS] = 0
            self._bin = target
            self._in_window = sum(self._bins)
            self._in_horizon = self._last(round(HORIZON * _BINS))
            self._just_now = self._last(_NOW)
        return since

    def _last(self, bins: int) -> int:
        return sum(self._bins[(self._bin - i) % _BINS] for i in range(bins))


class Pacer:
    """Says whether a request deserves a permit.

    Args:
        window: the permits in force.
        by_time: whether its positions are times; else every request moves it by one, and nothing need be
            estimated.
        memory: how many recent scores set the threshold.
        calibration: scores to begin with.
        seed: of the draws that break ties.
    """

    def __init__(self, window: Window, by_time: bool, memory: int, calibration: FloatArray | None, seed: int) -> None:
        self._window = window
        self._traffic = Traffic(window.length, window.cap) if by_time else None
        self._sketch = Sketch(memory, calibration)
        self._draw = random.Random(seed).random

    def arrive(self, position: float, score: float) -> None:
        """A request, whether it will be sent or not."""
        self._sketch.add(score)
        if self._traffic is not None:
            self._traffic.add(position)

    def cut(self, position: float) -> tuple[float, float]:
        """The threshold now, and the probability to send a score that equals it."""
        horizon = HORIZON * self._window.length
        free = self._window.cap - self._window.held_at(position + horizon)
        expected = horizon if self._traffic is None else self._traffic.expected(position)
        return self._sketch.cut(free / expected)

    def wants(self, score: float, cut: tuple[float, float]) -> bool:
        """Whether a score passes the cut."""
        value, tie_share = cut
        return score > value or (score == value and self._draw() < tie_share)
