"""A comparison of methods as files: JSON, CSV, plots and one self-contained page."""

from functools import partial
from pathlib import Path

from l2h.files import PLOTS, write_atomically, write_json
from l2h.report.common.inline import WIDE, show_plots
from l2h.report.common.page import flat, write_html
from l2h.report.common.table import csv_bytes
from l2h.report.comparison import tables
from l2h.report.comparison.model import ComparisonView, Values, property_rows
from l2h.report.comparison.plots import plot_frontiers, plot_pairs, plot_risk_grid

_KEYS = ("method", "family", "c_1", "c_e")
_FIGURES = ("risk", "reject_rate", "accuracy", "gain", "risk_as_published")
_INTERVAL = ("difference", "low", "high")


def write_comparison(comparison: Values, folder: str | Path) -> Path:
    """Write ``comparison.json``, ``comparison.csv``, ``plots/*.png`` and ``report.html``; return the page.

    Each file is replaced in one step: a reader never sees half of one.
    """
    folder, methods = Path(folder), comparison["methods"]
    write_json(folder / "comparison.json", comparison)
    write_atomically(folder / "comparison.csv", _csv(comparison))
    plots = {
        "frontiers": partial(plot_frontiers, comparison),
        "risk": partial(plot_risk_grid, comparison),
        "pairs": partial(plot_pairs, comparison),
    }
    return write_html(
        folder / "report.html",
        "comparison.html.j2",
        title=f"{comparison['dataset']}: {len(methods)} ways to decide when to ask",
        comparison=comparison,
        headline=tables.comparison_headline(comparison),
        standing=tables.standing(comparison),
        interval_note=tables.clear_note(comparison),
        ours=ComparisonView(comparison).default,
        overall=tables.comparison_table(comparison),
        risks=tables.grid_tables(comparison),
        published=tables.grid_tables(comparison, "risk_as_published"),
        properties=tables.property_table(methods),
        property_notes=property_rows(methods)[1],
        origins=tables.origin_table(methods),
        sizes=tables.size_table(methods),
        plots=show_plots(plots, folder / PLOTS, WIDE),
        skipped=[f"{entry['method']}: {entry['why']}" for entry in comparison["skipped"]],
        settings=list(flat(comparison["settings"])),
    )


def _csv(comparison: Values) -> bytes:
    """One row per method and price."""
    family = {method["name"]: method["family"] for method in comparison["methods"]}
    view, rows = ComparisonView(comparison), []
    for key, cell in view.cells.items():
        versus = view.against[key].as_dict() if key in view.against else dict.fromkeys(_INTERVAL)
        values = {**cell, "family": family[key[0]], **versus}
        rows.append([values[name] for name in (*_KEYS, *_FIGURES, *_INTERVAL)])
    measured = [False] * len(_KEYS) + [True] * len(_FIGURES) + [False] * len(_INTERVAL)
    return csv_bytes((*_KEYS, *_FIGURES, *_INTERVAL), rows, measured)
