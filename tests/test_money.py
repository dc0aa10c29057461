"""Money: the prices that follow from it, how amounts are written, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from l2h import Costs, Money
from l2h.errors import CostError
from l2h.money import digits


def test_prices_are_measured_in_errors() -> None:
    assert Money(0.002, 0.5).costs == Costs(c_e=0.004, c_1=1.0)
    assert Money(0.002, 0.5, server_error_cost=1.0).costs == Costs(c_e=0.004, c_1=2.0)
    assert Money({"box": 0.1, "cloud": 0.2}, 2.0).costs == {"box": Costs(0.05), "cloud": Costs(0.1)}
    money = Money(0.25, 0.5, "CHF", per_day=7, server_error_cost=1.0)
    assert money.at(money.costs) == money
    assert money.at(Costs(c_e=0.25)) == Money(0.125, 0.5, "CHF", per_day=7)
    assert (money.amount(0.5), money.text(0.5)) == (1.75, "1.75 CHF a day")


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1412.4, "1,412"), (412, "412"), (99.996, "100"), (4.123, "4.12"), (0.0412, "0.041"), (0.9996, "1.00"),
     (-0.0, "0"), (-12.5, "-12.50")],
)  # fmt: skip
def test_amounts_are_short(amount: float, text: str) -> None:
    assert digits(amount) == text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"error_cost": 0}, "error_cost=0 must be above 0: the prices are measured in it"),
        ({"error_cost": -1}, "error_cost=-1.0 is negative: a cost is 0 or more"),
        ({"request_cost": -0.1}, "request_cost=-0.1 is negative: a cost is 0 or more"),
        ({"request_cost": {"box": -0.1}}, "request_cost of box=-0.1 is negative: a cost is 0 or more"),
        ({"request_cost": {}}, "request_cost names no server: give a number, or one per server by its name"),
        ({"request_cost": math.nan}, "request_cost=nan is not finite: give a number of 0 or more"),
        ({"error_cost": math.inf}, "error_cost=inf is not finite: give a number of 0 or more"),
        ({"error_cost": "5 EUR"}, "error_cost='5 EUR' is text: give a number of 0 or more"),
        ({"error_cost": None}, "error_cost=None is not a number"),
        ({"error_cost": 1e300}, "error_cost=1e+300 is too large: give at most 1e+15"),
        ({"per_day": 0}, "per_day=0 must be above 0: it counts the inputs of a day"),
        ({"server_error_cost": -2}, "server_error_cost=-2.0 is negative: a cost is 0 or more"),
        ({"request_cost": 1e15, "error_cost": 1e-300}, "c_e=inf is not finite: give a number of 0 or more"),
        ({"currency": ""}, "currency='' is none: give at most 12 letters or signs, such as EUR or $"),
        ({"currency": "<b>EUR</b>"}, "currency='<b>EUR</b>' is none"),
        ({"currency": "[red]E"}, "currency='[red]E' is none"),
        ({"currency": "E" * 10_000}, "currency='EEEEEEEEEEEEEEEEEEEE' is none"),
        ({"currency": "E\nUR"}, r"currency='E\nUR' is none"),
        ({"currency": 5}, "currency='5' is none"),
    ],
)
def test_what_is_no_money_is_refused_in_one_short_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError) as refused:
        Money(**{"request_cost": 0.1, "error_cost": 1.0} | given)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 130
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("currency", ["EUR", "€", "US$", "kr.", "円", "Fr."])
def test_currencies(currency: str) -> None:
    assert Money(0.1, 1.0, currency).text(1.0).split()[1] == currency
