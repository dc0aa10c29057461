"""The paper's experiments as one Markdown file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from l2h.report.common.markdown import markdown_code, markdown_line, markdown_list, markdown_table
from l2h.report.paper.experiment import Experiment, origin, paragraphs
from l2h.report.paper.tables import section_table

LONG = 40  # a table of more rows is folded away in a page and left to its CSV file in Markdown


def markdown(title: str, experiments: Sequence[Experiment]) -> str:
    """Return all experiments in one text, one after the other."""
    blocks = [f"# {title}", *(block for experiment in experiments for block in _experiment(experiment))]
    return "\n\n".join(blocks) + "\n"


def _experiment(experiment: Experiment) -> Iterator[str]:
    yield f"## {markdown_line(experiment['title'])}"
    yield markdown_line(experiment["question"])
    quick = " **A quick run: too small to judge the methods.**" if experiment["quick"] else ""
    yield f"{markdown_line(origin(experiment))}.{quick}"
    if experiment["findings"]:
        yield markdown_list(experiment["findings"])
    for section in experiment["sections"]:
        yield from _section(section, experiment)
    if experiment["errata"]:
        yield "### What the paper or its code got wrong"
        yield markdown_list(experiment["errata"])
    yield markdown_code(experiment["command"])


def _section(section: Mapping[str, Any], experiment: Experiment) -> Iterator[str]:
    if section["kind"] == "text":
        yield from map(markdown_line, paragraphs(section["text"]))
        return
    yield f"### {markdown_line(section['title'])}"
    if section["kind"] == "plot":
        alt = markdown_line(section["alt"]).replace("]", r"\]")
        yield f"![{alt}]({experiment['name']}/{section['file']})"
    elif len(section["rows"]) > LONG:
        file = f"{experiment['name']}/{section['name']}.csv"
        yield f"{len(section['rows'])} rows: [{file}]({file})."
    else:
        table = section_table(section, len(experiment["seeds"]))
        yield markdown_table(table)
        if table.marks:
            yield f"In bold: {table.marks}."
    if section.get("note"):
        yield markdown_line(section["note"])
