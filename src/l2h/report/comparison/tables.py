"""Tables of a comparison of methods for a terminal of 120 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from l2h.errors import MissingExtraError
from l2h.report.comparison.model import (
    PROPERTIES,
    Comparison,
    MethodRow,
    method_rows,
    price_tables,
    property_rows,
)
from l2h.report.comparison.words import interval_note
from l2h.report.run.summary import one_line, percent, plus_minus
from l2h.report.run.tables import plain_table

try:
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"tables need {missing.name}: pip install 'l2h[report]'") from missing

_WIDTH = 120
_NAME = 22  # letters of a method's name that are shown
_BEST = " (best)"


def comparison_table(comparison: Comparison) -> Table:
    """Every method's means over the grid, the lowest risk first, the references last, the best marked."""
    caption = (
        f"vs default: risk less that of {one_line(comparison['default'])}; w/t/l: prices at which the default clearly "
        f"wins, is not separated, clearly loses; {interval_note(comparison)}"
    )
    prices, seeds = len(comparison["costs"]), len(comparison["seeds"])
    size = f"{prices} price{'s' * (prices > 1)}, {seeds} seed{'s' * (seeds > 1)}"
    table = plain_table(f"{one_line(comparison['dataset'])}: means over {size}", caption)
    table.add_column("method", no_wrap=True)
    for name in ("risk ± s.e." if seeds > 1 else "risk", "sent", "gain", "vs default", "w/t/l"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in method_rows(comparison):
        table.add_row(
            _name(row, row.best),
            plus_minus(row.risk),
            percent(row.sent),
            "n/a" if row.gain is None else f"{row.gain['mean']:.3f}",
            "default" if row.default else "n/a" if row.versus is None else str(row.versus),
            "" if row.record is None else "/".join(map(str, row.record)),
            style=_style(row),
        )
    return table


def grid_tables(comparison: Comparison) -> list[Table]:
    """Risk at every price: a table for each c_1, or several where its prices need more than 120 columns."""
    seeds = len(comparison["seeds"])
    figure = len("0.0000 ± 0.0000") if seeds > 1 else len("0.0000")
    longest = max(len(one_line(method["name"], _NAME)) for method in comparison["methods"])
    # A column takes three more than its text, the star of the lowest one, and the edge one.
    columns = (_WIDTH - 1 - (longest + 3)) // (1 + figure + 3)
    tables = []
    for grid in price_tables(comparison):
        parts = -(-len(grid.c_e) // columns)
        each = -(-len(grid.c_e) // parts)
        for start in range(0, len(grid.c_e), each):
            shown = slice(start, start + each)
            table = plain_table(f"risk at c_1={grid.c_1:g}", "* the lowest but for the references")
            table.add_column("method", no_wrap=True)
            for c_e in grid.c_e[shown]:
                table.add_column(f"c_e={c_e:g}", justify="right", no_wrap=True)
            for row, values in grid.rows:
                texts = [
                    Text(("*" if best else "") + plus_minus(value), style="bold green" if best else "")
                    for value, best in values[shown]
                ]
                table.add_row(_name(row), *texts, style="dim" if row.beyond else "")
            tables.append(table)
    return tables


def property_table(methods: Sequence[Mapping[str, Any]]) -> Table:
    """The four properties of the paper's table; a star where that table says otherwise, told below."""
    rows, notes = property_rows(methods)
    table = plain_table("properties of the methods", "\n".join(f"* {note}" for note in notes))
    table.add_column("method", no_wrap=True)
    for name in PROPERTIES.values():
        table.add_column(name, justify="center", no_wrap=True)
    for method, answers in rows:
        table.add_row(Text(one_line(method, _NAME)), *answers)
    return table


def _name(row: MethodRow, best: bool = False) -> Text:
    # Text, not str: a name must not be read as markup.
    return Text(one_line(row.name, _NAME) + (_BEST if best else ""))


def _style(row: MethodRow) -> str:
    return "bold green" if row.best else "dim" if row.beyond else "bold" if row.default else ""
