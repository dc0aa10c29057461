"""Results for people: tables for the terminal, plots, and one self-contained page.

Importing this package imports neither matplotlib, nor jinja2, nor rich: each comes with the first function
that needs it, and :class:`~l2h.errors.MissingExtraError` says what to install where it is absent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2h.report.common.figure import png
    from l2h.report.comparison.page import write_comparison
    from l2h.report.comparison.plots import plot_frontiers, plot_pairs, plot_risk_grid
    from l2h.report.comparison.tables import comparison_table, grid_tables, property_table
    from l2h.report.comparison.words import comparison_headline
    from l2h.report.paper.page import experiment_tables, write_experiment, write_overview
    from l2h.report.paper.plots import plot_bounds, plot_losses, plot_risk_curves, plot_scaling, plot_tradeoff
    from l2h.report.run.folder import write_run_page
    from l2h.report.run.history import plot_sync
    from l2h.report.run.page import write_page
    from l2h.report.run.plots import (
        plot_contrastive,
        plot_frontier,
        plot_history,
        plot_per_class,
        plot_reliability,
        plot_risk,
        plot_samples,
        save_plots,
    )
    from l2h.report.run.summary import Verdict, headline, verdict
    from l2h.report.run.tables import contrastive_table, risk_table, spread_table

__all__ = [
    "Verdict",
    "comparison_headline",
    "comparison_table",
    "contrastive_table",
    "experiment_tables",
    "grid_tables",
    "headline",
    "plot_bounds",
    "plot_contrastive",
    "plot_frontier",
    "plot_frontiers",
    "plot_history",
    "plot_losses",
    "plot_pairs",
    "plot_per_class",
    "plot_reliability",
    "plot_risk",
    "plot_risk_curves",
    "plot_risk_grid",
    "plot_samples",
    "plot_scaling",
    "plot_sync",
    "plot_tradeoff",
    "png",
    "property_table",
    "risk_table",
    "save_plots",
    "spread_table",
    "verdict",
    "write_comparison",
    "write_experiment",
    "write_overview",
    "write_page",
    "write_run_page",
]

_HOME = {
    "Verdict": "run.summary",
    "headline": "run.summary",
    "verdict": "run.summary",
    "contrastive_table": "run.tables",
    "risk_table": "run.tables",
    "spread_table": "run.tables",
    "write_page": "run.page",
    "write_run_page": "run.folder",
    "plot_sync": "run.history",
    "png": "common.figure",
    "comparison_headline": "comparison.words",
    "write_comparison": "comparison.page",
    "plot_frontiers": "comparison.plots",
    "plot_pairs": "comparison.plots",
    "plot_risk_grid": "comparison.plots",
    "comparison_table": "comparison.tables",
    "grid_tables": "comparison.tables",
    "property_table": "comparison.tables",
    "experiment_tables": "paper.page",
    "write_experiment": "paper.page",
    "write_overview": "paper.page",
    "plot_bounds": "paper.plots",
    "plot_losses": "paper.plots",
    "plot_risk_curves": "paper.plots",
    "plot_scaling": "paper.plots",
    "plot_tradeoff": "paper.plots",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'run.plots')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
