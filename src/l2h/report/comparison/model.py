"""A comparison of methods in rows, for its words, its tables, its plots and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2h.metrics import Interval
from l2h.metrics.standing import SAME
from l2h.report.common.text import NONE

Values = Mapping[str, Any]  # what ``comparison.json`` holds
Price = tuple[float, float]  # c_1, c_e

#: The properties of the paper's table of methods, by their names in the JSON.
PROPERTIES = {
    "separate": "separate rejector",
    "learns_client": "learns from client",
    "learns_server": "learns from server",
    "asynchronous": "asynchronous",
}
REFERENCE = "reference"


@dataclass(frozen=True)
class MethodRow:
    """One method and its means over the grid."""

    name: str
    group: str  # ours, learned, confidence, trivial or reference
    family: str
    default: bool  # whether it is the shipped method
    risk: Values  # mean over the grid, with its spread over seeds
    gain: Values | None  # frontier gain
    sent: float | None  # mean share of the inputs sent
    versus: Interval | None  # its risk minus the default's; None for the default
    record: tuple[int, int, int] | None  # prices at which it clearly beats the default, neither does, it clearly loses
    best: bool  # whether no method but the references has a lower risk
    clear: bool  # whether every other method but the references has a clearly higher one

    @property
    def beyond(self) -> bool:
        """Whether it uses information that no device has."""
        return self.group == REFERENCE

    @property
    def ordinary(self) -> bool:
        """Whether it is neither trivial nor a reference; those may lie far off, so scales are chosen without them."""
        return self.group not in ("trivial", REFERENCE)


class ComparisonView:
    """A comparison by method and price; ``values`` is what ``comparison.json`` holds."""

    def __init__(self, values: Values) -> None:
        self.values = values
        by_c_1: dict[float, list[float]] = {}
        for costs in values["costs"]:
            by_c_1.setdefault(costs["c_1"], []).append(costs["c_e"])
        self.prices = {c_1: sorted(c_es) for c_1, c_es in by_c_1.items()}
        self.cells: dict[tuple[str, Price], Values] = {_key(cell): cell for cell in values["cells"]}
        # The mean over the grid of ``risk(a) - risk(b)`` by ``(a, b)``.
        self.pairs = {(pair["a"], pair["b"]): _interval(pair) for pair in values["pairs"]}
        # The risk of a method minus the default's by method and price; the default itself is left out.
        against = [row for row in values["against_default"] if row["method"] != values["default"]]
        self.against = {_key(row): _interval(row) for row in against}
        # The lowest mean risk first, the references after all others.
        self.rows = sorted(self._rows(), key=lambda row: (row.beyond, row.risk["mean"]))
        self.default = next((row for row in self.rows if row.default), None)

    def _rows(self) -> list[MethodRow]:
        methods, default = self.values["methods"], self.values["default"]
        overall = {row["method"]: row for row in self.values["overall"]}
        usable = [method["name"] for method in methods if method["family"] != REFERENCE]
        lowest = min((overall[name]["risk"]["mean"] for name in usable), default=0.0)
        rows = []
        for method in methods:
            name, family = method["name"], method["family"]
            risk = overall[name]["risk"]
            rates = [cell["reject_rate"]["mean"] for (of, _), cell in self.cells.items() if of == name]
            against = [versus for (of, _), versus in self.against.items() if of == name]
            wins, losses = sum(v.below for v in against), sum(v.above for v in against)
            row = MethodRow(
                name=name,
                group="ours" if method["ours"] and family not in (REFERENCE, "trivial") else family,
                family=family,
                default=name == default,
                risk=risk,
                gain=overall[name]["gain"],
                sent=sum(rates) / len(rates) if rates else None,
                versus=self.pairs.get((name, default)),
                record=(wins, len(against) - wins - losses, losses) if against else None,
                best=name in usable and risk["mean"] <= lowest + SAME,
                clear=name in usable and all(self.pairs[name, other].below for other in usable if other != name),
            )
            rows.append(row)
        return rows


def property_rows(methods: Sequence[Values]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Return each method's properties as ``yes``, ``no`` or ``–``, and notes where the paper's table says otherwise.

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


def _key(row: Values) -> tuple[str, Price]:
    return row["method"], (row["c_1"], row["c_e"])


def _interval(row: Values) -> Interval:
    return Interval(row["difference"], row["low"], row["high"], row.get("p"))


def _yes_no(value: bool | None) -> str:
    return NONE if value is None else "yes" if value else "no"
