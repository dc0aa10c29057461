"""Differences between methods with what is uncertain about them: Student's t over seeds, the sampling error, Holm.

The losses of the test samples are kept as their means over blocks of samples, a few numbers for each seed. All methods
have the same blocks, so from these numbers follows the sampling error of any difference between them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from l2h.costs import FloatArray
from l2h.data.reading import need
from l2h.errors import DataError
from l2h.metrics import Interval

BLOCKS = 40  # of samples, at most
CONFIDENCE = 0.95
#: The test sets of several seeds: one for all, or each seed divides the same samples anew.
SHARED, REDRAWN = "shared", "redrawn"


@dataclass(frozen=True)
class Contrast(Interval):
    """A mean difference with its interval and its two errors."""

    seed_error: float | None = None  # standard error over the seeds; None for one seed
    sample_error: float = 0.0  # standard error over the test samples


def block_means(losses: npt.ArrayLike) -> FloatArray:
    """Return the mean losses of up to 40 blocks of the samples, the same blocks for all losses of so many samples."""
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise DataError(f"need one loss per sample; got shape {values.shape}")
    order = np.random.default_rng(0).permutation(len(values))
    return np.array([part.mean() for part in np.array_split(values[order], min(BLOCKS, len(values)))])


def block_weights(samples: int) -> FloatArray:
    """Return the shares of the samples that the blocks have."""
    return np.array([len(part) for part in np.array_split(np.arange(samples), min(BLOCKS, samples))]) / samples


def contrast(differences: Sequence[FloatArray], samples: int, rest: int | None) -> Contrast:
    """Return the mean of a difference over S seeds, from its block means of each seed, which has so many test samples.

    Where the seeds share their test set (``rest`` is None), the error of that choice of samples is no part of the
    spread over seeds and is added: the interval is Student's t of both, with Welch's degrees of freedom, and never
    narrower than that of the seeds alone. One seed has the sampling error alone.

    Else each seed divides the same ``samples + rest`` samples anew. Test sets of two seeds overlap, and so do the
    samples that they train on, so the seeds differ less than their mean is uncertain by: the variance is that of
    Nadeau and Bengio (2003), with ``S - 1`` degrees of freedom.

    Example:
        >>> one = contrast([np.array([1.0, 3.0]), np.array([2.0, 4.0])], 2, rest=4)
        >>> one.difference, one.seed_error, round(one.low, 3), round(one.p, 3)
        (2.5, 0.5, -6.485, 0.175)
    """
    means = np.array([block_weights(samples) @ one for one in differences])
    count, blocks = len(means), max(1.0, len(differences[0]) - 1.0)
    seeds = float(means.std(ddof=1)) ** 2 / count if count > 1 else None
    if rest is None or seeds is None:
        sampled = _variance(np.mean(differences, axis=0))
    else:  # of the choice of all samples, and of those of them that a seed tests
        drawn = samples / (samples + rest)
        sampled = float(np.mean([_variance(one) for one in differences])) * (drawn + (1 - drawn) / count)
    if seeds is None:
        laws = [(sampled, blocks)]
    elif rest is None:
        parts = seeds**2 / (count - 1) + sampled**2 / blocks
        laws = [(seeds, count - 1.0), (seeds + sampled, (seeds + sampled) ** 2 / parts if parts else 1.0)]
    else:
        laws = [(seeds * (1 + count * samples / rest), count - 1.0)]
    difference = float(means.mean())
    wide, chance = (max(found) for found in zip(*(_student(difference, *law) for law in laws), strict=True))
    errors = None if seeds is None else math.sqrt(seeds), math.sqrt(sampled)
    return Contrast(difference, difference - wide, difference + wide, chance, *errors)


def _student(difference: float, variance: float, freedom: float) -> tuple[float, float]:
    """Return half the width of the interval of Student's t, and the p-value."""
    special = need("scipy.special", "scipy", "intervals over seeds")
    error, freedom = math.sqrt(variance), max(freedom, 1.0)
    wide = error * float(special.stdtrit(freedom, (1 + CONFIDENCE) / 2))
    chance = 2 * float(special.stdtr(freedom, -abs(difference) / error)) if error else float(difference == 0)
    return wide, chance


def interval_note(test_set: str, seeds: int) -> str:
    """Return in words what intervals over so many seeds are, for seeds that are ``SHARED`` or ``REDRAWN``."""
    if seeds == 1:
        how = "over the test samples of one seed"
    elif test_set == SHARED:
        how = "over seeds and the test samples that they share"
    else:
        how = "over seeds that divide the same samples anew, corrected for their overlap (Nadeau and Bengio 2003)"
    return f"{CONFIDENCE:.0%} intervals of Student's t {how}"


def corrected(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return contrasts with their p-values corrected for their number."""
    chances = holm([one.p or 0.0 for one in contrasts])
    return [replace(one, p=p) for one, p in zip(contrasts, chances, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    """Return the p-values of several tests, corrected after Holm so that one false find in all has the chance stated.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    out, highest = [0.0] * len(p), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[at]))
        out[at] = round(highest, 15)
    return out


def _variance(blocks: FloatArray) -> float:
    """Return the variance of the mean of blocks."""
    return float(blocks.var(ddof=1)) / len(blocks) if len(blocks) > 1 else 0.0
