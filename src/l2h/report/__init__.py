"""Results for people: tables for the terminal, plots, and one self-contained page.

Importing this package imports neither matplotlib, nor jinja2, nor rich: each comes with the first function
that needs it, and :class:`~l2h.errors.MissingExtraError` says what to install where it is absent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2h.report.figure import png
    from l2h.report.history import plot_sync
    from l2h.report.page import write_page
    from l2h.report.plots import (
        plot_contrastive,
        plot_frontier,
        plot_history,
        plot_per_class,
        plot_reliability,
        plot_risk,
        plot_samples,
        save_plots,
    )
    from l2h.report.summary import Verdict, headline, verdict
    from l2h.report.tables import contrastive_table, risk_table, spread_table

__all__ = [
    "Verdict",
    "contrastive_table",
    "headline",
    "plot_contrastive",
    "plot_frontier",
    "plot_history",
    "plot_per_class",
    "plot_reliability",
    "plot_risk",
    "plot_samples",
    "plot_sync",
    "png",
    "risk_table",
    "save_plots",
    "spread_table",
    "verdict",
    "write_page",
]

_HOME = {
    "Verdict": "summary",
    "headline": "summary",
    "verdict": "summary",
    "contrastive_table": "tables",
    "risk_table": "tables",
    "spread_table": "tables",
    "write_page": "page",
    "plot_sync": "history",
    "png": "figure",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'plots')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
