"""What requests and errors cost in money. The prices c_e and c_1 follow from it."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from l2h.costs import Costs, as_cost
from l2h.errors import CostError

CostsT = TypeVar("CostsT")
_LONGEST_CURRENCY = 12
_MOST = 1e15  # sums stay finite
_THOUSAND = 1000  # inputs, where nobody says how many there are in a day


@dataclass(frozen=True)
class Money:
    """What a request and a wrong answer cost in money: wherever prices are taken, it is taken too.

    Args:
        request_cost: what one request costs; of several servers by their names.
        error_cost: what one wrong answer of the client costs. Above 0: the prices are measured in it.
        currency: how amounts are written, such as ``EUR`` or ``$``.
        per_day: inputs in a day, so that amounts are those of a day; where None, those of 1,000 inputs.
        server_error_cost: what one wrong answer of a server costs; where None, as much as one of the client.

    Raises:
        CostError: an amount is negative, not finite or too large, or the currency is none.

    Example:
        >>> Money(request_cost=0.002, error_cost=0.5).costs
        Costs(c_cc=0.0, c_ce=1.0, c_sc=0.004, c_se=1.004)
        >>> Money(0.002, 0.5, per_day=10_000).text(risk=0.08)
        '400 EUR a day'
    """

    request_cost: float | Mapping[str, float]
    error_cost: float
    currency: str = "EUR"
    per_day: float | None = None
    server_error_cost: float | None = None

    def __post_init__(self) -> None:
        given = self.request_cost
        paid = dict(given) if isinstance(given, Mapping) else {"": given}
        if not paid:
            raise CostError("request_cost names no server: give a number, or one per server by its name")
        paid = {name: _amount(f"request_cost{name and f' of {name}'}", value) for name, value in paid.items()}
        values: dict[str, Any] = {"request_cost": paid if isinstance(given, Mapping) else paid[""]}
        for name in ("error_cost", "per_day", "server_error_cost"):
            value = getattr(self, name)
            values[name] = None if value is None and name != "error_cost" else _amount(name, value)
            if values[name] == 0 and name != "server_error_cost":
                why = "the prices are measured in it" if name == "error_cost" else "it counts the inputs of a day"
                raise CostError(f"{name}=0 must be above 0: {why}")
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if not isinstance(self.currency, str) or not _is_currency(self.currency):
            raise CostError(
                f"currency={str(self.currency)[:20]!r} is none: give at most {_LONGEST_CURRENCY} letters or signs, "
                "such as EUR or $"
            )
        _ = self.costs  # prices that are not finite are refused here

    @property
    def costs(self) -> Costs | dict[str, Costs]:
        """The prices: ``c_e`` is a request's cost in units of an error's, ``c_1`` that of a server's error; or those of
        each server by its name.
        """
        c_1 = 1.0 if self.server_error_cost is None else self.server_error_cost / self.error_cost
        if isinstance(self.request_cost, Mapping):
            return {name: Costs(paid / self.error_cost, c_1) for name, paid in self.request_cost.items()}
        return Costs(self.request_cost / self.error_cost, c_1)

    @property
    def period(self) -> str:
        """What amounts are of: ``a day``, or ``per 1,000 inputs``."""
        return f"per {_THOUSAND:,} inputs" if self.per_day is None else "a day"

    def amount(self, risk: float) -> float:
        """Return what a risk, or a difference of risks, comes to in a period."""
        return risk * self.error_cost * (self.per_day or _THOUSAND)

    def text(self, risk: float) -> str:
        """Return that amount as people write it."""
        return f"{digits(self.amount(risk))} {self.currency} {self.period}"

    def at(self, costs: Costs | Mapping[str, Costs]) -> Money:
        """Return what requests cost where the prices are these and an error costs as much as here."""
        by_server = {"": costs} if isinstance(costs, Costs) else dict(costs)
        paid = {name: one.c_e * self.error_cost for name, one in by_server.items()}
        c_1 = next(iter(by_server.values())).c_1
        return replace(
            self,
            request_cost=paid[""] if isinstance(costs, Costs) else paid,
            server_error_cost=None if c_1 == 1 else c_1 * self.error_cost,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the arguments."""
        return asdict(self)


def plain_costs(costs: CostsT | Money) -> CostsT | Costs | dict[str, Costs]:
    """Return the prices that money stands for; anything else as it is."""
    return costs.costs if isinstance(costs, Money) else costs


def digits(amount: float) -> str:
    """Return an amount with as many digits as people read: ``1,412``, ``4.12`` or ``0.041``."""
    size = abs(amount)
    text = f"{amount:,.0f}" if size >= 99.995 else f"{amount:.2f}" if size >= 0.9995 else f"{amount:.2g}"
    return "0" if float(text.replace(",", "")) == 0 else text


def _amount(name: str, value: Any) -> float:
    number = as_cost(name, value)
    if number > _MOST:
        raise CostError(f"{name}={number:g} is too large: give at most {_MOST:g}")
    return number


def _is_currency(text: str) -> bool:
    known = (c.isalpha() or c in ". " or unicodedata.category(c) == "Sc" for c in text)
    return 0 < len(text) <= _LONGEST_CURRENCY and text == text.strip() and all(known)
