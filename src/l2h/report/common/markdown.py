"""Markdown that shows any text as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from l2h.report.common.table import TextTable


def markdown_line(text: str) -> str:
    """Return one line of Markdown that shows the text as it is; only what is between backticks is code."""
    parts = re.split(r"`([^`]*)`", " ".join(str(text).split()))
    for i in range(0, len(parts), 2):
        part = re.sub(r"([\\*~$`]|\](?=\()|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", parts[i])
        parts[i] = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", part))
    line = "".join(f"`{part}`" if i % 2 else part for i, part in enumerate(parts))
    # What would begin a heading, a quotation or a list.
    return re.sub(r"^([#>+-])", r"\\\1", line)


def markdown_list(sentences: Sequence[str]) -> str:
    """Return a list with one item per sentence."""
    return "\n".join(f"- {markdown_line(sentence)}" for sentence in sentences)


def markdown_code(text: str) -> str:
    """Return a block of code; its fence is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def markdown_table(table: TextTable) -> str:
    """Return the table in Markdown, the best cells in bold."""
    lines = [[markdown_line(column.name) for column in table.columns]]
    lines.append([":--" if column.justify == "left" else "--:" for column in table.columns])
    for row in table.rows:
        fields = [(markdown_line(cell.text), cell.bold) for cell in row.cells]
        lines.append([f"**{text}**" if bold else text for text, bold in fields])
    # A pipe separates cells even within code.
    return "\n".join("| " + " | ".join(field.replace("|", r"\|") for field in line) + " |" for line in lines)
