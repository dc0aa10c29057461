"""The exchange of server snapshots between two trainings over a network that fails (setting IA).

One training publishes (:class:`SnapshotStore`, :class:`PublisherServer`), the other fetches
(:class:`SnapshotFetcher`) and always has the last snapshot that arrived whole. Neither ever waits for the other: a
cut, slow or dead link costs freshness, never progress. A snapshot is bytes with plain values beside them, moved as
JSON and raw bytes; nothing is unpickled, and nothing here knows of training.

Publishing over the network needs ``pip install 'l2h[serve]'``; everything else needs the base install alone.
"""

from __future__ import annotations

from l2h.training.exchange.answers import pack_answers, unpack_answers
from l2h.training.exchange.arrivals import Arrived
from l2h.training.exchange.errors import ExchangeError, IdentityError, SnapshotError
from l2h.training.exchange.fetcher import FetchStatus, SnapshotFetcher
from l2h.training.exchange.publisher import PublisherServer, publish_app
from l2h.training.exchange.snapshot import KINDS, Snapshot
from l2h.training.exchange.store import SnapshotStore

__all__ = [
    "KINDS",
    "Arrived",
    "ExchangeError",
    "FetchStatus",
    "IdentityError",
    "PublisherServer",
    "Snapshot",
    "SnapshotError",
    "SnapshotFetcher",
    "SnapshotStore",
    "pack_answers",
    "publish_app",
    "unpack_answers",
]
