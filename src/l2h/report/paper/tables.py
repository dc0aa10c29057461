"""One of the paper's experiments as plain values, checked before they are shown, and its tables as text and CSV."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from l2h.errors import DataError
from l2h.report.common.table import Cell, Column, Row, TextTable, csv_bytes
from l2h.report.common.text import MISSING, counted, plus_minus

Experiment = Mapping[str, Any]

_SCHEMA = 1
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BAD = " \N{BALLOT X}"


def experiment_tables(experiment: Experiment) -> list[TextTable]:
    """Return the tables of an experiment."""
    experiment = checked(experiment)
    return [section_table(section, len(experiment["seeds"])) for section in tables(experiment)]


def checked(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment with null for numbers that are not finite.

    Raises:
        DataError: it is of another schema, a row does not fit its columns, or a name cannot be that of a file.
    """
    if experiment.get("schema") != _SCHEMA:
        raise DataError(
            f"an experiment of schema {experiment.get('schema')!r} cannot be shown: this version knows {_SCHEMA}; "
            "run the experiment again"
        )
    values: dict[str, Any] = _finite(experiment)
    names = [values["name"]]
    for section in values["sections"]:
        if section["kind"] not in ("text", "table", "plot"):
            raise DataError(f"a section of kind {section['kind']!r}: expected text, table or plot")
        names += [section["file"]] if section["kind"] == "plot" else []
    for table in tables(values):
        names.append(table["name"])
        for row in table["rows"]:
            if len(row) != len(table["columns"]):
                raise DataError(
                    f"table {table['name']}: a row of {len(row)} cells under {len(table['columns'])} columns: {row}"
                )
    for name in names:
        if not _FILE.fullmatch(name):
            raise DataError(f"{name!r} cannot name a file: use letters, digits, '.', '_' and '-' only")
    require_unique([table["name"] for table in tables(values)], f"tables of {values['name']}")
    return values


def require_unique(names: list[str], what: str) -> None:
    """Raise a :class:`DataError` where a name occurs twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two {what} are called {', '.join(twice)}: give each its own name")


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
        best = _best(section, row)
        cells = []
        for j, cell in enumerate(row):
            mark = cell.get("mark") if isinstance(cell, dict) else None
            cells.append(Cell(_text(cell, seeds), bold=j in best or mark == "bold", bad=mark == "bad"))
        rows.append(Row(cells))
    spread = _measured(section)
    words = [any(isinstance(row[j], str) for row in section["rows"]) for j in range(len(spread))]
    side = {"low": "lowest", "high": "highest"}.get(section.get("best") or "")
    return TextTable(
        title=section["title"],
        columns=[
            Column(str(name), justify="left" if left else "right")
            for name, left in zip(section["columns"], words, strict=True)
        ],
        rows=rows,
        note=" ".join(f"{section.get('note') or ''} {_reasons(section)}".split()),
        marks=f"the {side} of its row" if side else "",
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
