"""Results on stdout: tables for a person, JSON for a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from l2h.experiments.evaluating import Evaluation


def print_json(values: Any) -> None:
    """Plain values as JSON."""
    sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")


def print_results(results: Sequence[Evaluation]) -> None:
    """The contrastive table and the risk table of the first; a grid where there are several."""
    from l2h.report import contrastive_table, risk_table

    out = make_console()
    out.print(contrastive_table(results[0].report))
    out.print()
    if results[0].limit is None:
        out.print(risk_table(results[0].report))
    if len(results) > 1 or results[0].limit is not None:
        out.print()
        out.print(grid_table([result.as_dict() for result in results]))


def grid_table(metrics: Sequence[Mapping[str, Any]]) -> Table:
    """Risk beside its baselines, a row a price and link."""
    columns = {
        "system": "system",
        "all_local": "never",
        "all_remote": "always",
        "random": "random",
        "confidence": "conf.",
        "oracle": "oracle",
    }
    with_sync = len({row["rejector"]["sync"] for row in metrics}) > 1
    with_bound = any(row["bound"] for row in metrics)
    table = Table(
        title="Risk at every price, beside never and always asking",
        title_justify="left",
        caption="bold: the lowest but the oracle's",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        collapse_padding=True,
    )
    extra = [*(["sync"] if with_sync else []), *(["bound"] if with_bound else [])]
    for name in ("c_1", "c_e", *extra, "sent", "accuracy", *columns.values()):
        table.add_column(name, justify="right")
    for row in metrics:
        risk, costs = row["risk"], row["costs"]
        best = min(risk[c] for c in columns if c != "oracle" and risk[c] is not None)
        cells = ["n/a" if risk[c] is None else f"{risk[c]:.4f}" for c in columns]
        marked = [
            f"[bold]{text}[/]" if risk[c] == best and c != "oracle" else text
            for c, text in zip(columns, cells, strict=True)
        ]
        sync = [str(row["rejector"]["sync"])] if with_sync else []
        bound = [row["bound"]["limit"] if row["bound"] else "none"] if with_bound else []
        shares = [f"{100 * row['reject_rate']:.1f}%", f"{100 * row['accuracy']['system']:.1f}%"]
        table.add_row(f"{costs['c_1']:g}", f"{costs['c_e']:g}", *sync, *bound, *shares, *marked)
    return table


def print_pairs(title: str, pairs: Mapping[str, str]) -> None:
    """A title and a line for each pair."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    for name, value in pairs.items():
        table.add_row(name, value)
    make_console().print(table)


def make_console() -> Console:
    """stdout; wide enough for the tables where it is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=120)
