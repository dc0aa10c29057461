"""Spread over seeds: means with their standard errors, and intervals for differences from the paired bootstrap.

All columns (methods, prices) of a bootstrap draw are averaged over the same seeds and the same samples, so that a
sample that is easy for one method is easy for the other too, and only their difference varies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import FloatArray
from l2h.errors import DataError

CHUNK = 64  # draws at a time: their weights on all samples must fit into memory


@dataclass(frozen=True)
class Spread:
    """The mean over n seeds with its spread."""

    mean: float
    std: float | None  # sample standard deviation (n - 1); None for one seed
    sem: float | None  # standard error of the mean; None for one seed
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.mean:.4f}" if self.sem is None else f"{self.mean:.4f} ± {self.sem:.4f}"


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the spread of one figure over seeds.

    Example:
        >>> spread([1.0, 2.0, 3.0])
        Spread(mean=2.0, std=1.0, sem=0.5773502691896258, n=3)
    """
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        raise DataError("no values to take the mean of")
    if len(array) == 1:
        return Spread(mean=float(array[0]), std=None, sem=None, n=1)
    std = float(array.std(ddof=1))
    return Spread(mean=float(array.mean()), std=std, sem=std / float(np.sqrt(len(array))), n=len(array))


def spread_of_reports(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and spread of every number that all of these ``metrics.json`` objects share, nested as there.

    A figure that is ``None`` in one of them is ``None`` here: a mean over fewer seeds than the others would mislead.
    """
    if not reports:
        raise DataError("no reports to take the mean of")
    return _merge(list(reports))


@dataclass(frozen=True)
class Interval:
    """A mean difference ``a - b`` with its interval from ``low`` to ``high``."""

    difference: float
    low: float
    high: float

    @property
    def below(self) -> bool:
        """Whether the whole interval is below 0: ``a`` is clearly lower."""
        return self.high < 0

    @property
    def above(self) -> bool:
        """Whether the whole interval is above 0: ``a`` is clearly higher."""
        return self.low > 0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def bootstrap_means(
    losses: Sequence[npt.ArrayLike], *, draws: int = 2000, seed: int = 0, shared: bool = False
) -> FloatArray:
    """Return the means (draws, M) of every column over drawn seeds and drawn samples.

    ``losses`` has for each seed the losses (n, M) on its n test samples. Where all seeds have the same samples in the
    same order (``shared``), a draw takes the same samples of every seed: what is hard for one seed is hard for the
    others too.

    Example:
        >>> means = bootstrap_means([np.array([[0.0, 1.0], [1.0, 2.0]])], draws=100)
        >>> np.allclose(means[:, 1] - means[:, 0], 1.0)
        True
    """
    arrays = [np.asarray(a, dtype=np.float64) for a in losses]
    if not arrays or any(a.ndim != 2 or not len(a) or a.shape[1] != arrays[0].shape[1] for a in arrays):
        raise DataError(f"need (n, M) arrays of one width, one per seed; got {[a.shape for a in arrays]}")
    if shared and len({len(a) for a in arrays}) > 1:
        raise DataError(f"shared test samples must have the same number for every seed; got {[len(a) for a in arrays]}")
    rng = np.random.default_rng(seed)
    seeds = len(arrays)
    out = np.empty((draws, arrays[0].shape[1]))
    for start in range(0, draws, CHUNK):
        some = slice(start, min(start + CHUNK, draws))
        count = some.stop - some.start
        # How often each seed is drawn.
        times = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=count)
        weights = _sample_weights(rng, count, len(arrays[0])) if shared else None
        total = np.zeros((count, arrays[0].shape[1]))
        for k, array in enumerate(arrays):
            if weights is not None:
                total += times[:, k : k + 1] * (weights @ array)
            else:
                # Each time that a seed is drawn, its samples are drawn again.
                for again in range(int(times[:, k].max(initial=0))):
                    drawn = times[:, k] > again
                    total[drawn] += _sample_weights(rng, int(drawn.sum()), len(array)) @ array
        out[some] = total / seeds
    return out


def interval(draws: npt.ArrayLike, difference: float, confidence: float = 0.95) -> Interval:
    """Return the measured difference with the percentile interval of the drawn ones."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.asarray(draws, dtype=np.float64), [tail, 1 - tail])
    return Interval(float(difference), float(low), float(high))


def _merge(objects: list[Mapping[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in objects[0]:
        if not all(key in o for o in objects):
            continue
        values = [o[key] for o in objects]
        if all(isinstance(v, Mapping) for v in values):
            out[key] = _merge(values)
        elif any(v is None for v in values):
            out[key] = None
        elif all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            out[key] = spread(values).as_dict()
    return out


def _sample_weights(rng: np.random.Generator, count: int, n: int) -> FloatArray:
    """(count, n): how often each sample is drawn, over n."""
    chosen = rng.integers(0, n, size=(count, n)) + n * np.arange(count)[:, None]
    return np.bincount(chosen.ravel(), minlength=count * n).reshape(count, n) / n
