"""Tables for a terminal of 120 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from l2h.report.common.table import Cell, TextTable
from l2h.report.common.text import one_line

_WIDTH = 120
_TEXT = 40  # letters after which a text is wrapped
_STYLES = {"best": "bold green", "beyond": "dim", "default": "bold"}


def renderable(table: TextTable) -> Group:
    """Return the table for rich, in parts of at most 120 columns that repeat its first columns."""
    heads = [one_line(column.short or column.name, _TEXT) for column in table.columns]
    cells = [[_cell(cell) for cell in row.cells] for row in table.rows]
    widths = [_width(head, [row[j] for row in cells], table.wrap) for j, head in enumerate(heads)]
    parts, drawn = _parts(widths, table.keys), []
    for k, part in enumerate(parts, start=1):
        title = one_line(table.title, 200) + (f" ({k} of {len(parts)})" if len(parts) > 1 else "")
        # Text, not str, here and below: a name must not be read as markup.
        out = Table(
            title=Text(title, style="bold"),
            caption=Text(_caption(table) if k == len(parts) else "", style=table.style),
            box=box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
        )
        for j in part:
            width = widths[j] if table.wrap else None
            out.add_column(Text(heads[j]), justify=table.columns[j].justify, width=width, no_wrap=not table.wrap)
        for row, texts in zip(table.rows, cells, strict=True):
            out.add_row(*(texts[j] for j in part), style=_STYLES.get(row.kind, ""))
        drawn.append(out)
    return Group(*drawn)


def _caption(table: TextTable) -> str:
    note = "\n".join(one_line(line, 600) for line in table.note.splitlines())
    return "; ".join(filter(None, (table.marks and f"* {table.marks}", note)))


def _cell(cell: Cell) -> Text:
    # The star is for terminals without bold letters.
    text = cell.text if cell.short is None else cell.short
    style = "bold green" if cell.bold else "red" if cell.bad else ""
    return Text(("*" if cell.bold else "") + (text and one_line(text, 400)), style=style)


def _width(head: str, cells: list[Text], wrap: bool) -> int:
    """The width of the widest cell and of the heading; where that may be wrapped, of its longest word."""
    needed = max([1, *map(cell_len, head.split() if wrap else [head]), *(cell.cell_len for cell in cells)])
    return min(_TEXT, needed) if wrap else needed


def _parts(widths: list[int], keys: int) -> list[list[int]]:
    """The columns of each part: as few parts as fit, all of about the same number of columns."""
    repeated = list(range(keys)) if _total(widths[:keys]) <= _WIDTH // 2 else [0]
    rest = list(range(len(repeated), len(widths)))
    parts = [[*repeated, *rest]]
    for count in range(1, len(rest) + 1):
        each = -(-len(rest) // count)
        parts = [[*repeated, *rest[start : start + each]] for start in range(0, len(rest), each)]
        if all(_total(widths[j] for j in part) <= _WIDTH for part in parts):
            break
    return parts


def _total(widths: Iterable[int]) -> int:
    # A column is three wider than its text, and the edge adds one.
    return 1 + sum(width + 3 for width in widths)
