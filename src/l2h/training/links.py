"""Simulated links: at which training steps a copy of the server reaches a rejector (setting IA).

A link is up or down at each training step. Where it is up, the rejector has the current server; where it is down, it
has the last copy that arrived. Algorithm 2's interval S is a link that is up at steps 1, 1 + S, 1 + 2S, ... of the
paper's count. Real links are not periodic, so there are also a recorded trace and a random process.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from l2h.errors import SettingsError

Schedule = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Periodic:
    """A link that is up once every ``interval`` steps, or once per epoch for None. 1 is Algorithm 1: always up."""

    interval: int | None

    def schedule(self, steps: int, steps_per_epoch: int) -> Schedule:
        """Return where the link is up, bool (steps,). It always is at the first step, to give a copy to learn from."""
        return np.asarray(np.arange(steps) % (self.interval or steps_per_epoch) == 0)


@dataclass(frozen=True)
class Trace:
    """A link that is up during given spans of steps, ``[up, down)`` counted from 0, and down after the last."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Read the spans from a CSV with the columns ``up,down``; SettingsError names the row that is no span."""
        try:
            with Path(path).open(newline="") as file:
                rows = list(csv.DictReader(file))
        except OSError as error:
            raise SettingsError(f"cannot read the trace {path}: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise SettingsError(f"the trace {path} is not a CSV file: {error}") from error
        spans: list[tuple[int, int]] = []
        for number, row in enumerate(rows, start=2):
            try:
                up, down = int(row["up"]), int(row["down"])
            except (KeyError, TypeError, ValueError):
                raise SettingsError(
                    f"line {number} of {path}: expected the columns up,down with whole numbers of steps; got {row}"
                ) from None
            if not (spans[-1][1] if spans else 0) <= up < down:
                raise SettingsError(f"line {number} of {path}: {up},{down} is empty or not after the span before it")
            spans.append((up, down))
        if not spans:
            raise SettingsError(f"the trace {path} names no span in which the link is up")
        return cls(tuple(spans))

    def schedule(self, steps: int, steps_per_epoch: int) -> Schedule:
        up = np.zeros(steps, dtype=bool)
        for start, end in self.spans:
            up[start:end] = True
        up[0] = True
        return up


@dataclass(frozen=True)
class OnOff:
    """A link that is up and down for random times, geometric with the given means in steps: a Markov chain."""

    mean_up: float
    mean_down: float
    seed: int = 0

    def schedule(self, steps: int, steps_per_epoch: int) -> Schedule:
        rng = np.random.default_rng(self.seed)
        up = np.zeros(steps, dtype=bool)
        at = 0
        while at < steps:
            end = at + int(rng.geometric(1 / self.mean_up))
            up[at:end] = True
            at = end + int(rng.geometric(1 / self.mean_down))
        return up


Link = Periodic | Trace | OnOff


def parse_link(sync: int | str, seed: int = 0) -> Link:
    """Return the link of S steps, ``epoch``, ``trace:FILE.csv``, or ``onoff:UP:DOWN`` with mean times in steps.

    >>> parse_link("100")
    Periodic(interval=100)
    >>> parse_link("onoff:50:200", seed=3).schedule(1000, 100).mean() < 0.5
    np.True_
    """
    text = str(sync)
    if text == "epoch":
        return Periodic(None)
    if text.isdecimal() and int(text) >= 1:
        return Periodic(int(text))
    kind, _, rest = text.partition(":")
    if kind == "trace" and rest:
        return Trace.read(rest)
    if kind == "onoff":
        try:
            mean_up, mean_down = (float(part) for part in rest.split(":"))
        except ValueError:
            mean_up = mean_down = 0.0
        if 1 <= mean_up < math.inf and 1 <= mean_down < math.inf:
            return OnOff(mean_up, mean_down, seed)
    raise SettingsError(
        f"sync={sync!r} is unknown: give a number of steps of 1 or more, 'epoch', 'trace:FILE.csv', or "
        "'onoff:UP:DOWN' with mean times of at least 1 step"
    )
