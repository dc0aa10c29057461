"""Loss curves of the training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from l2h.report.common.axes import grid_lines, titled
from l2h.report.common.colours import CLIENT, CONFIDENCE, INK, LABEL_FREE, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, plain

_PANELS = 6
_LOOKS = (
    ("train_loss", "training", {"color": INK, "linestyle": "-", "marker": "o"}),
    ("held_out_loss", "held out", {"color": CLIENT, "linestyle": (0, (4, 2)), "marker": "s"}),
)

Rows = Sequence[Mapping[str, Any]]


def plot_history(rows: Rows) -> Figure | None:
    """Training and held-out loss against the epoch, a panel for each stage.

    Args:
        rows: mappings with ``stage``, ``epoch``, ``train_loss`` and ``held_out_loss``, numbers or what a CSV
            file holds for them; an empty loss is left out. Stages that differ by a number alone, such as the
            folds of a cross-fitting, share a panel, and so do others where there would be more than six.

    Returns:
        The figure, or ``None`` where there are no losses to draw.
    """
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if any(_number(row.get(key)) is not None for key, _, _ in _LOOKS):
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


def group_stages(stages: Sequence[str]) -> dict[str, list[str]]:
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
    # A panel of one stage bears that stage's own name.
    return {members[0] if len(members) == 1 else name: members for name, members in panels.items()}


def _stem(stage: str) -> str:
    return re.sub(r"[\s_:/-]*(fold|seed|round|part)?[\s_:/#-]*\d+\s*$", "", stage) or stage


def _first_word(stage: str) -> str:
    return re.split(r"[\s_:/-]", stage.strip(), maxsplit=1)[0] or stage


def _panel(ax: Axes, curves: list[list[Mapping[str, Any]]], shown: dict[str, Any]) -> None:
    alone = len(curves) == 1
    for rows in curves:
        for key, name, look in _LOOKS:
            points = [(_number(row.get("epoch")), _number(row.get(key))) for row in rows]
            kept = [(x, y) for x, y in points if x is not None and y is not None]
            if not kept:
                continue
            x, y = np.array(kept, dtype=np.float64).T
            size = 0 if len(x) > 25 else 3.5 if alone or len(x) == 1 else 2.0
            (line,) = ax.plot(
                x, y, **look, markersize=size, linewidth=1.7 if alone else 1.0, alpha=1.0 if alone else 0.65
            )
            shown.setdefault(name, line)
    grid_lines(ax, "y")
    ax.locator_params(axis="x", nbins=6, integer=True)


def _number(value: Any) -> float | None:
    if value is None or value == "":
        return None
    number = float(value)
    return number if np.isfinite(number) else None


def plot_sync(rows: Rows, syncs: Sequence[int | str]) -> Figure:
    """The rejectors' training loss against the epoch, a curve for each link over which the server reaches them.

    Args:
        rows: of the history, with the columns ``rejector_loss_0``, ``rejector_loss_1``, ...
        syncs: the links of the rejectors, in that order; rejectors of one link, at several prices, are averaged.
    """
    rows = [row for row in rows if _number(row.get("rejector_loss_0")) is not None]
    figure, (ax,) = blank(6.6, 4.2)
    links = list(dict.fromkeys(str(sync) for sync in syncs))
    colours = (INK, CLIENT, SERVER, SYSTEM, CONFIDENCE, LABEL_FREE)
    epochs = [int(row["epoch"]) for row in rows]
    for i, link in enumerate(links):
        columns = [f"rejector_loss_{k}" for k, sync in enumerate(syncs) if str(sync) == link]
        losses = [np.mean([_number(row[column]) or 0.0 for column in columns]) for row in rows]
        ax.plot(epochs, losses, color=colours[i % len(colours)], label=_link(link), linewidth=1.6)
    titled(ax, "Rejector loss for different links", "epoch", "mean training loss")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, *ax.get_legend_handles_labels(), columns=min(len(links), 4))
    return figure


def _link(sync: str) -> str:
    return f"S = {sync}" if sync.isdigit() or sync == "epoch" else plain(sync, 32)
