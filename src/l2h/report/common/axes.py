"""Axes: titles, grids, ticks, remarks, and curves with their spread."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from l2h.report.common.colours import FAINT, INK, MUTED
from l2h.report.common.figure import SMALL, folded, is_narrow

Floats = npt.NDArray[np.float64]


def titled(ax: Axes, title: str, x: str = "", y: str = "", *, pad: float = 9) -> None:
    """Write the title, flush left, and the labels of the axes."""
    look: dict[str, Any] = {"fontsize": 10.5 if is_narrow() else 11.5, "fontweight": "bold", "color": INK}
    if title and is_narrow() and len(ax.figure.axes) == 1:
        # Above the names at the left of the axes too, where it has the whole width.
        ax.figure.suptitle(folded(title, 34), x=0.02, ha="left", **look)
    else:
        ax.set_title(folded(title, 30), loc="left", pad=pad, **look)
    ax.set_xlabel(folded(x, 26), fontsize=10, color=INK)
    ax.set_ylabel(y, fontsize=10, color=INK)


def remark(ax: Axes, text: str, **options: Any) -> None:
    """Write a remark in grey above the axes, flush right on the line of the title; ``options`` of ``set_title``.

    For a telephone it stands below the label of the x-axis, where the title leaves it no room.
    """
    look: dict[str, Any] = {"loc": "right", "fontsize": SMALL, "color": MUTED, "pad": 9} | options
    if is_narrow() and look["loc"] == "right":
        ax.set_xlabel(f"{ax.get_xlabel()}\n{folded(text, 40)}".strip(), fontsize=10, color=INK)
    else:
        ax.set_title(folded(text, 40), **look)


def first_column(ax: Axes) -> bool:
    """Return whether nothing stands to the left of a panel, so that its y-axis needs a label."""
    place = ax.get_subplotspec()
    return place is None or place.is_first_col()


def grid_lines(ax: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw a faint grid below everything else."""
    ax.grid(axis=axis, color=FAINT, linewidth=0.5)
    ax.set_axisbelow(True)


def percent_axis(*axes: Any) -> None:
    """Show fractions as percentages on each of these axes."""
    for axis in axes:
        axis.set_major_formatter(PercentFormatter(xmax=1, decimals=None))


def price_ticks(ax: Axes, c_es: Collection[float]) -> None:
    """Put a tick at each ``c_e`` where they are few."""
    if len(c_es) <= 6:
        ax.set_xticks(list(c_es), [f"{c_e:g}" for c_e in c_es])


def fit_height(ax: Axes, values: Sequence[float] | Floats) -> None:
    """Fit the y-axis to these values with a little room; other curves may run out of the panel."""
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.06 * (high - low) or 0.01
    ax.set_ylim(low - room, high + room)


def value_at_right(ax: Axes, place: float, text: str, room: float, **look: Any) -> None:
    """Write the value of a horizontal bar to the right of an axis that ends at 1, where nothing crosses it."""
    options: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "annotation_clip": False}
    ax.annotate(text, (1.0, place), (room, 0), **options, **look)


def floats(values: Any) -> Floats:
    """Return an array (n,) of floats; what is missing or infinite is NaN."""
    out = np.atleast_1d(np.array(values, dtype=np.float64))
    return np.where(np.isfinite(out), out, np.nan)


def mean_and_sem(value: Mapping[str, Any]) -> tuple[Floats, Floats | None]:
    """Return the means and the standard errors of ``{"mean": [...], "sem": [...] | None}``."""
    sem = value.get("sem")
    return floats(value["mean"]), None if sem is None else floats(sem)


def banded_line(ax: Axes, x: Floats, y: Floats, sem: Floats | None, look: Mapping[str, Any]) -> None:
    """Draw a line with a band of one standard error, or with error bars at points that have no neighbours."""
    ax.plot(x, y, **look)
    if sem is None:
        return
    sem = np.nan_to_num(sem)
    ax.fill_between(x, y - sem, y + sem, color=look["color"], alpha=0.14, linewidth=0, zorder=1)
    known = np.r_[False, np.isfinite(y), False]
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    if alone.any():
        ax.errorbar(x[alone], y[alone], sem[alone], fmt="none", ecolor=look["color"], elinewidth=1.0, capsize=2)
