"""What a reader sees of a report: the tags, tables and text of a page, and a table as the terminal prints it."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

from rich.console import Console

from l2h.report.common.table import TextTable

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags with their attributes, headings, the rows of each table and all visible text; a bold cell ends in ``*``."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.headings: list[tuple[str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(self.source)
        self.close()
        assert self.open == []

    @property
    def rows(self) -> list[list[str]]:
        """The rows of all tables."""
        return [row for table in self.tables for row in table]

    @property
    def links(self) -> list[str]:
        """All that the page refers to."""
        names = ("src", "href", "srcset", "action", "poster", "data", "background")
        linked = [value or "" for _, found in self.tags for name, value in found.items() if name in names]
        return linked + re.findall(r"url\(([^)]*)\)|@import", self.source)

    @property
    def plots(self) -> list[dict[str, str | None]]:
        """The attributes of every plot."""
        return [found for _, found in self.tags if found.get("class") == "drawing"]

    def require_own_script(self) -> None:
        """The page has its one script, which alone a browser may run, and no address of elsewhere."""
        assert [found for tag, found in self.tags if tag == "script"] == [{}]
        (script,) = re.findall(r"<script>(.*?)</script>", self.source, re.S)
        checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        (policy,) = [found["content"] for _, found in self.tags if "http-equiv" in found]
        assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{checksum}'"
        assert not re.search(r"https?://", self.source)

    def table(self, *head: str) -> list[list[str]]:
        """The rows of the first table whose heading begins so."""
        return next(table[1:] for table in self.tables if table[0][: len(head)] == list(head))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img", "input"}:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append((tag, ""))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "strong" and self.open[-1] == "td":
            self.tables[-1][-1][-1] += "*"

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & set(self.open):
            return
        self.text += data
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            tag, text = self.headings[-1]
            self.headings[-1] = (tag, text + data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def rendered(table: TextTable, width: int = 120) -> list[str]:
    """The lines of a table in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]
