"""One of the paper's experiments as plain values, checked before they are shown, and its tables as text and CSV."""

import math
import re
from collections.abc import Mapping
from typing import Any

from l2h.errors import DataError
from l2h.report.common.table import Cell, Column, Row, TextTable, csv_bytes
from l2h.report.common.text import MISSING, counted, plus_minus

Experiment = Mapping[str, Any]

_SCHEMA = 1
_BAD = " \N{BALLOT X}"


def experiment_tables(experiment: Experiment) -> list[TextTable]:
    """Return the tables of an experiment."""
    experiment = checked(experiment)
    return [section_table(section, len(experiment["seeds"])) for section in tables(experiment)]


def checked(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment with null for numbers that are not finite; raise a DataError for one of another schema."""
    if experiment.get("schema") != _SCHEMA:
        raise DataError(
            f"an experiment of schema {experiment.get('schema')!r} cannot be shown: this version knows {_SCHEMA}; "
            "run the experiment again"
        )
    values: dict[str, Any] = _finite(experiment)
    return values


def tables(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the sections that are tables."""
    return [section for section in experiment["sections"] if section["kind"] == "table"]


def origin(experiment: Experiment) -> str:
    """Return the data sets, the seeds and the hardware of an experiment in one line."""
    seeds = experiment["seeds"]
    trained = f"{counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    return "; ".join(filter(None, (", ".join(experiment["datasets"]), trained, experiment["hardware"])))


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def section_table(section: Mapping[str, Any], seeds: int) -> TextTable:
    """Return a section of kind "table" as text; a mean over fewer than ``seeds`` trainings says so.

    The note ends with the reasons (``why``) of the cells that have no number.
    """
    rows = []
    for row in section["rows"]:
        marks = [cell.get("mark") if isinstance(cell, dict) else None for cell in row]
        rows.append(Row([Cell(_text(cell, seeds), bad=m == "bad") for cell, m in zip(row, marks, strict=True)]))
    spread = _measured(section)
    words = [any(isinstance(row[j], str) for row in section["rows"]) for j in range(len(spread))]
    return TextTable(
        title=section["title"],
        columns=[
            Column(str(name), justify="left" if left else "right")
            for name, left in zip(section["columns"], words, strict=True)
        ],
        rows=rows,
        note=" ".join(f"{section.get('note') or ''} {_reasons(section)}".split()),
        keys=spread.index(True) or 1 if any(spread) else 1,
        wrap=True,
    )


def section_csv(section: Mapping[str, Any]) -> bytes:
    """Return a section of kind "table" as a CSV file, the numbers unrounded."""
    return csv_bytes(section["columns"], section["rows"], _measured(section))


def _measured(section: Mapping[str, Any]) -> list[bool]:
    """For each column whether it holds means with their spread."""
    return [any(isinstance(row[j], dict) for row in section["rows"]) for j in range(len(section["columns"]))]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _reasons(section: Mapping[str, Any]) -> str:
    cells = [cell for row in section["rows"] for cell in row if isinstance(cell, dict)]
    reasons = dict.fromkeys(cell["why"] for cell in cells if cell.get("why"))
    return f"{MISSING}: {'; or '.join(reasons)}." if reasons else ""


def _text(cell: Any, seeds: int) -> str:
    if isinstance(cell, str):
        return cell
    if not isinstance(cell, dict):  # a number without trailing zeros
        return MISSING if cell is None else f"{cell:.4f}".rstrip("0").rstrip(".")
    mean, n = cell["mean"], cell.get("n")
    if cell.get("percent"):
        text = plus_minus(cell, ".1f", factor=100, unit="%")
    else:
        size = abs(mean or 0.0)
        text = plus_minus(cell, ".4f" if size < 10 else ".2f" if size < 100 else ".1f")
    few = f" (n={n})" if n is not None and n != seeds and mean is not None else ""
    return text + few + (_BAD if cell.get("mark") == "bad" else "")
