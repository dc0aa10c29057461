"""Results on stdout: tables for a person, JSON for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from l2h.metrics import Report


def print_json(values: Any) -> None:
    """Plain values as JSON."""
    sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")


def print_reports(reports: Sequence[Report]) -> None:
    """The contrastive table and the risk table of one report; a grid where there are several prices."""
    from l2h.report import contrastive_table, risk_table

    out = Console()
    out.print(contrastive_table(reports[0]))
    out.print()
    out.print(risk_table(reports[0]))
    if len(reports) > 1:
        out.print()
        out.print(grid_table([report.as_dict() for report in reports]))


def grid_table(metrics: Sequence[Mapping[str, Any]]) -> Table:
    """Risk beside its baselines, a row a price."""
    columns = ("system", "all_local", "all_remote", "random", "confidence", "oracle")
    table = Table(title="Risk at every price of the grid", caption="[bold]bold[/]: the lowest but the oracle's")
    for name in ("c_1", "c_e", "sent", *(c.replace("_", " ") for c in columns)):
        table.add_column(name, justify="right")
    for row in metrics:
        risk = row["risk"]
        best = min(risk[c] for c in columns[:-1] if risk[c] is not None)
        cells = ["n/a" if risk[c] is None else f"{risk[c]:.4f}" for c in columns]
        marked = [
            f"[bold]{text}[/]" if risk[c] == best and c != "oracle" else text
            for c, text in zip(columns, cells, strict=True)
        ]
        costs = row["costs"]
        table.add_row(f"{costs['c_1']:g}", f"{costs['c_e']:g}", f"{100 * row['reject_rate']:.1f}%", *marked)
    return table
