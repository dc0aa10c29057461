"""A comparison with several servers as a table: the risk of every method at every price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2h.report.common.table import Cell, TextTable, headings, texts
from l2h.report.common.text import counted

Values = Mapping[str, Any]  # what ``several.json`` holds


def several_table(summary: Values) -> TextTable:
    """Return one row per price and one column per method, the lowest risk of each row marked."""
    everyone, ours = summary["methods"], summary["default"]
    order = [ours, *(name for name in everyone if name != ours)]
    cells = {(cell["prices"], cell["method"]): cell for cell in summary["cells"]}
    rows = []
    for price in summary["prices"]:
        risks = {name: cells[price, name]["risk"] for name in order}
        lowest = min(risk["mean"] for risk in risks.values())
        marked = [Cell(f"{risks[name]['mean']:.4f}", bold=risks[name]["mean"] == lowest) for name in order]
        rows.append(texts(price, *marked))
    note = f"{summary['dataset']}, {summary['samples']:,} samples, {counted(len(summary['seeds']), 'seed')}"
    return TextTable(
        "Risk with several servers", headings("prices", *order), rows, note, marks="the lowest of its row", wrap=True
    )


def several_sentences(summary: Values) -> list[str]:
    """Return how the default stands to each other method: at how many prices clearly lower, about equal, higher."""
    out = []
    for name in summary["methods"]:
        if name == summary["default"]:
            continue
        differences = [cell["more"] for cell in summary["cells"] if cell["method"] == name]
        lower = sum(one["mean"] > 2 * one["error"] for one in differences)
        higher = sum(one["mean"] < -2 * one["error"] for one in differences)
        about = len(differences) - lower - higher
        out.append(
            f"{summary['default']} against {name}: lower by more than two standard errors at {lower} of "
            f"{counted(len(differences), 'price')}, within them at {about}, higher at {higher}."
        )
    return out
