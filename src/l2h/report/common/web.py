"""What the pages share: the templates, pictures within the page, and writing it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from l2h.errors import MissingExtraError
from l2h.files import write_atomically
from l2h.report.run.summary import number, percent, plus_minus, signed

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape
except ModuleNotFoundError as missing:
    raise MissingExtraError(f"the page needs {missing.name}: pip install 'l2h[report]'") from missing


def write_html(path: Path, template: str, **values: Any) -> Path:
    """Fill a template of this package and write it; every value is escaped."""
    environment = Environment(
        loader=PackageLoader("l2h.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "number": number,
        "signed": signed,
        "plus_minus": plus_minus,
        "code_spans": _code_spans,
    }
    html = environment.get_template(template).render(**values)
    # A lone surrogate in a name cannot be encoded; a page with a question mark is better than none.
    return write_atomically(path, html.encode("utf-8", errors="replace"))


def data_uri(content: bytes) -> str:
    """A PNG file as an address that holds all of it."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines of a dotted name and a value."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            plain = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
            yield f"{prefix}{key}", plain


def _code_spans(text: str) -> Markup:
    parts = re.split(r"`([^`]*)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )
