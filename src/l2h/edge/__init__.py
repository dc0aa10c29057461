"""The device's side: always a local answer, and the server's where it pays and comes in time.

:class:`EdgeClient` (and :class:`AsyncEdgeClient` with ``await``) runs an exported bundle and asks a server of the Open
Inference Protocol. No torch is needed, and none is imported.
"""

from l2h.edge.client import AsyncEdgeClient, EdgeClient
from l2h.edge.options import EdgeError, EdgeSettingsError
from l2h.edge.reasons import REASONS
from l2h.edge.stats import EdgeStats, ServerStats
from l2h.telemetry import log_as_json

__all__ = [
    "REASONS",
    "AsyncEdgeClient",
    "EdgeClient",
    "EdgeError",
    "EdgeSettingsError",
    "EdgeStats",
    "ServerStats",
    "log_as_json",
]
