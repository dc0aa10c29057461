"""Shifted traffic: its tables, its picture, and both in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from l2h.files import write_atomically, write_json
from l2h.report.common.axes import banded_line, floats, grid_lines, percent_axis, titled
from l2h.report.common.colours import CLIENT, CONFIDENCE, FAINT, INK, LABEL_FREE, MUTED, SERVER, SERVERS, SYSTEM
from l2h.report.common.figure import blank, legend_below, legend_line, plain, png
from l2h.report.common.table import Cell, Column, TextTable, headings, texts
from l2h.report.common.text import NONE, counted, plus_minus

Values = Mapping[str, Any]  # what ``shift.json`` holds
_COLOURS = (SYSTEM, SERVER, CLIENT, CONFIDENCE, LABEL_FREE, SERVERS[0], SERVERS[2])
_MARKS = "osD^vXP*"
_RISKS = ("never", "always", "best_cut", "again")


def write_shift(summary: Values, folder: Path) -> Path:
    """Write ``shift.json`` and ``shift.png`` into a folder, and return the picture's path."""
    write_json(folder / "shift.json", summary)
    return write_atomically(folder / "shift.png", png(plot_shift(summary)))


def shift_tables(summary: Values) -> list[TextTable]:
    """Return the run at its prices under each shift, and what each limit asks there."""
    seeds = counted(len(summary["seeds"]), "seed")
    where = f"{summary['dataset']}, {summary['samples']:,} test samples, {seeds}"
    columns = headings("shift", "client", "server", "asked", "risk")
    columns += [Column("never ask", "never"), Column("always ask", "always"), Column("best cut", "best")]
    columns += [Column("calibrated again", "again"), Column("drift alarm", justify="left")]
    rows = []
    for row in _of(summary, ""):
        shares = [_percent(row[name]) for name in ("client", "server", "asked")]
        risks = [NONE if row[name] is None else f"{row[name]['mean']:.4f}" for name in _RISKS]
        cells = [_name(row), *shares, plus_minus(row["risk"], ".3f"), *risks, _alarm(row)]
        rows.append(texts(*cells, kind="" if row["strength"] else "default"))
    note = (
        f"{where}. The best cut on the expected saving is known only afterwards: what a better threshold could gain. "
        "Calibrated again: on one half of these samples with their labels, and judged on the other. The alarm compares "
        "how often the rejector would ask with the calibration samples; it comes at so many inputs."
    )
    tables = [TextTable("At the run's prices", columns, rows, note)]
    if summary["limits"]:
        tables.append(_limits_table(summary, where))
    return tables


def _limits_table(summary: Values, where: str) -> TextTable:
    limits = summary["limits"]
    columns = headings("shift")
    for limit in limits:
        columns += [Column(f"{limit}: asked", limit), Column("right")]
    columns.append(Column("drift alarm", justify="left"))
    by_limit = {limit: _of(summary, limit) for limit in limits}
    rows = []
    for number, first in enumerate(by_limit[limits[0]]):
        cells: list[str | Cell] = [_name(first)]
        for limit in limits:
            row = by_limit[limit][number]
            broken = row["broken"] > 0
            mark = f" broken {row['broken']}/{row['seeds']}" if broken else ""
            cells += [Cell(_percent(row["asked"]) + mark, bad=broken), _percent(row["accuracy"])]
        rows.append(texts(*cells, _alarm(first), kind="" if first["strength"] else "default"))
    note = (
        f"{where}. Without prices: a limit is used up. Broken, and with how many seeds: more was asked than the limit "
        "lets, of a calibrated share more than by chance. The alarm compares with the calibrated threshold of "
        f"{limits[0]}."
    )
    return TextTable("Under limits", columns, rows, note)


def plot_shift(summary: Values) -> Figure:
    """Draw the risk at the prices, what is asked under the first limit, and all limits while a shift comes and goes."""
    limits = summary["limits"]
    kinds = [row["shift"] for row in _of(summary, "") if row["strength"] == 1]
    kinds += [row["shift"] for row in _of(summary, "") if row["strength"] > 1 and row["shift"] not in kinds]
    kinds = list(dict.fromkeys(kinds))
    looks = {
        kind: {"color": _COLOURS[i % len(_COLOURS)], "marker": _MARKS[i % len(_MARKS)], "markersize": 4.5}
        for i, kind in enumerate(kinds)
    }
    panels = [("risk", "", "Risk at the run's prices"), ("lost", "", "Risk above that of the best cut")]
    panels += [("asked", limit, f"Asked under {limit}") for limit in limits[:1]]
    course = summary["course"] is not None and bool(limits)
    count = len(panels) + course
    figure, axes = blank(11.0, 4.4 * -(-count // 2), -(-count // 2), 2, used=count)
    for ax, (key, limit, title) in zip(axes, panels, strict=False):
        _against_strength(ax, summary, key, limit, looks)
        titled(ax, title, "strength of the shift")
    if course:
        _draw_course(axes[-1], summary)
    lines = {kind: look for kind, look in looks.items()} | {"the limit": _LIMIT}
    legend_below(figure, [legend_line(**look) for look in lines.values()], list(lines), columns=8)
    seeds = counted(len(summary["seeds"]), "seed")
    figure.suptitle(f"{plain(summary['dataset'])}, {seeds}", x=0.01, ha="left", fontsize=12.5, color=INK)
    return figure


_LIMIT: dict[str, Any] = {"color": MUTED, "linestyle": "--", "linewidth": 1.3}
_COURSE: tuple[dict[str, Any], ...] = (
    {"color": SERVER, "linewidth": 1.1},
    {"color": CLIENT, "linewidth": 0.8, "linestyle": (0, (4, 2))},
    {"color": SYSTEM, "linewidth": 1.4},
    {"color": CONFIDENCE, "linewidth": 1.0, "linestyle": ":"},
)


def _against_strength(ax: Axes, summary: Values, key: str, limit: str, looks: Mapping[str, dict[str, Any]]) -> None:
    rows = _of(summary, limit)
    for kind, look in looks.items():
        own = sorted((row for row in rows if row["shift"] in (kind, "none")), key=lambda row: row["strength"])
        values = [_value(row, key) for row in own]
        sem = None if values[0][1] is None else floats([error for _, error in values])
        place, mean = floats([row["strength"] for row in own]), floats([value for value, _ in values])
        banded_line(ax, place, mean, sem, look | {"linewidth": 1.6})
    ax.set_xticks(range(6), ["none", *map(str, range(1, 6))])
    grid_lines(ax, "y")
    if key == "asked":
        ax.axhline(_share(limit), **_LIMIT)
        ax.set_ylim(bottom=0)
        percent_axis(ax.yaxis)


def _draw_course(ax: Axes, summary: Values) -> None:
    course = summary["course"]
    x, third = floats(course["inputs"]), course["inputs"][-1] / 3
    ax.axvspan(third, 2 * third, color=FAINT, alpha=0.35, linewidth=0)
    for (limit, values), look in zip(course["limits"].items(), _COURSE, strict=False):
        for number, shares in enumerate(values["asked"]):
            ax.plot(x, floats(shares), label="" if number else limit, **look)
        ax.axhline(_share(limit), **_LIMIT)
    first = next(iter(course["limits"].values()))
    often = np.mean(first["alarm"], axis=0)
    alarm = [place for place, share in zip(course["inputs"], often, strict=True) if share >= 0.5]
    ax.plot(alarm, [0.0] * len(alarm), linestyle="none", marker="|", color=INK, markersize=7, label="drift alarm")
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    ax.set_ylim(bottom=0)
    percent_axis(ax.yaxis)
    grid_lines(ax, "y")
    titled(ax, f"Asked lately, while {plain(course['shift'])} comes and goes", "inputs")


def _of(summary: Values, limit: str) -> list[Values]:
    return [row for row in summary["rows"] if row["limit"] == limit]


def _value(row: Values, key: str) -> tuple[float, float | None]:
    """Return a figure and its standard error over seeds, if it is one of a single row."""
    if key == "lost":
        return row["risk"]["mean"] - row["best_cut"]["mean"], None
    return row[key]["mean"], row[key]["sem"]


def _percent(value: Values) -> str:
    return f"{value['mean']:.1%}"


def _name(row: Values) -> str:
    return f"{row['shift']}:{row['strength']}" if row["strength"] else str(row["shift"])


def _alarm(row: Values) -> str:
    """Return which way the alarm went, after how many inputs, and with how many of several seeds."""
    if not row["alarms"]:
        return "none"
    count = sum(row["alarms"].values())
    often = "" if row["seeds"] == 1 else f", {count}/{row['seeds']}"
    return f"{' or '.join(row['alarms'])} at {row['alarm_after']:.0f}{often}"


def _share(limit: str) -> float:
    return float(limit.partition("%")[0]) / 100 if "%" in limit else float(limit.partition("+")[0].partition("@")[0])
