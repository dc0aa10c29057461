"""The look of each method in every plot of a comparison, and the legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from l2h.report.common.colours import CONFIDENCE, INK, MUTED, SERVER, SYSTEM
from l2h.report.common.figure import legend_below, legend_line, plain
from l2h.report.comparison.model import MethodRow, groups

Look = dict[str, Any]  # keywords of ``Axes.plot``

NAME = 22  # letters of a method's name that are drawn
# One colour per group; its methods are told apart by dash and marker, not by shade.
_COLOURS = {"ours": SYSTEM, "learned": SERVER, "confidence": CONFIDENCE, "trivial": MUTED, "reference": INK}
_HEADINGS = {
    "ours": "ours",
    "learned": "other learned",
    "confidence": "confidence",
    "trivial": "trivial",
    "reference": "references",
}
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


def method_looks(rows: Sequence[MethodRow]) -> dict[str, Look]:
    """Return a look for each method: the default bold, colours by group, references thin and dotted."""
    looks = {}
    for group, members in groups(rows).items():
        # By name, so that a method keeps its look when its risk changes; the default has the plain line and circle.
        ordered = sorted(members, key=lambda row: (not row.default, row.name))
        for k, row in enumerate(ordered):
            looks[row.name] = {
                "color": _COLOURS[group],
                "linestyle": (0, (1, 1.3 + 1.2 * (k % 3))) if row.beyond else _DASHES[k % len(_DASHES)],
                "linewidth": 3.0 if row.default else 1.0 if row.beyond else 1.15,
                "marker": _MARKERS[k % len(_MARKERS)],
                "markersize": 6.0 if row.default else 3.0 if row.beyond else 4.2,
                "markeredgewidth": 0.9,
                "zorder": 5.0 if row.default else 3.0 if group == "ours" else 2.5,
            }
    return looks


def marker_places(look: Look) -> tuple[int, int]:
    """Return the first marker and the step on a frontier of 201 points; those of two methods seldom coincide."""
    return 5 + 3 * (_MARKERS.index(look["marker"]) % 8), 32


def legend_height(rows: Sequence[MethodRow]) -> float:
    """Return the height of the legend in inches."""
    return 0.5 + 0.21 * _longest(_columns(rows))


def group_legend(figure: Figure, rows: Sequence[MethodRow], looks: dict[str, Look]) -> None:
    """Draw the legend of all methods under the axes, one column per group."""
    columns = _columns(rows)
    longest = _longest(columns)
    entries: list[tuple[Any, str, bool]] = []  # line, label, whether it is bold
    for column in columns:
        start = len(entries)
        for group, members in column:
            entries.append((legend_line(), _HEADINGS[group], True))
            for row in members:
                name = plain(row.name, NAME)
                # Matplotlib leaves out a label that begins with an underscore.
                label = f" {name}" if name.startswith("_") else name
                entries.append((legend_line(**looks[row.name]), label, row.default))
        entries += [(legend_line(), "", False)] * (longest - (len(entries) - start))
    lines, labels, bold = zip(*entries, strict=True)
    legend_below(figure, lines, labels, columns=len(columns))
    for text, heavy in zip(figure.legends[0].get_texts(), bold, strict=True):
        text.set_fontweight("bold" if heavy else "normal")


def _longest(columns: list[list[tuple[str, list[MethodRow]]]]) -> int:
    return max(sum(1 + len(members) for _, members in column) for column in columns)


def _columns(rows: Sequence[MethodRow]) -> list[list[tuple[str, list[MethodRow]]]]:
    """The groups by column of the legend; the two smallest share one."""
    members = groups(rows)
    shared = [["ours"], ["learned"], ["confidence"], ["trivial", "reference"]]
    columns = [[(name, members[name]) for name in column if name in members] for column in shared]
    return [column for column in columns if column]
