"""The paper's experiments as one Markdown file, which shows any text as it is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from l2h.report.common.table import TextTable
from l2h.report.paper.tables import Experiment, origin, paragraphs, section_table

LONG = 40  # a table of more rows is folded away in a page and left to its CSV file in Markdown


def markdown(title: str, experiments: Sequence[Experiment]) -> str:
    """Return all experiments in one text, one after the other."""
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
        yield from _section(section, experiment)
    if experiment["errata"]:
        yield "### What the paper or its code got wrong"
        yield _list(experiment["errata"])
    yield _code(experiment["command"])


def _section(section: Mapping[str, Any], experiment: Experiment) -> Iterator[str]:
    if section["kind"] == "text":
        yield from map(_line, paragraphs(section["text"]))
        return
    yield f"### {_line(section['title'])}"
    if section["kind"] == "plot":
        alt = _line(section["alt"]).replace("]", r"\]")
        yield f"![{alt}]({experiment['name']}/{section['file']})"
    elif len(section["rows"]) > LONG:
        file = f"{experiment['name']}/{section['name']}.csv"
        yield f"{len(section['rows'])} rows: [{file}]({file})."
    else:
        table = section_table(section, len(experiment["seeds"]))
        yield _table(table)
        if table.marks:
            yield f"In bold: {table.marks}."
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
    """The table in Markdown, the best cells in bold."""
    lines = [[_line(column.name) for column in table.columns]]
    lines.append([":--" if column.justify == "left" else "--:" for column in table.columns])
    for row in table.rows:
        fields = [(_line(cell.text), cell.bold) for cell in row.cells]
        lines.append([f"**{text}**" if bold else text for text, bold in fields])
    # A pipe separates cells even within code.
    return "\n".join("| " + " | ".join(field.replace("|", r"\|") for field in line) + " |" for line in lines)
