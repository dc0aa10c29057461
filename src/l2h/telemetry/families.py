"""Metrics as plain values, and the text of them that Prometheus reads."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

#: Bounds of times, in seconds.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class MetricSample(NamedTuple):
    """One number of a metric."""

    name: str  # that of the family, with ``_total``, ``_bucket``, ``_sum`` or ``_count`` at its end where there is one
    labels: Mapping[str, str]
    value: float


@dataclass
class Family:
    """One metric: its numbers for all labels. The fields have the names of ``prometheus_client``'s ``Metric``."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    documentation: str
    samples: list[MetricSample] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """Add the number of a counter or a gauge."""
        self.samples.append(MetricSample(self.name + "_total" * (self.type == "counter"), labels, value))


class Distribution:
    """Counts values by the bounds of a histogram; its owner sees to it that one thread at a time does."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: Family, **labels: str) -> None:
        """Add what was counted to a family of histograms."""
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            family.samples.append(MetricSample(f"{family.name}_bucket", {**labels, "le": _number(bound)}, total))
        family.samples.append(MetricSample(f"{family.name}_count", labels, total))
        family.samples.append(MetricSample(f"{family.name}_sum", labels, self._sum))


def write_text(families: Iterable[Family]) -> str:
    r"""Return metrics in Prometheus's text format.

    Example:
        >>> family = Family("answers", "counter", "Inputs answered.")
        >>> family.add(3, by="client")
        >>> print(write_text([family]), end="")
        # HELP answers_total Inputs answered.
        # TYPE answers_total counter
        answers_total{by="client"} 3
    """
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = family.name + "_total" * (family.type == "counter")
    documentation = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {documentation}"
    yield f"# TYPE {name} {family.type}"
    for sample in family.samples:
        labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sample.labels.items())
        yield f"{sample.name}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return repr(value if isinstance(value, int) else float(value))
