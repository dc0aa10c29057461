"""Pacing: which requests to spend the budget on.

The first requests are no better than those that follow. So the pacer looks ahead by a horizon h, a part of the
window. Some of the permits now in the window will have left it by then. What the cap then leaves free may be
spent until then, on the requests that will come until then:

    p = (cap - permits still in the window at x + h) / (requests expected within h)

is the share of them that can be sent, and the threshold is the (1 - p)-quantile of the recent scores. Budget
left unspent raises p and lowers the threshold; near exhaustion p falls towards 0. On steady traffic with f
permits per unit of length, ``p * arrivals = f`` has the one solution ``f = cap / length``: the whole budget is
spent, evenly.

The requests expected within h are the largest of three estimates: the average of the last window, so that a
quiet time does not spend what the next burst needs; as many as in the last h; and the present rate for a quarter
of the window, so that a burst does not use up the budget at its beginning.
"""

import math
import random
from bisect import bisect_left, bisect_right, insort
from collections import deque

import numpy as np

from l2h.costs import FloatArray
from l2h.limits.permits import PermitWindow

#: Horizon, as a part of the window.
_HORIZON = 0.5
#: Before any traffic was seen, it is assumed just to fill the budget; this part of a window is the assumption's weight.
_PRIOR = 0.02
#: Number of bins per window in which requests are counted, how many are "just now", and how many a burst lasts.
_BINS = 64
_NOW = 2
_BURST = _BINS // 4


class RecentScores:
    """The last ``memory`` scores, in order of size; more ``calibration`` scores than that are thinned evenly."""

    def __init__(self, memory: int, calibration: FloatArray | None = None) -> None:
        self._memory = memory
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        if calibration is not None and len(calibration):
            kept = np.sort(calibration)
            if len(kept) > memory:
                kept = kept[((np.arange(memory) + 0.5) * len(kept) / memory).astype(int)]
            self._sorted = kept.tolist()
            # Live scores replace these one by one: in a random order, not from the lowest up.
            self._recent.extend(np.random.default_rng(0).permutation(kept).tolist())

    def add(self, score: float) -> None:
        """Add a score, and drop the oldest where there are enough."""
        if len(self._recent) >= self._memory:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(score)
        insort(self._sorted, score)

    def cut(self, share: float) -> tuple[float, float]:
        """Return the score that ``share`` of the recent ones reach, and the probability to send one equal to it."""
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


class TrafficForecast:
    """How many requests to expect, from counts in a ring of bins over the last window, of ``length`` seconds."""

    def __init__(self, length: float, cap: int) -> None:
        self._length = length
        self._width = length / _BINS
        self._cap = cap
        self._bins = [0] * _BINS
        self._bin = 0
        self._in_window = self._in_horizon = self._just_now = 0
        self._origin: float | None = None

    def add(self, now: float) -> None:
        """Count a request at ``now``, which never decreases."""
        self._turn_to(now)
        self._bins[self._bin % _BINS] += 1
        self._in_window += 1
        self._in_horizon += 1
        self._just_now += 1

    def expected(self, now: float) -> float:
        """Return how many requests to expect within the horizon."""
        since = self._turn_to(now)
        # The current bin is not over yet.
        covered = min(since, since - (self._bin - _BINS + 1) * self._width)
        average = (self._cap * _PRIOR + self._in_window) / (self._length * _PRIOR + covered)
        # One request alone is no burst.
        burst = (self._just_now - 1) * (_BURST / _NOW)
        return max(average * _HORIZON * self._length, self._in_horizon, burst)

    def _turn_to(self, now: float) -> float:
        """Bring the bins up to ``now``, and return the time since the first request."""
        if self._origin is None:
            self._origin = now
        since = now - self._origin
        target = int(since / self._width)
        if target != self._bin:
            for passed in range(max(self._bin, target - _BINS) + 1, target + 1):
                self._bins[passed % _BINS] = 0
            self._bin = target
            self._in_window = sum(self._bins)
            self._in_horizon = self._last(round(_HORIZON * _BINS))
            self._just_now = self._last(_NOW)
        return since

    def _last(self, bins: int) -> int:
        return sum(self._bins[(self._bin - i) % _BINS] for i in range(bins))


class Pacer:
    """Decides whether a request is worth a permit, by the last ``memory`` scores; ``seed`` breaks ties."""

    def __init__(self, window: PermitWindow, memory: int, calibration: FloatArray | None, seed: int) -> None:
        self._window = window
        # Where every request moves the window by one there is nothing to estimate.
        self._traffic = TrafficForecast(window.length, window.cap) if window.by_time else None
        self._memory = memory
        self.forget(calibration)
        self._draw = random.Random(seed).random

    def forget(self, calibration: FloatArray | None) -> None:
        """Compare with other scores from now on, in place of the recent ones."""
        self._scores = RecentScores(self._memory, calibration)

    def add(self, score: float) -> None:
        """Count a request, whether it will be sent or not."""
        self._scores.add(score)
        if self._traffic is not None:
            self._traffic.add(self._window.position)

    def cut(self) -> tuple[float, float]:
        """Return the threshold now, and the probability to send a score that equals it."""
        position, horizon = self._window.position, _HORIZON * self._window.length
        free = self._window.cap - self._window.held_at(position + horizon)
        expected = horizon if self._traffic is None else self._traffic.expected(position)
        return self._scores.cut(free / expected)

    def accepts(self, score: float, cut: tuple[float, float]) -> bool:
        """Decide whether a score passes the cut; a tie is decided at random."""
        value, tie_share = cut
        return score > value or (score == value and self._draw() < tie_share)
