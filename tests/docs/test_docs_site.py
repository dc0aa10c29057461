"""The site: every page and public name is in it, it can be read from the disk, and it asks no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from browser import CHROMIUM
from commands import environment
from shown_commands import PROJECT, blocks

import l2h


def test_every_public_name_is_in_the_reference() -> None:
    reference = "\n".join(page.read_text() for page in (PROJECT / "docs/reference").glob("*.md"))
    named = set(re.findall(r"^::: l2h\.(\w+)$", reference, re.MULTILINE))
    assert {name for name in l2h.__all__ if name != "__version__"} <= named


def test_every_page_is_in_the_navigation() -> None:
    site = (PROJECT / "mkdocs.yml").read_text()
    listed = set(re.findall(r": ([\w/]+\.md)$", site, re.MULTILINE)) - {
        "docs/reference/commands.md"
    }  # made by the build
    assert listed == {
        *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "results/paper/RESULTS.md"),
        *(page.relative_to(PROJECT).as_posix() for page in (PROJECT / "docs").rglob("*.md")),
    }


def test_the_two_citations_agree() -> None:
    paper = yaml.safe_load((PROJECT / "CITATION.cff").read_text())["preferred-citation"]
    (entry,) = blocks((PROJECT / "docs/cite.md").read_text(), "bibtex")
    fields = dict(re.findall(r"^\s+(\w+)\s+= \{(.*)\}", entry, re.MULTILINE))
    authors = " and ".join(f"{one['family-names']}, {one['given-names']}" for one in paper["authors"])
    assert fields == {
        "title": paper["title"],
        "author": authors,
        "booktitle": paper["conference"]["name"],
        "year": str(paper["year"]),
        "url": paper["url"],
    }
    assert yaml.safe_load((PROJECT / "CITATION.cff").read_text())["version"] == l2h.__version__


class Loaded(HTMLParser):
    """What a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "link"):
            self.addresses += [value for name in ("src", "href") if (value := values.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(build, cwd=PROJECT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        reader = Loaded()
        reader.feed(page.read_text(encoding="utf-8"))
        assert [address for address in reader.addresses if re.match(r"(https?:)?//", address)] == []
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", style.read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("word", "page"), [("limiter", "docs/reference/field.html"), ("idempotency", "docs/serving.html")]
)
def test_the_search_works_from_the_disk(site: Path, word: str, page: str, tmp_path: Path) -> None:
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=30000",
    ]
    address = f"{(site / 'index.html').as_uri()}?q={word}"
    done = subprocess.run([CHROMIUM, *flags, "--dump-dom", address], capture_output=True, text=True, check=True)  # type: ignore[list-item]
    assert re.search(r"[1-9]\d* matching documents?<", done.stdout)
    assert re.search(rf'href="[^"]*{re.escape(page)}[^"]*" class="md-search-result__link', done.stdout)
