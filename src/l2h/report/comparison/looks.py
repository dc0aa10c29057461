"""How each method is drawn in every plot of a comparison, and the legend that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from l2h.report.common.figure import CONFIDENCE, INK, MUTED, SERVER, SYSTEM, Figure, Line2D, legend_below, plain
from l2h.report.comparison.model import MethodRow, groups

NAME = 22  # letters of a method's name that are drawn
# One colour a group, told apart within it by dash and marker, so that nothing hangs on a shade.
_COLOURS = {"ours": SYSTEM, "learned": SERVER, "confidence": CONFIDENCE, "trivial": MUTED, "reference": INK}
_HEADINGS = {
    "ours": "ours",
    "learned": "other learned",
    "confidence": "confidence",
    "trivial": "trivial",
    "reference": "what no device knows",
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


@dataclass(frozen=True)
class Look:
    """How a method is drawn, the same in every plot."""

    colour: str
    dash: Any
    marker: str
    width: float
    size: float
    order: float

    def line(self, **more: Any) -> dict[str, Any]:
        """Keywords of ``Axes.plot``."""
        look = {"color": self.colour, "linestyle": self.dash, "linewidth": self.width, "marker": self.marker}
        return look | {"markersize": self.size, "zorder": self.order, "markeredgewidth": 0.9} | more


def method_looks(rows: Sequence[MethodRow]) -> dict[str, Look]:
    """A look for each method: the default bold, colours by group, references thin and dotted."""
    looks = {}
    for group, members in groups(rows).items():
        # By name, so that a method keeps its look when its risk changes; the default has the plain line and circle.
        ordered = sorted(members, key=lambda row: (not row.default, row.name))
        for k, row in enumerate(ordered):
            dash = (0, (1, 1.3 + 1.2 * (k % 3))) if row.beyond else _DASHES[k % len(_DASHES)]
            looks[row.name] = Look(
                colour=_COLOURS[group],
                dash=dash,
                marker=_MARKERS[k % len(_MARKERS)],
                width=3.0 if row.default else 1.0 if row.beyond else 1.15,
                size=6.0 if row.default else 3.0 if row.beyond else 4.2,
                order=5.0 if row.default else 3.0 if group == "ours" else 2.5,
            )
    return looks


def marker_places(look: Look) -> tuple[int, int]:
    """First marker and step on a frontier of 201 points: those of two methods seldom fall on one place."""
    return 5 + 3 * (_MARKERS.index(look.marker) % 8), 32


def legend_height(rows: Sequence[MethodRow]) -> float:
    """Inches that the legend takes."""
    return 0.5 + 0.21 * max(sum(1 + len(members) for _, members in column) for column in _columns(rows))


def group_legend(figure: Figure, rows: Sequence[MethodRow], looks: dict[str, Look]) -> None:
    """All methods under the axes, a column for each group."""
    columns = _columns(rows)
    longest = max(sum(1 + len(members) for _, members in column) for column in columns)
    nothing = Line2D([], [], linestyle="none")
    handles: list[Any] = []
    labels: list[str] = []
    bold: list[int] = []
    for column in columns:
        start = len(labels)
        for group, members in column:
            bold.append(len(labels))
            handles.append(nothing)
            labels.append(_HEADINGS[group])
            for row in members:
                if row.default:
                    bold.append(len(labels))
                handles.append(Line2D([], [], **looks[row.name].line()))
                name = plain(row.name, NAME)
                # Matplotlib leaves out a label that begins with an underscore.
                labels.append(f" {name}" if name.startswith("_") else name)
        padding = longest - (len(labels) - start)
        handles += [nothing] * padding
        labels += [""] * padding
    legend_below(figure, handles, labels, columns=len(columns))
    (legend,) = figure.legends
    for i in bold:
        legend.get_texts()[i].set_fontweight("bold")


def _columns(rows: Sequence[MethodRow]) -> list[list[tuple[str, list[MethodRow]]]]:
    """The groups in columns of the legend: the small ones that everybody knows share one."""
    found = groups(rows)
    shared = [["ours"], ["learned"], ["confidence"], ["trivial", "reference"]]
    columns = [[(name, found[name]) for name in column if name in found] for column in shared]
    return [column for column in columns if column]
