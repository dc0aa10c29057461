"""Splits of rows into parts: stratified by class, and the same for the same seed."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from l2h.errors import DataError

Indices = npt.NDArray[np.int64]


def split(y: npt.ArrayLike, shares: Sequence[float], seed: int) -> list[Indices]:
    """Return the row numbers of parts that are disjoint, cover every row, and have each class in its share.

    Args:
        y: (n,) labels.
        shares: how much of the rows each part gets, each above 0, together 1: ``(0.8, 0.2)``.
        seed: 0 or more; the same seed gives the same parts.

    Returns:
        One sorted array of row numbers for each share. With two shares the rows of a class in a part are its exact
        share rounded up or down, so a part misses a class only where that share is below one row. A further share is
        taken from what is left in the same way, and may be one row further off.

    Raises:
        DataError: y is not 1-D, the shares are not a division of 1, or the seed is negative.

    Example:
        >>> train, test = split([0, 0, 0, 0, 1, 1, 1, 1], (0.75, 0.25), seed=0)
        >>> len(train), len(test), sorted([*train, *test]) == list(range(8))
        (6, 2, True)
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError(f"y has shape {labels.shape}, but one label for each row is needed: use y.ravel()")
    positive = all(math.isfinite(share) and share > 0 for share in shares)
    if not positive or abs(sum(shares) - 1) > 1e-6:
        raise DataError(f"shares={tuple(shares)} must each be above 0 and add up to 1")
    shuffled = random_state(seed).permutation(len(labels))
    rest = shuffled[np.argsort(labels[shuffled], kind="stable")]
    parts = []
    for place, share in enumerate(shares[:-1]):
        # Systematic sampling of rows sorted by class: m rows of a class give m * share, rounded up or down.
        fraction = share / sum(shares[place:])
        steps = np.floor(np.arange(len(rest) + 1) * fraction + 0.5)
        taken = np.diff(steps) > 0
        parts.append(np.sort(rest[taken]))
        rest = rest[~taken]
    return [*parts, np.sort(rest)]


def subset(count: int, limit: int | None, seed: int) -> Indices | None:
    """Return ``limit`` of ``count`` row numbers, drawn at random and sorted; None where every row is wanted.

    For one seed a smaller subset lies within a larger one.

    Raises:
        DataError: the limit is below 1 or the seed is negative.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit} must be 1 or more, or None for every row")
    if limit is None or limit >= count:
        return None
    return np.sort(random_state(seed).permutation(count)[:limit])


def random_state(seed: int) -> np.random.Generator:
    """Return numpy's generator for this seed; raise a :class:`DataError` where it is negative."""
    if seed < 0:
        raise DataError(f"seed={seed} must be 0 or more")
    return np.random.default_rng(seed)
