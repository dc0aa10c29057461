"""A table of texts: a terminal of 120 columns, a page and Markdown show the same rows."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from l2h.report.common.text import one_line

_WIDTH = 120
_TEXT = 40  # letters after which a text is wrapped
_STYLES = {"best": "bold green", "beyond": "dim", "default": "bold"}


@dataclass(frozen=True)
class Cell:
    """One cell; the terminal shows ``short`` where it is given, and only a page marks code."""

    text: str
    short: str | None = None
    bold: bool = False
    bad: bool = False
    code: bool = False


@dataclass(frozen=True)
class Column:
    """A heading and the alignment of its cells; ``kind`` colours the heading in a page."""

    name: str
    short: str | None = None
    justify: Literal["left", "center", "right"] = "right"
    kind: str = ""


@dataclass(frozen=True)
class Row:
    """Cells side by side; ``kind`` is "best", "beyond" (no device can do this), "default" or empty."""

    cells: list[Cell]
    kind: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table that rich prints, pages include and Markdown takes."""

    title: str
    columns: list[Column]
    rows: list[Row]
    note: str = ""
    marks: str = ""  # what a bold cell is, such as "the lowest of its row"
    keys: int = 1  # columns at the left that are repeated where a terminal is too narrow for one part
    wrap: bool = False  # whether the terminal may wrap headings and long texts
    style: str = "italic"  # of the note in the terminal

    def __rich__(self) -> Group:
        """Return the table for rich, in parts of at most 120 columns that repeat its first columns."""
        heads = [one_line(column.short or column.name, _TEXT) for column in self.columns]
        cells = [[_cell(cell) for cell in row.cells] for row in self.rows]
        widths = [_width(head, [row[j] for row in cells], self.wrap) for j, head in enumerate(heads)]
        note = "\n".join(one_line(line, 600) for line in self.note.splitlines())
        caption = "; ".join(filter(None, (self.marks and f"* {self.marks}", note)))
        parts, drawn = _parts(widths, self.keys), []
        for k, part in enumerate(parts, start=1):
            title = one_line(self.title, 200) + (f" ({k} of {len(parts)})" if len(parts) > 1 else "")
            # Text, not str, here and below: a name must not be read as markup.
            out = Table(
                title=Text(title, style="bold"),
                caption=Text(caption if k == len(parts) else "", style=self.style),
                box=box.SIMPLE_HEAD,
                title_justify="left",
                caption_justify="left",
            )
            for j in part:
                width = widths[j] if self.wrap else None
                out.add_column(Text(heads[j]), justify=self.columns[j].justify, width=width, no_wrap=not self.wrap)
            for row, texts in zip(self.rows, cells, strict=True):
                out.add_row(*(texts[j] for j in part), style=_STYLES.get(row.kind, ""))
            drawn.append(out)
        return Group(*drawn)

    def __str__(self) -> str:
        """Return what a terminal of 120 columns shows, without colours."""
        out = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_jupyter=False)
        with out.capture() as printed:
            out.print(self)
        return "\n".join(line.rstrip() for line in printed.get().splitlines()).strip("\n")

    def as_html(self) -> str:
        """Return the table as a notebook shows it; every text is escaped."""

        def safe(text: str) -> str:
            return escape(text and one_line(text, 600))

        def row(kind: str, cells: Iterable[str]) -> str:
            aligned = zip(self.columns, cells, strict=True)
            inside = [f'<{kind} style="text-align:{column.justify}">{safe(cell)}</{kind}>' for column, cell in aligned]
            return f"<tr>{''.join(inside)}</tr>"

        head = row("th", (column.name for column in self.columns))
        rows = [row("th" if one.kind == "best" else "td", (cell.text for cell in one.cells)) for one in self.rows]
        table = f"<caption>{safe(self.title)}</caption><thead>{head}</thead><tbody>{''.join(rows)}</tbody>"
        notes = "".join(f"<p>{safe(line)}</p>" for line in self.note.splitlines())
        return f'<table style="color:inherit">{table}</table>{notes}'

    _repr_html_ = as_html


def headings(*names: str) -> list[Column]:
    """Return a column of names, left-aligned, and columns of numbers."""
    return [Column(name, justify="right" if i else "left") for i, name in enumerate(names)]


def texts(*cells: str | Cell, kind: str = "") -> Row:
    """Return a row of these texts."""
    return Row([cell if isinstance(cell, Cell) else Cell(cell) for cell in cells], kind)


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[Any]], measured: Sequence[bool]) -> bytes:
    """Return a CSV file with the numbers unrounded; a field is empty where there is none.

    A measured column becomes two, ``NAME_mean`` and ``NAME_sem``; its values are mappings with both, or plain.
    """

    def fields(value: Any, two: bool) -> tuple[Any, ...]:
        if isinstance(value, Mapping):
            return value["mean"], value.get("sem")
        return (value, None) if two else (value,)

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = zip(columns, measured, strict=True)
    writer.writerow([part for name, two in names for part in ((f"{name}_mean", f"{name}_sem") if two else (name,))])
    for row in rows:
        writer.writerow([field for value, two in zip(row, measured, strict=True) for field in fields(value, two)])
    # As in a page, a lone surrogate in a name becomes a question mark.
    return buffer.getvalue().encode("utf-8", errors="replace")


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
