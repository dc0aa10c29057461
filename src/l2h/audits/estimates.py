"""Estimates from a random sample in which every member has its own chance to be: means, bounds and tests.

A pair that had the probability p to be among the pairs stands for 1 / p inputs. Means are weighted by that (Hajek's
form of the inverse probability estimator): whatever the shares that were asked about, they are those of all inputs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray
from l2h.limits import binomial_cdf

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Estimate:
    """A mean over all inputs, with its 95% interval; ``n`` pairs are behind it."""

    value: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)

    def __str__(self) -> str:
        """Return it as text: ``0.98 (0.971 to 0.986)``."""
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def weighted_mean(
    values: npt.ArrayLike, weight: npt.ArrayLike, least: float = 0.0, most: float = 1.0
) -> Estimate | None:
    """Return the mean of values from ``least`` to ``most``, each of which stands for ``weight`` inputs; None of none.

    The interval is that of Agresti and Coull, for any values in a range: as if about two further pairs had been seen at
    each end. So it is no point where all pairs say the same, and few errors among many pairs do not make it too narrow.

    Example:
        >>> weighted_mean([1, 1, 1, 0], [1, 1, 1, 3]).value
        0.5
    """
    y, w = np.asarray(values, dtype=np.float64), np.asarray(weight, dtype=np.float64)
    if not len(y):
        return None
    mean = float(np.average(y, weights=w))
    ends, extra = np.array([least, most]), np.full(2, _Z**2 / 2)
    # The spread of the weights counts like fewer pairs.
    typical = float((w**2).sum() / w.sum())
    total = w.sum() + typical * extra.sum()
    centre = float((w @ y + typical * (extra @ ends)) / total)
    squares = ((w * (y - centre)) ** 2).sum() + typical**2 * (extra @ (ends - centre) ** 2)
    half = _Z * float(np.sqrt(squares)) / total
    return Estimate(mean, min(mean, max(least, centre - half)), max(mean, min(most, centre + half)), len(y))


def saving_bounds(agree: BoolArray, costs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the least and the most (n,) that asking may have saved on pairs of which no label is known.

    Where both answers are the same, both are right or both are wrong. Where they differ, at most one is right: asking
    saves least if that is the device's, and most if it is the server's. ``costs`` (n, 4) are c_cc, c_ce, c_sc and c_se.
    """
    c_cc, c_ce, c_sc, c_se = costs.T
    right, wrong = c_cc - c_sc, c_ce - c_se
    return (
        np.where(agree, np.minimum(right, wrong), c_cc - c_se),
        np.where(agree, np.maximum(right, wrong), c_ce - c_sc),
    )


def disagreement_bounds(p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest probability (n,) that two answers differ which are right with p and with q.

    These are Frechet's bounds, with no assumption on how their errors hang together: one is right and the other wrong
    at least ``|p - q|`` of the time, and they differ only if one of them is wrong.
    """
    return np.abs(p - q), np.minimum(1.0, (1 - p) + (1 - q))


def too_many(count: int, probability: FloatArray) -> float:
    """Return the largest probability of ``count`` events or more, of independent ones that have at most these each.

    By Hoeffding (1956) it is at most that of a binomial with the same mean, where the count is one above it or more.
    """
    n, mean = len(probability), float(probability.mean())
    if count < n * mean + 1:
        return 1.0
    # Counted from those that do not happen: a small probability is no difference of large ones.
    return 0.0 if mean <= 0 else float(binomial_cdf(n, 1 - mean)[n - count])


def too_few(count: int, probability: FloatArray) -> float:
    """Return the largest probability of ``count`` events or fewer, of independent ones with at least these each."""
    return too_many(len(probability) - count, 1 - probability)


def platt_test(logit: FloatArray, right: BoolArray) -> float:
    """Return the p-value of the hypothesis that a head needs no other scale and shift than it has.

    This is the score test of Cox's recalibration, ``logit P(right) = scale * logit + shift`` with 1 and 0: the
    statistic is chi-squared with two degrees of freedom, of which the tail is ``exp(-x / 2)``.
    """
    p = np.exp(-np.logaddexp(0.0, -logit))
    design = np.stack([np.ones_like(logit), logit], axis=1)
    score = design.T @ (right - p)
    information = (design * (p * (1 - p))[:, None]).T @ design
    # Where all logits are the same there is one direction only; the other adds nothing.
    statistic = float(score @ np.linalg.pinv(information, hermitian=True) @ score)
    rank = int(np.linalg.matrix_rank(information, hermitian=True))
    if rank == 2:
        return float(np.exp(-statistic / 2))
    return float(2 * NormalDist().cdf(-np.sqrt(statistic))) if rank else 1.0
