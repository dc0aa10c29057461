"""A table of texts: the terminal, a page and Markdown show the same rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


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
    """A table that rich prints, pages include and Markdown takes.

    Attributes:
        title: above it.
        columns: as many as every row has cells.
        rows: from top to bottom.
        note: below it.
        marks: what a bold cell is, such as "the lowest of its row".
        keys: how many columns at the left are repeated where a terminal is too narrow for one part.
        wrap: whether the terminal may wrap headings and long texts.
        style: of the note in the terminal.
    """

    title: str
    columns: list[Column]
    rows: list[Row]
    note: str = ""
    marks: str = ""
    keys: int = 1
    wrap: bool = False
    style: str = "italic"

    def __rich__(self) -> Any:
        from l2h.report.common.terminal import renderable

        return renderable(self)


def headings(*names: str) -> list[Column]:
    """Return a column of names, left-aligned, and columns of numbers."""
    return [Column(name, justify="right" if i else "left") for i, name in enumerate(names)]


def texts(*cells: str | Cell, kind: str = "") -> Row:
    """Return a row of these texts."""
    return Row([cell if isinstance(cell, Cell) else Cell(cell) for cell in cells], kind)


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[Any]], measured: Sequence[bool]) -> bytes:
    """Return a CSV file with the numbers unrounded; a field is empty where there is none.

    Args:
        columns: their names.
        rows: as many values each; those of a measured column are mappings with ``mean`` and ``sem``, or plain values.
        measured: for each column whether it becomes two, ``NAME_mean`` and ``NAME_sem``.
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
