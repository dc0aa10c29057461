"""Mean, standard deviation and standard error over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from l2h.errors import DataError


@dataclass(frozen=True)
class Spread:
    """The mean over seeds with its spread.

    Attributes:
        mean: over the seeds.
        std: sample standard deviation (n - 1); ``None`` for one seed.
        sem: standard error of the mean; ``None`` for one seed.
        n: how many seeds.
    """

    mean: float
    std: float | None
    sem: float | None
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        """Return plain values for JSON."""
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
