"""Chromium, and pages opened in it as a reader would: wide or narrow, light or dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
#: What a reader may have: the width of the window in pixels, and dark mode.
WINDOWS = [(width, dark) for width in (1280, 390) for dark in (False, True)]


@contextmanager
def opened(path: Path, width: int = 1280, *, dark: bool = False, touch: bool = False) -> Iterator[Page]:
    """Open a file; when the page is left, nothing else may have been asked for and no error reported."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        scheme = "dark" if dark else "light"
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=touch)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        yield page
        browser.close()
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    assert errors == []
