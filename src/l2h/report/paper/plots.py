"""Plots of the paper's experiments that are not curves over the price.

Numbers over seeds are ``{"mean": [...], "sem": [...] | None}``. A value that is missing or not finite, of a rejector
that diverged, leaves a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from l2h.errors import DataError
from l2h.report.common.axes import (
    Floats,
    banded_line,
    floats,
    grid_lines,
    mean_and_sem,
    percent_axis,
    remark,
    titled,
    value_at_right,
)
from l2h.report.common.colours import CLIENT, CONFIDENCE, INK, LABEL_FREE, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, legend_line, plain
from l2h.report.common.text import MISSING, plus_minus

Curve = Mapping[str, Any]

LABEL = 44  # letters of a curve's name that are drawn
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.8)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))
_COLOURS = (SYSTEM, CLIENT, SERVER, CONFIDENCE, LABEL_FREE, INK)


def plot_losses(curves: Sequence[Curve]) -> Figure:
    """Draw the rejector's training loss against the epoch, one line per link and one panel per pair of prices.

    Args:
        curves: mappings with ``panel``, ``label``, ``epoch``, ``mean`` and ``sem``.

    Raises:
        DataError: there are no curves.
    """
    require_some(curves)
    panels = list(dict.fromkeys(str(curve["panel"]) for curve in curves))
    labels = list(dict.fromkeys(str(curve["label"]) for curve in curves))
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    rows = -(-len(panels) // columns)
    figure, axes = blank(max(6.8, 3.6 * columns), 3.0 * rows + 0.7, rows, columns, used=len(panels))
    for k, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
        for curve in curves:
            if str(curve["panel"]) == panel:
                look = _look(labels.index(str(curve["label"])), linewidth=1.7, marker="o", markersize=2.4)
                banded_line(ax, floats(curve["epoch"]), *mean_and_sem(curve), look)
        grid_lines(ax, "y")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        below = k + columns >= len(panels)
        titled(ax, plain(panel, 36), "epoch" if below else "", "" if k % columns else "rejector's training loss")
    handles = [legend_line(**_look(i, linewidth=1.7)) for i in range(len(labels))]
    legend_below(figure, handles, [plain(label, LABEL) for label in labels], columns=min(4, len(labels)))
    return figure


def plot_bounds(curves: Sequence[Curve]) -> Figure:
    """Draw accuracy against the bound on the share sent, and beside it the share sent minus the bound.

    Args:
        curves: one per rule: mappings with ``label``, ``bound``, ``rate`` and ``accuracy``.

    Raises:
        DataError: there are no curves.
    """
    require_some(curves)
    figure, (left, right) = blank(9.6, 4.6, 1, 2)
    looks = [_look(i, linewidth=1.8, marker="o^sDvP"[i % 6], markersize=3.6) for i in range(len(curves))]
    for curve, look in zip(curves, looks, strict=True):
        bound, (rate, rate_sem) = floats(curve["bound"]), mean_and_sem(curve["rate"])
        banded_line(left, bound, *mean_and_sem(curve["accuracy"]), look)
        banded_line(right, bound, rate - bound, rate_sem, look)
    titled(left, "Accuracy under a bound", "bound on the share sent", "joint accuracy")
    titled(right, "Share sent minus the bound", "bound on the share sent", "percentage points over the bound")
    right.axhline(0.0, color=INK, linewidth=0.8, zorder=1)
    for ax in (left, right):
        grid_lines(ax)
    percent_axis(left.xaxis, left.yaxis, right.xaxis)
    low, high = right.get_ylim()
    if high - low < 0.02:  # every rule keeps to the bound: do not magnify rounding errors
        right.set_ylim(min(low, -0.01), max(high, 0.01))
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.3g}" if abs(value) > 1e-9 else "0")
    handles, labels = [legend_line(**look) for look in looks], [plain(str(curve["label"]), LABEL) for curve in curves]
    legend_below(figure, handles, labels, columns=min(3, len(labels)))
    return figure


def plot_class_rates(rows: Sequence[Curve] | Mapping[str, Sequence[Curve]]) -> Figure:
    """Draw the reject rate of each class in the order given, the class that the client never saw highlighted.

    Args:
        rows: mappings with ``name``, ``mean``, ``sem`` and ``missing``, or such a list for each of several recipes,
            by label; the classes are those of the first list.

    Raises:
        DataError: there are no classes, or two recipes are of different classes.
    """
    recipes = dict(rows) if isinstance(rows, Mapping) else {"": rows}
    require_some(recipes)
    first, *others = recipes.values()
    require_some(first)
    names = [str(row["name"]) for row in first]
    if any([str(row["name"]) for row in other] != names for other in others):
        raise DataError("the reject rates of several recipes must be of the same classes in the same order")
    size = 10.0 if len(names) <= 12 else 8.0
    height = (0.13 + 0.2 * len(recipes)) * (1.0 if size == 10.0 else 0.72)
    figure, (ax,) = blank(7.2, max(2.4, height * len(names) + 1.5))
    colours = (SYSTEM,) if len(recipes) == 1 else (SERVER, SYSTEM, CLIENT, CONFIDENCE)
    looks = [colours[i % len(colours)] for i in range(len(recipes))]
    missing = [bool(row.get("missing")) for row in first]
    thick = 0.8 / len(recipes)
    for i, (mine, colour) in enumerate(zip(recipes.values(), looks, strict=True)):
        places = floats([k + (i - (len(recipes) - 1) / 2) * thick for k in range(len(names))])
        _class_bars(ax, mine, missing, places, thick, colour, size)
    ax.set_yticks(range(len(names)), [plain(name) for name in names])
    for k, (tick, absent) in enumerate(zip(ax.get_yticklabels(), missing, strict=True)):
        tick.set_fontweight("bold" if absent else "normal")
        if absent:
            ax.axhspan(k - 0.5, k + 0.5, color="#F3E6B3", alpha=0.6, zorder=0, linewidth=0)
    ax.tick_params(axis="y", length=0, labelsize=size)
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.45, -0.55))
    percent_axis(ax.xaxis)
    titled(ax, "Reject rate per class", "share of the class sent")
    if any(missing):
        remark(ax, "shaded: the client was trained without this class")
    if any(recipes):
        handles = [legend_line(color=colour, linewidth=6) for colour in looks]
        legend_below(figure, handles, [plain(label, LABEL) for label in recipes])
    return figure


def require_some(curves: Iterable[Any]) -> None:
    """Raise a :class:`DataError` where there is nothing to draw."""
    if not list(curves):
        raise DataError("nothing to draw: the list of curves is empty")


def _look(i: int, **more: Any) -> dict[str, Any]:
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": DASHES[i % len(DASHES)], **more}


def _class_bars(
    ax: Axes, rows: Sequence[Curve], missing: list[bool], places: Floats, thick: float, colour: str, size: float
) -> None:
    mean, sem = floats([row["mean"] for row in rows]), floats([row.get("sem") for row in rows])
    bars = ax.barh(places, np.nan_to_num(mean), height=0.92 * thick, color=colour)
    ax.errorbar(mean, places, xerr=np.nan_to_num(sem), fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    for bar, place, value, error, absent in zip(bars, places, mean, sem, missing, strict=True):
        bar.set_alpha(1.0 if absent or not any(missing) else 0.5)
        share = {"mean": value, "sem": None if np.isnan(error) else error}
        text = MISSING if np.isnan(value) else plus_minus(share, ".1f", factor=100, unit="%")
        value_at_right(ax, place, text, 72, fontsize=size - 1, fontweight="bold" if absent else "normal", color=INK)
