"""One self-contained page on a report: no script, nothing from outside, readable with no network."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import MissingExtraError
from l2h.files import write_atomically
from l2h.metrics import Report
from l2h.report.figure import png
from l2h.report.gallery import Images, Sample, choose
from l2h.report.plots import draw
from l2h.report.summary import (
    contrastive_rows,
    headline,
    number,
    outcomes,
    percent,
    risk_rows,
    signed,
    verdict,
)

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape
    from PIL import Image
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"the page needs {missing.name}: pip install 'l2h[report]'") from missing

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
    environment = Environment(
        loader=PackageLoader("l2h.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": number, "signed": signed, "code_spans": _code_spans}
    figures = draw(report, history, None, seed)
    sides = {} if images is None else choose(report, images, per_side=12, seed=seed)
    html = environment.get_template("report.html.j2").render(
        title=title,
        report=report,
        headline=headline(report),
        verdict=verdict(report),
        risks=risk_rows(report),
        contrastive=contrastive_rows(report),
        classes=_classes(report),
        plots={name: _data_uri(png(figure)) for name, figure in figures.items()},
        gallery={side: [_card(sample) for sample in samples] for side, samples in sides.items()},
        settings=list(_flat(settings or {})),
        next_steps=list(next_steps),
    )
    # A lone surrogate in a name cannot be encoded; a page with a question mark is better than none.
    return write_atomically(Path(folder) / "report.html", html.encode("utf-8", errors="replace"))


def _classes(report: Report) -> list[dict[str, Any]]:
    client, server = outcomes(report)
    rows = []
    for k, (name, rate) in enumerate(zip(report.class_names, report.per_class, strict=True)):
        here = report.y == k
        some = bool(here.any())
        rows.append(
            {
                "name": name,
                "samples": int(here.sum()),
                "rate": float(rate) if some else None,
                "client": float(client[here].mean()) if some else None,
                "server": float(server[here].mean()) if some else None,
            }
        )
    return rows


def _card(sample: Sample) -> dict[str, Any]:
    return {"sample": sample, "source": _data_uri(_thumbnail(sample.image))}


def _thumbnail(pixels: Images) -> bytes:
    image = Image.fromarray(pixels)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _data_uri(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            plain = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
            yield f"{prefix}{key}", plain


def _code_spans(text: str) -> Markup:
    parts = re.split(r"`([^`]*)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )
