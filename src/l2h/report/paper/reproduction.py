"""The plot of the variants of the paper's recipe beside the figures that it prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from l2h.errors import DataError
from l2h.report.common.axes import floats, grid_lines, percent_axis, remark, titled
from l2h.report.common.colours import CLIENT, FAINT, INK, SERVER, SYSTEM
from l2h.report.common.figure import blank, legend_below, legend_line, plain

_FIGURES = (
    ("kept", "share kept", SYSTEM, "o"),
    ("client_kept", "client on what is kept", CLIENT, "^"),
    ("client_sent", "client on what is sent", SERVER, "v"),
)


def plot_reproduction(rows: Sequence[Mapping[str, Any]], printed: Mapping[str, float] | None = None) -> Figure:
    """Draw three figures of each variant, one line per variant in the order given, and what is printed as dashed lines.

    Rows are mappings with ``label``, ``distance`` (None where a figure is missing) and for each of ``kept``,
    ``client_kept`` and ``client_sent`` a mapping with ``mean`` and ``sem``. ``printed`` holds numbers under the same
    names. A DataError is raised without rows.
    """
    if not rows:
        raise DataError("nothing to draw: there are no variants")
    figure, (ax,) = blank(9.6, 0.36 * len(rows) + 1.9)
    for name, _, colour, marker in _FIGURES:
        mean, sem = (floats([row[name][key] for row in rows]) for key in ("mean", "sem"))
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6, "linestyle": "none"}
        ax.errorbar(mean, range(len(rows)), xerr=sem, capsize=2, elinewidth=0.9, **look)
        value = (printed or {}).get(name)
        if value is not None:
            ax.axvline(value, color=colour, linestyle=(0, (4, 1.8)), linewidth=1.2, zorder=1)
    for k, row in enumerate(rows):
        if all(row[name]["mean"] is None for name, *_ in _FIGURES):
            ax.annotate("diverged", (0.02, k), va="center", fontsize=9, color=INK)
        ax.axhline(k, color=FAINT, linewidth=0.6, zorder=0)
    ranked = [f" ({row['distance']:.1f})" if row["distance"] is not None else "" for row in rows]
    ax.set_yticks(range(len(rows)), [plain(row["label"], 64) + far for row, far in zip(rows, ranked, strict=True)])
    ax.tick_params(axis="y", length=0, labelsize=9)
    ax.set(xlim=(-0.02, 1.02), ylim=(len(rows) - 0.5, -0.5))
    grid_lines(ax, "x")
    percent_axis(ax.xaxis)
    titled(
        ax,
        "Variants of the paper's recipe" + ", the nearest first" * bool(printed),
        "share of the test images, or accuracy",
    )
    if printed:
        remark(ax, "dashed: as printed; in brackets: distance in points")
    handles = [legend_line(color=colour, marker=marker, linestyle="none") for _, _, colour, marker in _FIGURES]
    legend_below(figure, handles, [label for _, label, *_ in _FIGURES], columns=3)
    return figure
