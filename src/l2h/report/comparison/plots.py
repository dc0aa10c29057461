"""Plots of a comparison of methods. Each function gives a matplotlib ``Figure`` that pyplot does not know of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from l2h.report.common.figure import (
    CLIENT,
    FAINT,
    INK,
    MUTED,
    SERVER,
    SYSTEM,
    Axes,
    Figure,
    LinearSegmentedColormap,
    blank,
    percent_axis,
    plain,
    titled,
)
from l2h.report.comparison.looks import NAME, Look, group_legend, legend_height, marker_places, method_looks
from l2h.report.comparison.model import (
    Comparison,
    MethodRow,
    cells_by_price,
    default_differences,
    method_rows,
    pair_differences,
    prices_by_c_1,
)

_PANELS = 3  # values of c_1 side by side


def plot_frontiers(comparison: Comparison) -> Figure:
    """Joint accuracy against the share sent for every method, and below it the same less the default's.

    A method that ranks nothing is shown by the points at which it works.
    """
    rows = method_rows(comparison)
    looks = method_looks(rows)
    curves = _curves(comparison, rows)
    ours = next((row.name for row in rows if row.default and row.name in comparison["frontiers"]["methods"]), None)
    panels = 1 if ours is None else 2
    figure, axes = blank(8.8, 4.6 * panels + legend_height(rows), panels, 1, sharex=True)
    rate = np.asarray(comparison["frontiers"]["rate"], dtype=np.float64)
    top = axes[0]
    for row in rows:
        x, y = curves[row.name]
        _curve(top, x, y, looks[row.name], row.name in comparison["frontiers"]["methods"])
    titles = ["Accuracy bought by asking"]
    if ours is not None:
        base = curves[ours][1]
        sem = comparison["frontiers"]["methods"][ours]["sem"]
        spread = np.zeros_like(rate) if sem is None else np.asarray(sem, dtype=np.float64)
        top.fill_between(rate, base - spread, base + spread, color=SYSTEM, alpha=0.2, linewidth=0)
        _less_default(axes[1], rows, curves, looks, (rate, base, spread))
        axes[1].set_ylabel("points more than the default", fontsize=10, color=INK)
        titles.append("The same less the accuracy of the default, in percentage points")
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=9)
        ax.grid(color=FAINT, linewidth=0.5)
        ax.set_axisbelow(True)
    top.set_ylabel("accuracy of the two together", fontsize=10, color=INK)
    top.set_xlim(-0.015, 1.015)
    percent_axis(top.yaxis)
    percent_axis(axes[-1].xaxis)
    axes[-1].set_xlabel("share of inputs sent", fontsize=10, color=INK)
    group_legend(figure, rows, looks)
    figure.align_ylabels()
    return figure


def plot_risk_grid(comparison: Comparison) -> Figure:
    """Mean risk against c_e, a panel for each c_1, and below it the same less the default's.

    Where there is one c_e only, a point with its standard error for each method.
    """
    grid = prices_by_c_1(comparison)
    if max(len(c_es) for c_es in grid.values()) == 1:
        return _risk_points(comparison)
    rows = method_rows(comparison)
    looks = method_looks(rows)
    paired = any(row.default for row in rows)
    bands = -(-len(grid) // _PANELS)
    across = -(-len(grid) // bands)
    deep = 2 if paired else 1
    size = (max(8.8, 3.8 * across + 0.6), 3.7 * bands * deep + legend_height(rows))
    figure, axes = blank(*size, bands * deep, across)
    for k, (c_1, c_es) in enumerate(grid.items()):
        band, column = divmod(k, across)
        ax = axes[band * deep * across + column]
        _risk_lines(ax, comparison, rows, looks, c_1, c_es)
        titled(ax, f"c_1 = {c_1:g}", "" if paired else "c_e, price of a request", "" if column else "mean risk")
        if paired:
            lower = axes[(band * deep + 1) * across + column]
            _risk_differences(lower, comparison, rows, looks, c_1, c_es)
            titled(lower, "", "c_e, price of a request", "" if column else "risk less the default's")
            if not column:
                lower.set_title("filled: the interval excludes 0", loc="left", fontsize=9, color=MUTED)
    for ax in axes:
        ax.set_visible(ax.has_data())
    group_legend(figure, rows, looks)
    return figure


def plot_pairs(comparison: Comparison) -> Figure:
    """Who beats whom: the risk of the row's method less the column's, dots where the interval excludes 0."""
    rows = method_rows(comparison)
    n = len(rows)
    differences = pair_differences(comparison)
    values = np.full((n, n), np.nan)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            if (a.name, b.name) in differences:
                values[i, j] = differences[a.name, b.name].difference
    cell = 0.3 if n > 6 else 0.5
    figure, (ax,) = blank(cell * n + 3.6, cell * n + 2.9)
    colours = LinearSegmentedColormap.from_list("who", [CLIENT, "#9CC7E3", "#FFFFFF", "#F2B98F", SERVER])
    limit = _limit(values, rows)
    image = ax.imshow(values, cmap=colours.with_extremes(bad="#EEEEEE"), vmin=-limit, vmax=limit)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            versus = differences.get((a.name, b.name))
            if versus is not None and (versus.below or versus.above):
                dark = abs(versus.difference) > 0.7 * limit
                ax.plot(j, i, "o", color="white" if dark else INK, markersize=3.4)
        others = [differences.get((a.name, b.name)) for b in rows if not b.beyond]
        wins, losses = sum(v.below for v in others if v), sum(v.above for v in others if v)
        ax.annotate(f"{wins} : {losses}", (n - 0.35, i), ha="left", va="center", fontsize=9, annotation_clip=False)
    ax.annotate(
        "beats : beaten by",
        (n - 0.35, -0.5),
        (0, 5),
        textcoords="offset points",
        ha="left",
        fontsize=9,
        color=MUTED,
        annotation_clip=False,
    )
    apart = sum(not row.beyond for row in rows) - 0.5
    if 0 < apart < n - 0.5:
        ax.axhline(apart, color=INK, linewidth=1)
        ax.axvline(apart, color=INK, linewidth=1)
    names = [plain(row.name, NAME) for row in rows]
    ax.set_xticks(range(n), names, rotation=90)
    ax.set_yticks(range(n), names)
    for label, row in zip([*ax.get_yticklabels(), *ax.get_xticklabels()], rows * 2, strict=True):
        label.set_fontweight("bold" if row.default else "normal")
        label.set_color(MUTED if row.beyond else INK)
    ax.tick_params(length=0, labelsize=9)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set_title("Risk of the row less the column's", loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=26)
    wide = np.nanmax(np.abs(values), initial=0.0) > limit
    bar = figure.colorbar(
        image, ax=ax, orientation="horizontal", shrink=0.6, aspect=30, pad=0.02, extend="both" if wide else "neither"
    )
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)
    bar.set_label("blue: the row costs less; a dot: the interval excludes 0", fontsize=9, color=INK)
    return figure


Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def _curves(comparison: Comparison, rows: Sequence[MethodRow]) -> dict[str, Curve]:
    """Share sent and accuracy of every method: its frontier, or else the points at which it works."""
    found = comparison["frontiers"]["methods"]
    rate = np.asarray(comparison["frontiers"]["rate"], dtype=np.float64)
    out = {}
    for row in rows:
        if row.name in found:
            out[row.name] = (rate, np.asarray(found[row.name]["mean"], dtype=np.float64))
            continue
        points = sorted(
            {
                (cell["reject_rate"]["mean"], cell["accuracy"]["mean"])
                for cell in comparison["cells"]
                if cell["method"] == row.name
            }
        )
        x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
        out[row.name] = (x, y)
    return out


def _curve(ax: Axes, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], look: Look, ranked: bool) -> None:
    if ranked:
        ax.plot(x, y, **look.line(markevery=marker_places(look)))
    else:
        ax.plot(x, y, **look.line(linestyle="none" if len(x) < 3 else (0, (4, 3)), markersize=7, clip_on=False))


def _less_default(
    ax: Axes,
    rows: Sequence[MethodRow],
    curves: dict[str, Curve],
    looks: dict[str, Look],
    default: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]],
) -> None:
    rate, base, spread = default
    extent = [100 * spread, -100 * spread]
    for row in rows:
        x, y = curves[row.name]
        if len(x) < 3:
            continue
        less = 100 * (y - np.interp(x, rate, base))
        _curve(ax, x, less, looks[row.name], len(x) == len(rate))
        if row.group not in ("trivial", "reference"):
            extent.append(less)
    ax.fill_between(rate, -100 * spread, 100 * spread, color=SYSTEM, alpha=0.2, linewidth=0)
    # The trivial and the references may leave the panel: the others are what is to be told apart.
    _limits(ax, np.concatenate(extent))


def _risk_lines(
    ax: Axes,
    comparison: Comparison,
    rows: Sequence[MethodRow],
    looks: dict[str, Look],
    c_1: float,
    c_es: list[float],
) -> None:
    cells = cells_by_price(comparison)
    extent = []
    for row in rows:
        risks = [cells[row.name, (c_1, c_e)]["risk"] for c_e in c_es]
        means = np.array([risk["mean"] for risk in risks])
        ax.plot(c_es, means, **looks[row.name].line())
        if row.default:
            bars = [risk["sem"] or 0.0 for risk in risks]
            ax.errorbar(c_es, means, bars, fmt="none", ecolor=INK, elinewidth=1.3, capsize=3, zorder=6)
        if row.group != "trivial":
            extent.append(means)
    _price_axis(ax, c_es)
    _limits(ax, np.concatenate(extent) if extent else np.zeros(1))


def _risk_differences(
    ax: Axes,
    comparison: Comparison,
    rows: Sequence[MethodRow],
    looks: dict[str, Look],
    c_1: float,
    c_es: list[float],
) -> None:
    against = default_differences(comparison)
    extent = [np.zeros(1)]
    ax.axhline(0, color=SYSTEM, linewidth=3, zorder=2)
    for row in rows:
        found = [(c_e, against[row.name, (c_1, c_e)]) for c_e in c_es if (row.name, (c_1, c_e)) in against]
        if not found:
            continue
        look = looks[row.name]
        x, y = np.array([c_e for c_e, _ in found]), np.array([v.difference for _, v in found])
        ax.plot(x, y, **look.line(markerfacecolor="white"))
        clear = np.array([v.below or v.above for _, v in found])
        ax.plot(x[clear], y[clear], **look.line(linestyle="none", zorder=look.order + 0.1))
        if row.group not in ("trivial", "reference"):
            extent.append(y)
    _price_axis(ax, c_es)
    _limits(ax, np.concatenate(extent))


def _risk_points(comparison: Comparison) -> Figure:
    """A panel for each c_1, a line for each method, its risk with the standard error."""
    rows = method_rows(comparison)
    looks = method_looks(rows)
    cells = cells_by_price(comparison)
    grid = prices_by_c_1(comparison)
    figure, axes = blank(min(max(8.8, 3.0 * len(grid) + 2.4), 14.0), 0.26 * len(rows) + 1.6, 1, len(grid), sharey=True)
    for ax, (c_1, (c_e,)) in zip(axes, grid.items(), strict=True):
        for i, row in enumerate(rows):
            risk = cells[row.name, (c_1, c_e)]["risk"]
            look = looks[row.name]
            ax.errorbar(
                risk["mean"],
                i,
                xerr=risk["sem"] or 0.0,
                **look.line(linestyle="none", markersize=8 if row.default else 6),
                ecolor=look.colour,
                elinewidth=1.2,
                capsize=2.5,
            )
            if row.default:
                ax.axvline(risk["mean"], color=look.colour, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        ax.grid(axis="y", color=FAINT, linewidth=0.5)
        ax.set_axisbelow(True)
        titled(ax, f"c_1 = {c_1:g}, c_e = {c_e:g}", "risk ± standard error: less is better")
    axes[0].set_yticks(range(len(rows)), [plain(row.name, NAME) for row in rows])
    axes[0].invert_yaxis()
    for label, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.default else "normal")
    return figure


def _price_axis(ax: Axes, c_es: list[float]) -> None:
    ax.grid(color=FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    if len(c_es) <= 6:
        ax.set_xticks(c_es, [f"{c_e:g}" for c_e in c_es])


def _limits(ax: Axes, values: npt.NDArray[np.float64]) -> None:
    low, high = float(values.min()), float(values.max())
    room = 0.06 * (high - low) or 0.01
    ax.set_ylim(low - room, high + room)


def _limit(values: npt.NDArray[np.float64], rows: Sequence[MethodRow]) -> float:
    """The end of the colour scale: the trivial and the references would bleach all else."""
    inner = [i for i, row in enumerate(rows) if row.group not in ("trivial", "reference")]
    for some in (values[np.ix_(inner, inner)], values):
        known = np.abs(some[np.isfinite(some)])
        if known.size and known.max() > 0:
            return float(known.max())
    return 1.0
