"""The manifest of a snapshot and the state of a download: read, or refused with the errors of the exchange.

An input is a manifest as a publisher sends it. It is also put into the files that an earlier process may have left.
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress

import numpy as np
from fuzzing import at_most, scratch
from fuzzing import mutate_json as mutate

from l2h.training.exchange import ExchangeError, SnapshotError, SnapshotStore, unpack_answers
from l2h.training.exchange.downloads import DownloadFolder
from l2h.training.exchange.identity import check_identity
from l2h.training.exchange.snapshot import Snapshot, parse_object

__all__ = ["check", "mutate"]

logging.getLogger("l2h").setLevel(logging.CRITICAL)
FOLDER = scratch() / "folder"
IDENTITY = {"classes": 3, "input_shape": [1, 4, 4]}


def check(data: bytes) -> None:
    with at_most(64 * len(data) + 2**19):
        read(data)
        recover(data)


def read(data: bytes) -> None:
    with suppress(SnapshotError):
        snapshot = Snapshot.from_json(data)
        with suppress(SnapshotError):
            again = Snapshot.from_json(snapshot.to_json())
            assert again == snapshot
    with suppress(ExchangeError):
        check_identity(IDENTITY, parse_object(data), "weights")
    with suppress(SnapshotError):
        assert np.packbits(unpack_answers(data, 8 * len(data) - 3)).tobytes() == data


def recover(data: bytes) -> None:
    """Whatever stands in the files, the next process begins, with a snapshot or without."""
    FOLDER.mkdir()
    try:
        for name in ("weights.json", "weights.part.json"):
            (FOLDER / name).write_bytes(data)
        (FOLDER / "weights-00000001.json").write_bytes(data)
        (FOLDER / "weights-00000001.bin").write_bytes(b"bytes")
        assert DownloadFolder(FOLDER, "weights", IDENTITY).current is None
        found = SnapshotStore(FOLDER).latest("weights")
        assert found is None or (found.size, found.version) == (5, 1)
        (FOLDER / "run.json").write_bytes(data)
        with suppress(ExchangeError):
            SnapshotStore(FOLDER)
        with suppress(ValueError):
            wrapped = {"schema": 1, "run": "r", "identity": IDENTITY, "seen": {}, "arrived": 0}
            state = json.dumps({**wrapped, "snapshot": json.loads(data)})
            (FOLDER / "weights.json").write_text(state)
            DownloadFolder(FOLDER, "weights", IDENTITY)
    finally:
        shutil.rmtree(FOLDER)
