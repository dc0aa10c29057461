"""The prices of the four outcomes, and the generalized 0-1 loss that they define.

| decision | classifier right | classifier wrong |
|----------|------------------|------------------|
| LOCAL    | ``c_cc`` (0)     | ``c_ce`` (1)     |
| REMOTE   | ``c_sc`` (c_e)   | ``c_se`` (c_e + c_1) |

In brackets the two-number form of the paper. Up to an offset and a scale every four-cost form decides as a two-number
form does, so :class:`Costs` holds the four and gives ``c_e`` and ``c_1`` as properties (``c_e`` is below 0 where asking
is cheaper than a right local answer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import CostError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
_OUTCOMES = ("c_cc", "c_ce", "c_sc", "c_se")


@dataclass(frozen=True, init=False)
class Costs:
    """What each of the four outcomes costs.

    Args:
        c_e: price of one request, paid whether the server is right or not. Not negative.
        c_1: what a wrong answer of the server costs on top; a wrong local answer costs 1. Not negative.

    Raises:
        CostError: a cost is negative or not finite.

    Example:
        >>> costs = Costs(c_e=0.1, c_1=1.25)
        >>> costs.c_sc, costs.c_se
        (0.1, 1.35)
        >>> Costs.from_outcomes(c_cc=0, c_ce=10, c_sc=1, c_se=11) == Costs(c_e=0.1).scaled(10)
        True
    """

    c_cc: float
    c_ce: float
    c_sc: float
    c_se: float

    def __init__(self, c_e: float, c_1: float = 1.0) -> None:
        c_e = as_cost("c_e", c_e)
        c_1 = as_cost("c_1", c_1)
        self._set(0.0, 1.0, c_e, as_cost("c_e + c_1", c_e + c_1))

    @classmethod
    def from_outcomes(cls, c_cc: float, c_ce: float, c_sc: float, c_se: float) -> Costs:
        """Return the four-cost form: local right, local wrong, remote right, remote wrong.

        Raises:
            CostError: a cost is negative or not finite, or a right answer costs more than a wrong one.
        """
        four = [as_cost(name, value) for name, value in zip(_OUTCOMES, (c_cc, c_ce, c_sc, c_se), strict=True)]
        if four[0] >= four[1]:
            raise CostError(f"c_cc={c_cc} must be below c_ce={c_ce}: a wrong local answer costs more than a right one")
        if four[2] > four[3]:
            raise CostError(
                f"c_sc={c_sc} must not exceed c_se={c_se}: a wrong remote answer costs no less than a right one"
            )
        self = object.__new__(cls)
        self._set(*four)
        return self

    def _set(self, *four: float) -> None:
        for name, value in zip(_OUTCOMES, four, strict=True):
            object.__setattr__(self, name, value)

    @property
    def c_e(self) -> float:
        """Return the price of a request in units of what a wrong local answer costs more than a right one."""
        return (self.c_sc - self.c_cc) / (self.c_ce - self.c_cc)

    @property
    def c_1(self) -> float:
        """Return what a wrong answer of the server costs on top, in the same units."""
        unit = self.c_ce - self.c_cc
        c_1 = (self.c_se - self.c_sc) / unit
        # (c_e + c_1) - c_e is not c_1 in floating point: give back the number that was put in, which is the
        # rounded one where that stands for the same costs.
        rounded = round(c_1, 15)
        return rounded if self.c_sc + rounded * unit == self.c_se else c_1

    @property
    def highest(self) -> float:
        """Return the largest loss a sample can have: ``max(1, c_e + c_1)`` in the two-number form."""
        return max(self.c_ce, self.c_se)

    def scaled(self, factor: float) -> Costs:
        """Return the same prices in another currency: every cost times ``factor``."""
        if not (math.isfinite(factor) and factor > 0):
            raise CostError(f"factor={factor} must be finite and above 0")
        return Costs.from_outcomes(self.c_cc * factor, self.c_ce * factor, self.c_sc * factor, self.c_se * factor)

    def at(self, c_e: float, c_1: float) -> Costs:
        """Return other prices at which local answers cost as much as here."""
        if (self.c_cc, self.c_ce) == (0.0, 1.0):
            return Costs(c_e, c_1)
        unit = self.c_ce - self.c_cc
        asked = self.c_cc + c_e * unit
        return Costs.from_outcomes(self.c_cc, self.c_ce, asked, asked + c_1 * unit)

    def as_dict(self) -> dict[str, float]:
        """Return ``{"c_e", "c_1"}``, and the four outcomes where they are not the two-number form."""
        two = {"c_e": self.c_e, "c_1": self.c_1}
        if (self.c_cc, self.c_ce) == (0.0, 1.0):
            return two
        return two | asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Costs:
        """Return the costs that :meth:`as_dict` wrote."""
        if "c_cc" in values:
            return cls.from_outcomes(**{name: values[name] for name in _OUTCOMES})
        return cls(c_e=values["c_e"], c_1=values["c_1"])

    def __str__(self) -> str:
        return f"c_1={self.c_1:g}, c_e={self.c_e:g}"


def local_loss(client_correct: npt.ArrayLike, costs: Costs) -> FloatArray:
    """Return the loss of each sample if it is answered locally: ``1[m != y]`` in the two-number form."""
    return np.where(as_bool("client_correct", client_correct), costs.c_cc, costs.c_ce)


def remote_loss(server_correct: npt.ArrayLike, costs: Costs) -> FloatArray:
    """Return the loss of each sample if it is sent: ``c_e + c_1 * 1[e != y]`` in the two-number form."""
    return np.where(as_bool("server_correct", server_correct), costs.c_sc, costs.c_se)


def generalized_loss(
    client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, remote: npt.ArrayLike, costs: Costs
) -> FloatArray:
    """Return the generalized 0-1 loss (n,) of samples that are sent or not: what the outcome of the chosen side costs.

    Example:
        >>> generalized_loss([True, False, True], [True, True, False], [False, True, True], Costs(c_e=0.1))
        array([0. , 0.1, 1.1])
    """
    remote = as_bool("remote", remote)
    return np.where(remote, remote_loss(server_correct, costs), local_loss(client_correct, costs))


def cost_grid(c_1: Sequence[float], c_e: Sequence[float]) -> list[Costs]:
    """Return every pair of the two lists, ``c_1`` outermost; refuse a list that is empty or names a value twice."""
    for name, values in (("c_1", c_1), ("c_e", c_e)):
        if len(values) == 0:
            raise CostError(f"the grid has no {name}: give at least one value")
        if len(set(values)) != len(values):
            raise CostError(f"the grid names a {name} twice: {list(values)}")
    return [Costs(c_e=e, c_1=one) for one in c_1 for e in c_e]


def prices_text(costs: Costs | Mapping[str, Costs]) -> str:
    """Return prices as people read them: one pair, or one per server."""
    if isinstance(costs, Costs):
        return str(costs)
    return "; ".join(f"{name} {one}" for name, one in costs.items())


def as_bool(name: str, values: npt.ArrayLike) -> BoolArray:
    """Return a boolean array, from booleans or from 0 and 1; anything else is refused."""
    array = np.asarray(values)
    if array.dtype != np.bool_:
        if not np.isin(array, (0, 1)).all():
            raise ValueError(f"{name} must be boolean, or 0 and 1; got dtype {array.dtype}")
        array = array.astype(np.bool_)
    return array


def require_costs(costs: object) -> None:
    """Raise a :class:`CostError` for anything but :class:`Costs`, such as a plain number."""
    if not isinstance(costs, Costs):
        raise CostError(f"costs={costs!r} are not prices: give l2h.Costs(c_e=..., c_1=...)")


def as_cost(name: str, value: Any) -> float:
    """Return a number of 0 or more; raise a :class:`CostError` that names anything else."""
    if isinstance(value, str | bytes):
        raise CostError(f"{name}={value!r:.40} is text: give a number of 0 or more")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise CostError(f"{name}={value!r} is not a number") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise CostError(f"{name}={number} is not finite: give a number of 0 or more")
    if number < 0:
        raise CostError(f"{name}={number} is negative: a cost is 0 or more")
    return number
