"""Plots inside a page: drawings that follow its colours and its width, and the values that a pointer finds."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from l2h.files import write_atomically
from l2h.report.common.colours import TEXT_VARIABLES, VARIABLES
from l2h.report.common.figure import NARROW, any_script, png, room_of, settle

REGULAR, WIDE = 7.6, 10.1  # inches that a page has for a plot, and for one over its whole width
_POINTS = 120  # of a curve that a pointer can find
_PIXELS = 96 / 72  # of a page, per point of a drawing
_REFERENCE = re.compile(r"(?:^|\burl\()#([\w-]+)")
_COLOUR = re.compile(r"\b(fill|stroke|stop-color): (#[0-9a-f]{6})\b")


@dataclass(frozen=True)
class InlinePlot:
    """A plot twice, as wide as the page and for a telephone; ``hover`` are its values as JSON."""

    drawings: Markup
    hover: str


def show_plots(
    plots: Mapping[str, Callable[[], Figure | None]], pictures: Path | None, width: float = REGULAR
) -> dict[str, InlinePlot]:
    """Draw plots for a page, without those that have nothing to show.

    Args:
        plots: what draws each; it is called once for every width.
        pictures: a folder for the plots as PNG files, ``NAME.png``; ``None`` for none.
        width: what the page has for each, in inches.
    """
    shown = {}
    for name, plot in plots.items():
        figure = plot()
        if figure is None:
            continue
        if pictures is not None:
            write_atomically(pictures / f"{name}.png", png(figure))
        shown[name] = inline(figure, plot, width)
    return shown


def inline(figure: Figure, plot: Callable[[], Figure | None], width: float = REGULAR) -> InlinePlot:
    """Return a plot for a page; ``figure`` is what ``plot`` has drawn already, at any width."""
    figures = []
    for room in (width, NARROW):
        drawn: Figure | None = figure
        if figure.get_figwidth() > room:
            with room_of(room):
                drawn = plot()
        assert drawn is not None
        figures.append(drawn)
    wide, narrow = (_svg(one) for one in figures)
    # The wide drawing is shown where its text has its full size.
    least = round(_PIXELS * 72 * figures[0].get_figwidth()) - 4
    key = hashlib.sha256(wide.encode()).hexdigest()[:8]
    rule = f"@container (max-width: {least}px) {{ #w{key} {{ display: none; }} #n{key} {{ display: block; }} }}"
    drawings = [
        f'<svg id="{kind}{key}" class="{name}"{drawing}'
        for kind, name, drawing in (("w", "wide", wide), ("n", "narrow", narrow))
    ]
    drawings[0] = drawings[0].replace(">", f"><style>{rule}</style>", 1)
    return InlinePlot(Markup("".join(drawings)), _hover(figures))


@any_script()
def _svg(figure: Figure) -> str:
    """Return the figure as SVG for the inside of a page, from the attributes of its first tag on."""
    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "l2h", "path.simplify_threshold": 0.4}):
        settle(figure).savefig(buffer, format="svg", facecolor="white", metadata={"Date": None})
    key = hashlib.sha256(buffer.getvalue()).hexdigest()[:6]
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("metadata", "style")):
                parent.remove(child)
    used = {name for one in root.iter() for value in one.attrib.values() for name in _REFERENCE.findall(value)}
    for one in root.iter():
        one.tag = one.tag.rpartition("}")[2]
        one.attrib = dict(_attributes(one, used, key))
        one.tail = None
        one.text = one.text if one.tag in ("text", "tspan") else None
    box = root.attrib["viewBox"]
    root.attrib = {"viewBox": box, "style": f"max-width: {1.2 * _PIXELS * float(box.split()[2]):.0f}px"}
    return ElementTree.tostring(root, encoding="unicode").removeprefix("<svg")


def _attributes(one: ElementTree.Element, used: set[str], key: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes: colours as variables, names of this drawing alone, no name that nothing refers to."""
    for long_name, value in one.attrib.items():
        name = long_name.rpartition("}")[2]
        if name == "id":
            if value in used:
                yield name, key + value
        elif name == "style":
            yield name, _style(value, text=one.tag in ("text", "tspan"))
        else:
            yield name, _REFERENCE.sub(lambda found: found[0].replace("#", f"#{key}"), value)


def _style(style: str, *, text: bool) -> str:
    names = {colour.lower(): name for colour, name in (TEXT_VARIABLES if text else VARIABLES).items()}

    def variable(found: re.Match[str]) -> str:
        name = names.get(found[2], "ink" if text else "")
        return f"{found[1]}: var(--{name})" if name else found[0]

    return _COLOUR.sub(variable, re.sub(r"font-family: [^;]*(; )?", "", style))


def _hover(figures: list[Figure]) -> str:
    """Return what a pointer finds in a plot: the values of its axes, and where those stand in each of its drawings."""
    values: list[dict[str, Any]] = []
    drawings: list[list[tuple[int, Any]]] = []
    for figure in figures:
        drawings.append([])
        for ax in figure.axes:
            found = {
                "x": _numbers(ax.get_xlim()),
                "y": _numbers(ax.get_ylim()),
                "names": [_said(label).split(" (")[0] for label in (ax.get_xlabel(), ax.get_ylabel())],
                "percent": [_in_percent(ax.xaxis), _in_percent(ax.yaxis)],
                "curves": list(_curves(ax)),
                "bars": [*_bars(ax), *_cells(ax)],
            }
            if found["curves"] or found["bars"]:
                values += [] if found in values else [found]
                drawings[-1].append((values.index(found), _box(ax)))
    return json.dumps({"axes": values, "drawings": drawings}, separators=(",", ":"), ensure_ascii=False)


def _curves(ax: Axes) -> Iterator[tuple[str, list[float | None], list[float | None]]]:
    """Yield name and points of every curve with a name; of a long curve some, in equal steps."""
    for line in ax.lines:
        name = str(line.get_label())
        if not name.startswith("_"):
            points = np.asarray(line.get_xydata(), dtype=np.float64)
            some = np.unique(np.linspace(0, len(points) - 1, _POINTS).round().astype(int))
            x, y = points[some].T
            yield _said(name), _numbers(x), _numbers(y)


def _bars(ax: Axes) -> Iterator[tuple[Any, ...]]:
    """Yield the corners of every bar, its name and its value."""
    for bars in ax.containers:
        if not isinstance(bars, BarContainer):
            continue
        lying = bars.orientation == "horizontal"
        along, across = (ax.xaxis, ax.yaxis) if lying else (ax.yaxis, ax.xaxis)
        series = "" if str(bars.get_label()).startswith("_") else _said(str(bars.get_label()))
        for bar, value in zip(bars.patches, np.asarray(bars.datavalues, dtype=np.float64), strict=True):
            middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            (x0, y0), (x1, y1) = bar.get_bbox().get_points()
            yield (
                *_numbers((x0, y0, x1, y1)),
                _name_at(across, middle),
                f"{series}: " * bool(series) + _text(value, along),
            )


def _cells(ax: Axes) -> Iterator[tuple[Any, ...]]:
    """Yield the corners of every cell of a square matrix, the names of its row and column, and its value."""
    for image in ax.images:
        values: Any = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
        if values.ndim != 2:
            continue
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                name = f"{_name_at(ax.yaxis, i)} minus {_name_at(ax.yaxis, j)}"
                yield *_numbers((j - 0.5, i - 0.5, j + 0.5, i + 0.5)), name, f"{value:+.4f}"


def _name_at(axis: Any, place: float) -> str:
    """Return what is written on an axis next to a place, or the place itself where numbers are written there."""
    if not isinstance(axis.get_major_formatter(), FuncFormatter):
        return _said(f"{axis.label.get_text()} {_text(place, axis)}")
    ticks = axis.get_majorticklocs()
    nearest = int(np.argmin(np.abs(ticks - place)))
    return _said(axis.get_major_formatter()(ticks[nearest], nearest))


def _text(value: float, axis: Any) -> str:
    return f"{value:.1%}" if _in_percent(axis) else f"{value:.4g}"


def _said(name: str) -> str:
    return " ".join(name.replace(r"\$", "$").split())


def _in_percent(axis: Any) -> bool:
    return isinstance(axis.get_major_formatter(), PercentFormatter)


def _box(ax: Any) -> list[float | None]:
    """Return left, top, right and bottom of the axes in a drawing, in points from its upper left corner."""
    width, height = 72 * ax.get_figure(root=True).get_size_inches()
    box = ax.get_position()
    return _numbers((width * box.x0, height * (1 - box.y1), width * box.x1, height * (1 - box.y0)))


def _numbers(values: Any) -> list[float | None]:
    """Return numbers with five digits for JSON; ``None`` for what is not finite."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
