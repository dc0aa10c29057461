"""Chromium, and pages opened in it as a reader would: wide or narrow, light or dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waiting import STUCK

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
#: What a reader may have: the width of the window in pixels, and dark mode.
WINDOWS = [(width, dark) for width in (1280, 390) for dark in (False, True)]


@dataclass
class Visit:
    """A page of Chromium, what it asked for, and the errors that it reported."""

    page: Page
    asked: list[str]
    errors: list[str]


@contextmanager
def browsing(width: int = 1280, *, dark: bool = False, touch: bool = False) -> Iterator[Visit]:
    """Open a window without a page in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        scheme = "dark" if dark else "light"
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=touch)
        page.set_default_timeout(STUCK * 1000)
        visit = Visit(page, [], [])
        page.on("request", lambda request: visit.asked.append(request.url))
        page.on("pageerror", lambda error: visit.errors.append(str(error)))
        page.on("console", lambda message: visit.errors.append(message.text) if message.type == "error" else None)
        yield visit
        browser.close()


@contextmanager
def opened(path: Path, width: int = 1280, *, dark: bool = False, touch: bool = False) -> Iterator[Page]:
    """Open a file; when the page is left, nothing else may have been asked for and no error reported."""
    with browsing(width, dark=dark, touch=touch) as visit:
        visit.page.goto(path.as_uri())
        yield visit.page
    assert [url for url in visit.asked if not url.startswith("data:")] == [path.as_uri()]
    assert visit.errors == []
