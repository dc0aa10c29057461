"""The publisher's files: whenever the process is killed, versions never repeat and are either whole or missing."""

import errno
import hashlib
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from l2h.files import read_whole, sync_folder, write_atomically
from l2h.training.exchange.snapshot import (
    KINDS,
    ExchangeError,
    Snapshot,
    SnapshotError,
    check_kind,
    hash_file,
    parse_object,
)

log = logging.getLogger("l2h.training.exchange")

_NAME = re.compile(rf"({'|'.join(KINDS)})-(\d+)\.(bin|json)")


class SnapshotStore:
    """Keeps snapshots in a folder: ``KIND-VERSION.bin`` and, written after it, its manifest ``KIND-VERSION.json``.

    Reading and publishing from several threads is safe. Only one process at a time may publish from a folder. It offers
    what an earlier process published from it. On POSIX a download of a snapshot that is removed meanwhile still
    finishes, since its file is open; a later request for it gets the answer that it is gone.
    """

    def __init__(self, folder: Path | str, keep: int = 3) -> None:
        if keep < 1:
            raise ExchangeError(f"keep must be at least 1, got {keep}")
        self.folder = Path(folder)
        self.keep = keep  # of each kind
        self.run = self._run_id()  # of this series of versions, made with the folder and kept in it
        self._publishing = threading.Lock()
        self._index = self._read_index()
        self._locked = False

    def publish(self, kind: str, data: bytes, step: int, meta: Mapping[str, Any]) -> Snapshot:
        """Write a snapshot to the disk and offer it. Returns when it is written; the network is not involved.

        CheckpointError: it could not be written; what was published before is still offered.
        """
        check_kind(kind)
        if not data:
            raise SnapshotError("a snapshot without bytes")
        if step < 0:
            raise SnapshotError(f"a snapshot's step must not be negative, got {step}")
        digest = hashlib.sha256(data).hexdigest()
        with self._publishing:
            self._lock_folder()
            version = 1 + max([*self._versions_on_disk(kind), *self._index[kind]], default=0)
            snapshot = Snapshot(kind, version, step, len(data), digest, dict(meta), time.time())
            manifest = snapshot.to_json()
            write_atomically(self._path(kind, version, "bin"), data)
            write_atomically(self._path(kind, version, "json"), manifest)
            sync_folder(self.folder)  # the names as well: a version must not repeat after a power cut
            self._index[kind] = {**self._index[kind], version: snapshot}
            self._prune(kind)
        log.debug("published kind=%s version=%d step=%d bytes=%d", kind, version, step, len(data))
        return snapshot

    def latest(self, kind: str) -> Snapshot | None:
        """Return the newest snapshot of a kind, or None, without waiting for one that is being published."""
        check_kind(kind)
        versions = self._index[kind]
        return versions[max(versions)] if versions else None

    def open(self, kind: str, version: int) -> tuple[Snapshot, BinaryIO] | None:
        """Return a snapshot and its open file, or None. The file can be read even after the snapshot is removed."""
        check_kind(kind)
        snapshot = self._index[kind].get(version)
        if snapshot is None:
            return None
        try:
            return snapshot, self._path(kind, version, "bin").open("rb")
        except FileNotFoundError:
            return None

    def _path(self, kind: str, version: int, suffix: str) -> Path:
        return self.folder / f"{kind}-{version:08d}.{suffix}"

    def _run_id(self) -> str:
        path = self.folder / "run.json"
        if not path.exists():
            write_atomically(path, f'{{"run": "{uuid.uuid4().hex}"}}\n'.encode())
        try:
            return str(parse_object(read_whole(path))["run"])
        except (OSError, SnapshotError, KeyError) as error:
            raise ExchangeError(f"{path} is damaged ({error}): publish from another folder") from error

    def _read_index(self) -> dict[str, dict[int, Snapshot]]:
        # The inner dictionaries are replaced, never changed, so that readers need no lock.
        index: dict[str, dict[int, Snapshot]] = {kind: {} for kind in KINDS}
        for path in self.folder.glob("*-*.json"):
            name = _NAME.fullmatch(path.name)
            if name is None:
                continue
            try:
                snapshot = Snapshot.from_json(read_whole(path))
                whole = hash_file(path.with_suffix(".bin")) == snapshot.sha256
            except (OSError, SnapshotError) as error:
                log.warning("snapshot %s cannot be offered: %s", path.name, error)
                continue
            if not whole or (snapshot.kind, snapshot.version) != (name[1], int(name[2])):
                log.warning("snapshot %s is damaged and not offered", path.name)
                continue
            index[snapshot.kind][snapshot.version] = snapshot
        return index

    def _versions_on_disk(self, kind: str) -> list[int]:
        """Return every version that has a file, whole or not: none of them is used again."""
        names = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return [int(name[2]) for name in names if name is not None and name[1] == kind]

    def _prune(self, kind: str) -> None:
        kept = sorted(self._index[kind])[-self.keep :]
        self._index[kind] = {version: self._index[kind][version] for version in kept}
        for version in set(self._versions_on_disk(kind)) - set(kept):
            for suffix in ("json", "bin"):  # the manifest first: it never stands without its bytes
                with suppress(OSError):
                    self._path(kind, version, suffix).unlink()

    def _lock_folder(self) -> None:
        """Once: make sure that no other process publishes here, and remove what a killed one left half written."""
        if self._locked:
            return
        _lock(self.folder / ".lock")
        self._locked = True
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def _lock(path: Path) -> None:
    """Lock a file until this process ends, even if it is killed; its forks do not inherit the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # never closed: that would release the lock
    try:
        import fcntl

        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ModuleNotFoundError:  # this system has no such locks
        return
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # this file system has no locks
            return
        os.close(descriptor)
        raise ExchangeError(f"another process publishes from {path.parent}: give each its own folder") from error
