"""Results for people: tables for the terminal, plots, and self-contained pages.

Importing this package imports neither matplotlib, nor jinja2, nor rich: each comes with the first function that needs
it, and :class:`~l2h.errors.MissingExtraError` says what to install where it is absent.
"""

from importlib import import_module
from typing import Any

from l2h.errors import missing_extra

_NAMES = {
    "audit": ("audit_tables", "write_audit"),
    "common.figure": ("png",),
    "comparison.page": ("write_comparison",),
    "comparison.plots": ("plot_frontiers", "plot_pairs", "plot_risk_grid"),
    "comparison.tables": ("comparison_headline", "comparison_table", "grid_tables", "property_table"),
    "crossed": ("crossed_sentences", "crossed_tables"),
    "frontier": ("frontier_table", "plot_budgets", "write_frontier"),
    "paper.page": ("write_experiment", "write_overview"),
    "paper.plots": ("plot_bounds", "plot_class_rates", "plot_losses", "plot_risk_curves", "plot_tradeoff"),
    "paper.tables": ("experiment_tables",),
    "shift": ("plot_shift", "shift_tables", "write_shift"),
    "tuning": ("plot_curves", "plot_settings", "tuning_headline", "tuning_table", "write_tuning"),
    "several": ("several_sentences", "several_table"),
    "run.gallery": ("plot_samples",),
    "run.page": ("write_page", "write_router_page", "write_run_page"),
    "run.plots": (
        *("plot_contrastive", "plot_frontier", "plot_history", "plot_per_class"),
        *("plot_reliability", "plot_risk", "plot_sync"),
    ),
    "run.tables": (
        *("answerer_table", "compute_table", "contrastive_table", "risk_rows", "risk_table", "spread_table"),
    ),
    "run.verdict": ("Verdict", "headline", "verdict"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_EXTRA = ("PIL", "jinja2", "markupsafe", "matplotlib", "rich")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        raise missing_extra(f"l2h.report.{name} needs the package {package!r}", "report") from missing


def __dir__() -> list[str]:
    return sorted(_HOME)
