"""The tables of the paper's experiments as text and as CSV files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from l2h.report.common.table import Cell, Column, Row, TextTable, csv_bytes
from l2h.report.common.text import MISSING, plus_minus
from l2h.report.paper.experiment import Experiment, checked, tables

_BAD = " \N{BALLOT X}"


def experiment_tables(experiment: Experiment) -> list[TextTable]:
    """Return the tables of an experiment."""
    experiment = checked(experiment)
    return [section_table(section, len(experiment["seeds"])) for section in tables(experiment)]


def section_table(section: Mapping[str, Any], seeds: int) -> TextTable:
    """Return a section of kind "table" as text; a mean over fewer than ``seeds`` trainings says so."""
    rows = []
    for row in section["rows"]:
        best = _best(section, row)
        cells = []
        for j, cell in enumerate(row):
            mark = cell.get("mark") if isinstance(cell, dict) else None
            cells.append(Cell(_text(cell, seeds), bold=j in best or mark == "bold", bad=mark == "bad"))
        rows.append(Row(cells))
    spread = measured(section)
    words = [any(isinstance(row[j], str) for row in section["rows"]) for j in range(len(spread))]
    side = {"low": "lowest", "high": "highest"}.get(section.get("best") or "")
    return TextTable(
        title=section["title"],
        columns=[
            Column(str(name), justify="left" if left else "right")
            for name, left in zip(section["columns"], words, strict=True)
        ],
        rows=rows,
        note=" ".join((section.get("note") or "").split()),
        marks=f"the {side} of its row" if side else "",
        keys=spread.index(True) or 1 if any(spread) else 1,
        wrap=True,
    )


def section_csv(section: Mapping[str, Any]) -> bytes:
    """Return a section of kind "table" as a CSV file, the numbers unrounded."""
    return csv_bytes(section["columns"], section["rows"], measured(section))


def measured(section: Mapping[str, Any]) -> list[bool]:
    """Return for each column whether it holds means with their spread."""
    return [any(isinstance(row[j], dict) for row in section["rows"]) for j in range(len(section["columns"]))]


def _best(section: Mapping[str, Any], row: Sequence[Any]) -> set[int]:
    """The positions of the best cells of a row; none where there is nothing to compare."""
    if not section.get("best"):
        return set()
    names = section.get("compare")
    cells = {
        j: cell
        for j, cell in enumerate(row)
        if isinstance(cell, dict) and cell["mean"] is not None and (not names or section["columns"][j] in names)
    }
    if not names and any(not cell.get("percent") for cell in cells.values()):
        cells = {j: cell for j, cell in cells.items() if not cell.get("percent")}
    if len(cells) < 2:
        return set()
    means = [cell["mean"] for cell in cells.values()]
    best = min(means) if section["best"] == "low" else max(means)
    return {j for j, cell in cells.items() if math.isclose(cell["mean"], best, abs_tol=1e-12)}


def _text(cell: Any, seeds: int) -> str:
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if not isinstance(cell, dict):
        return _number(cell)
    mean, n = cell["mean"], cell.get("n")
    if cell.get("percent"):
        text = plus_minus(cell, ".1f", factor=100, unit="%")
    else:
        size = abs(mean or 0.0)
        text = plus_minus(cell, ".4f" if size < 10 else ".2f" if size < 100 else ".1f")
    few = f" (n={n})" if n is not None and n != seeds and mean is not None else ""
    return text + few + (_BAD if cell.get("mark") == "bad" else "")


def _number(value: float) -> str:
    """A setting or a count: no trailing zeros, four decimals at most."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.0f}"
    if value == 0 or abs(value) >= 0.001:
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{value:.2g}"
