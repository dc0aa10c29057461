"""Plots of the paper's experiments. Each function gives a matplotlib ``Figure`` that pyplot does not know of.

Numbers over seeds are ``{"mean": [...], "sem": [...] | None}``. A value that is missing or not finite, of a rejector
that diverged, leaves a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

from l2h.errors import DataError
from l2h.report.common.figure import (
    CLIENT,
    CONFIDENCE,
    FAINT,
    INK,
    LABEL_FREE,
    MUTED,
    SERVER,
    SYSTEM,
    Axes,
    Figure,
    Line2D,
    blank,
    legend_below,
    percent_axis,
    plain,
    titled,
)
from l2h.report.run.summary import percent

__all__ = ["plot_bounds", "plot_losses", "plot_per_class", "plot_risk_curves", "plot_scaling", "plot_tradeoff"]

Curve = Mapping[str, Any]
Floats = npt.NDArray[np.float64]

_LABEL = 44  # letters of a curve's name that are drawn
_STYLES = {"paper": (SERVER, "s", 5.4), "bounded": (CLIENT, "^", 5.0), "ours": (SYSTEM, "o", 3.8)}
# For curves whose style is none of these. Smaller markers are drawn above the larger ones.
_OTHERS = ((CONFIDENCE, "D", 4.2), (LABEL_FREE, "v", 5.0), (INK, "P", 4.6), (MUTED, "X", 4.6))
_COLOURS = (SYSTEM, CLIENT, SERVER, CONFIDENCE, LABEL_FREE, INK)
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.8)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))
_SAME = 0.01  # points of a curve nearer than this in share sent and accuracy are drawn as one


def plot_tradeoff(
    curves: Sequence[Curve],
    *,
    client: float | Mapping[str, float] | None = None,
    server: float | Mapping[str, float] | None = None,
) -> Figure:
    """Accuracy against the reject rate, and below it the reject rate against c_e; a column for each data set.

    Args:
        curves: mappings with ``label``, ``dataset``, ``c_1``, ``c_e``, ``rate``, ``accuracy`` and ``style``, one of
            "paper", "bounded" and "ours", which chooses the colour. The line tells c_1. Where a curve stays on one
            place for several c_e, its marker grows with their number.
        client: accuracy of the client alone, or one by the data set's name.
        server: likewise.

    Raises:
        DataError: there are no curves.
    """
    _some(curves)
    datasets = list(dict.fromkeys(str(curve["dataset"]) for curve in curves))
    c_1s = sorted({float(curve["c_1"]) for curve in curves})
    looks, n = _looks(curves), len(datasets)
    figure, axes = blank(max(6.8, 4.7 * n + 0.4), 8.2, 2, n)
    for k, dataset in enumerate(datasets):
        top, bottom, several = axes[k], axes[n + k], False
        for who, where, value in (("client", "right", client), ("server", "left", server)):
            alone = value.get(dataset) if isinstance(value, Mapping) else value
            if alone is not None:
                _level(top, f"{who} alone {percent(alone)}", float(alone), where)
        for curve in curves:
            if str(curve["dataset"]) != dataset:
                continue
            look = _line(looks[str(curve["label"])], c_1s.index(float(curve["c_1"])))
            (rate, rate_sem), (accuracy, accuracy_sem) = _spread(curve["rate"]), _spread(curve["accuracy"])
            several |= _path(top, rate, accuracy, rate_sem, accuracy_sem, look)
            _stretch(bottom, _floats(curve["c_e"]), rate, rate_sem, look)
        for ax in (top, bottom):
            ax.grid(color=FAINT, linewidth=0.5)
            ax.set_axisbelow(True)
            percent_axis(ax.yaxis)
        percent_axis(top.xaxis)
        top.set_xlim(-0.04, 1.04)
        bottom.set_ylim(-0.04, 1.04)
        top.margins(y=0.09)
        _prices(bottom, [curve for curve in curves if str(curve["dataset"]) == dataset])
        y = "" if k else "accuracy of the two together"
        titled(top, plain(dataset), "reject rate (share of inputs sent)", y)
        if several:
            _remark(top, "larger: several c_e on one place")
        titled(bottom, "", "c_e, price of a request", "" if k else "reject rate")
    handles = [Line2D([], [], **_line((INK, "o", 3.8), i)) for i in range(len(c_1s))]
    _legend(figure, looks, handles, [f"c_1 = {c_1:g}" for c_1 in c_1s])
    return figure


def plot_risk_curves(curves: Sequence[Curve], trivial: Mapping[Any, Mapping[str, Any]]) -> Figure:
    """Risk against c_e beside never and always asking, a panel for each c_1.

    Args:
        curves: of one data set, as for :func:`plot_tradeoff` with ``risk`` in place of rate and accuracy.
        trivial: for each c_1 a mapping with ``all_local`` and ``all_remote``, each a number or one for each c_e; the
            c_e are those of the first curve with that c_1, or its own ``c_e``.

    Raises:
        DataError: there are no curves, they are of several data sets, or ``trivial`` has not their c_1.
    """
    _some(curves)
    datasets = sorted({str(curve.get("dataset", "")) for curve in curves})
    if len(datasets) > 1:
        raise DataError(f"risk curves of {', '.join(datasets)} in one plot: draw one for each data set")
    c_1s = sorted({float(curve["c_1"]) for curve in curves})
    rules = {float(c_1): rule for c_1, rule in trivial.items()}
    if absent := [c_1 for c_1 in c_1s if c_1 not in rules]:
        raise DataError(f"no trivial risks for c_1 = {absent[0]:g}: give all_local and all_remote for it")
    looks = _looks(curves)
    columns = min(len(c_1s), 3)
    rows = -(-len(c_1s) // columns)
    size = max(6.8, 4.3 * columns + 0.5), (3.7 if rows > 1 else 4.2) * rows + 0.7
    figure, axes = blank(*size, rows, columns, sharey=True)
    rivals = {}
    for k, (ax, c_1) in enumerate(zip(axes, c_1s, strict=False)):
        mine = [curve for curve in curves if float(curve["c_1"]) == c_1]
        rivals[c_1] = _trivial(ax, _floats(rules[c_1].get("c_e", mine[0]["c_e"])), rules[c_1])
        for curve in mine:
            _stretch(ax, _floats(curve["c_e"]), *_spread(curve["risk"]), _line(looks[str(curve["label"])], 0))
        ax.grid(color=FAINT, linewidth=0.5)
        ax.set_axisbelow(True)
        below = k + columns >= len(c_1s)
        titled(ax, f"c_1 = {c_1:g}", "c_e, price of a request" * below, "" if k % columns else "risk: less is better")
    for ax, c_1 in zip(axes, c_1s, strict=False):
        _prices(ax, [curve for curve in curves if float(curve["c_1"]) == c_1])
        _shade(ax, *rivals[c_1])
    for ax in axes[len(c_1s) :]:
        ax.set_axis_off()
    _remark(axes[columns - 1], "grey: no better than a trivial rule")
    _legend(figure, looks, *axes[0].get_legend_handles_labels())
    return figure


def plot_losses(curves: Sequence[Curve]) -> Figure:
    """Training loss of the rejector against the epoch, a line for each link and a panel for each pair of prices.

    Args:
        curves: mappings with ``panel``, ``label``, ``epoch``, ``mean`` and ``sem``.

    Raises:
        DataError: there are no curves.
    """
    _some(curves)
    panels = list(dict.fromkeys(str(curve["panel"]) for curve in curves))
    labels = list(dict.fromkeys(str(curve["label"]) for curve in curves))
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    rows = -(-len(panels) // columns)
    figure, axes = blank(max(6.8, 3.6 * columns), 3.0 * rows + 0.7, rows, columns)
    for k, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        for curve in curves:
            if str(curve["panel"]) != panel:
                continue
            i = labels.index(str(curve["label"]))
            look = {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.7}
            _stretch(ax, _floats(curve["epoch"]), *_spread(curve), look | {"marker": "o", "markersize": 2.4})
        ax.grid(axis="y", color=FAINT, linewidth=0.5)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        below = k + columns >= len(panels)
        titled(ax, plain(panel, 36), "epoch" if below else "", "" if k % columns else "rejector's training loss")
        ax.title.set_fontsize(10.5)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    handles = [
        Line2D([], [], color=_COLOURS[i % len(_COLOURS)], linestyle=_DASHES[i % len(_DASHES)], linewidth=1.7)
        for i in range(len(labels))
    ]
    legend_below(figure, handles, [plain(label, _LABEL) for label in labels], columns=min(4, len(labels)))
    return figure


def plot_bounds(curves: Sequence[Curve]) -> Figure:
    """Accuracy against the bound on the share sent, and beside it the share sent less the bound.

    Args:
        curves: one for each rule: mappings with ``label``, ``bound``, ``rate`` and ``accuracy``.

    Raises:
        DataError: there are no curves.
    """
    _some(curves)
    figure, (left, right) = blank(9.6, 4.6, 1, 2)
    handles = []
    for i, curve in enumerate(curves):
        look = {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.8}
        look |= {"marker": "o^sDvP"[i % 6], "markersize": 3.6}
        bound, (rate, rate_sem) = _floats(curve["bound"]), _spread(curve["rate"])
        _stretch(left, bound, *_spread(curve["accuracy"]), look)
        _stretch(right, bound, rate - bound, rate_sem, look)
        handles.append(Line2D([], [], **look))
    titled(left, "Accuracy under a bound", "bound on the share sent", "accuracy of the two together")
    titled(right, "Share sent less the bound", "bound on the share sent", "percentage points over the bound")
    right.axhline(0.0, color=INK, linewidth=0.8, zorder=1)
    for ax in (left, right):
        ax.grid(color=FAINT, linewidth=0.5)
        ax.set_axisbelow(True)
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        percent_axis(axis)
    low, high = right.get_ylim()
    if high - low < 0.02:  # where every rule keeps to the bound, rounding errors are not worth a scale
        right.set_ylim(min(low, -0.01), max(high, 0.01))
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:+.3g}" if abs(value) > 1e-9 else "0")
    labels = [plain(str(curve["label"]), _LABEL) for curve in curves]
    legend_below(figure, handles, labels, columns=min(3, len(labels)))
    return figure


def plot_per_class(rows: Sequence[Curve] | Mapping[str, Sequence[Curve]]) -> Figure:
    """Reject rate of each class in the order given, the class that the client never saw set apart.

    Args:
        rows: mappings with ``name``, ``mean``, ``sem`` and ``missing``, or such a list for each of several recipes,
            by label; the classes are those of the first list.

    Raises:
        DataError: there are no classes, or two recipes are of different classes.
    """
    recipes = dict(rows) if isinstance(rows, Mapping) else {"": rows}
    _some(recipes)
    first, *others = recipes.values()
    _some(first)
    names = [str(row["name"]) for row in first]
    if any([str(row["name"]) for row in other] != names for other in others):
        raise DataError("the reject rates of several recipes must be of the same classes in the same order")
    size = 10.0 if len(names) <= 12 else 8.0
    height = (0.13 + 0.2 * len(recipes)) * (1.0 if size == 10.0 else 0.72)
    figure, (ax,) = blank(7.2, max(2.4, height * len(names) + 1.5))
    thick = 0.8 / len(recipes)
    colours = (SYSTEM,) if len(recipes) == 1 else (SERVER, SYSTEM, CLIENT, CONFIDENCE)
    missing = [bool(row.get("missing")) for row in first]
    for i, (label, mine) in enumerate(recipes.items()):
        mean, sem = _floats([row["mean"] for row in mine]), _floats([row.get("sem") for row in mine])
        places = np.arange(len(names)) + (i - (len(recipes) - 1) / 2) * thick
        colour = colours[i % len(colours)]
        bars = ax.barh(places, np.nan_to_num(mean), height=0.92 * thick, color=colour, label=plain(label, _LABEL))
        for bar, absent in zip(bars, missing, strict=True):
            bar.set_alpha(1.0 if absent or not any(missing) else 0.5)
        ax.errorbar(mean, places, xerr=np.nan_to_num(sem), fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
        for place, value, error, absent in zip(places, mean, sem, missing, strict=True):
            text = "n/a" if np.isnan(value) else f"{100 * value:.1f}%"
            text += "" if np.isnan(value) or np.isnan(error) else f" ± {100 * error:.1f}"
            weight = "bold" if absent else "normal"
            # The values stand in a column of their own, where no bar can run through them.
            ax.annotate(
                text, (1.0, place), (72, 0), textcoords="offset points", ha="right", va="center",
                fontsize=size - 1, fontweight=weight, color=INK, annotation_clip=False,
            )  # fmt: skip
    for k, absent in enumerate(missing):
        if absent:
            ax.axhspan(k - 0.5, k + 0.5, color="#F3E6B3", alpha=0.6, zorder=0, linewidth=0)
    ax.set_yticks(range(len(names)), [plain(name) for name in names])
    for tick, absent in zip(ax.get_yticklabels(), missing, strict=True):
        tick.set_fontweight("bold" if absent else "normal")
    ax.tick_params(axis="y", length=0, labelsize=size)
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.45, -0.55))
    percent_axis(ax.xaxis)
    titled(ax, "Reject rate per class", "share of the class sent")
    if any(missing):
        _remark(ax, "banded: the client was trained without it")
    if any(recipes):
        handles = [Line2D([], [], color=colours[i % len(colours)], linewidth=6) for i in range(len(recipes))]
        legend_below(figure, handles, [plain(label, _LABEL) for label in recipes], columns=2)
    return figure


def plot_scaling(points: Sequence[Curve], reference: Mapping[str, float] | None = None) -> Figure:
    """Time per step and peak memory against the number of rejectors that are trained at once.

    Args:
        points: mappings with ``rejectors``, ``ms`` and ``memory_gib``; either figure may be missing.
        reference: ``eager_ms_per_cell``, a step of one rejector alone; drawn as that many one after another.

    Raises:
        DataError: there are no points.
    """
    _some(points)
    points = sorted(points, key=lambda point: float(point["rejectors"]))
    count, ms, memory = (_floats([p.get(name) for p in points]) for name in ("rejectors", "ms", "memory_gib"))
    figure, (left, right) = blank(9.6, 4.3, 1, 2)
    look: dict[str, Any] = {"color": SYSTEM, "linewidth": 1.9, "marker": "o", "markersize": 5}
    left.plot(count, ms, **look)
    right.plot(count, memory, **look)
    handles, labels = [Line2D([], [], **look)], ["all at once"]
    eager = None if reference is None else reference.get("eager_ms_per_cell")
    if eager is not None:
        line: dict[str, Any] = {"color": MUTED, "linestyle": _DASHES[1], "linewidth": 1.5}
        left.plot(count, count * eager, **line, marker="" if len(count) > 1 else "_", markersize=16)
        handles.append(Line2D([], [], **line))
        labels.append(f"one after another, {eager:.3g} ms each")
        _ratio(left, count, ms, eager)
    left.set_yscale("log")
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xticks(_ticks(count), [f"{n:g}" for n in _ticks(count)])
        ax.minorticks_off()
        ax.grid(color=FAINT, linewidth=0.5)
        ax.set_axisbelow(True)
        ax.margins(0.07)
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter(ScalarFormatter())
    top = np.nanmax(memory, initial=0.0)
    right.set_ylim(0, 1.12 * top or 1.0)
    titled(left, "Time per step", "rejectors", "milliseconds")
    titled(right, "Peak memory", "rejectors", "GiB")
    for ax, known in ((left, ms), (right, memory)):
        if not np.isfinite(known).any():
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", fontsize=10, color=MUTED)
    legend_below(figure, handles, labels)
    return figure


# Values.


def _some(curves: Iterable[Any]) -> None:
    if not list(curves):
        raise DataError("nothing to draw: the list of curves is empty")


def _floats(values: Any) -> Floats:
    """As floats; what is missing or infinite is NaN."""
    out = np.atleast_1d(np.array(values, dtype=np.float64))
    return np.where(np.isfinite(out), out, np.nan)


def _spread(value: Mapping[str, Any]) -> tuple[Floats, Floats | None]:
    sem = value.get("sem")
    return _floats(value["mean"]), None if sem is None else _floats(sem)


# Lines.


def _looks(curves: Sequence[Curve]) -> dict[str, tuple[str, str, float]]:
    """Colour, marker and its size for each recipe; two of one style get two colours."""
    looks: dict[str, tuple[str, str, float]] = {}
    for curve in curves:
        label = str(curve["label"])
        if label in looks:
            continue
        look = _STYLES.get(str(curve.get("style")))
        free = [other for other in (*_OTHERS, *_STYLES.values()) if other not in looks.values()]
        looks[label] = look if look is not None and look not in looks.values() else (free or list(_OTHERS))[0]
    return looks


def _line(look: tuple[str, str, float], c_1: int) -> dict[str, Any]:
    """Keywords of ``Axes.plot``; for every c_1 but the first larger markers, hollow, so that they hide nothing."""
    colour, marker, size = look
    face, size = (colour, 0.85 * size) if c_1 == 0 else ("none", 1.4 * size)
    options = {"color": colour, "linestyle": _DASHES[c_1 % len(_DASHES)], "linewidth": 1.4, "marker": marker}
    return options | {"markersize": size, "markerfacecolor": face, "markeredgewidth": 1.0, "zorder": 4 - size / 10}


def _stretch(ax: Axes, x: Floats, y: Floats, sem: Floats | None, look: Mapping[str, Any]) -> None:
    """A line with a band of one standard error; bars where a point has no neighbour to draw a band to."""
    ax.plot(x, y, **look)
    if sem is None:
        return
    sem = np.nan_to_num(sem)
    ax.fill_between(x, y - sem, y + sem, color=look["color"], alpha=0.14, linewidth=0, zorder=1)
    known = np.r_[False, np.isfinite(y), False]
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    if alone.any():
        ax.errorbar(x[alone], y[alone], sem[alone], fmt="none", ecolor=look["color"], elinewidth=1.0, capsize=2)


def _path(ax: Axes, x: Floats, y: Floats, x_sem: Floats | None, y_sem: Floats | None, look: Mapping[str, Any]) -> bool:
    """Points joined in the order of c_e, with the standard errors of both; those on one place as a larger marker.

    Returns:
        Whether there is such a place.
    """
    ax.plot(x, y, **dict(look) | {"marker": "", "linewidth": 1.0, "alpha": 0.7})
    x_error, y_error = (None if sem is None else np.nan_to_num(sem) for sem in (x_sem, y_sem))
    ax.errorbar(x, y, y_error, x_error, fmt="none", ecolor=look["color"], elinewidth=0.7, alpha=0.4)
    places = _places(x, y)
    for place, count in places:
        size = look["markersize"] * min(3.0, np.sqrt(0.8 + 0.4 * (count - 1)))
        # The larger the marker, the lower it lies, and one of several points is seen through: none hides another.
        face = (look["color"], 0.3) if count > 1 and look["markerfacecolor"] != "none" else look["markerfacecolor"]
        options = {"linestyle": "none", "markersize": size, "markerfacecolor": face, "zorder": 4 - size / 30}
        ax.plot(*place, **dict(look) | options)
    return any(count > 1 for _, count in places)


def _places(x: Floats, y: Floats) -> list[tuple[tuple[float, float], int]]:
    """Where the points of a curve lie, and how many on each place."""
    places: list[list[float]] = []
    for a, b in zip(x, y, strict=True):
        if not np.isfinite(a + b):
            continue
        for place in places:
            if abs(place[0] - a) < _SAME and abs(place[1] - b) < _SAME:
                place[2] += 1
                break
        else:
            places.append([float(a), float(b), 1])
    return [((a, b), int(count)) for a, b, count in places]


def _level(ax: Axes, text: str, value: float, side: str) -> None:
    ax.axhline(value, color=MUTED, linewidth=1.0, linestyle=(0, (1.2, 1.6)), zorder=1)
    x, shift = (1.03, 3) if side == "right" else (-0.03, 3)
    ax.annotate(text, (x, value), (0, shift), textcoords="offset points", ha=side, fontsize=9, color=MUTED)


def _prices(ax: Axes, curves: Sequence[Curve]) -> None:
    """A tick at each c_e where they are few."""
    c_es = sorted({float(c_e) for curve in curves for c_e in _floats(curve["c_e"])})
    if len(c_es) <= 6:
        ax.set_xticks(c_es, [f"{c_e:g}" for c_e in c_es])


def _remark(ax: Axes, text: str) -> None:
    """Beside the title, on its line."""
    ax.set_title(text, loc="right", fontsize=8.5, color=MUTED, pad=9)


def _trivial(ax: Axes, c_e: Floats, rule: Mapping[str, Any]) -> tuple[Floats, Floats, Floats]:
    """Draw never and always asking; c_e and the risks of both."""
    never, always = (np.broadcast_to(_floats(rule[name]), c_e.shape) for name in ("all_local", "all_remote"))
    marker = "" if len(c_e) > 1 else "_"
    for values, label, dash in ((never, "never ask", _DASHES[2]), (always, "always ask", _DASHES[1])):
        look = {"color": INK, "linewidth": 1.3, "linestyle": dash, "marker": marker, "markersize": 18}
        ax.plot(c_e, values, **look, label=label, zorder=2)
    return c_e, never, always


def _shade(ax: Axes, c_e: Floats, never: Floats, always: Floats) -> None:
    """All that costs no less than the better of never and always asking."""
    low, high = ax.get_ylim()
    # The two may cross between prices; a single price has no width to shade.
    fine = np.linspace(c_e[0], c_e[-1], 400) if len(c_e) > 1 else c_e[0] + np.array([-0.01, 0.01])
    best = np.minimum(np.interp(fine, c_e, never), np.interp(fine, c_e, always))
    ax.fill_between(fine, best, high, color=FAINT, alpha=0.32, linewidth=0, zorder=0)
    ax.set_ylim(low, high)


def _legend(
    figure: Figure, looks: Mapping[str, tuple[str, str, float]], handles: Sequence[Any], labels: Sequence[str]
) -> None:
    """The recipes, and in a second line what else is to be told."""
    recipes: list[Any] = [Line2D([], [], **_line(look, 0)) for look in looks.values()]
    names, columns = [plain(label, _LABEL) for label in looks], max(len(looks), len(labels))
    if columns > 3:
        legend_below(figure, [*recipes, *handles], [*names, *labels], columns=3)
        return
    # A legend is filled column by column.
    gap = Line2D([], [], linestyle="none")
    upper = [*zip(recipes, names, strict=True), *[(gap, "")] * (columns - len(looks))]
    lower = [*zip(handles, labels, strict=True), *[(gap, "")] * (columns - len(labels))]
    entries = [entry for pair in zip(upper, lower, strict=True) for entry in pair]
    legend_below(figure, [handle for handle, _ in entries], [label for _, label in entries], columns=columns)


def _ratio(ax: Axes, count: Floats, ms: Floats, eager: float) -> None:
    """How many times less the most rejectors take than one after another."""
    known = np.flatnonzero(np.isfinite(ms) & (ms > 0))
    if not known.size or count[known[-1]] < 2:
        return
    n, here = float(count[known[-1]]), float(ms[known[-1]])
    ratio = n * eager / here
    if ratio < 1.5:  # nothing between the two to point at
        return
    text = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"
    ax.annotate("", (n, here), (n, n * eager), arrowprops={"arrowstyle": "<->", "color": MUTED, "linewidth": 0.9})
    ax.annotate(
        f"{text} times less", (n, np.sqrt(here * n * eager)), (-5, 0), textcoords="offset points",
        ha="right", va="center", fontsize=10, color=INK,
    )  # fmt: skip


def _ticks(count: Floats) -> list[float]:
    """The numbers of rejectors, thinned where they would run into one another on a logarithmic axis."""
    kept: list[float] = []
    for n in sorted({float(n) for n in count}, reverse=True):
        if not kept or kept[-1] / n > 1.35:
            kept.append(n)
    return kept[::-1]
