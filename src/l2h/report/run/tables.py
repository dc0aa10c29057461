"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from l2h.errors import MissingExtraError
from l2h.metrics import Report
from l2h.report.run.summary import contrastive_rows, number, percent, plus_minus, risk_rows, signed, verdict

try:
    from rich import box
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"tables need {missing.name}: pip install 'l2h[report]'") from missing

_SPREAD_ROWS = (
    ("client accuracy, %", ("accuracy", "client"), 100),
    ("server accuracy, %", ("accuracy", "server"), 100),
    ("system accuracy, %", ("accuracy", "system"), 100),
    ("reject rate, %", ("reject_rate",), 100),
    ("risk: this system", ("risk", "system"), 1),
    ("risk: never ask", ("risk", "all_local"), 1),
    ("risk: always ask", ("risk", "all_remote"), 1),
    ("risk: ask at random, same rate", ("risk", "random"), 1),
    ("risk: confidence threshold", ("risk", "confidence"), 1),
    ("risk: oracle", ("risk", "oracle"), 1),
    ("frontier gain: this system", ("frontier", "gain"), 1),
    ("frontier gain: confidence", ("frontier", "confidence_gain"), 1),
    ("frontier gain: label-free bound", ("frontier", "label_free_gain"), 1),
)


def contrastive_table(report: Report) -> Table:
    """Both classifiers on the inputs kept, sent, and all, in percent; ``n/a`` for an empty side."""
    joint = percent(report.contrastive.joint)
    table = plain_table(f"{report.dataset}: who is right where", f"joint accuracy {joint}")
    table.add_column("inputs", no_wrap=True)
    for name in ("share", "client", "server", "difference"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in contrastive_rows(report):
        values = (
            percent(row.share),
            percent(row.client),
            percent(row.server),
            signed(row.difference, points=True),
        )
        table.add_row(row.name, *values)
    return table


def risk_table(report: Report) -> Table:
    """The system's risk beside its baselines, the best but the oracle marked, and the verdict below."""
    result = verdict(report)
    colour = "green" if result.pays and result.clear else "yellow" if result.pays else "red"
    table = plain_table(f"{report.dataset}: risk at {report.costs}", result.text, style=f"bold {colour}")
    table.add_column("rule", no_wrap=True)
    for name in ("risk", "vs system", "reject rate"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in risk_rows(report):
        versus = "" if row.key == "system" else signed(row.versus)
        name = f"{row.name} (best)" if row.best else row.name
        style = "bold green" if row.best else "dim" if row.key == "oracle" else ""
        table.add_row(name, number(row.risk), versus, percent(row.rate), style=style)
    return table


def spread_table(merged: Mapping[str, Any], n: int) -> Table:
    """Mean and standard error over seeds.

    Args:
        merged: what :func:`l2h.metrics.spread_of_reports` gives.
        n: how many seeds there are.
    """
    many = n > 1
    caption = f"mean ± standard error over {n} seeds" if many else "one seed: no spread"
    table = plain_table(f"{n} seed{'s' if many else ''}{_prices(merged)}", caption)
    table.add_column("figure", no_wrap=True)
    table.add_column("mean ± s.e." if many else "value", justify="right", no_wrap=True)
    for name, value in _spread_rows(merged):
        table.add_row(name, value)
    return table


def plain_table(title: str, caption: str, style: str = "italic") -> Table:
    """An empty table; title and caption are plain text, flush left."""
    # Text, not str: a data set's name must not be read as markup.
    return Table(
        title=Text(title, style="bold"),
        caption=Text(caption, style=style),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )


def _spread_rows(merged: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, path, factor in _SPREAD_ROWS:
        here: Any = merged
        for key in path:
            here = here.get(key) if isinstance(here, Mapping) else None
        yield name, plus_minus(here, 2 if factor == 100 else 4, factor)


def _prices(merged: Mapping[str, Any]) -> str:
    costs = merged.get("costs") or {}
    if not all(costs.get(name) for name in ("c_1", "c_e")):
        return ""
    if any((costs[name]["std"] or 0.0) > 1e-9 for name in ("c_1", "c_e")):
        return " at different prices"
    return f" at c_1={costs['c_1']['mean']:g}, c_e={costs['c_e']['mean']:g}"
