"""A comparison of methods as files: JSON, CSV, plots and one self-contained page."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from l2h.experiments.runs import write_json
from l2h.files import write_atomically
from l2h.report.common.figure import png
from l2h.report.common.web import data_uri, flat, write_html
from l2h.report.comparison.model import (
    NONE,
    PROPERTIES,
    Comparison,
    default_differences,
    method_rows,
    price_tables,
    property_rows,
)
from l2h.report.comparison.plots import plot_frontiers, plot_pairs, plot_risk_grid
from l2h.report.comparison.words import comparison_headline, interval_note, standing

_FIGURES = ("risk", "reject_rate", "accuracy", "gain", "risk_as_published")


def write_comparison(comparison: Comparison, folder: str | Path) -> Path:
    """Write ``comparison.json``, ``comparison.csv``, ``plots/*.png`` and ``report.html``.

    Args:
        comparison: what ``l2h compare`` measured, as plain values.
        folder: made where it does not exist.

    Returns:
        The page. Each file is replaced in one step: a reader never sees half of one.
    """
    folder = Path(folder)
    write_json(folder / "comparison.json", comparison)
    write_atomically(folder / "comparison.csv", _csv(comparison))
    figures = {
        "frontiers": plot_frontiers(comparison),
        "risk": plot_risk_grid(comparison),
        "pairs": plot_pairs(comparison),
    }
    plots = {name: png(figure) for name, figure in figures.items()}
    for name, content in plots.items():
        write_atomically(folder / "plots" / f"{name}.png", content)
    properties, notes = property_rows(comparison["methods"])
    rows = method_rows(comparison)
    return write_html(
        folder / "report.html",
        "comparison.html.j2",
        comparison=comparison,
        headline=comparison_headline(comparison),
        standing=standing(comparison),
        interval_note=interval_note(comparison),
        rows=rows,
        ours=next((row for row in rows if row.default), None),
        risks=price_tables(comparison),
        published=price_tables(comparison, "risk_as_published"),
        property_names=list(PROPERTIES.values()),
        properties=properties,
        property_notes=notes,
        plots={name: data_uri(content) for name, content in plots.items()},
        settings=list(flat(comparison["settings"])),
        count=_count,
    )


def _csv(comparison: Comparison) -> bytes:
    """A row for each method and price; an empty field where there is no number."""
    family = {method["name"]: method["family"] for method in comparison["methods"]}
    against = default_differences(comparison)
    statistics = [f"{name}_{part}" for name in _FIGURES for part in ("mean", "sem")]
    columns = ["method", "family", "c_1", "c_e", *statistics, "difference", "low", "high"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for cell in comparison["cells"]:
        row = {"method": cell["method"], "family": family[cell["method"]], "c_1": cell["c_1"], "c_e": cell["c_e"]}
        for name in _FIGURES:
            spread = cell[name] or {"mean": None, "sem": None}
            row |= {f"{name}_mean": spread["mean"], f"{name}_sem": spread["sem"]}
        versus = against.get((cell["method"], (cell["c_1"], cell["c_e"])))
        if versus is not None:
            row |= {"difference": versus.difference, "low": versus.low, "high": versus.high}
        writer.writerow(row)
    # As in the page, a lone surrogate in a name becomes a question mark.
    return buffer.getvalue().encode("utf-8", errors="replace")


def _count(value: Any) -> str:
    """A count, or the mean and standard error of one, with thousands marked; ``–`` where there is none."""
    if value is None:
        return NONE
    if not isinstance(value, dict):
        return f"{value:,}"
    mean = f"{value['mean']:,.0f}"
    return mean if not value["sem"] else f"{mean} ± {value['sem']:,.0f}"
