"""What all plots share: the colours, a blank figure, and writing it."""

from __future__ import annotations

import io
from typing import Any

from l2h.errors import MissingExtraError
from l2h.report.run.summary import one_line

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import PercentFormatter
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"plots need {missing.name}: pip install 'l2h[report]'") from missing

__all__ = [
    "CLIENT",
    "CONFIDENCE",
    "DPI",
    "FAINT",
    "INK",
    "LABEL_FREE",
    "MUTED",
    "SERVER",
    "SYSTEM",
    "Axes",
    "Figure",
    "Line2D",
    "LinearSegmentedColormap",
    "blank",
    "canvas",
    "legend_below",
    "percent_axis",
    "plain",
    "plain_axes",
    "png",
    "titled",
]

# Okabe and Ito's palette, which the common kinds of colour blindness can tell apart.
CLIENT, SERVER, SYSTEM = "#0072B2", "#D55E00", "#009E73"
CONFIDENCE, LABEL_FREE = "#CC79A7", "#56B4E9"
INK, MUTED, FAINT = "#222222", "#767676", "#C9C9C9"
DPI = 150


def blank(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A white figure of so many inches and its axes, row by row. Pyplot does not know of it."""
    figure = canvas(width, height)
    figure.set_layout_engine("constrained", w_pad=0.09, h_pad=0.09)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        plain_axes(ax)
    return figure, list(axes.flat)


def canvas(width: float, height: float) -> Figure:
    """A white figure of so many inches with nothing on it."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain_axes(ax: Axes) -> None:
    """Two spines and small ticks, whatever style the session has set."""
    ax.set_facecolor("white")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(labelsize=9.5, colors=INK, color=MUTED, length=3)


def titled(ax: Axes, title: str, x: str = "", y: str = "") -> None:
    """Title flush left, labelled axes."""
    ax.set_title(title, loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=9)
    ax.set_xlabel(x, fontsize=10, color=INK)
    ax.set_ylabel(y, fontsize=10, color=INK)


def percent_axis(axis: Any) -> None:
    """Show fractions as percentages."""
    axis.set_major_formatter(PercentFormatter(xmax=1, decimals=None))


def legend_below(figure: Figure, handles: list[Any], labels: list[str], columns: int = 2) -> None:
    """A legend under the axes, where it hides no data."""
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9.5,
        labelcolor=INK,
    )


def plain(text: str, longest: int = 24) -> str:
    """A name from a stranger, safe to draw: one line, shortened, no dollar signs that start mathematics."""
    return one_line(text, longest).replace("$", r"\$")


def png(figure: Figure) -> bytes:
    """The figure as a PNG file at 150 dots an inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", edgecolor="none")
    return buffer.getvalue()
