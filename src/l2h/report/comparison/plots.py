"""Plots of a comparison of methods. Each function returns a ``Figure`` that pyplot does not know."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from l2h.report.common.axes import (
    Floats,
    first_column,
    fit_height,
    grid_lines,
    percent_axis,
    price_ticks,
    remark,
    titled,
)
from l2h.report.common.colours import CLIENT, CONFIDENCE, INK, MUTED, SERVER, SYSTEM
from l2h.report.common.figure import blank, folded, is_narrow, legend_below, legend_line, plain
from l2h.report.comparison.model import ComparisonView, MethodRow, Price, Values

Look = dict[str, Any]  # keywords of ``Axes.plot``

_NAME = 22  # letters of a method's name that are drawn
# One colour per group; its methods are told apart by dash and marker, not by shade.
_COLOURS = {"ours": SYSTEM, "learned": SERVER, "confidence": CONFIDENCE, "trivial": MUTED, "reference": INK}
_HEADINGS = {"learned": "other learned", "reference": "references"}
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (2.5, 1.2)),
    (0, (8, 1.5, 2.5, 1.5)),
    (0, (5, 1.3, 1.1, 1.3, 1.1, 1.3)),
    (0, (12, 2.5)),
)
_MARKERS = "os^DvPX<p>h*dH8"
_PANELS = 3  # values of c_1 side by side
_BAND: dict[str, Any] = {"color": SYSTEM, "alpha": 0.2, "linewidth": 0}


def plot_frontiers(comparison: Values) -> Figure:
    """Draw joint accuracy against the share sent for every method, and below it the difference from the default.

    A method that does not rank the inputs is shown by its operating points.
    """
    rows = ComparisonView(comparison).rows
    looks = _method_looks(rows)
    legend = _legend(rows, looks)
    frontiers = comparison["frontiers"]["methods"]
    rate = np.asarray(comparison["frontiers"]["rate"], dtype=np.float64)
    curves = {row.name: _frontier(comparison, row.name, rate) for row in rows}
    ours = next((row.name for row in rows if row.default and row.name in frontiers), None)
    panels = 1 if ours is None else 2
    figure, axes = blank(8.8, 4.6 * panels + _legend_height(legend), panels, 1, sharex=True)
    top, bottom = axes[0], axes[-1]
    for row in rows:
        _curve(top, *curves[row.name], looks[row.name], row.name in frontiers)
    titled(top, "Accuracy gained by asking", "", "joint accuracy")
    grid_lines(top)
    if ours is not None:
        base, sem = curves[ours][1], frontiers[ours]["sem"]
        spread = np.zeros_like(rate) if sem is None else np.asarray(sem, dtype=np.float64)
        top.fill_between(rate, base - spread, base + spread, **_BAND)
        extent = [100 * spread, -100 * spread]
        for row in rows:
            x, y = curves[row.name]
            if len(x) < 3:
                continue
            more = 100 * (y - np.interp(x, rate, base))
            _curve(bottom, x, more, looks[row.name], len(x) == len(rate))
            if row.ordinary:
                extent.append(more)
        bottom.fill_between(rate, -100 * spread, 100 * spread, **_BAND)
        fit_height(bottom, np.concatenate(extent))
        titled(bottom, "Difference from the default, in percentage points", "", "points above the default")
        grid_lines(bottom)
    top.set_xlim(-0.015, 1.015)
    percent_axis(top.yaxis, bottom.xaxis)
    bottom.set_xlabel("share of inputs sent", fontsize=10, color=INK)
    _draw_legend(figure, legend)
    figure.align_ylabels()
    return figure


def plot_risk_grid(comparison: Values) -> Figure:
    """Draw mean risk against c_e, one panel per c_1, and below it the difference from the default.

    With a single c_e, every method is one point with its standard error.
    """
    view = ComparisonView(comparison)
    grid, rows, paired = view.prices, view.rows, view.default is not None
    if max(len(c_es) for c_es in grid.values()) == 1:
        return _risk_points(view)
    looks = _method_looks(rows)
    legend = _legend(rows, looks)
    bands = -(-len(grid) // _PANELS)
    across = -(-len(grid) // bands)
    deep = 2 if paired else 1
    size = (max(8.8, 3.8 * across + 0.6), 3.7 * bands * deep + _legend_height(legend))
    figure, axes = blank(*size, bands * deep, across, together="columns")
    for k, (c_1, c_es) in enumerate(grid.items()):
        band, column = divmod(k, across)
        prices = [(c_1, c_e) for c_e in c_es]
        ax = axes[band * deep * across + column]
        _risk_lines(ax, view, looks, prices)
        titled(ax, f"c_1 = {c_1:g}", "c_e, price of a request" * (not paired), "mean risk" * first_column(ax))
        if paired:
            lower = axes[(band * deep + 1) * across + column]
            _risk_differences(lower, view, looks, prices)
            titled(lower, "", "c_e, price of a request", "risk minus the default's" * first_column(lower))
            if first_column(lower):
                remark(lower, "filled: clearly different", loc="left", fontsize=9, pad=None)
    for ax in axes:
        ax.set_visible(ax.has_data())
    _draw_legend(figure, legend)
    return figure


def plot_pairs(comparison: Values) -> Figure:
    """Draw the risk of each row's method minus the column's, with a dot where that is clear."""
    view = ComparisonView(comparison)
    rows, n = view.rows, len(view.rows)
    pairs = [[view.pairs.get((a.name, b.name)) for b in rows] for a in rows]
    values = np.array([[np.nan if pair is None else pair.difference for pair in line] for line in pairs])
    cell = 0.3 if n > 6 else 0.5
    narrow = is_narrow()
    figure, (ax,) = blank(cell * n + 3.6, 0.18 * n + 2.3 if narrow else cell * n + 2.9)
    # Transparent in the middle, so that the page's own background shows.
    shades = [(CLIENT, 1.0), (CLIENT, 0.4), (CLIENT, 0.0), (SERVER, 0.0), (SERVER, 0.4), (SERVER, 1.0)]
    steps = (0.0, 0.25, 0.5, 0.5, 0.75, 1.0)
    colours = LinearSegmentedColormap.from_list("who", list(zip(steps, [to_rgba(*one) for one in shades], strict=True)))
    limit = _limit(values, rows)
    image = ax.imshow(
        values,
        cmap=colours.with_extremes(bad=(MUTED, 0.15)),
        vmin=-limit,
        vmax=limit,
        aspect="auto" if narrow else "equal",
    )
    beside: dict[str, Any] = {"ha": "left", "fontsize": 9, "annotation_clip": False}
    for i, line in enumerate(pairs):
        for j, pair in enumerate(line):
            if pair is not None and (pair.below or pair.above):
                dark = abs(pair.difference) > 0.7 * limit
                ax.plot(j, i, "o", color="white" if dark else INK, markersize=2.0 if narrow else 3.4)
        others = [pair for pair, row in zip(line, rows, strict=True) if pair and not row.beyond]
        score = f"{sum(pair.below for pair in others)} : {sum(pair.above for pair in others)}"
        ax.annotate(score, (n - 0.35, i), va="center", **beside)
    place = (35, 5, "right") if narrow else (0, 5, "left")
    look = beside | {"color": MUTED, "textcoords": "offset points", "ha": place[2]}
    ax.annotate("beats : beaten by", (n - 0.35, -0.5), place[:2], **look)
    apart = sum(not row.beyond for row in rows) - 0.5
    if 0 < apart < n - 0.5:
        ax.axhline(apart, color=INK, linewidth=1)
        ax.axvline(apart, color=INK, linewidth=1)
    names = [plain(row.name, _NAME) for row in rows]
    if narrow:
        # The columns are the rows in their order; for names above each other they are too narrow.
        ax.set_xticks([])
        bar_ticks: Any = MaxNLocator(3)
    else:
        ax.set_xticks(range(n), names, rotation=90, rotation_mode="anchor", ha="right", va="center")
        bar_ticks = None
    ax.set_yticks(range(n), names)
    for label, row in zip([*ax.get_yticklabels(), *ax.get_xticklabels()], rows * 2, strict=False):
        label.set_fontweight("bold" if row.default else "normal")
        label.set_color(MUTED if row.beyond else INK)
    ax.tick_params(length=0, labelsize=9)
    for side in ax.spines.values():
        side.set_visible(False)
    titled(ax, "Risk: row minus column", pad=26)
    extend = "both" if np.nanmax(np.abs(values), initial=0.0) > limit else "neither"
    bar = figure.colorbar(
        image,
        ax=ax,
        orientation="horizontal",
        shrink=1.0 if narrow else 0.6,
        aspect=30,
        pad=0.02,
        extend=extend,
        ticks=bar_ticks,
    )
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)
    for scale in bar.ax.collections:
        scale.set_rasterized(True)
    note = "; columns in the order of the rows" if narrow else ""
    bar.set_label(folded(f"blue: the row costs less; a dot: clear{note}", 34), fontsize=9, color=INK)
    return figure


def _method_looks(rows: Sequence[MethodRow]) -> dict[str, Look]:
    """A look for each method: the default bold, colours by group, references thin and dotted."""
    looks = {}
    for group, colour in _COLOURS.items():
        # By name, so that a method keeps its look when its risk changes; the default has the plain line and circle.
        ordered = sorted((row for row in rows if row.group == group), key=lambda row: (not row.default, row.name))
        for k, row in enumerate(ordered):
            looks[row.name] = {
                "color": colour,
                "linestyle": (0, (1, 1.3 + 1.2 * (k % 3))) if row.beyond else _DASHES[k % len(_DASHES)],
                "linewidth": 3.0 if row.default else 1.0 if row.beyond else 1.15,
                "marker": _MARKERS[k % len(_MARKERS)],
                "markersize": 6.0 if row.default else 3.0 if row.beyond else 4.2,
                "markeredgewidth": 0.9,
                "zorder": 5.0 if row.default else 3.0 if group == "ours" else 2.5,
                "label": _label(row),
            }
    return looks


def _legend(rows: Sequence[MethodRow], looks: dict[str, Look]) -> list[list[tuple[Any, str, bool]]]:
    """The line and the label of each entry and whether it is bold, by column; the two smallest groups share one."""
    columns: list[list[tuple[Any, str, bool]]] = []
    for groups in (("ours",), ("learned",), ("confidence",), ("trivial", "reference")):
        column = []
        for group in groups:
            members = [row for row in rows if row.group == group]
            column += [(legend_line(), _HEADINGS.get(group, group), True)] if members else []
            for row in members:
                column.append((legend_line(**looks[row.name]), _label(row), row.default))
        columns += [column] if column else []
    return columns


def _label(row: MethodRow) -> str:
    # Matplotlib leaves out a label that begins with an underscore.
    name = plain(row.name, _NAME)
    return f" {name}" if name.startswith("_") else name


def _legend_height(legend: list[list[tuple[Any, str, bool]]]) -> float:
    return 0.5 + 0.21 * max(map(len, legend))


def _draw_legend(figure: Figure, legend: list[list[tuple[Any, str, bool]]]) -> None:
    gap, longest = [(legend_line(), "", False)], max(map(len, legend))
    entries = [entry for column in legend for entry in column + gap * (longest - len(column))]
    lines, labels, bold = zip(*entries, strict=True)
    legend_below(figure, lines, labels, columns=len(legend))
    for text, heavy in zip(figure.legends[0].get_texts(), bold, strict=True):
        text.set_fontweight("bold" if heavy else "normal")


def _frontier(comparison: Values, name: str, rate: Floats) -> tuple[Floats, Floats]:
    """Share sent and accuracy of a method: its frontier, or else its operating points."""
    frontier = comparison["frontiers"]["methods"].get(name)
    if frontier:
        return rate, np.asarray(frontier["mean"], dtype=np.float64)
    cells = [cell for cell in comparison["cells"] if cell["method"] == name]
    points = sorted({(cell["reject_rate"]["mean"], cell["accuracy"]["mean"]) for cell in cells})
    x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return x, y


def _curve(ax: Axes, x: Floats, y: Floats, look: Look, ranked: bool) -> None:
    if ranked:
        # The first marker and the step on a frontier of 201 points; those of two methods seldom coincide.
        ax.plot(x, y, **look, markevery=(5 + 3 * (_MARKERS.index(look["marker"]) % 8), 32))
    else:
        dash = "none" if len(x) < 3 else (0, (4, 3))
        ax.plot(x, y, **look | {"linestyle": dash, "markersize": 7, "clip_on": False})


def _risk_lines(ax: Axes, view: ComparisonView, looks: dict[str, Look], prices: list[Price]) -> None:
    c_es = [c_e for _, c_e in prices]
    extent = []
    for row in view.rows:
        risks = [view.cells[row.name, price]["risk"] for price in prices]
        means = np.array([risk["mean"] for risk in risks])
        ax.plot(c_es, means, **looks[row.name])
        if row.default:
            bars = [risk["sem"] or 0.0 for risk in risks]
            ax.errorbar(c_es, means, bars, fmt="none", ecolor=INK, elinewidth=1.3, capsize=3, zorder=6)
        if row.group != "trivial":
            extent.append(means)
    grid_lines(ax)
    price_ticks(ax, c_es)
    fit_height(ax, np.concatenate(extent or [np.zeros(1)]))


def _risk_differences(ax: Axes, view: ComparisonView, looks: dict[str, Look], prices: list[Price]) -> None:
    extent = [np.zeros(1)]
    ax.axhline(0, color=SYSTEM, linewidth=3, zorder=2)
    for row in view.rows:
        known = [(price[1], view.against[row.name, price]) for price in prices if (row.name, price) in view.against]
        if not known:
            continue
        look = looks[row.name]
        x, y = np.array([c_e for c_e, _ in known]), np.array([v.difference for _, v in known])
        ax.plot(x, y, **look, markerfacecolor="white")
        clear = np.array([v.below or v.above for _, v in known])
        ax.plot(x[clear], y[clear], **look | {"linestyle": "none", "zorder": look["zorder"] + 0.1, "label": "_"})
        if row.ordinary:
            extent.append(y)
    grid_lines(ax)
    price_ticks(ax, [c_e for _, c_e in prices])
    fit_height(ax, np.concatenate(extent))


def _risk_points(view: ComparisonView) -> Figure:
    """The risk of every method with its standard error, one panel per c_1."""
    grid, rows, looks = view.prices, view.rows, _method_looks(view.rows)
    figure, axes = blank(min(max(8.8, 3.0 * len(grid) + 2.4), 14.0), 0.26 * len(rows) + 1.6, 1, len(grid), sharey=True)
    for ax, (c_1, (c_e,)) in zip(axes, grid.items(), strict=True):
        for i, row in enumerate(rows):
            risk = view.cells[row.name, (c_1, c_e)]["risk"]
            look = looks[row.name]
            line = look | {"linestyle": "none", "markersize": 8 if row.default else 6}
            bars: dict[str, Any] = {"ecolor": look["color"], "elinewidth": 1.2, "capsize": 2.5}
            ax.errorbar(risk["mean"], i, xerr=risk["sem"] or 0.0, **line, **bars)
            if row.default:
                ax.axvline(risk["mean"], color=look["color"], linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        grid_lines(ax, "y")
        titled(ax, f"c_1 = {c_1:g}, c_e = {c_e:g}", "risk ± standard error: lower is better")
    axes[0].set_yticks(range(len(rows)), [plain(row.name, _NAME) for row in rows])
    axes[0].invert_yaxis()
    for label, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.default else "normal")
    return figure


def _limit(values: Floats, rows: Sequence[MethodRow]) -> float:
    """The end of the colour scale; trivial methods and references would make all others look alike."""
    inner = [i for i, row in enumerate(rows) if row.ordinary]
    for some in (values[np.ix_(inner, inner)], values):
        known = np.abs(some[np.isfinite(some)])
        if known.size and known.max() > 0:
            return float(known.max())
    return 1.0
