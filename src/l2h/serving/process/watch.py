"""Noticing that a file has changed, without reading it."""

from pathlib import Path

Signature = tuple[int, int, int, int] | None


def signature(path: Path) -> Signature:
    """Return values that change when a file is replaced or rewritten; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns
