"""A comparison of methods in rows, shared by its words, its tables, its plots and its page.

A comparison is the plain object that ``comparison.json`` holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2h.report.run.summary import signed

Comparison = Mapping[str, Any]
Price = tuple[float, float]  # c_1, c_e

#: The properties of the paper's table of methods, by their names in the JSON.
PROPERTIES = {
    "separate": "separate rejector",
    "learns_client": "learns from client",
    "learns_server": "learns from server",
    "asynchronous": "asynchronous",
}
REFERENCE = "reference"
NONE = "\N{EN DASH}"
SAME = 1e-12  # risks closer than this differ by rounding alone


@dataclass(frozen=True)
class Versus:
    """One method's risk less another's.

    Attributes:
        difference: below 0 where the first has the lower risk.
        low: lower end of the paired bootstrap interval.
        high: upper end.
    """

    difference: float
    low: float
    high: float

    @property
    def below(self) -> bool:
        """The whole interval is below 0."""
        return self.high < 0

    @property
    def above(self) -> bool:
        """The whole interval is above 0."""
        return self.low > 0

    def __str__(self) -> str:
        return f"{signed(self.difference)} [{signed(self.low)}, {signed(self.high)}]"


@dataclass(frozen=True)
class MethodRow:
    """One method and its means over the grid.

    Attributes:
        name: as in the JSON.
        title: for people.
        group: ``ours``, ``learned``, ``confidence``, ``trivial`` or ``reference``.
        default: whether it is the shipped method.
        risk: mean over the grid, with its spread over seeds.
        gain: frontier gain; ``None`` where there is none.
        sent: mean share of the inputs sent.
        versus: its risk less the default's; ``None`` for the default.
        record: prices at which the default clearly wins, is not separated, clearly loses; ``None`` for the default.
        best: whether no method but the references has a lower risk.
        method: all that the JSON says of it.
    """

    name: str
    title: str
    group: str
    default: bool
    risk: Mapping[str, Any]
    gain: Mapping[str, Any] | None
    sent: float | None
    versus: Versus | None
    record: tuple[int, int, int] | None
    best: bool
    method: Mapping[str, Any]

    @property
    def beyond(self) -> bool:
        """It looks at what no device knows."""
        return self.group == REFERENCE


@dataclass(frozen=True)
class PriceTable:
    """One figure of every method at the prices of one ``c_1``.

    Attributes:
        c_1: of all of it.
        c_e: of the columns.
        rows: a method, and for each column its spread and whether it is the lowest but for the references.
    """

    c_1: float
    c_e: list[float]
    rows: list[tuple[MethodRow, list[tuple[Mapping[str, Any] | None, bool]]]]


def method_rows(comparison: Comparison) -> list[MethodRow]:
    """Every method, the lowest mean risk first and the references after all others."""
    default = comparison["default"]
    overall = {row["method"]: row for row in comparison["overall"]}
    versus = pair_differences(comparison)
    per_price = default_differences(comparison)
    sent: dict[str, list[float]] = {}
    for cell in comparison["cells"]:
        sent.setdefault(cell["method"], []).append(cell["reject_rate"]["mean"])
    usable = [m["name"] for m in comparison["methods"] if m["family"] != REFERENCE]
    lowest = min((overall[name]["risk"]["mean"] for name in usable), default=None)
    rows = []
    for method in comparison["methods"]:
        name = method["name"]
        risk = overall[name]["risk"]
        rates = sent.get(name)
        against = [v for (rival, _), v in per_price.items() if rival == name]
        wins, losses = sum(v.above for v in against), sum(v.below for v in against)
        rows.append(
            MethodRow(
                name=name,
                title=method["title"],
                group=_group(method),
                default=name == default,
                risk=risk,
                gain=overall[name]["gain"],
                sent=sum(rates) / len(rates) if rates else None,
                versus=versus.get((name, default)),
                record=(wins, len(against) - wins - losses, losses) if against else None,
                best=lowest is not None and name in usable and risk["mean"] <= lowest + SAME,
                method=method,
            )
        )
    return sorted(rows, key=lambda row: (row.beyond, row.risk["mean"]))


def price_tables(comparison: Comparison, figure: str = "risk") -> list[PriceTable]:
    """A table for each ``c_1``; methods for which the figure is nowhere known are left out."""
    cells, methods = cells_by_price(comparison), method_rows(comparison)
    tables = []
    for c_1, c_es in prices_by_c_1(comparison).items():
        known = {row.name: [cells.get((row.name, (c_1, c_e)), {}).get(figure) for c_e in c_es] for row in methods}
        shown = [row for row in methods if any(known[row.name])]
        lowest = [
            min((s["mean"] for row in shown if not row.beyond and (s := known[row.name][i])), default=-1.0)
            for i in range(len(c_es))
        ]
        rows = [
            (
                row,
                [
                    (value, value is not None and not row.beyond and value["mean"] <= least + SAME)
                    for value, least in zip(known[row.name], lowest, strict=True)
                ],
            )
            for row in shown
        ]
        if rows:
            tables.append(PriceTable(c_1, c_es, rows))
    return tables


def groups(rows: Sequence[MethodRow]) -> dict[str, list[MethodRow]]:
    """The groups that have members, each with its methods in the order given."""
    names = ("ours", "learned", "confidence", "trivial", REFERENCE)
    members = {name: [row for row in rows if row.group == name] for name in names}
    return {name: of for name, of in members.items() if of}


def property_rows(methods: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Each method's properties as ``yes``, ``no`` or ``–``, and notes on where the paper's table says otherwise.

    A starred property is one of those.
    """
    rows, notes = [], []
    for method in methods:
        traits, published = method["traits"], method["published_traits"]
        answers = []
        for key, name in PROPERTIES.items():
            here = _yes_no(traits and traits[key])
            there = _yes_no(published[key]) if published else here
            answers.append(here if here == there else f"{here}*")
            if here != there:
                notes.append(f"{method['name']}, {name}: {there} in the paper's table, {here} here")
        rows.append((method["name"], answers))
    return rows, notes


def cells_by_price(comparison: Comparison) -> dict[tuple[str, Price], Mapping[str, Any]]:
    """The cells by method and price."""
    return {(cell["method"], (cell["c_1"], cell["c_e"])): cell for cell in comparison["cells"]}


def prices_by_c_1(comparison: Comparison) -> dict[float, list[float]]:
    """For each ``c_1`` its values of ``c_e``, rising."""
    out: dict[float, list[float]] = {}
    for costs in comparison["costs"]:
        out.setdefault(costs["c_1"], []).append(costs["c_e"])
    return {c_1: sorted(c_es) for c_1, c_es in out.items()}


def pair_differences(comparison: Comparison) -> dict[tuple[str, str], Versus]:
    """Mean over the grid of ``risk(a) - risk(b)`` by ``(a, b)``."""
    return {(p["a"], p["b"]): Versus(p["difference"], p["low"], p["high"]) for p in comparison["pairs"]}


def default_differences(comparison: Comparison) -> dict[tuple[str, Price], Versus]:
    """Risk of a method less the default's by ``(method, price)``; the default itself is left out."""
    return {
        (row["method"], (row["c_1"], row["c_e"])): Versus(row["difference"], row["low"], row["high"])
        for row in comparison["against_default"]
        if row["method"] != comparison["default"]
    }


def _group(method: Mapping[str, Any]) -> str:
    family = str(method["family"])
    return "ours" if method["ours"] and family not in (REFERENCE, "trivial") else family


def _yes_no(value: bool | None) -> str:
    return NONE if value is None else "yes" if value else "no"
