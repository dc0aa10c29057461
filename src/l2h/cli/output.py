"""What a command shows: results on stdout, tables for a person and JSON for a program; the log on stderr."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

if TYPE_CHECKING:
    from l2h.experiments.evaluating import Evaluation
    from l2h.report.common.table import TextTable

console = Console(stderr=True)
log = logging.getLogger("l2h")
#: Figures of ``metrics.json``'s ``risk`` by the columns of the grid.
_RISKS = {
    "system": "system",
    "never": "all_local",
    "always": "all_remote",
    "random": "random",
    "conf.": "confidence",
    "oracle": "oracle",
}


def command_line() -> str:
    """Return the command as it was called, for what it writes."""
    return shlex.join(["l2h", *sys.argv[1:]])


def print_json(values: Any) -> None:
    """Print plain values as JSON."""
    sys.stdout.write(json.dumps(values, indent=2, allow_nan=False) + "\n")


def print_result(values: Any, line: str, as_json: bool) -> None:
    """Print plain values as JSON, or the line that says the same to people."""
    print_json(values) if as_json else print_line(line)


def print_evaluations(results: Sequence[Evaluation], as_json: bool) -> None:
    """Print ``metrics.json`` of every evaluation as a JSON list, or all of them as tables."""
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        print_results(results)


def print_results(results: Sequence[Evaluation]) -> None:
    """Print the contrastive table and the risk table of the first evaluation, and a grid where there are several."""
    from l2h.metrics import Report
    from l2h.report import answerer_table, compute_table, contrastive_table, risk_table

    out, report = make_console(), results[0].report
    tables = [answerer_table(report)] if len(report.answerers) > 2 else []
    tables += [contrastive_table(report), risk_table(report)]
    if isinstance(report, Report) and report.compute is not None:
        tables.append(compute_table(report))
    if len(results) > 1 or results[0].limit is not None:
        tables.append(grid_table([result.as_dict() for result in results]))
    for place, table in enumerate(tables):
        if place:
            out.print()
        out.print(table)


def grid_table(metrics: Sequence[Mapping[str, Any]]) -> Table:
    """Return the risk beside its baselines, one row per price and link."""
    with_sync = len({row["rejector"]["sync"] for row in metrics}) > 1
    with_bound = any(row["bound"] for row in metrics)
    extra = [*(["sync"] if with_sync else []), *(["bound"] if with_bound else [])]
    by_server = any(row["costs"] is None for row in metrics)
    columns = (*(("prices",) if by_server else ("c_1", "c_e")), *extra, "sent", "accuracy", *_RISKS)
    table = make_table(
        columns,
        right=columns,
        title="Risk at every price, beside never and always asking" + ", as often as the bound allows" * with_bound,
        title_justify="left",
        caption="bold: the lowest but the oracle's",
        caption_justify="left",
        padding=(0, 1),
        collapse_padding=True,
    )
    for row in metrics:
        costs = [_prices(row)] if by_server else [f"{row['costs'][name]:g}" for name in ("c_1", "c_e")]
        sync = [str(row["rejector"]["sync"])] if with_sync else []
        bound = [row["bound"]["limit"] if row["bound"] else "none"] if with_bound else []
        shares = [f"{100 * row['reject_rate']:.1f}%", f"{100 * row['accuracy']['system']:.1f}%"]
        table.add_row(*costs, *sync, *bound, *shares, *_risk_cells(row["risk"]))
    return table


def _prices(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={costs['c_e']:g}:{costs['c_1']:g}" for name, costs in row["prices"].items())


def _risk_cells(risk: Mapping[str, float | None]) -> Iterable[str]:
    values = {column: risk[name] for column, name in _RISKS.items()}
    lowest = min(value for column, value in values.items() if column != "oracle" and value is not None)
    for column, value in values.items():
        text = "n/a" if value is None else f"{value:.4f}"
        yield f"[bold]{text}[/]" if value == lowest and column != "oracle" else text


def print_summary(
    summary: Mapping[str, Any], as_json: bool, tables: Iterable[TextTable], sentences: Iterable[str] = ()
) -> None:
    """Print what a study gives: as JSON, or as tables with sentences below them."""
    if as_json:
        print_json(summary)
        return
    out = make_console()
    for table in tables:
        out.print(table)
    for sentence in sentences:
        out.print(sentence, markup=False)


def make_table(columns: Sequence[str], right: Collection[str] = (), **style: Any) -> Table:
    """Return an empty table of these columns, those in ``right`` flush right; ``style`` goes to rich."""
    plain: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False}
    table = Table(**plain | style)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


def print_line(text: str) -> None:
    """Print a line of plain text, unwrapped."""
    make_console().print(text, highlight=False, soft_wrap=True, markup=False)


def print_pairs(title: str, pairs: Mapping[str, str]) -> None:
    """Print a title and a line for each pair."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    for name, value in pairs.items():
        table.add_row(name, value)
    make_console().print(table)


def make_console() -> Console:
    """Return a console on stdout, wide enough for the tables where that is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=120)


def log_to_stderr(level: int) -> None:
    """Write the log of ``l2h`` to stderr: through rich on a terminal, so that the lines go above the bars."""
    log.setLevel(level)
    log.propagate = False
    log.handlers.clear()
    if console.is_terminal:
        handler: logging.Handler = RichHandler(
            console=console, show_path=False, show_level=False, show_time=False, markup=False
        )
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    log.addHandler(handler)
