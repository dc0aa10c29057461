"""The error of this package."""

from __future__ import annotations

from l2h.errors import L2HError


class ExportError(L2HError, RuntimeError):
    """A system that cannot be exported, a file that says something else than its original, or a folder in the way."""
