"""The paper's experiments as files and tables: JSON, CSV, one page each, and an overview of all."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.errors import DataError, MissingExtraError
from l2h.experiments.runs import write_json
from l2h.files import write_atomically
from l2h.report.common.web import data_uri, flat, write_html
from l2h.report.run.summary import one_line
from l2h.report.run.tables import plain_table

try:
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"tables need {missing.name}: pip install 'l2h[report]'") from missing

__all__ = ["Experiment", "experiment_tables", "write_experiment", "write_overview"]

Experiment = Mapping[str, Any]

_SCHEMA = 1
_WIDTH = 120  # columns of a terminal
_TEXT = 40  # letters of a column of text, past which it is wrapped
_LONG = 40  # rows past which a table is folded away in a page and left to its CSV file in Markdown
_BAD = " \N{BALLOT X}"
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class _Cell:
    text: str
    bold: bool
    bad: bool


@dataclass(frozen=True)
class _Grid:
    """A table as it is shown: cells as texts, which columns hold words or measurements, what bold means."""

    title: str
    name: str
    columns: list[str]
    words: list[bool]
    measured: list[bool]
    rows: list[list[_Cell]]
    note: str
    marks: str

    @property
    def long(self) -> bool:
        return len(self.rows) > _LONG


def write_experiment(experiment: Experiment, folder: str | Path) -> Path:
    """Write ``experiment.json``, a CSV file for each table and ``report.html``.

    A number that is not finite, of a rejector that diverged, is written as null and shown as ``n/a``. In a CSV file
    a column with a spread becomes two, ``_mean`` and ``_sem``, unrounded.

    Args:
        experiment: what was measured, as plain values. In a table ``best`` marks in every row the lowest or highest
            of the measured cells, those with a ``mean``: of the columns named in ``compare`` where the table has
            that key; else of those that are no percentages; else of all.
        folder: holds the PNG files of the plots already.

    Returns:
        The page. Each file is replaced in one step: a reader never sees half of one.

    Raises:
        DataError: the experiment is of another schema, a row does not fit its columns, a name cannot be that of a
            file, or a plot is missing.
    """
    folder = Path(folder)
    experiment = _checked(experiment)
    write_json(folder / "experiment.json", experiment)
    for section in _tables(experiment):
        write_atomically(folder / f"{section['name']}.csv", _csv(section))
    return write_html(
        folder / "report.html",
        "paper.html.j2",
        title=experiment["title"],
        experiment=experiment,
        meta=_meta(experiment),
        sections=[_section(section, experiment, folder) for section in experiment["sections"]],
        settings=list(flat(experiment["settings"])),
        experiments=None,
    )


def write_overview(experiments: Sequence[Experiment], folder: str | Path) -> list[Path]:
    """Write ``index.html``, which links to every ``NAME/report.html``, and all results as ``RESULTS.md``.

    Args:
        experiments: as :func:`write_experiment` takes them, in the order in which they are told.
        folder: holds the folder ``NAME`` of each.

    Returns:
        The two files.

    Raises:
        DataError: as :func:`write_experiment`, or two experiments have one name.
    """
    folder = Path(folder)
    experiments = [_checked(experiment) for experiment in experiments]
    _unique([experiment["name"] for experiment in experiments], "experiments")
    title = "Learning to Help in Multi-Class Settings: the paper's experiments"
    page = write_html(
        folder / "index.html",
        "paper.html.j2",
        title=title,
        experiment=None,
        experiments=[(experiment, _meta(experiment)) for experiment in experiments],
    )
    blocks = [f"# {title}", *(block for experiment in experiments for block in _markdown(experiment))]
    text = "\n\n".join(blocks) + "\n"
    return [page, write_atomically(folder / "RESULTS.md", text.encode("utf-8", errors="replace"))]


def experiment_tables(experiment: Experiment) -> list[Table]:
    """The tables for a terminal of 120 columns; one that is wider comes in parts that repeat its first columns."""
    experiment = _checked(experiment)
    return [table for section in _tables(experiment) for table in _terminal(_grid(section, experiment))]


def _checked(experiment: Experiment) -> dict[str, Any]:
    """The same with null for numbers that are not finite; raises where it cannot be written."""
    if experiment.get("schema") != _SCHEMA:
        raise DataError(
            f"an experiment of schema {experiment.get('schema')!r} cannot be shown: this version knows {_SCHEMA}; "
            "run the experiment again"
        )
    plain: dict[str, Any] = _finite(experiment)
    _file_name(plain["name"])
    for section in plain["sections"]:
        if section["kind"] not in ("text", "table", "plot"):
            raise DataError(f"a section of kind {section['kind']!r}: expected text, table or plot")
        if section["kind"] == "plot":
            _file_name(section["file"])
    for table in _tables(plain):
        _file_name(table["name"])
        for row in table["rows"]:
            if len(row) != len(table["columns"]):
                raise DataError(
                    f"table {table['name']}: a row of {len(row)} cells under {len(table['columns'])} columns: {row}"
                )
    _unique([table["name"] for table in _tables(plain)], f"tables of {plain['name']}")
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _file_name(name: str) -> None:
    if not _FILE.fullmatch(name):
        raise DataError(f"{name!r} cannot name a file: use letters, digits, '.', '_' and '-' only")


def _unique(names: list[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two {what} are called {', '.join(twice)}: give each a name of its own")


def _tables(experiment: Experiment) -> list[dict[str, Any]]:
    return [section for section in experiment["sections"] if section["kind"] == "table"]


def _meta(experiment: Experiment) -> str:
    seeds = experiment["seeds"]
    trained = f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'} ({', '.join(map(str, seeds))})"
    return "; ".join(part for part in (", ".join(experiment["datasets"]), trained, experiment["hardware"]) if part)


# A table's cells.


def _grid(section: Mapping[str, Any], experiment: Experiment) -> _Grid:
    seeds, columns = len(experiment["seeds"]), section["columns"]
    rows = []
    for row in section["rows"]:
        best = _best(section, row)
        marks = [cell.get("mark") if isinstance(cell, dict) else None for cell in row]
        rows.append(
            [
                _Cell(_text(cell, seeds), j in best or mark == "bold", mark == "bad")
                for j, (cell, mark) in enumerate(zip(row, marks, strict=True))
            ]
        )
    side = {"low": "lowest", "high": "highest"}.get(section.get("best") or "")
    return _Grid(
        title=section["title"],
        name=section["name"],
        columns=[str(column) for column in columns],
        words=[any(isinstance(row[j], str) for row in section["rows"]) for j in range(len(columns))],
        measured=[any(isinstance(row[j], dict) for row in section["rows"]) for j in range(len(columns))],
        rows=rows,
        note=section.get("note") or "",
        marks=f"the {side} of its row" if side else "",
    )


def _best(section: Mapping[str, Any], row: Sequence[Any]) -> set[int]:
    """Places of the best cells of a row; none where there is nothing to compare."""
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
        return "n/a"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if not isinstance(cell, dict):
        return _number(cell)
    mean, sem, n = cell["mean"], cell.get("sem"), cell.get("n")
    if mean is None:
        text = "n/a"
    elif cell.get("percent"):
        text = f"{mean:.1%}" + ("" if sem is None else f" ± {100 * sem:.1f}")
    else:
        digits = 4 if abs(mean) < 10 else 2 if abs(mean) < 100 else 1
        text = f"{mean:.{digits}f}" + ("" if sem is None else f" ± {sem:.{digits}f}")
    # A mean over fewer trainings than were run says so.
    few = f" (n={n})" if n is not None and n != seeds and mean is not None else ""
    return text + few + (_BAD if cell.get("mark") == "bad" else "")


def _number(value: float) -> str:
    """A setting or a count as people write it: no zeros at the end, four decimals at most."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.0f}"
    if value == 0 or abs(value) >= 0.001:
        return f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{value:.2g}"


def _csv(section: Mapping[str, Any]) -> bytes:
    """The numbers unrounded; an empty field where there is none."""
    spread = [any(isinstance(row[j], dict) for row in section["rows"]) for j in range(len(section["columns"]))]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = zip(section["columns"], spread, strict=True)
    writer.writerow(
        [name for column, two in names for name in ((f"{column}_mean", f"{column}_sem") if two else (column,))]
    )
    for row in section["rows"]:
        fields: list[Any] = []
        for cell, two in zip(row, spread, strict=True):
            if isinstance(cell, dict):
                fields += [cell["mean"], cell.get("sem")]
            else:
                fields += [cell, None] if two else [cell]
        writer.writerow(fields)
    return buffer.getvalue().encode("utf-8", errors="replace")


# The page.


def _section(section: Mapping[str, Any], experiment: Experiment, folder: Path) -> dict[str, Any]:
    if section["kind"] == "text":
        return {"kind": "text", "paragraphs": _paragraphs(section["text"])}
    if section["kind"] == "table":
        return {"kind": "table", "grid": _grid(section, experiment)}
    path = folder / section["file"]
    try:
        source = data_uri(path.read_bytes())
    except OSError as error:
        raise DataError(f"the plot {path} cannot be read ({error.strerror or error}): write it first") from error
    return {
        "kind": "plot",
        "title": section["title"],
        "alt": section["alt"],
        "note": section.get("note"),
        "source": source,
    }


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


# Markdown.


def _markdown(experiment: Experiment) -> Iterator[str]:
    """One experiment, block by block."""
    name = experiment["name"]
    yield f"## {_safe(experiment['title'])}"
    yield _safe(experiment["question"])
    quick = " **A quick run: too small to judge the methods by.**" if experiment["quick"] else ""
    yield f"{_safe(_meta(experiment))}.{quick}"
    if experiment["findings"]:
        yield _bullets(experiment["findings"])
    for section in experiment["sections"]:
        if section["kind"] == "text":
            yield from (_safe(paragraph) for paragraph in _paragraphs(section["text"]))
            continue
        yield f"### {_safe(section['title'])}"
        if section["kind"] == "plot":
            yield f"![{_safe(section['alt']).replace(']', chr(92) + ']')}]({name}/{section['file']})"
        else:
            grid = _grid(section, experiment)
            file = f"{name}/{grid.name}.csv"
            yield f"{len(grid.rows)} rows: [{file}]({file})." if grid.long else _markdown_table(grid)
            if grid.marks and not grid.long:
                yield f"In bold {grid.marks}."
        if section.get("note"):
            yield _safe(section["note"])
    if experiment["errata"]:
        yield "### What the paper or its code got wrong"
        yield _bullets(experiment["errata"])
    command = experiment["command"]
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    yield f"{fence}\n{command}\n{fence}"


def _markdown_table(grid: _Grid) -> str:
    lines = [[_safe(column) for column in grid.columns], [":--" if words else "--:" for words in grid.words]]
    for row in grid.rows:
        lines.append([f"**{_safe(cell.text)}**" if cell.bold else _safe(cell.text) for cell in row])
    # A pipe parts cells even within code.
    head, rule, *body = [[field.replace("|", r"\|") for field in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {_safe(sentence)}" for sentence in sentences)


def _safe(text: str) -> str:
    """One line of Markdown that shows the text as it is; only what stands between backticks is code."""
    parts = re.split(r"`([^`]*)`", " ".join(str(text).split()))
    for i in range(0, len(parts), 2):
        part = re.sub(r"([\\*~$`]|\](?=\()|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", parts[i])
        parts[i] = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", part))
    line = "".join(f"`{part}`" if i % 2 else part for i, part in enumerate(parts))
    # What would begin a heading, a quotation or a list.
    return re.sub(r"^([#>+-])", r"\\\1", line)


# The terminal.


def _terminal(grid: _Grid) -> list[Table]:
    """One table, or several that share the columns before the first measured one."""
    widths = [_column_width(grid, j) for j in range(len(grid.columns))]
    keys = list(range(grid.measured.index(True) if any(grid.measured) else 1)) or [0]
    if _total(widths[j] for j in keys) > _WIDTH // 2:
        keys = [0]
    rest = list(range(len(keys), len(widths)))
    parts = [[*keys, *rest]]
    for count in range(1, len(rest) + 1):
        each = -(-len(rest) // count)
        parts = [[*keys, *rest[start : start + each]] for start in range(0, len(rest), each)]
        if all(_total(widths[j] for j in part) <= _WIDTH for part in parts):
            break
    tables = []
    for k, part in enumerate(parts, start=1):
        title = one_line(grid.title, 200) + (f" ({k} of {len(parts)})" if len(parts) > 1 else "")
        told = (f"* {grid.marks}" if grid.marks else "", one_line(grid.note, 600) if grid.note else "")
        table = plain_table(title, "; ".join(filter(None, told)) if k == len(parts) else "")
        for j in part:
            header = Text(one_line(grid.columns[j], _TEXT))
            table.add_column(header, justify="left" if grid.words[j] else "right", width=widths[j])
        for row in grid.rows:
            table.add_row(*(_terminal_cell(row[j]) for j in part))
        tables.append(table)
    return tables


def _column_width(grid: _Grid, j: int) -> int:
    """Of the widest cell, and of the longest word above it; a column of words may be wrapped."""
    words = one_line(grid.columns[j], _TEXT).split()
    cells = [cell_len(_terminal_cell(row[j]).plain) for row in grid.rows]
    return min(_TEXT, max([1, *map(cell_len, words), *cells]))


def _total(widths: Iterable[int]) -> int:
    # A column takes three more than its text, and the edge one.
    return 1 + sum(width + 3 for width in widths)


def _terminal_cell(cell: _Cell) -> Text:
    # Text, not str: a name must not be read as markup. The star is there for a terminal without bold letters.
    style = "bold green" if cell.bold else "red" if cell.bad else ""
    return Text(("*" if cell.bold else "") + one_line(cell.text, 400), style=style)
