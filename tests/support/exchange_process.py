"""The two sides as programs of their own, to be killed: ``publish FOLDER SIZE COUNT`` and ``fetch URL FOLDER``."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

from exchange_maker import IDENTITY, TOKEN, fetcher_for, publish, whole

from l2h.training.exchange import PublisherServer, SnapshotStore


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def run_publisher(folder: Path, size: int, count: int) -> None:
    """Say the port, then publish as fast as the disk takes it, saying each version; then only offer."""
    store = SnapshotStore(folder)
    server = PublisherServer(store, IDENTITY, TOKEN)
    server.start()
    say("port", server.port)
    newest = store.latest("weights")
    for step in itertools.islice(itertools.count(newest.step + 1 if newest else 0), count):
        say("published", publish(store, step, size).version)
    while True:
        time.sleep(3600)


def run_fetcher(url: str, folder: Path) -> None:
    """Say each snapshot that arrives, and whether it is whole."""
    fetcher = fetcher_for(url, folder)
    fetcher.start()
    say("started")
    while True:
        arrived = fetcher.take()
        if arrived is not None:
            say("took", arrived.version, whole(arrived))
        time.sleep(0.005)


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        run_publisher(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        run_fetcher(sys.argv[2], Path(sys.argv[3]))
