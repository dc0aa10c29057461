"""Figures: a blank one, its legend, the room it has, and its PNG file."""

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from l2h.report.common.colours import INK, MUTED
from l2h.report.common.text import one_line

DPI = 150
NARROW = 3.6  # inches: the width of a telephone's screen
SMALL = 8.5  # points: no text is smaller; 11 pixels of a page
_LINE = 0.2  # inches of a line in a legend
_ROOM: ContextVar[float | None] = ContextVar("room", default=None)


@contextmanager
def room_of(inches: float) -> Iterator[None]:
    """Draw every figure within this at most so wide: its panels move below each other, long lines are wrapped."""
    token = _ROOM.set(inches)
    try:
        yield
    finally:
        _ROOM.reset(token)


def fits(width: float) -> bool:
    """Return whether there is room for a figure of this width in inches."""
    room = _ROOM.get()
    return room is None or width <= room


def is_narrow() -> bool:
    """Return whether figures are now drawn for a telephone."""
    return not fits(NARROW + 0.01)


def folded(text: str, letters: int) -> str:
    """Return the text, for a telephone in lines of at most so many letters."""
    return "\n".join(textwrap.wrap(text, letters)) if is_narrow() else text


def blank(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    *,
    used: int | None = None,
    together: Literal["rows", "columns"] = "rows",
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a white figure of this size in inches and its axes, row by row; pyplot does not know it.

    Where ``used`` is given, only so many axes are shown and returned; ``options`` are those of ``Figure.subplots``.
    Where there is less room, fewer panels stand side by side; ``together`` says which of them stay neighbours.
    """
    room = _ROOM.get() or width
    count, across = used or rows * columns, max(1, min(columns, int(columns * room / width)))
    places = [(i // columns, i % columns) for i in range(count)]
    if across < columns and together == "columns":
        places = [(j // across * rows + i, j % across) for i, j in places]
    elif across < columns:
        places = [(i // across, i % across) for i in range(count)]
    deep = rows if across == columns else 1 + max(i for i, _ in places)
    figure = canvas(min(width * across / columns, room) if room < width else width, height * deep / rows)
    figure.set_layout_engine("constrained", w_pad=0.09, h_pad=0.09)
    grid = figure.subplots(deep, across, squeeze=False, **options)
    for ax in grid.flat:
        # Two spines and small ticks, whatever style the session has set.
        ax.set_facecolor("white")
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(MUTED)
        ax.tick_params(labelsize=9.5, colors=INK, color=MUTED, length=3)
    axes = [grid[place] for place in places]
    for ax in set(grid.flat) - set(axes):
        ax.remove()
    return figure, axes


def canvas(width: float, height: float) -> Figure:
    """Return a white figure of this size in inches with nothing on it."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int = 2) -> None:
    """Draw a legend under the axes, where it hides no data; in as many columns, or in fewer that have room."""
    look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9.5, "labelcolor": INK}
    for across in range(columns, 0, -1):
        legend = figure.legend(handles, labels, ncols=across, **look)
        if _ROOM.get() is None or across == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    more = -(-len(labels) // across) - -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + _LINE * more)


def legend_line(**look: Any) -> Line2D:
    """Return a line to show in a legend; without a look it leaves a gap."""
    return Line2D([], [], **(look or {"linestyle": "none"}))


def plain(text: str, longest: int = 24) -> str:
    """Return an untrusted name, safe to draw: one line, shortened, without dollar signs that start mathematics."""
    return one_line(text, longest).replace("$", r"\$")


@contextmanager
def any_script() -> Iterator[None]:
    """Keep matplotlib from warning of letters that its font lacks, once per letter and drawing: a browser has them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield


@any_script()
def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file of 150 dots per inch."""
    buffer = io.BytesIO()
    settle(figure).savefig(buffer, format="png", dpi=DPI, facecolor="white", edgecolor="none")
    return buffer.getvalue()


@any_script()
def settle(figure: Figure) -> Figure:
    """Give everything in a figure its place and return it; matplotlib would draw it once more for that, every time."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
    return figure
