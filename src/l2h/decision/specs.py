"""What a rejector was trained for, and which of several answers for given prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2h.costs import Costs
from l2h.decision.judgement import AnyCosts, CostsT
from l2h.errors import SettingsError


@dataclass(frozen=True)
class RejectorSpec:
    """What one rejector is trained for."""

    loss: str = "priced"  # or shifted, swapped, paper, released, or the name of another method
    costs: Costs | None = None  # None for a rejector that answers for every price
    seed: int = 0  # of its weights
    #: When a copy of the server arrives (recipe ``paper``): Algorithm 2's S in steps, ``"epoch"``, or a link as
    #: :func:`l2h.training.links.parse_link` reads it. 1 is Algorithm 1.
    sync: int | str = 1
    #: Of the recipe ``paper`` as well: the epochs that the server trains before this rejector starts, and whether L2
    #: judges the server with its dropout on.
    start: int = 0
    dropout: bool = False

    def __post_init__(self) -> None:
        if self.loss in ("paper", "released", "shifted", "swapped") and self.costs is None:
            raise SettingsError(f"loss {self.loss!r} trains for a price: give costs, or use 'priced', which needs none")

    def as_dict(self) -> dict[str, Any]:
        # What version 0.1 did not know is left out where it is not used.
        values = {name: value for name, value in vars(self).items() if value or name not in ("start", "dropout")}
        return values | {"costs": None if self.costs is None else self.costs.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RejectorSpec:
        costs = None if values["costs"] is None else Costs.from_dict(values["costs"])
        newer = values.get("start", 0), values.get("dropout", False)
        return cls(values["loss"], costs, values["seed"], values["sync"], *newer)


def fitting_rejectors(specs: Sequence[RejectorSpec], costs: AnyCosts | None) -> list[int]:
    """Return the numbers of the rejectors that answer for these prices, of all for None; raise if there is none."""
    fitting = [i for i, spec in enumerate(specs) if costs is None or spec.costs in (None, costs)]
    if not fitting:
        raise SettingsError(
            f"no rejector was trained for {costs}; there are: {_listed(specs)}. "
            "The loss 'priced' answers for every price"
        )
    return fitting


def select_rejector(
    specs: Sequence[RejectorSpec], costs: CostsT | None, default: CostsT, which: int | None = None
) -> tuple[int, CostsT | Costs]:
    """Return the number of the rejector that answers for these prices, and the prices in use.

    Without ``costs`` these are the prices of its training, or ``default`` where it answers for every price. ``which``
    names the rejector where the prices do not tell.
    """
    if which is None:
        fitting = fitting_rejectors(specs, costs)
        if len(fitting) > 1:
            raise SettingsError(
                f"several rejectors fit: say which with costs= or which=, or export one alone; there are: "
                f"{_listed(specs)}"
            )
        (which,) = fitting
    elif not 0 <= which < len(specs):
        raise SettingsError(f"which={which}: there are rejectors 0 to {len(specs) - 1}")
    trained_for = specs[which].costs
    if trained_for is None:
        return which, costs or default
    if costs is not None and costs != trained_for:
        raise SettingsError(f"rejector {which} was trained for {trained_for}, not for {costs}")
    return which, trained_for


def _listed(specs: Sequence[RejectorSpec]) -> str:
    return "; ".join(
        f"{i}: {spec.loss}, {spec.costs or 'every price'}, sync {spec.sync}" for i, spec in enumerate(specs)
    )
