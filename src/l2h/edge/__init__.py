"""The device's side: the local answer always, the server's where it pays and where it comes in time.

:class:`EdgeClient` (and :class:`AsyncEdgeClient` with ``await``) runs an exported bundle and asks a server of the Open
Inference Protocol. No torch is needed, and none is imported.
"""

from __future__ import annotations

from l2h.edge.aio import AsyncEdgeClient
from l2h.edge.client import EdgeClient
from l2h.edge.errors import EdgeError, EdgeSettingsError
from l2h.edge.reasons import REASONS
from l2h.edge.stats import EdgeStats

__all__ = ["REASONS", "AsyncEdgeClient", "EdgeClient", "EdgeError", "EdgeSettingsError", "EdgeStats"]
