"""Spread over seeds: means with their standard errors, and differences with their intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import DataError

SIGNIFICANT = 0.05


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
    #: That chance alone makes a difference as large; corrected where several are tested. None: the interval decides.
    p: float | None = None

    @property
    def below(self) -> bool:
        """Whether ``a`` is clearly lower."""
        return self.high < 0 if self.p is None else self.difference < 0 and self.p < SIGNIFICANT

    @property
    def above(self) -> bool:
        """Whether ``a`` is clearly higher."""
        return self.low > 0 if self.p is None else self.difference > 0 and self.p < SIGNIFICANT

    def as_dict(self) -> dict[str, float | None]:
        """Return plain values; without ``p`` where nothing was tested."""
        return {name: value for name, value in asdict(self).items() if name != "p" or value is not None}


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
