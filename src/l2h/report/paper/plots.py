"""Plots of the paper's experiments.

Numbers over seeds are ``{"mean": [...], "sem": [...] | None}``. A value that is missing or not finite, of a rejector
that diverged, leaves a gap.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from l2h.report.common.axes import (
    Floats,
    banded_line,
    first_column,
    floats,
    grid_lines,
    mean_and_sem,
    percent_axis,
    price_ticks,
    remark,
    titled,
    value_at_right,
)
from l2h.report.common.colours import CLIENT, CONFIDENCE, FAINT, INK, LABEL_FREE, MARKED, MUTED, SERVER, SYSTEM
from l2h.report.common.figure import SMALL, blank, folded, is_narrow, legend_below, legend_line, plain
from l2h.report.common.text import MISSING, percent, plus_minus

Curve = Mapping[str, Any]
Look = tuple[str, str, float]  # colour, marker and its size

_LABEL = 44  # letters of a curve's name that are drawn
_SAME = 0.01  # points of a curve closer than this in share sent and accuracy are drawn as one
_DASHES: tuple[Any, ...] = ("-", (0, (4, 1.8)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))
_COLOURS = (SYSTEM, CLIENT, SERVER, CONFIDENCE, LABEL_FREE, INK)
#: Colour, marker and its size of each recipe. Smaller markers are drawn above the larger ones.
_STYLES = {
    "paper": (SERVER, "s", 5.4),
    "nearer": (INK, "P", 4.6),
    "bounded": (CLIENT, "^", 5.0),
    "ours": (SYSTEM, "o", 3.8),
}
#: Of each variant of the recipe: the figure, its name, its colour and its marker.
_REPRODUCED = (
    ("kept", "share kept", SYSTEM, "o"),
    ("client_kept", "client on what is kept", CLIENT, "^"),
    ("client_sent", "client on what is sent", SERVER, "v"),
)


def plot_tradeoff(curves: Sequence[Curve], client: float) -> Figure:
    """Draw accuracy against the reject rate, and below it the reject rate against c_e.

    Curves, of one data set, are mappings with ``label``, ``dataset``, ``c_1``, ``c_e``, ``rate``, ``accuracy`` and
    ``style``, one of "paper", "nearer", "bounded" and "ours", which chooses the colour. The dashes tell c_1. Where
    several c_e of a curve fall on one point, its marker grows with their number. ``client`` is the client's accuracy.
    """
    c_1s = sorted({float(curve["c_1"]) for curve in curves})
    figure, (top, bottom) = blank(6.8, 8.2, 2, 1)
    top.axhline(client, color=MUTED, linewidth=1.0, linestyle=(0, (1.2, 1.6)), zorder=1)
    alone: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 9, "color": MUTED}
    top.annotate(f"client alone {percent(client)}", (1.03, client), (0, 3), **alone)
    several = False
    for curve in curves:
        look = _line(_STYLES[curve["style"]], c_1s.index(float(curve["c_1"])))
        look["label"] = plain(f"{curve['label']}, c_1 = {curve['c_1']:g}", _LABEL)
        (rate, rate_sem), (accuracy, accuracy_sem) = mean_and_sem(curve["rate"]), mean_and_sem(curve["accuracy"])
        several |= _path(top, rate, accuracy, rate_sem, accuracy_sem, look)
        banded_line(bottom, floats(curve["c_e"]), rate, rate_sem, look)
    for ax in (top, bottom):
        grid_lines(ax)
    percent_axis(top.xaxis, top.yaxis, bottom.yaxis)
    top.set_xlim(-0.04, 1.04)
    bottom.set_ylim(-0.04, 1.04)
    top.margins(y=0.09)
    price_ticks(bottom, _c_es(curves))
    titled(top, plain(str(curves[0]["dataset"])), "reject rate (share of inputs sent)", "joint accuracy")
    if several:
        remark(top, "larger marker: several c_e at one point")
    titled(bottom, "", "c_e, price of a request", "reject rate")
    handles = [legend_line(**_line((INK, "o", 3.8), i)) for i in range(len(c_1s))]
    _legend(figure, curves, handles, [f"c_1 = {c_1:g}" for c_1 in c_1s])
    return figure


def plot_risk_curves(curves: Sequence[Curve], trivial: Mapping[float, Mapping[str, Any]]) -> Figure:
    """Draw risk against c_e, with that of never and always asking, one panel per c_1.

    Curves are as for :func:`plot_tradeoff` with ``risk`` in place of rate and accuracy. ``trivial`` holds for each c_1
    a mapping with ``c_e``, ``all_local`` and ``all_remote``, lists of the same length.
    """
    c_1s = sorted({float(curve["c_1"]) for curve in curves})
    columns = min(len(c_1s), 3)
    rows = -(-len(c_1s) // columns)
    size = max(6.8, 4.3 * columns + 0.5), (3.7 if rows > 1 else 4.2) * rows + 0.7
    figure, axes = blank(*size, rows, columns, used=len(c_1s), sharey=True)
    rivals = {}
    for k, (ax, c_1) in enumerate(zip(axes, c_1s, strict=True)):
        mine = [curve for curve in curves if float(curve["c_1"]) == c_1]
        rivals[ax] = _trivial(ax, trivial[c_1])
        for curve in mine:
            look = _line(_STYLES[curve["style"]], 0) | {"label": plain(str(curve["label"]), _LABEL)}
            banded_line(ax, floats(curve["c_e"]), *mean_and_sem(curve["risk"]), look)
        grid_lines(ax)
        price_ticks(ax, _c_es(mine))
        below = k + columns >= len(c_1s)
        titled(ax, f"c_1 = {c_1:g}", "c_e, price of a request" * below, "risk: lower is better" * first_column(ax))
    # The axes share their height, which is known only now.
    for ax, rival in rivals.items():
        _shade(ax, *rival)
    remark(axes[columns - 1], "grey: no better than a trivial rule")
    rules_drawn = axes[0].lines[:2]
    _legend(figure, curves, rules_drawn, [str(line.get_label()) for line in rules_drawn])
    return figure


def plot_losses(curves: Sequence[Curve]) -> Figure:
    """Draw the rejector's training loss against the epoch, one line per link and one panel per pair of prices.

    Curves are mappings with ``panel``, ``label``, ``epoch``, ``mean`` and ``sem``.
    """
    panels = list(dict.fromkeys(str(curve["panel"]) for curve in curves))
    labels = list(dict.fromkeys(str(curve["label"]) for curve in curves))
    columns = min(len(panels), 3 if len(panels) != 4 else 2)
    rows = -(-len(panels) // columns)
    figure, axes = blank(max(6.8, 3.6 * columns), 3.0 * rows + 0.7, rows, columns, used=len(panels))
    for k, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
        for curve in curves:
            if str(curve["panel"]) == panel:
                look = _numbered_look(labels.index(str(curve["label"])), linewidth=1.7, marker="o", markersize=2.4)
                look["label"] = plain(str(curve["label"]), _LABEL)
                banded_line(ax, floats(curve["epoch"]), *mean_and_sem(curve), look)
        grid_lines(ax, "y")
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        below = k + columns >= len(panels)
        titled(ax, plain(panel, 36), "epoch" * below, "rejector's training loss" * first_column(ax))
    handles = [legend_line(**_numbered_look(i, linewidth=1.7)) for i in range(len(labels))]
    legend_below(figure, handles, [plain(label, _LABEL) for label in labels], columns=min(4, len(labels)))
    return figure


def plot_bounds(curves: Sequence[Curve]) -> Figure:
    """Draw accuracy against the bound on the share sent, and beside it the share sent minus the bound.

    Curves, one per rule, are mappings with ``label``, ``bound``, ``rate`` and ``accuracy``.
    """
    figure, (left, right) = blank(9.6, 4.6, 1, 2)
    labels = [plain(str(curve["label"]), _LABEL) for curve in curves]
    looks = [
        _numbered_look(i, linewidth=1.8, marker="o^sDvP"[i % 6], markersize=3.6, label=label)
        for i, label in enumerate(labels)
    ]
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
    legend_below(figure, [legend_line(**look) for look in looks], labels, columns=min(3, len(labels)))
    return figure


def plot_class_rates(rows: Mapping[str, Sequence[Curve]]) -> Figure:
    """Draw the reject rate of each class by each recipe, the class that the client never saw highlighted.

    ``rows`` has for each recipe, by its label, one mapping per class with ``name``, ``mean``, ``sem`` and ``missing``.
    """
    recipes = dict(rows)
    first = next(iter(recipes.values()))
    names = [str(row["name"]) for row in first]
    size = 10.0 if len(names) <= 12 else SMALL
    height = (0.13 + 0.2 * len(recipes)) * (1.0 if size == 10.0 else 0.76)
    figure, (ax,) = blank(7.2, max(2.4, height * len(names) + 1.5))
    colours = (SERVER, SYSTEM, CLIENT, CONFIDENCE)
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
            ax.axhspan(k - 0.5, k + 0.5, color=MARKED, alpha=0.6, zorder=0, linewidth=0)
    ax.tick_params(axis="y", length=0, labelsize=size)
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.45, -0.55))
    percent_axis(ax.xaxis)
    titled(ax, "Reject rate per class", "share of the class sent")
    if any(missing):
        remark(ax, "shaded: the client was trained without this class")
    handles = [legend_line(color=colour, linewidth=6) for colour in looks]
    legend_below(figure, handles, [plain(label, _LABEL) for label in recipes])
    return figure


def plot_reproduction(rows: Sequence[Curve], printed: Mapping[str, float] | None = None) -> Figure:
    """Draw three figures of each variant, one line per variant in the order given, and what is printed as dashed lines.

    Rows are mappings with ``label``, ``distance`` (None where a figure is missing) and for each of ``kept``,
    ``client_kept`` and ``client_sent`` a mapping with ``mean`` and ``sem``. ``printed`` holds numbers under the same
    names.
    """
    figure, (ax,) = blank(9.6, (0.75 if is_narrow() else 0.36) * len(rows) + 1.9)
    for name, _, colour, marker in _REPRODUCED:
        mean, sem = (floats([row[name][key] for row in rows]) for key in ("mean", "sem"))
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "linestyle": "none"}
        ax.errorbar(mean, range(len(rows)), xerr=sem, capsize=2, elinewidth=0.9, **look)
        value = (printed or {}).get(name)
        if value is not None:
            ax.axvline(value, color=colour, linestyle=(0, (4, 1.8)), linewidth=1.2, zorder=1)
    for k, row in enumerate(rows):
        if all(row[name]["mean"] is None for name, *_ in _REPRODUCED):
            ax.annotate("diverged", (0.02, k), va="center", fontsize=9, color=INK)
        ax.axhline(k, color=FAINT, linewidth=0.6, zorder=0)
    ranked = [f" ({row['distance']:.1f})" if row["distance"] is not None else "" for row in rows]
    named = [folded(plain(row["label"], 64) + far, 20) for row, far in zip(rows, ranked, strict=True)]
    ax.set_yticks(range(len(rows)), named)
    ax.tick_params(axis="y", length=0, labelsize=9)
    ax.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.5))
    grid_lines(ax, "x")
    percent_axis(ax.xaxis)
    titled(
        ax,
        "The nearest first" if printed else "Variants of the paper's recipe",
        "share of the test images, or accuracy",
    )
    if printed:
        remark(ax, "dashed: as printed; in brackets: distance in points")
    handles = [legend_line(color=colour, marker=marker, linestyle="none") for _, _, colour, marker in _REPRODUCED]
    legend_below(figure, handles, [label for _, label, *_ in _REPRODUCED], columns=3)
    return figure


def _numbered_look(i: int, **more: Any) -> dict[str, Any]:
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i % len(_DASHES)], **more}


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
        value_at_right(
            ax, place, text, 72, fontsize=max(SMALL, size - 1), fontweight="bold" if absent else "normal", color=INK
        )


def _line(look: Look, c_1: int) -> dict[str, Any]:
    """Keywords of ``Axes.plot``; every c_1 but the first has larger, hollow markers, which hide nothing."""
    colour, marker, size = look
    face, size = (colour, 0.85 * size) if c_1 == 0 else ("none", 1.4 * size)
    options = {"color": colour, "linestyle": _DASHES[c_1 % len(_DASHES)], "linewidth": 1.4, "marker": marker}
    return options | {"markersize": size, "markerfacecolor": face, "markeredgewidth": 1.0, "zorder": 4 - size / 10}


def _path(ax: Axes, x: Floats, y: Floats, x_sem: Floats | None, y_sem: Floats | None, look: Mapping[str, Any]) -> bool:
    """Draw points joined in the order of c_e, those that coincide as a larger marker; return whether any do."""
    ax.plot(x, y, **dict(look) | {"marker": "", "linewidth": 1.0, "alpha": 0.7})
    x_error, y_error = (None if sem is None else np.nan_to_num(sem) for sem in (x_sem, y_sem))
    ax.errorbar(x, y, y_error, x_error, fmt="none", ecolor=look["color"], elinewidth=0.7, alpha=0.4)
    places = _places(x, y)
    for place, count in places:
        size = look["markersize"] * min(3.0, np.sqrt(0.8 + 0.4 * (count - 1)))
        # Larger markers lie lower, and those of several points are transparent: none hides another.
        face = (look["color"], 0.3) if count > 1 and look["markerfacecolor"] != "none" else look["markerfacecolor"]
        options = {
            "linestyle": "none",
            "markersize": size,
            "markerfacecolor": face,
            "zorder": 4 - size / 30,
            "label": "_",
        }
        ax.plot(*place, **dict(look) | options)
    return any(count > 1 for _, count in places)


def _places(x: Floats, y: Floats) -> list[tuple[tuple[float, float], int]]:
    """The distinct points of a curve, and how often each occurs."""
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


def _c_es(curves: Sequence[Curve]) -> list[float]:
    return sorted({float(c_e) for curve in curves for c_e in floats(curve["c_e"])})


def _trivial(ax: Axes, rule: Mapping[str, Any]) -> tuple[Floats, Floats, Floats]:
    """Draw the risks of never and always asking, and return them after c_e."""
    c_e, never, always = (floats(rule[name]) for name in ("c_e", "all_local", "all_remote"))
    marker = "" if len(c_e) > 1 else "_"
    for values, label, dash in ((never, "never ask", _DASHES[2]), (always, "always ask", _DASHES[1])):
        look = {"color": INK, "linewidth": 1.3, "linestyle": dash, "marker": marker, "markersize": 18}
        ax.plot(c_e, values, **look, label=label, zorder=2)
    return c_e, never, always


def _shade(ax: Axes, c_e: Floats, never: Floats, always: Floats) -> None:
    """Shade where the risk is no lower than that of the better trivial rule."""
    low, high = ax.get_ylim()
    # The two may cross between prices; a single price has no width to shade.
    fine = np.linspace(c_e[0], c_e[-1], 400) if len(c_e) > 1 else c_e[0] + np.array([-0.01, 0.01])
    best = np.minimum(np.interp(fine, c_e, never), np.interp(fine, c_e, always))
    ax.fill_between(fine, best, high, color=FAINT, alpha=0.32, linewidth=0, zorder=0)
    ax.set_ylim(low, high)


def _legend(figure: Figure, curves: Sequence[Curve], handles: Sequence[Any], labels: Sequence[str]) -> None:
    """The recipes in the first line, the rest in the second."""
    looks = {str(curve["label"]): _STYLES[curve["style"]] for curve in curves}
    recipes = [(legend_line(**_line(look, 0)), plain(label, _LABEL)) for label, look in looks.items()]
    others = list(zip(handles, labels, strict=True))
    columns = max(len(recipes), len(others))
    if columns > 3 or is_narrow():
        entries, columns = [*recipes, *others], 3
    else:
        # A legend is filled column by column.
        gap = [(legend_line(), "")]
        upper, lower = (line + gap * (columns - len(line)) for line in (recipes, others))
        entries = [entry for pair in zip(upper, lower, strict=True) for entry in pair]
    lines, names = zip(*entries, strict=True)
    legend_below(figure, lines, names, columns=columns)
