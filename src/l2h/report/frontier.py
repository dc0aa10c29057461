"""The frontier of the device's compute: its table, its picture, and both in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from l2h.files import write_atomically, write_json
from l2h.report.common.axes import fit_height, grid_lines, titled
from l2h.report.common.colours import CLIENT, CONFIDENCE, INK, LABEL_FREE, MUTED, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, legend_line, plain, png
from l2h.report.common.table import Cell, Column, TextTable, headings, texts
from l2h.report.common.text import NONE, counted, plus_minus

Values = Mapping[str, Any]  # what ``frontier.json`` holds
_NAMES = {
    "confidence": "confidence threshold",
    "two-ways": "L2H",
    "three-ways": "L2H, second opinion",
    "student": "student alone",
    "replaced": "replaced client",
    "selective-query": "selective query",
    "appealnet": "AppealNet",
}
_LOOKS: dict[str, dict[str, Any]] = {
    "two-ways": {"color": SYSTEM, "marker": "o", "linewidth": 2.4},
    "three-ways": {"color": LABEL_FREE, "marker": "s", "linewidth": 1.8},
    "student": {"color": SERVER, "marker": "^", "linewidth": 1.2, "linestyle": (0, (4, 2))},
    "replaced": {"color": INK, "marker": "D", "linewidth": 1.2, "linestyle": (0, (1.5, 1.5))},
    "selective-query": {"color": CLIENT, "marker": "X", "linestyle": "none"},
    "appealnet": {"color": CLIENT, "marker": "P", "linestyle": "none"},
}
#: Figures with a panel each: the row's key, and the title.
_PANELS = {
    "gain": "Frontier gain: higher is better",
    "risk_mean": "Mean risk over nine prices: lower is better",
    "risk_1_0.1": "Risk at c_1 = 1, c_e = 0.1",
    "risk_1.25_0.25": "Risk at c_1 = 1.25, c_e = 0.25",
}
_DIGITS = {"gain": 3}
_NOTE = (
    "Work and time are the rejector's, beside the client's; of the replaced client they are its own. It is a net of "
    "the student's kind with the work of client and rejector together, trained on the labels alone."
)


def write_frontier(summary: Values, folder: Path) -> Path:
    """Write ``frontier.json`` and ``frontier.png`` into a folder, and return the picture's path."""
    write_json(folder / "frontier.json", summary)
    return write_atomically(folder / "frontier.png", png(plot_budgets(summary)))


def frontier_table(summary: Values) -> TextTable:
    """Return one row per budget and way to answer: its cost, its frontier gain, its risks and the share sent."""
    client = _mean(summary["common"]["client_multiply_adds"])
    columns = [Column("budget", justify="left"), *headings("who answers", "multiply-adds", "x client", "us", "gain")]
    columns += [Column(name) for name in ("risk, nine prices", "at 1, 0.1", "sent", "at 1.25, 0.25", "sent")]
    lowest = {key: _lowest(summary, key) for key in _PANELS if key != "gain"}
    rows = []
    for row in summary["rows"]:
        work, micro = _mean(row["multiply_adds"]), _mean(row["microseconds"])

        def cell(key: str, row: Values = row) -> Cell:
            value = row[key]
            if value is None:
                return Cell(NONE)
            return Cell(plus_minus(value, f".{_DIGITS.get(key, 4)}f"), bold=value["mean"] == lowest.get(key))

        rows.append(
            texts(
                row["budget"],
                _NAMES[row["method"]],
                NONE if work is None else f"{work:,.0f}",
                NONE if work is None or not client else f"{work / client:.2f}",
                NONE if micro is None else f"{micro:.0f}",
                cell("gain"),
                cell("risk_mean"),
                cell("risk_1_0.1"),
                _sent(row["remote_1_0.1"]),
                cell("risk_1.25_0.25"),
                _sent(row["remote_1.25_0.25"]),
                kind="default" if row["method"] == "two-ways" else "",
            )
        )
    errors = [row["risk_error"]["mean"] for row in summary["rows"] if row["risk_error"]]
    common = summary["common"]
    note = (
        f"{summary['dataset']}, {summary['part']}, {summary['samples']:,} samples, "
        f"{counted(len(summary['seeds']), 'seed')}: client {_mean(common['client']):.3f}, server "
        f"{_mean(common['server']):.3f}. ± is the standard error over seeds; that of the mean risk over samples is "
        f"about {max(errors, default=0.0):.4f}.\n{_trivial(summary)}\n{_NOTE}"
    )
    return TextTable("What the device can afford", columns, rows, note, "the lowest of its column", keys=2)


def _trivial(summary: Values) -> str:
    """Return what never and always asking cost, which follows from how often client and server are right."""

    def risk(right: Values, c_e: float, c_1: float) -> str:
        error = "" if right["sem"] is None else f" ± {c_1 * right['sem']:.4f}"
        return f"{c_e + c_1 * (1 - right['mean']):.4f}{error}"

    client, server, prices = summary["common"]["client"], summary["common"]["server"], summary["prices"]
    at = [(f"at {c['c_1']:g}, {c['c_e']:g}", c["c_e"], c["c_1"]) for name, c in prices.items() if name != "mean"]
    nine = prices["mean"]
    at.append(("on average", *(sum(one[key] for one in nine) / len(nine) for key in ("c_e", "c_1"))))
    always = ", ".join(f"{risk(server, c_e, c_1)} {where}" for where, c_e, c_1 in at)
    return f"Never asking costs {risk(client, 0.0, 1.0)}; always asking {always}."


def plot_budgets(summary: Values) -> Figure:
    """Draw gain and risk against what the rejector costs, one line per way to answer."""
    places, labels = _places(summary)
    figure, axes = blank(11.0, 9.0, 2, 2)
    used: list[str] = []
    for ax, (key, title) in zip(axes, _PANELS.items(), strict=True):
        for way, look in _LOOKS.items():
            rows = [row for row in summary["rows"] if row["method"] == way and row[key] is not None]
            if not rows:
                continue
            used += [way] if way not in used else []
            x = [places[row["budget"]] for row in rows]
            sem = [row[key]["sem"] or 0.0 for row in rows]
            bars: dict[str, Any] = {"elinewidth": 1.1, "capsize": 2.5, "markersize": 6}
            ax.errorbar(x, [row[key]["mean"] for row in rows], sem, **look | bars)
        _references(ax, summary, key)
        _limits(ax, summary, key)
        grid_lines(ax, "y")
        ax.set_xticks(list(places.values()), labels)
        titled(ax, title)
    for ax in axes[2:]:
        ax.set_xlabel("the rejector's work and time, beside the client's own", fontsize=10, color=INK)
    lines = {_NAMES[way]: _LOOKS[way] for way in used} | _REFERENCES
    legend_below(figure, [legend_line(**look) for look in lines.values()], list(lines), columns=5)
    part = {"test": "test set", "validation": "validation samples"}[summary["part"]]
    seeds = counted(len(summary["seeds"]), "seed")
    figure.suptitle(f"{plain(summary['dataset'])}, {part}, {seeds}", x=0.01, ha="left", fontsize=12.5, color=INK)
    return figure


_REFERENCES: dict[str, dict[str, Any]] = {
    "confidence threshold": {"color": CONFIDENCE, "linestyle": "--", "linewidth": 1.6},
    "never ask": {"color": MUTED, "linestyle": ":", "linewidth": 1.3},
}


def _references(ax: Axes, summary: Values, key: str) -> None:
    """Draw what needs no rejector: the confidence threshold, and never asking where that is not far off."""
    for row in summary["rows"]:
        if row["method"] == "confidence" and row[key] is not None:
            ax.axhline(row[key]["mean"], **_REFERENCES["confidence threshold"])
    if key != "gain":
        ax.axhline(1 - _mean(summary["common"]["client"]), **_REFERENCES["never ask"])


def _limits(ax: Axes, summary: Values, key: str) -> None:
    """Fit the y-axis to all but the nets that answer alone: small ones may be far worse than never asking."""
    alone = ("student", "replaced")
    values = [row[key]["mean"] for row in summary["rows"] if row[key] is not None and row["method"] not in alone]
    if key != "gain":
        values += [1 - _mean(summary["common"]["client"])]
        values += [row[key]["mean"] for row in summary["rows"] if row[key] is not None and row[key]["mean"] < values[0]]
    if values:
        fit_height(ax, values)


def _places(summary: Values) -> tuple[dict[str, float], list[str]]:
    """Return where each budget stands on the axis, by the logarithm of its work, and what is written there."""
    client = _mean(summary["common"]["client_multiply_adds"])
    ours = {row["budget"]: row for row in summary["rows"] if row["method"] == "two-ways"}
    ours |= {row["budget"]: row for row in summary["rows"] if row["budget"] not in ours}
    work = {budget: _mean(row["multiply_adds"]) or 0.0 for budget, row in ours.items()}
    least = min((value for value in work.values() if value >= 1000), default=1000.0)
    # Where there is next to no work a logarithm is far off: one step to the left of the least.
    places = {budget: float(np.log10(max(value, least / 4))) for budget, value in work.items()}
    labels = []
    for budget, row in ours.items():
        micro = _mean(row["microseconds"])
        share = f"{round(work[budget] / client, 2):.2g}x" if client else budget
        size = f"{work[budget] / 1000:,.0f}k" if work[budget] >= 1000 else f"{work[budget]:.0f}"
        labels.append("\n".join([share, size, "" if micro is None else f"{micro:.0f} us"]))
    return places, labels


def _lowest(summary: Values, key: str) -> float:
    return min((row[key]["mean"] for row in summary["rows"] if row[key] is not None), default=float("nan"))


def _mean(value: Values | None) -> Any:
    return None if value is None else value["mean"]


def _sent(value: Values | None) -> str:
    return NONE if value is None else f"{value['mean']:.0%}"
