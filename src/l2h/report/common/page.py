"""Pages that are one file: nothing is loaded from elsewhere, and all of it can be read without a network.

A page has one script, its own. Its checksum stands in the page's Content-Security-Policy, so that a browser runs no
other. Without it the page says the same.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from l2h import settings
from l2h.files import write_atomically
from l2h.report.common.text import counted, number, percent, signed
from l2h.style import page_style


def write_html(path: Path, template: str, **values: Any) -> Path:
    """Fill a template of this package and write it; every value is escaped."""
    environment = Environment(
        loader=PackageLoader("l2h.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {filter_.__name__: filter_ for filter_ in (percent, number, signed, counted, code_spans)}
    script = environment.get_template("script.js.j2").render()
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {"style": Markup(page_style()), "script": Markup(script), "script_checksum": checksum}
    html = environment.get_template(template).render(**values)
    # A lone surrogate in a name cannot be encoded; a page with a question mark is better than none.
    return write_atomically(path, html.encode("utf-8", errors="replace"))


def data_uri(content: bytes, kind: str = "png") -> str:
    """Return a picture, a PNG file unless ``kind`` says "jpeg", as a ``data:`` address that holds all of it."""
    return f"data:image/{kind};base64," + base64.b64encode(content).decode("ascii")


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield nested settings as pairs of a dotted name and a text."""
    return ((name, settings.as_text(value)) for name, value in settings.flat(values))


def code_spans(text: str) -> Markup:
    """Return the text, escaped, with what is between backticks as code."""
    code = Markup("<code>{}</code>")
    parts = enumerate(re.split(r"`([^`]*)`", text))
    return Markup("").join(code.format(part) if i % 2 else escape(part) for i, part in parts)
