"""What a reader sees of a report: the tags, tables and text of a page, and a table as the terminal prints it."""

from __future__ import annotations

import io
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
        names = ("src", "href", "srcset", "action", "poster", "data", "background", "style")
        return [value or "" for _, found in self.tags for name, value in found.items() if name in names]

    def table(self, *head: str) -> list[list[str]]:
        """The rows of the first table whose heading begins so."""
        return next(table[1:] for table in self.tables if table[0][: len(head)] == list(head))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img"}:
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
        if "style" in self.open:
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
