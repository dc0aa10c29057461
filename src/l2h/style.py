"""The style sheet of all pages: those that :mod:`l2h.report` writes, and those of a server."""

from pathlib import Path


def page_style() -> str:
    """Return the style sheet as text."""
    return Path(__file__).with_suffix(".css").read_text(encoding="utf-8").rstrip("\n")
