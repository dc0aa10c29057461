"""The paper's experiments as files: pictures, JSON, CSV, one page each, an overview, and all of it as Markdown."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from l2h.files import write_atomically, write_json
from l2h.report.common.inline import WIDE, InlinePlot, show_plots
from l2h.report.common.page import flat, write_html
from l2h.report.common.table import TextTable
from l2h.report.paper import plots
from l2h.report.paper.tables import Experiment, checked, origin, paragraphs, section_csv, section_table, tables
from l2h.report.run.gallery import plot_samples

if TYPE_CHECKING:
    from l2h.experiments.paper.study import Drawing

_LONG = 40  # a table of more rows is folded away in a page and left to its CSV file in Markdown
_PLOTS: dict[str, Callable[..., Any]] = {
    "tradeoff": plots.plot_tradeoff,
    "risk": plots.plot_risk_curves,
    "losses": plots.plot_losses,
    "bounds": plots.plot_bounds,
    "per_class": plots.plot_class_rates,
    "reproduction": plots.plot_reproduction,
    "samples": plot_samples,
}


def write_experiment(
    experiment: Experiment, folder: str | Path, drawings: Mapping[str, "Drawing"] = MappingProxyType({})
) -> Path:
    """Write ``experiment.json``, a CSV file for each table, a PNG file for each plot and ``report.html``.

    A number that is not finite, of a rejector that diverged, is written as null and shown as ``n/a``. In a CSV file
    a column with a spread becomes two, ``_mean`` and ``_sem``, unrounded.

    ``drawings`` are the plots by the names of their files. Each file is replaced in one step: a reader never sees half
    of one.

    Raises:
        DataError: the experiment is of another schema.
    """
    folder = Path(folder)
    experiment = checked(experiment)
    write_json(folder / "experiment.json", experiment)
    for section in tables(experiment):
        write_atomically(folder / f"{section['name']}.csv", section_csv(section))
    drawn = {Path(file).stem: partial(_PLOTS[one.plot], **one.data) for file, one in drawings.items()}
    shown = show_plots(drawn, folder, WIDE)
    return write_html(
        folder / "report.html",
        "paper.html.j2",
        title=experiment["title"],
        experiment=experiment,
        meta=origin(experiment),
        sections=[_section(section, experiment, shown) for section in experiment["sections"]],
        settings=list(flat(experiment["settings"])),
    )


def write_overview(experiments: Sequence[Experiment], folder: str | Path) -> list[Path]:
    """Write ``index.html``, which links to every ``NAME/report.html``, and all results as ``RESULTS.md``; return both.

    The folder holds the folder ``NAME`` of each experiment. A DataError is raised as by :func:`write_experiment`.
    """
    folder = Path(folder)
    experiments = [checked(experiment) for experiment in experiments]
    title = "Learning to Help in Multi-Class Settings: the paper's experiments"
    page = write_html(
        folder / "index.html",
        "paper.html.j2",
        title=title,
        experiment=None,
        experiments=[(experiment, origin(experiment)) for experiment in experiments],
    )
    text = _markdown(title, experiments).encode("utf-8", errors="replace")
    return [page, write_atomically(folder / "RESULTS.md", text)]


def _section(section: Mapping[str, Any], experiment: Experiment, shown: Mapping[str, InlinePlot]) -> dict[str, Any]:
    if section["kind"] == "text":
        return {"kind": "text", "paragraphs": paragraphs(section["text"])}
    if section["kind"] == "table":
        table = section_table(section, len(experiment["seeds"]))
        return {"kind": "table", "table": table, "long": len(table.rows) > _LONG, "file": f"{section['name']}.csv"}
    return {"note": None, **section, "plot": shown[Path(section["file"]).stem]}


def _markdown(title: str, experiments: Sequence[Experiment]) -> str:
    """All experiments in one Markdown text, one after the other, which shows any text as it is."""
    blocks = [f"# {title}", *(block for experiment in experiments for block in _experiment(experiment))]
    return "\n\n".join(blocks) + "\n"


def _experiment(experiment: Experiment) -> Iterator[str]:
    yield f"## {_line(experiment['title'])}"
    yield _line(experiment["question"])
    quick = " **A quick run: too small to judge the methods.**" if experiment["quick"] else ""
    yield f"{_line(origin(experiment))}.{quick}"
    if experiment["findings"]:
        yield _list(experiment["findings"])
    for section in experiment["sections"]:
        yield from _markdown_section(section, experiment)
    if experiment["errata"]:
        yield "### What the paper or its code got wrong"
        yield _list(experiment["errata"])
    yield _code(experiment["command"])


def _markdown_section(section: Mapping[str, Any], experiment: Experiment) -> Iterator[str]:
    if section["kind"] == "text":
        yield from map(_line, paragraphs(section["text"]))
        return
    yield f"### {_line(section['title'])}"
    if section["kind"] == "plot":
        alt = _line(section["alt"]).replace("]", r"\]")
        yield f"![{alt}]({experiment['name']}/{section['file']})"
    elif len(section["rows"]) > _LONG:
        file = f"{experiment['name']}/{section['name']}.csv"
        yield f"{len(section['rows'])} rows: [{file}]({file})."
    else:
        yield _table(section_table(section, len(experiment["seeds"])))
    if section.get("note"):
        yield _line(section["note"])


def _line(text: str) -> str:
    """One line of Markdown that shows the text as it is; only what is between backticks is code."""
    parts = re.split(r"`([^`]*)`", " ".join(str(text).split()))
    for i in range(0, len(parts), 2):
        part = re.sub(r"([\\*~$`]|\](?=\()|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", parts[i])
        parts[i] = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", part))
    line = "".join(f"`{part}`" if i % 2 else part for i, part in enumerate(parts))
    # What would begin a heading, a quotation or a list.
    return re.sub(r"^([#>+-])", r"\\\1", line)


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {_line(sentence)}" for sentence in sentences)


def _code(text: str) -> str:
    """A block of code; its fence is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _table(table: TextTable) -> str:
    """The table in Markdown."""
    lines = [[_line(column.name) for column in table.columns]]
    lines.append([":--" if column.justify == "left" else "--:" for column in table.columns])
    lines += [[_line(cell.text) for cell in row.cells] for row in table.rows]
    # A pipe separates cells even within code.
    return "\n".join("| " + " | ".join(field.replace("|", r"\|") for field in line) + " |" for line in lines)
