"""The exchange of server snapshots between two trainings over a network that fails (setting IA).

One training publishes, the other fetches and always has the last snapshot that arrived whole. Neither ever waits for
the other: a cut, slow or dead link makes the snapshot older and never stops a training. A snapshot is bytes with plain
values beside them. Nothing is unpickled, and nothing here depends on torch or on the training.
"""

from l2h.training.exchange.downloads import ReceivedSnapshot
from l2h.training.exchange.fetcher import FetchStatus, SnapshotFetcher
from l2h.training.exchange.publisher import PublisherServer
from l2h.training.exchange.snapshot import ExchangeError, SnapshotError, pack_answers, unpack_answers
from l2h.training.exchange.store import SnapshotStore

__all__ = [
    "ExchangeError",
    "FetchStatus",
    "PublisherServer",
    "ReceivedSnapshot",
    "SnapshotError",
    "SnapshotFetcher",
    "SnapshotStore",
    "pack_answers",
    "unpack_answers",
]
