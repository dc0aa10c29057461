"""Snapshots whose right bytes anyone can compute, and short ways to set an exchange up."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import waiting
from waiting import until

import l2h
from l2h.training.exchange import ReceivedSnapshot, SnapshotFetcher, SnapshotStore

TOKEN = "a-shared-token"
IDENTITY: dict[str, Any] = {"classes": 10, "input_shape": (3, 32, 32), "data": "f00d"}
QUICK: dict[str, Any] = {"interval": 0.02, "timeout": 0.5, "backoff": (0.01, 0.05)}


def content(step: int, size: int) -> bytes:
    """The bytes of the snapshot of a step."""
    return random.Random(step).randbytes(size)


def publish(store: SnapshotStore, step: int, size: int = 200_000, kind: str = "weights"):
    return store.publish(kind, content(step, size), step, {"size": size})


def whole(arrived: ReceivedSnapshot) -> bool:
    """Whether the bytes are those its publisher made, by computing them again."""
    return arrived.read() == content(arrived.step, arrived.meta["size"])


def fetcher_for(url: str, folder: Path, kind: str = "weights", **changes: Any) -> SnapshotFetcher:
    settings = {"token": TOKEN, "identity": IDENTITY, **QUICK, **changes}
    return SnapshotFetcher(url, kind=kind, folder=folder, **settings)


def arrives(fetcher: SnapshotFetcher, version: int) -> ReceivedSnapshot:
    """Wait until this version or a newer one is here."""

    def there() -> ReceivedSnapshot | None:
        newest = fetcher.latest()
        return newest if newest is not None and newest.version >= version else None

    return until(there)


def run_role(*arguments: object) -> subprocess.Popen[str]:
    """Start ``exchange_process.py`` as another program."""
    script = Path(__file__).with_name("exchange_process.py")
    path = [Path(l2h.__file__).parents[1], Path(waiting.__file__).parent]
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )


def words(process: subprocess.Popen[str]) -> list[str]:
    """The next line it writes."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the process ended with {process.wait(10)}"
    return line.split()
