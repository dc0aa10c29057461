"""One self-contained page on a report: no script, nothing from outside, readable with no network."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from l2h.metrics import Report
from l2h.report.common.figure import png
from l2h.report.common.page import data_uri, flat, write_html
from l2h.report.run.gallery import Images, Sample, choose
from l2h.report.run.plots import draw
from l2h.report.run.tables import class_table, contrastive_table, risk_table
from l2h.report.run.verdict import headline, verdict

_THUMBNAIL = 160  # pixels, the longer side of an image in the gallery


def write_page(
    report: Report,
    folder: str | Path,
    *,
    title: str,
    history: Sequence[Mapping[str, Any]] | None = None,
    images: npt.NDArray[np.uint8] | None = None,
    settings: Mapping[str, Any] | None = None,
    next_steps: Sequence[str] = (),
    seed: int = 0,
) -> Path:
    """Write ``folder/report.html``.

    Args:
        report: what the page is about.
        folder: made where it does not exist.
        title: of the page.
        history: rows with ``stage``, ``epoch``, ``train_loss`` and ``held_out_loss``.
        images: uint8 (n, C, H, W), the inputs behind the report, C being 1 or 3.
        settings: what the run was made with; may be nested.
        next_steps: what the reader may do now, a line each; text between backticks is set as code.
        seed: of the choice of images.

    Returns:
        The file. It is replaced in one step: a reader never sees half a page.
    """
    figures = draw(report, history, None, seed)
    sides = {} if images is None else choose(report, images, per_side=12, seed=seed)
    return write_html(
        Path(folder) / "report.html",
        "report.html.j2",
        title=title,
        report=report,
        headline=headline(report),
        verdict=verdict(report),
        risks=risk_table(report),
        contrastive=contrastive_table(report),
        classes=class_table(report),
        plots={name: data_uri(png(figure)) for name, figure in figures.items()},
        gallery={side: [_card(sample) for sample in samples] for side, samples in sides.items()},
        settings=list(flat(settings or {})),
        next_steps=list(next_steps),
    )


def _card(sample: Sample) -> dict[str, Any]:
    return {"sample": sample, "source": data_uri(_thumbnail(sample.image))}


def _thumbnail(pixels: Images) -> bytes:
    image = Image.fromarray(pixels)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
