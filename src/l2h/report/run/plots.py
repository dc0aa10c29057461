"""Plots of a report and of a training. Each function returns a ``Figure`` that pyplot does not know."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from l2h.costs import Costs
from l2h.metrics import OutcomeReport, Report, reject_rate_per_class
from l2h.report.common.axes import Floats, floats, grid_lines, percent_axis, remark, titled, value_at_right
from l2h.report.common.colours import (
    CLIENT,
    CONFIDENCE,
    FAINT,
    INK,
    LABEL_FREE,
    MUTED,
    RIVAL,
    SERVER,
    SYSTEM,
    answerer_colours,
)
from l2h.report.common.figure import blank, fits, folded, legend_below, plain
from l2h.report.common.text import MISSING, number, percent
from l2h.report.run.tables import answered_groups, risk_rows, sides

Rows = Sequence[Mapping[str, Any]]

_CURVES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("oracle", "oracle", {"color": INK, "linestyle": (0, (1, 1.2)), "linewidth": 1.4}),
    ("label_free", "label-free bound", {"color": LABEL_FREE, "linestyle": (0, (5, 1.5)), "linewidth": 1.6}),
    ("confidence", "confidence", {"color": CONFIDENCE, "linestyle": (0, (6, 1.5, 1.5, 1.5)), "linewidth": 1.6}),
    ("random", "random", {"color": MUTED, "linewidth": 1.0}),
    ("system", "this system", {"color": SYSTEM, "linewidth": 2.4}),
)
_RIVALS = ("confidence", "random", "label_free", "oracle")
#: Where an answerer stands in the frontier; every server but by its colour alike.
_MARKERS = {"client": ("o", 0.0), "student": ("^", 0.0)}
_FEW = 20  # a bin of fewer samples says little
_COLUMN = 34  # classes in one column of the plot per class
_MANY = 4 * _COLUMN  # of more classes only the first and the last column are shown
_PANELS = 6  # stages side by side in the history
_LOOKS = (
    ("train_loss", "training", {"color": INK, "linestyle": "-", "marker": "o"}),
    ("held_out_loss", "held out", {"color": CLIENT, "linestyle": (0, (4, 2)), "marker": "s"}),
)


def plot_frontier(report: OutcomeReport) -> Figure:
    """Draw joint accuracy against reject rate for every ranking, with the gains and the operating point."""
    figure, (ax,) = blank(6.6, 5.4)
    entries: dict[str, tuple[Any, str]] = {}
    for key, name, look in _CURVES:
        if key not in report.frontiers:
            continue
        curve = report.frontiers[key]
        (line,) = ax.plot(curve.rate, curve.accuracy, **look, label=name)
        entries[key] = line, f"{name}, gain {number(report.gains[key], '.3f')}"
    for (who, colour), figures in zip(
        answerer_colours(report.answerers).items(), report.choice.figures().values(), strict=True
    ):
        marker, x = _MARKERS.get(who, ("s", 1.0))
        height = figures.accuracy
        (line,) = ax.plot(
            [x], [height], marker, color=colour, markersize=7, clip_on=False, zorder=4, label=f"{plain(who)} alone"
        )
        entries[who] = line, f"{plain(who)} alone, {percent(height)} right"
    rate, accuracy = report.reject_rate, report.accuracy["system"]
    look = {"color": SYSTEM, "markersize": 9, "markeredgecolor": INK, "linestyle": "none"}
    (line,) = ax.plot([rate], [accuracy], "D", **look, clip_on=False, zorder=5, label="operating point")
    entries["point"] = line, f"operating point, {percent(accuracy)} right, {percent(rate)} sent"
    ax.set_xlim(-0.015, 1.015)
    grid_lines(ax)
    percent_axis(ax.xaxis, ax.yaxis)
    titled(ax, "Accuracy gained by asking", "reject rate (share of inputs sent)", "joint accuracy")
    # This system first, where the eye looks first.
    order = ("system", "point", *answerer_colours(report.answerers), *_RIVALS)
    handles, labels = zip(*(entries[key] for key in order if key in entries), strict=True)
    legend_below(figure, handles, labels)
    return figure


def plot_contrastive(report: OutcomeReport) -> Figure:
    """Draw every answerer's accuracy on the inputs that each of them answers, and on all."""
    if len(report.answerers) > 2:
        groups = answered_groups(report)
        what = "Accuracy on the inputs that each answers"
    else:
        groups = {name: (side.ratio, [side.client, side.server]) for name, side in sides(report).items()}
        what = "Accuracy on the inputs kept and sent"
    count, places = len(report.answerers), np.arange(len(groups))
    width, inches = 0.8 / count, 6.6 if count == 2 else 2.0 + 0.42 * count * len(groups)
    lying = not fits(inches)
    figure, (ax,) = blank(inches, 1.4 + 0.24 * (count + 0.5) * len(groups) if lying else 4.2)
    for j, (who, colour) in enumerate(answerer_colours(report.answerers).items()):
        values = [right[j] for _, right in groups.values()]
        across = places + width * (j - (count - 1) / 2)
        draw = ax.barh if lying else ax.bar
        draw(across, [v or 0.0 for v in values], 0.95 * width, color=colour, label=plain(who))
        for place, value in zip(across, values, strict=True):
            text = percent(value) if count == 2 else MISSING if value is None else f"{100 * value:.0f}"
            end, beside = (float(place), value or 0.0), (0, 3)
            look: dict[str, Any] = {"ha": "center", "va": "bottom"}
            if lying:
                end, beside, look = end[::-1], beside[::-1], {"ha": "left", "va": "center"}
            look["color"] = MUTED if value is None else INK
            ax.annotate(text, end, beside, textcoords="offset points", fontsize=10, **look)
    of = " of the inputs" if count == 2 and not lying else ""
    names = [f"{folded(plain(name), 12)}\n{percent(share)}{of}" for name, (share, _) in groups.items()]
    along, other = (ax.xaxis, ax.yaxis) if lying else (ax.yaxis, ax.xaxis)
    other.set_ticks(places, names)
    other.set_tick_params(length=0)
    along.set_ticks(np.linspace(0, 1, 3 if lying else 6))
    percent_axis(along)
    if lying:
        ax.set(xlim=(0, 1.2), ylim=(len(groups) - 0.5, -0.5))
    else:
        ax.set_ylim(0, 1.08)
    labels = ("accuracy", "") if lying else ("", "accuracy")
    titled(ax, f"{what} (joint: {percent(report.contrastive.joint)})", *labels)
    legend_below(figure, *ax.get_legend_handles_labels(), columns=max(2, min(count, 4)))
    return figure


def plot_risk(report: OutcomeReport) -> Figure:
    """Draw the risk of the system, of every rule that it must beat, and of the system changed; lower is better."""
    rows = [(row, row.risk) for row in risk_rows(report) if row.risk is not None]
    figure, (ax,) = blank(6.6, 0.44 * len(rows) + 1.2)
    look = {"system": SYSTEM, "oracle": FAINT, "beside": LABEL_FREE}
    top = max(risk for _, risk in rows) or 1.0
    fill = [look.get(row.kind, RIVAL) for row, _ in rows]
    ax.barh(range(len(rows)), [risk for _, risk in rows], height=0.68, color=fill)
    ax.axvline(report.risk.system, color=SYSTEM, linewidth=1, linestyle=(0, (4, 3)))
    for i, (row, risk) in enumerate(rows):
        # The white box keeps the line of the system's risk from crossing the value.
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        weight = "bold" if row.kind == "system" else "normal"
        ax.text(risk + 0.012 * top, i, number(risk), va="center", bbox=box, fontsize=10, color=INK, fontweight=weight)
    ax.set_yticks(range(len(rows)), [folded(plain(row.name, 48), 18) for row, _ in rows])
    ax.get_yticklabels()[0].set_fontweight("bold")
    ax.invert_yaxis()
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1.14 * top)
    prices = f" at {report.costs}" if isinstance(report.costs, Costs) else ""
    titled(ax, f"Risk{prices}: lower is better", "generalized 0-1 risk (mean cost per input)")
    return figure


def plot_per_class(report: Report) -> Figure:
    """Draw the reject rate of each class, highest first; of more than 136 classes, the highest and the lowest."""
    rates = report.per_class
    order = sorted(range(len(rates)), key=lambda k: -np.nan_to_num(rates[k], nan=-1.0))
    if len(order) > _MANY:
        present = [k for k in order if not np.isnan(rates[k])]
        blocks = [present[:_COLUMN], present[-_COLUMN:]]
        notes = [f"{_COLUMN} of {len(order)} classes: those sent most often", "those sent least often"]
    else:
        columns = 1 if len(order) <= _COLUMN - 9 else -(-len(order) // _COLUMN)
        columns = next(few for few in range(columns, 0, -1) if few == 1 or fits(1.2 + 3.0 * few))
        blocks = [list(block) for block in np.array_split(np.array(order), columns)]
        notes = [f"{report.y.size:,} samples, {len(order)} classes"] + [""] * (columns - 1)
    longest = max(len(block) for block in blocks)
    width = 6.6 if len(blocks) == 1 else 1.2 + 3.0 * len(blocks)
    size = 10.0 if len(blocks) == 1 and longest <= 12 else 8.5
    row_height = 0.3 if size == 10.0 else 0.2
    figure, axes = blank(width, max(2.2, row_height * longest + 1.4), 1, len(blocks))
    for ax, block, note in zip(axes, blocks, notes, strict=True):
        _class_bars(ax, report, block, longest, size)
        remark(ax, note, loc="left", fontsize=9.5, pad=None)
    figure.suptitle("Reject rate per class", x=0.01, ha="left", fontsize=11.5, fontweight="bold", color=INK)
    handles: list[Any] = [axes[0].lines[0]]
    names = [f"overall, {percent(report.reject_rate)}"]
    if len(report.answerers) > 2:
        handles += axes[0].containers
        names += [f"by {plain(name)}" for name in _class_shares(report)]
    legend_below(figure, handles, names, columns=min(len(handles), 4))
    return figure


def plot_reliability(report: OutcomeReport) -> Figure | None:
    """Draw stated against observed probability of being right; ``None`` for a rejector without heads."""
    if not report.heads:
        return None
    figure, (ax, counts) = blank(6.6, 6.0, 2, 1, sharex=True, height_ratios=(3.2, 1))
    ax.plot([0, 1], [0, 1], color=MUTED, linewidth=1, label="perfectly calibrated")
    symbols, width = {"client": "q_m", "server": "q_e"}, 0.036 / len(report.heads)
    for j, (name, curve) in enumerate(report.heads.items()):
        colour, marker = answerer_colours(report.answerers)[name], _MARKERS.get(name, ("s", 1.0))[0]
        shift = width * (j - (len(report.heads) - 1) / 2)
        symbol = f" ({symbols[name]})" if name in symbols and len(report.heads) == 2 else ""
        label = f"{plain(name)}{symbol}, ECE {report.ece[name]:.3f}"
        ax.plot(curve.stated, curve.observed, color=colour, linewidth=1.8, marker=marker, label=label)
        few = curve.count < _FEW
        ax.plot(curve.stated[few], curve.observed[few], marker, color=colour, markerfacecolor="white")
        counts.bar(curve.stated + shift, curve.count, width=width, color=colour, label=plain(name))
    percent_axis(ax.xaxis, ax.yaxis)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.04))
    grid_lines(ax)
    titled(ax, "Calibration of the heads", "", "observed share right")
    remark(ax, f"hollow: fewer than {_FEW} samples")
    titled(counts, "", "stated probability of being right", "samples")
    legend_below(figure, *ax.get_legend_handles_labels(), columns=3)
    figure.align_ylabels()
    return figure


def plot_history(rows: Rows) -> Figure | None:
    """Draw training and held-out loss against the epoch, one panel per stage; ``None`` where there are no losses.

    Rows are mappings with ``stage``, ``epoch``, ``train_loss`` and ``held_out_loss``, numbers or what a CSV file holds
    for them; an empty loss is left out. Stages that differ only by a number, such as the folds of a cross-fitting,
    share a panel, and so do others where there would be more than six.
    """
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if any(np.isfinite(_column([row], key)) for key, _, _ in _LOOKS):
            stages.setdefault(str(row["stage"]), []).append(row)
    if not stages:
        return None
    panels = _group_stages(list(stages))
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure, axes = blank(6.6, 2.6 * lines + 0.6, lines, columns, used=len(panels))
    shown: dict[str, Any] = {}
    for ax, (name, members) in zip(axes, panels.items(), strict=True):
        _panel(ax, [stages[stage] for stage in members], shown)
        count = f" ({len(members)} curves)" if len(members) > 1 else ""
        titled(ax, f"{plain(name, 28)}{count}", "epoch", "mean loss")
    legend_below(figure, list(shown.values()), list(shown))
    return figure


def plot_sync(rows: Rows, syncs: Sequence[int | str]) -> Figure:
    """Draw the rejectors' training loss against the epoch, one curve per link over which the server reaches them.

    Rows have the columns ``rejector_loss_0``, ``rejector_loss_1``, ...; ``syncs`` are the links of the rejectors in
    that order. Rejectors of one link, at several prices, are averaged.
    """
    rows = [row for row in rows if np.isfinite(_column([row], "rejector_loss_0"))]
    figure, (ax,) = blank(6.6, 4.2)
    links = list(dict.fromkeys(str(sync) for sync in syncs))
    colours = (INK, CLIENT, SERVER, SYSTEM, CONFIDENCE, LABEL_FREE)
    for i, link in enumerate(links):
        losses = [_column(rows, f"rejector_loss_{k}") for k, sync in enumerate(syncs) if str(sync) == link]
        label = f"S = {link}" if link.isdigit() or link == "epoch" else plain(link, 32)
        mean = np.mean(np.nan_to_num(losses), axis=0)
        ax.plot(_column(rows, "epoch"), mean, color=colours[i % len(colours)], label=label, linewidth=1.6)
    titled(ax, "Rejector loss for different links", "epoch", "mean training loss")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, *ax.get_legend_handles_labels(), columns=min(len(links), 4))
    return figure


def run_plots(report: OutcomeReport, history: Rows = ()) -> dict[str, Callable[[], Figure | None]]:
    """Return what draws each plot of a page, by name; one that has nothing to show gives ``None``."""
    plots: dict[str, Callable[[], Figure | None]] = {
        "frontier": partial(plot_frontier, report),
        "contrastive": partial(plot_contrastive, report),
        "risk": partial(plot_risk, report),
        "reliability": partial(plot_reliability, report),
        "history": partial(plot_history, history),
    }
    return plots | ({"per_class": partial(plot_per_class, report)} if isinstance(report, Report) else {})


def _class_shares(report: Report) -> dict[str, tuple[Floats, str]]:
    """Return the shares (K,) of the classes that each answerer answers, with its colour; the client has the rest.

    The servers come first, so that their bars together end at the reject rate. A single one has the system's colour.
    """
    if len(report.answerers) == 2:
        return {"server": (report.per_class, SYSTEM)}
    order = sorted(enumerate(report.answerers[1:], start=1), key=lambda pair: not pair[1].remote)
    numbers, looks = report.labels.encode(report.y), answerer_colours(report.answerers)
    return {
        one.name: (reject_rate_per_class(report.choice.chosen == j, numbers, len(report.labels)), looks[one.name])
        for j, one in order
    }


def _class_bars(ax: Axes, report: Report, block: list[int], rows: int, size: float) -> None:
    rates = [float(report.per_class[k]) for k in block]
    left = np.zeros(len(block))
    for name, (shares, colour) in _class_shares(report).items():
        width = np.nan_to_num(shares[block])
        ax.barh(np.arange(len(block)), width, left=left, height=0.72, color=colour, label=plain(name))
        left += width
    ax.axvline(report.reject_rate, color=INK, linewidth=1.1, linestyle=(0, (4, 2.5)), clip_on=False)
    for i, rate in enumerate(rates):
        text, colour = ("n/a", MUTED) if np.isnan(rate) else (f"{100 * rate:.0f}%", INK)
        value_at_right(ax, i, text, 30, fontsize=size, color=colour)
    ax.set_yticks(np.arange(len(block)), [plain(report.class_names[k]) for k in block])
    ax.tick_params(axis="y", length=0, labelsize=size)
    ax.tick_params(axis="x", labelsize=size)
    ax.set(xlim=(0, 1), ylim=(rows - 0.4, -0.6))
    ax.set_xticks(np.linspace(0, 1, 5) if rows <= 12 else [0, 0.5, 1])
    percent_axis(ax.xaxis)
    what = "share of the class sent" if len(report.answerers) == 2 else "share of the class, by who answers"
    ax.set_xlabel(what, fontsize=size, color=INK)


def _group_stages(stages: Sequence[str]) -> dict[str, list[str]]:
    """Which stages share a panel, by the panel's name; at most six panels."""
    panels: dict[str, list[str]] = {}
    for name in (_stem, _first_word):
        panels = {}
        for stage in stages:
            panels.setdefault(name(stage), []).append(stage)
        if len(panels) <= _PANELS:
            break
    if len(panels) > _PANELS:
        names = list(panels)
        rest = [stage for name in names[_PANELS - 1 :] for stage in panels[name]]
        panels = {name: panels[name] for name in names[: _PANELS - 1]} | {"other stages": rest}
    # A panel of one stage has the full name of that stage.
    return {members[0] if len(members) == 1 else name: members for name, members in panels.items()}


def _stem(stage: str) -> str:
    return re.sub(r"[\s_:/-]*(fold|seed|round|part)?[\s_:/#-]*\d+\s*$", "", stage) or stage


def _first_word(stage: str) -> str:
    return re.split(r"[\s_:/-]", stage.strip(), maxsplit=1)[0] or stage


def _panel(ax: Axes, curves: list[list[Mapping[str, Any]]], shown: dict[str, Any]) -> None:
    alone = len(curves) == 1
    width, alpha = (1.7, 1.0) if alone else (1.0, 0.65)
    for rows in curves:
        epoch = _column(rows, "epoch")
        for key, name, look in _LOOKS:
            loss = _column(rows, key)
            known = np.isfinite(epoch + loss)
            if known.any():
                size = 0 if known.sum() > 25 else 3.5 if alone or known.sum() == 1 else 2.0
                more = {
                    "markersize": size,
                    "linewidth": width,
                    "alpha": alpha,
                    "label": f"{plain(str(rows[0]['stage']))}, {name}",
                }
                (line,) = ax.plot(epoch[known], loss[known], **look | more)
                shown.setdefault(name, line)
    grid_lines(ax, "y")
    ax.locator_params(axis="x", nbins=6, integer=True)


def _column(rows: Rows, key: str) -> Floats:
    return floats([np.nan if row.get(key) in (None, "") else float(row[key]) for row in rows])
