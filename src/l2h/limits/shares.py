"""Shares of several servers, and of all together, met by prices that are added to theirs.

Let ``v[i, k]`` be what asking server k about calibration sample i saves. Whom to ask is the linear programme

    maximise  sum_ik v[i, k] x[i, k]   with   sum_k x[i, k] <= 1,   sum_i x[i, k] <= n q_k,   sum_ik x[i, k] <= n q,

and by its dual every sample asks the server with the largest ``v[i, k] - r_k``, if that is positive. The prices
``r_k = mu_k + mu`` minimise a convex, piecewise linear function. It is L-natural-convex, as prices of goods of which
everyone wants one at most are: a point from which no set of prices can be moved together to something lower is a
minimum (Murota, Discrete Convex Analysis, 2003). The best move of one set is a quantile, as for one share.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray
from l2h.limits.rate import LimitError, checked_share, exact

#: Savings that differ by less, as a part of the largest, are equal: sums of a few of them are exact to about 1e-15.
_EQUAL = 1e-10


@dataclass(frozen=True)
class ServerShares:
    """Prices that meet shares: each input goes to the server that saves most at them, or stays local."""

    prices: tuple[float, ...]  # added to the price of each server; may be negative where a limit is to be used up
    limited: tuple[bool, ...]  # which servers have a share of their own
    #: How ties are broken, by the set of what is tied (bit 0: to stay local, bit k: server k - 1): the probability of
    #: each option. With these the shares are met exactly on the calibration samples, in expectation.
    ties: Mapping[int, tuple[float, ...]]
    tolerance: float  # savings that differ by less are tied

    def choose(self, gain: FloatArray, rng: np.random.Generator | int | None) -> npt.NDArray[np.intp]:
        """Return int (n,), the server that each input goes to by its gain (n, S) from each of them, or -1.

        ``rng`` breaks ties; one number is drawn per input where some have to be broken at random. None breaks them in
        the order of the inputs: of the calibration samples themselves no share is then exceeded.
        """
        tied = _tied(gain - self.prices, self.tolerance)
        choice = np.where(tied[:, 1:].any(axis=1), tied[:, 1:].argmax(axis=1), -1)  # a tie with the client is remote
        broken = {mask: p for mask, p in self.ties.items() if p[1 + _lowest(mask)] < 1}
        if broken:
            draw = None if rng is None else np.random.default_rng(rng).random(len(gain))
            masks = _masks(tied)
            for mask, probability in broken.items():
                rows = np.flatnonzero(masks == mask)
                at = (np.arange(len(rows)) + 0.5) / len(rows) if draw is None else draw[rows]
                choice[rows] = np.searchsorted(np.cumsum(probability)[:-1], at, side="right") - 1
        return choice

    def apply(self, gain: FloatArray, rng: np.random.Generator | int) -> tuple[FloatArray, BoolArray]:
        """Return the gain (n, S) at the added prices, largest at the server of :meth:`choose`, and who may be asked.

        A server with a share of its own may be asked about the inputs that are chosen for it. Another may also be asked
        about those that go to a server before it, should that one not answer.
        """
        choice = self.choose(gain, rng)
        left = gain - self.prices
        rows = np.flatnonzero(choice >= 0)
        left[rows, choice[rows]] = np.nextafter(left[rows].max(axis=1), np.inf)
        able = (left >= 0) & (choice >= 0)[:, None] & ~np.array(self.limited)
        able[rows, choice[rows]] = True
        return left, able


def shares_for(gain: FloatArray, own: Sequence[float | None], total: float | None, fill: bool = False) -> ServerShares:
    """Return the prices with which most is saved within shares of the calibration samples.

    ``gain`` (n, S) is what asking each server saves, minus infinity for one that cannot be asked. ``own`` are the
    shares of the servers, ``total`` that of all together, None without one. ``fill`` asks wherever the shares allow it,
    even where it saves nothing.

    Example:
        >>> gain = np.array([[0.3, 0.4], [0.2, 0.4], [0.1, 0.5], [0.1, 0.0]])
        >>> shares_for(gain, own=[None, 0.25], total=0.5).choose(gain, rng=0).tolist()
        [0, -1, 1, -1]
    """
    if not len(gain):
        raise LimitError("shares of several servers need calibration samples, and there are none")
    n = len(gain)
    most = [None if q is None else exact(checked_share("share", q)) * n for q in own]
    most_in_all = None if total is None else exact(checked_share("share", total)) * n
    largest = float(np.abs(gain[np.isfinite(gain)]).max(initial=0.0)) or 1.0
    bonus, equal = 3 * largest if fill else 0.0, _EQUAL * largest
    value = gain + bonus
    # A server with a share of 0 is never asked: its price would be infinite.
    value[:, [m == 0 or most_in_all == 0 for m in most]] = -np.inf
    own_price, price = _dual(value, most, most_in_all, equal)
    # How many samples may stay local and go to each server. What has a price is used up.
    bounds: list[tuple[Fraction, Fraction | None]] = [(Fraction(0), None)]
    if most_in_all is not None:
        bounds = [(n - most_in_all, n - most_in_all if price > equal else None)]
    for m, added in zip(most, own_price.tolist(), strict=True):
        bounds.append((m if m is not None and added > equal else Fraction(0), m))
    ties = _split(_tied(value - (own_price + price), equal), bounds)
    prices = np.where(np.isneginf(value).all(axis=0), np.inf, own_price + price - bonus)
    return ServerShares(tuple(prices.tolist()), tuple(m is not None for m in most), ties, equal)


def _dual(
    value: FloatArray, most: Sequence[Fraction | None], most_in_all: Fraction | None, equal: float
) -> tuple[FloatArray, float]:
    """Return the price (S,) of each server's own share and that of the share of all, at the minimum of the dual."""
    limited = [k for k, m in enumerate(most) if m is not None]
    own, price = np.zeros(value.shape[1]), 0.0
    while True:
        left = value - (own + price)
        best_drop, best_move = 0.0, None
        for moved, with_all in _moves(limited, most_in_all is not None):
            # Together with the price of all, those of a server's own share move down if its whole price is to stay.
            staying = [k for k in limited if k not in moved] if with_all else []
            inside = np.zeros(value.shape[1], dtype=np.bool_)
            inside[moved] = True
            if with_all:
                inside[[k for k, m in enumerate(most) if m is None]] = True
            budget = _total(most, moved)
            if most_in_all is not None and with_all:
                budget = most_in_all - _total(most, staying)
            asked = left[:, inside].max(axis=1, initial=-np.inf)
            other = left[:, ~inside].max(axis=1, initial=0.0)
            lowest = -price if with_all else -min(own[k] for k in moved)
            highest = min((own[k] for k in staying), default=math.inf)
            step = min(max(_quantile(asked - other, budget), lowest), highest)
            before, after = np.maximum(asked, other), np.maximum(asked - step, other)
            drop = float((before - after).sum()) - step * float(budget)
            if drop > max(best_drop, equal):
                best_drop, best_move = drop, (moved, staying, with_all, step)
        if best_move is None:
            return own, price
        moved, staying, with_all, step = best_move
        if with_all:
            price += step
            own[staying] -= step
        else:
            own[moved] += step


def _total(most: Sequence[Fraction | None], servers: list[int]) -> Fraction:
    return sum((most[k] or Fraction(0) for k in servers), Fraction(0))


def _moves(limited: list[int], with_all: bool) -> Iterator[tuple[list[int], bool]]:
    """Give every set of prices that can be moved together."""
    for size in range(len(limited) + 1):
        for chosen in itertools.combinations(limited, size):
            if chosen:
                yield list(chosen), False
            if with_all:
                yield list(chosen), True


def _quantile(saved: FloatArray, budget: Fraction) -> float:
    """Return the cut above which no more than so many values lie, and at or above which no fewer do."""
    if budget <= 0:
        return math.inf
    if budget > len(saved):
        return -math.inf
    place = len(saved) - math.ceil(budget)
    return float(np.partition(saved, place)[place])


def _tied(left: FloatArray, equal: float) -> BoolArray:
    """Return bool (n, 1 + S), what is as good as the best: to stay local, and each server."""
    options = np.column_stack([np.zeros(len(left)), left])
    return np.asarray(options >= options.max(axis=1, keepdims=True) - equal)


def _masks(tied: BoolArray) -> npt.NDArray[np.int64]:
    return np.asarray(tied @ (1 << np.arange(tied.shape[1], dtype=np.int64)))


def _lowest(mask: int) -> int:
    return ((mask >> 1) & -(mask >> 1)).bit_length() - 1


def _split(tied: BoolArray, bounds: Sequence[tuple[Fraction, Fraction | None]]) -> dict[int, tuple[float, ...]]:
    """Return how samples with ties are split among their options, so that the use of each option is within its bounds.

    What is optimal for the prices can be split so. Samples move along paths of ties from options that are used too much
    to some that may be used more, and from some that may be used less to those that are used too little.
    """
    masks, counts = np.unique(_masks(tied), return_counts=True)
    options = range(len(bounds))
    split = {m: {o: Fraction(0) for o in options if m >> o & 1} for m in masks.tolist()}
    used = [Fraction(0)] * len(bounds)
    for mask, count in zip(masks.tolist(), counts.tolist(), strict=True):
        first = 1 + _lowest(mask) if mask > 1 else 0
        split[mask][first] = Fraction(count)
        used[first] += count

    while True:
        room = [Fraction(len(tied)) if most is None else most - used[o] for o, (_, most) in enumerate(bounds)]
        spare = [used[o] - least for o, (least, _) in enumerate(bounds)]
        over = {o: -room[o] for o in options if room[o] < 0}
        under = {o: -spare[o] for o in options if spare[o] < 0}
        if not over and not under:
            break
        gives = over or {o: spare[o] for o in options if spare[o] > 0}
        takes, path = under, _path(split, set(gives), set(under))
        if path is None and over:
            takes = {o: room[o] for o in options if room[o] > 0}
            path = _path(split, set(gives), set(takes))
        if path is None:  # possible only by rounding: what is left is less than one sample
            break
        moved = min(gives[path[0][1]], takes[path[-1][2]], *(split[mask][o] for mask, o, _ in path))
        for mask, giver, taker in path:
            split[mask][giver] -= moved
            split[mask][taker] += moved
        used[path[0][1]] -= moved
        used[path[-1][2]] += moved
    return {
        mask: tuple(float(amounts.get(o, Fraction(0)) / sum(amounts.values())) for o in options)
        for mask, amounts in split.items()
        if len(amounts) > 1
    }


def _path(
    split: Mapping[int, Mapping[int, Fraction]], sources: set[int], sinks: set[int]
) -> list[tuple[int, int, int]] | None:
    """Return the shortest way from a source to a sink, as steps (set of tied options, from, to); None without one."""
    came: dict[int, tuple[int, int, int]] = {}
    queue = deque(sorted(sources))
    while queue:
        option = queue.popleft()
        if option in sinks and option not in sources:
            steps = [came[option]]
            while steps[0][1] not in sources:
                steps.insert(0, came[steps[0][1]])
            return steps
        for mask, amounts in split.items():
            if amounts.get(option, 0) > 0:
                for nearby in amounts:
                    if nearby not in came and nearby not in sources:
                        came[nearby] = (mask, option, nearby)
                        queue.append(nearby)
    return None
