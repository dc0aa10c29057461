"""Images kept and sent, with what everybody answers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from l2h.errors import DataError
from l2h.metrics import Report
from l2h.report.common.colours import INK, MUTED, answerer_colours
from l2h.report.common.figure import SMALL, canvas, fits, folded, plain
from l2h.report.common.text import percent
from l2h.report.run.tables import KEPT, SENT

Images = npt.NDArray[np.uint8]

_COLUMNS = 5  # images in a row
# Inches: an image with its three lines, the line above each side, and the edge around it all.
_CELL = (1.5, 2.0)
_LINE = 0.16  # of one more answerer
_HEAD = 0.55
_EDGE = 0.14


@dataclass(frozen=True)
class Sample:
    """An image, uint8 (H, W, 3), with the name of its class and of the class that each answerer says, by its name."""

    image: Images
    truth: str
    answers: dict[str, str]
    by: str  # the one whose answer is taken


def plot_samples(report: Report, images: Images | None, *, per_side: int = 10, seed: int = 0) -> Figure | None:
    """Draw images kept above images sent, chosen at random, with the truth and both answers under each.

    Images are uint8 (n, C, H, W) with C 1 or 3, in the report's order; any others raise a DataError. Data that are no
    images (``None``) have no figure.
    """
    if images is None:
        return None
    sides = choose(report, images, per_side=per_side, seed=seed)
    looks = answerer_colours(report.answerers)
    cell = _CELL[1] + _LINE * (len(looks) - 2)
    columns = next(few for few in range(_COLUMNS, 0, -1) if few == 1 or fits(2 * _EDGE + _CELL[0] * few))
    heights = [_HEAD + cell * -(-len(samples) // columns) for samples in sides.values()]
    figure = canvas(2 * _EDGE + _CELL[0] * columns, sum(heights) + _EDGE)
    shares = {KEPT: 1 - report.reject_rate, SENT: report.reject_rate}
    top = sum(heights) + _EDGE
    for (side, samples), height in zip(sides.items(), heights, strict=True):
        count = f"{len(samples)} at random" if samples else "none"
        head = folded(f"{side}, {percent(shares[side])} of the inputs: {count}", 34)
        place = _EDGE / figure.get_figwidth(), (top - 0.16) / figure.get_figheight()
        figure.text(*place, head, va="top", fontsize=11.5, fontweight="bold", color=INK)
        for k, sample in enumerate(samples):
            row, column = divmod(k, columns)
            _show(figure, _EDGE + _CELL[0] * column, top - _HEAD - cell * row, sample, looks)
        top -= height
    return figure


def choose(report: Report, images: Images, *, per_side: int = 10, seed: int = 0) -> dict[str, list[Sample]]:
    """Return some of the images kept and some of those sent, by side; the same for the same seed."""
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(f"images must be uint8 (n, 1 or 3, H, W); got {images.dtype} {images.shape}")
    if len(images) != len(report.y):
        raise DataError(f"{len(images)} images for a report on {len(report.y)} samples: give one image per sample")
    rng = np.random.default_rng(seed)
    out: dict[str, list[Sample]] = {}
    for side, chosen in ((KEPT, ~report.remote), (SENT, report.remote)):
        where = np.flatnonzero(chosen)
        some = rng.choice(where, size=min(per_side, len(where)), replace=False) if len(where) else where
        out[side] = [_sample(report, images[i], int(i)) for i in some]
    return out


def _sample(report: Report, image: Images, i: int) -> Sample:
    name = report.labels.name
    return Sample(
        image=np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0)),
        truth=name(report.y[i].item()),
        answers={one.name: name(report.given[one.name][i].item()) for one in report.answerers},
        by=report.answerers[report.choice.chosen[i]].name,
    )


def _show(figure: Figure, left: float, top: float, sample: Sample, looks: dict[str, str]) -> None:
    width, height = figure.get_size_inches()
    side = _CELL[0] - 0.14
    ax = figure.add_axes((left / width, (top - side) / height, side / width, side / height))
    ax.set_axis_off()
    ax.set_anchor("SW")
    ax.imshow(sample.image, interpolation="nearest")
    lines = [(f"truth: {plain(sample.truth, 13)}", INK)]
    for who, answer in sample.answers.items():
        right = answer == sample.truth
        lines.append((f"{'✓' if right else '✗'} {plain(who, 12)}: {plain(answer, 12)}", looks[who] if right else MUTED))
    for k, (text, colour) in enumerate(lines):
        place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
        ax.annotate(text, (0, 0), (0, -4 - 11 * k), fontsize=SMALL, color=colour, **place)
