"""Telling that a file has changed, without reading it."""

from __future__ import annotations

from pathlib import Path

Signature = tuple[int, int, int, int] | None


def signature(path: Path) -> Signature:
    """What changes when a file is replaced or rewritten; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
