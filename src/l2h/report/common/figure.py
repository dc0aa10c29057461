"""Figures: a blank one, its legend, and its PNG file."""

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from l2h.report.common.colours import INK, MUTED
from l2h.report.common.text import one_line

DPI = 150


def blank(
    width: float, height: float, rows: int = 1, columns: int = 1, *, used: int | None = None, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a white figure of this size in inches and its axes, row by row; pyplot does not know it.

    Where ``used`` is given, only so many axes are shown and returned; ``options`` are those of ``Figure.subplots``.
    """
    figure = canvas(width, height)
    figure.set_layout_engine("constrained", w_pad=0.09, h_pad=0.09)
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for ax in axes:
        # Two spines and small ticks, whatever style the session has set.
        ax.set_facecolor("white")
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(MUTED)
        ax.tick_params(labelsize=9.5, colors=INK, color=MUTED, length=3)
    for ax in axes[len(axes) if used is None else used :]:
        ax.set_axis_off()
    return figure, axes[:used]


def canvas(width: float, height: float) -> Figure:
    """Return a white figure of this size in inches with nothing on it."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int = 2) -> None:
    """Draw a legend under the axes, where it hides no data."""
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9.5, labelcolor=INK
    )


def legend_line(**look: Any) -> Line2D:
    """Return a line to show in a legend; without a look it leaves a gap."""
    return Line2D([], [], **(look or {"linestyle": "none"}))


def plain(text: str, longest: int = 24) -> str:
    """Return an untrusted name, safe to draw: one line, shortened, without dollar signs that start mathematics."""
    return one_line(text, longest).replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file of 150 dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", edgecolor="none")
    return buffer.getvalue()
