"""A search over settings: its table, its plots and its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from l2h.experiments.overrides import parse_value, value_text
from l2h.files import PLOTS
from l2h.report.common.axes import fit_height, floats, grid_lines, percent_axis, titled
from l2h.report.common.colours import CLIENT, FAINT, INK, MUTED, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, legend_line, plain
from l2h.report.common.inline import WIDE, show_plots
from l2h.report.common.page import flat, write_html
from l2h.report.common.table import Cell, Column, TextTable, headings, texts
from l2h.report.common.text import NONE, counted

Values = Mapping[str, Any]  # what ``tuning.json`` holds
_SETTLED = 12.0  # the share of a training in percent from which its risks are shown in full
_LOOKS: dict[str, dict[str, Any]] = {
    "best": {"color": SYSTEM, "linewidth": 2.4, "zorder": 3},
    "as given": {"color": CLIENT, "linewidth": 1.8, "zorder": 2},
    "finished": {"color": SERVER, "linewidth": 1.0},
    "stopped": {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (3, 2))},
}


def write_tuning(summary: Values, folder: Path) -> Path:
    """Write the page ``report.html`` and its plots as PNG files, and return the page's path."""
    plots: dict[str, Callable[[], Figure | None]] = {
        "curves": partial(plot_curves, summary),
        "settings": partial(plot_settings, summary),
    }
    return write_html(
        folder / "report.html",
        "tuning.html.j2",
        title=f"{summary['dataset']}: {counted(len(summary['trials']), 'trial')} of settings",
        summary=summary,
        headline=tuning_headline(summary),
        trials=tuning_table(summary),
        plots=show_plots(plots, folder / PLOTS, WIDE),
        failed=[f"trial {one['number']}: {one['why']}" for one in summary["trials"] if one["state"] == "failed"],
        settings=list(flat(summary["settings"])),
    )


def tuning_headline(summary: Values) -> list[str]:
    """Return what was found, in sentences."""
    best, given = _trial(summary, summary["best"]), _trial(summary, 0)
    states = [one["state"] for one in summary["trials"]]
    words = {"finished": "finished", "stopped": "stopped early", "failed": "failed"}
    ends = ", ".join(f"{states.count(state)} {word}" for state, word in words.items() if state in states)
    said = f"{counted(len(states), 'trial')}: {ends}."
    if len(states) == 1:
        return [f"The settings as given have a validation risk of {best['risk']:.4f}; no others were tried yet."]
    never = f"Never asking has a validation risk of {best['never']:.4f}: with none of these does asking pay."
    vain = [never] if best["never"] <= best["risk"] else []
    if best["number"] == 0:
        first = f"Nothing that was tried has a lower risk than the settings as given ({best['risk']:.4f})."
        return [first, *vain, said]
    named = ", ".join(f"`{name}={value_text(value)}`" for name, value in best["values"].items())
    before = f"; as given {given['risk']:.4f}" if given["state"] == "finished" else ""
    first = f"The lowest validation risk is {best['risk']:.4f}, of trial {best['number']}{before}."
    chosen = (
        "The lowest of many risks is partly luck: train with these settings, and measure them on the test part, once."
    )
    return [first, f"Its settings: {named}.", *vain, said, chosen]


def tuning_table(summary: Values) -> TextTable:
    """Return one row per trial, by its risk: those that finished, then the others."""
    names = _names(summary)
    columns = [*headings("trial"), Column("risk"), *(Column(name) for name in names)]
    columns += [Column(name) for name in ("asked", "accuracy", "trained", "seconds")]
    order = {"finished": 0, "stopped": 1, "failed": 2}
    rows = []
    for one in sorted(summary["trials"], key=lambda one: (order[one["state"]], one.get("risk", 0.0))):
        values = [value_text(one["values"][name]) if name in one["values"] else "as given" for name in names]
        done = one["curve"][-1][0] if one["curve"] else 0.0
        risk = f"{one['risk']:.4f}" if "risk" in one else NONE
        best = one["number"] == summary["best"]
        figures = [f"{one[key]:.1%}" if key in one else NONE for key in ("asked", "accuracy")]
        state = {"finished": "100%", "stopped": f"{done:.0f}%"}.get(one["state"], "failed")
        cells: list[str | Cell] = [str(one["number"]), Cell(risk, bold=best), *values, *figures, state]
        rows.append(texts(*cells, f"{one['seconds']:.0f}", kind="best" if best else ""))
    prices = f", means over {len(summary['prices'])} prices" if len(summary["prices"]) > 1 else ""
    note = f"{summary['dataset']}, {summary['samples']:,} validation samples{prices}."
    if any(one["state"] == "stopped" for one in summary["trials"]):
        note += " A trial that was stopped has the risk of the moment when it was stopped."
    return TextTable("Trials by validation risk", columns, rows, note, "the lowest")


def plot_curves(summary: Values) -> Figure:
    """Draw the validation risk of every trial against the share of its training."""
    figure, (ax,) = blank(9.6, 4.6)
    for one in reversed(summary["trials"]):
        if one["curve"]:
            share, risk = zip(*one["curve"], strict=True)
            label = _said(one)
            ax.plot(floats([part / 100 for part in share]), floats(risk), label=label, **_LOOKS[_kind(summary, one)])
    # The first epochs have risks far above all others: they may run out of the panel.
    fit_height(
        ax,
        [
            risk
            for one in summary["trials"]
            for share, risk in one["curve"]
            if share >= _SETTLED or share == one["curve"][-1][0]
        ],
    )
    percent_axis(ax.xaxis)
    grid_lines(ax, "y")
    titled(ax, "Validation risk while trials train", "share of the training")
    used = [kind for kind in _LOOKS if any(_kind(summary, one) == kind for one in summary["trials"] if one["curve"])]
    legend_below(figure, [legend_line(**_LOOKS[kind]) for kind in used], used, columns=4)
    return figure


def plot_settings(summary: Values) -> Figure | None:
    """Draw the risk of the trials that finished against each setting."""
    names = _names(summary)
    whole = [one for one in summary["trials"] if one["state"] == "finished"]
    if not any(one["values"] for one in whole):
        return None
    columns = 2 if len(names) == 4 else min(3, len(names))
    rows = -(-len(names) // columns)
    figure, axes = blank(WIDE, 3.4 * rows, rows, columns, used=len(names))
    for ax, name in zip(axes, names, strict=True):
        _against(ax, summary, name, [one for one in whole if name in one["values"]])
    return figure


def _against(ax: Axes, summary: Values, name: str, trials: list[Values]) -> None:
    values = [one["values"][name] for one in trials]
    span = next(text for text in summary["tried"] if text.startswith(f"{name}=")).partition("=")[2]
    numbers, known = ".." in span, span.split(",")
    x = values if numbers else [known.index(value_text(value)) for value in values]
    for place, one in zip(x, trials, strict=True):
        look = {"color": SYSTEM, "zorder": 3} if one["number"] == summary["best"] else {"color": SERVER}
        ax.plot([place], [one["risk"]], marker="o", markersize=6, linestyle="none", label=_said(one), **look)
    given = _trial(summary, 0)
    if given["state"] == "finished":
        ax.axhline(given["risk"], color=CLIENT, linewidth=1.2, linestyle="--", label="_as given")
    if not numbers:
        ax.set_xticks(range(len(known)), [plain(text) for text in known])
        ax.set_xlim(-0.5, len(known) - 0.5)
    else:
        low, high = (parse_value(text) for text in span.split(".."))
        if name in summary["by_logarithm"]:
            ax.set_xscale("log")
            ax.set_xlim(low * (low / high) ** 0.05, high * (high / low) ** 0.05)
        else:
            ax.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=isinstance(low, int) and isinstance(high, int)))
    grid_lines(ax, "y")
    ax.tick_params(axis="x", which="minor", color=FAINT, labelcolor=INK, labelsize=8)
    titled(ax, plain(name, 40), "")


def _kind(summary: Values, one: Values) -> str:
    if one["number"] == summary["best"]:
        return "best"
    if one["number"] == 0:
        return "as given"
    return "finished" if one["state"] == "finished" else "stopped"


def _said(one: Values) -> str:
    values = ", ".join(f"{name}={value_text(value)}" for name, value in one["values"].items())
    return plain(f"trial {one['number']}: {values or 'as given'}", 90)


def _names(summary: Values) -> list[str]:
    return [text.partition("=")[0] for text in summary["tried"]]


def _trial(summary: Values, number: int) -> Values:
    return next(one for one in summary["trials"] if one["number"] == number)
