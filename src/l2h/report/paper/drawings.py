"""Draw the pictures that an experiment of the paper asks for by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2h.files import write_atomically
from l2h.report.common.figure import png
from l2h.report.paper.curves import plot_risk_curves, plot_tradeoff
from l2h.report.paper.plots import plot_bounds, plot_class_rates, plot_losses
from l2h.report.run.gallery import plot_samples

if TYPE_CHECKING:
    from l2h.experiments.paper import Drawing

_PLOTS: dict[str, Callable[..., Any]] = {
    "tradeoff": plot_tradeoff,
    "risk": plot_risk_curves,
    "losses": plot_losses,
    "bounds": plot_bounds,
    "per_class": plot_class_rates,
    "samples": plot_samples,
}


def write_drawings(drawings: Mapping[str, Drawing], folder: Path) -> None:
    """Write every drawing into its PNG file in a folder."""
    for file, drawing in drawings.items():
        write_atomically(folder / file, png(_PLOTS[drawing.plot](**drawing.data)))
