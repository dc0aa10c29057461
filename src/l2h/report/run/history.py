"""Loss curves of a training."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from l2h.report.common.axes import Floats, floats, grid_lines, titled
from l2h.report.common.colours import CLIENT, CONFIDENCE, INK, LABEL_FREE, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, plain

_PANELS = 6
_LOOKS = (
    ("train_loss", "training", {"color": INK, "linestyle": "-", "marker": "o"}),
    ("held_out_loss", "held out", {"color": CLIENT, "linestyle": (0, (4, 2)), "marker": "s"}),
)

Rows = Sequence[Mapping[str, Any]]


def plot_history(rows: Rows) -> Figure | None:
    """Draw training and held-out loss against the epoch, one panel per stage.

    Args:
        rows: mappings with ``stage``, ``epoch``, ``train_loss`` and ``held_out_loss``, numbers or what a CSV
            file holds for them; an empty loss is left out. Stages that differ only by a number, such as the
            folds of a cross-fitting, share a panel, and so do others where there would be more than six.

    Returns:
        The figure, or ``None`` where there are no losses to draw.
    """
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if any(np.isfinite(_column([row], key)) for key, _, _ in _LOOKS):
            stages.setdefault(str(row["stage"]), []).append(row)
    if not stages:
        return None
    panels = group_stages(list(stages))
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

    Args:
        rows: of the history, with the columns ``rejector_loss_0``, ``rejector_loss_1``, ...
        syncs: the links of the rejectors, in that order; rejectors of one link, at several prices, are averaged.
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


def group_stages(stages: Sequence[str]) -> dict[str, list[str]]:
    """Return which stages share a panel, by the panel's name; at most six panels."""
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
                (line,) = ax.plot(epoch[known], loss[known], **look, markersize=size, linewidth=width, alpha=alpha)
                shown.setdefault(name, line)
    grid_lines(ax, "y")
    ax.locator_params(axis="x", nbins=6, integer=True)


def _column(rows: Rows, key: str) -> Floats:
    return floats([np.nan if row.get(key) in (None, "") else float(row[key]) for row in rows])
