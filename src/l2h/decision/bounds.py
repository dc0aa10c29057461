"""What a limit allows on a set of inputs, so that other rules can be held to the same, and draws that go on."""

from __future__ import annotations  # numpy.random is loaded only where it is used

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: How many seeds are remembered.
_REMEMBERED = 64
#: Random numbers by their seed: a later call goes on where the one before it stopped.
KeptDraws = dict[int, np.random.Generator]


@dataclass(frozen=True)
class Allowed:
    """How many of some inputs may be asked about under a limit."""

    limit: str  # as a command takes it
    inputs: int  # how many there are
    total: int  # how many of them may be asked about
    by_server: Mapping[str, int]  # how many of each server, by name; never more than in all

    @property
    def share(self) -> float:
        """The share of the inputs that may be asked about."""
        return self.total / self.inputs

    def share_of(self, server: str) -> float:
        """Return the share of the inputs that one server may be asked about."""
        return self.by_server[server] / self.inputs

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, as in ``metrics.json``."""
        values: dict[str, Any] = {"limit": self.limit, "allowed": self.share}
        if len(self.by_server) > 1:
            values["allowed_by_server"] = {name: self.share_of(name) for name in self.by_server}
        return values


def continued(draws: KeptDraws, seed: int) -> np.random.Generator:
    """Return the random numbers of a seed that no call before took, and keep them for the next call."""
    if seed not in draws:
        if len(draws) >= _REMEMBERED:
            draws.clear()
        draws.setdefault(seed, np.random.default_rng(seed))
    return draws[seed]
