"""The fetcher's side on the disk: the copy in use, the versions seen, and the download under way."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.files import write_atomically
from l2h.training.exchange.errors import SnapshotError
from l2h.training.exchange.snapshot import Snapshot, hash_file, parse_object

log = logging.getLogger("l2h.training.exchange")

SCHEMA = 1
#: Series of versions whose newest is remembered.
_RUNS_REMEMBERED = 32


@dataclass(frozen=True, eq=False)
class Arrived:
    """A snapshot that arrived whole.

    Attributes:
        snapshot: its manifest.
        run: the series its version belongs to.
        path: its file, which goes when two newer ones have arrived; :meth:`read` works even then.
        arrived: when, in seconds since 1970 by our clock.
        moved: bytes moved since the arrival before, heads and failures included; 0 for one found on the disk.
    """

    snapshot: Snapshot
    run: str
    path: Path
    arrived: float
    moved: int

    def __post_init__(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        object.__setattr__(self, "_descriptor", descriptor)
        weakref.finalize(self, os.close, descriptor)

    @property
    def version(self) -> int:
        """Counts up within a run."""
        return self.snapshot.version

    @property
    def step(self) -> int:
        """The publisher's training step."""
        return self.snapshot.step

    @property
    def meta(self) -> dict[str, Any]:
        """What the publisher said of it."""
        return self.snapshot.meta

    def read(self) -> bytes:
        """The bytes, verified once more.

        Raises:
            SnapshotError: the file was damaged since it arrived.
        """
        descriptor: int = self.__dict__["_descriptor"]
        parts, have = [], 0
        while part := os.pread(descriptor, self.snapshot.size + 1 - have, have):
            parts.append(part)
            have += len(part)
        data = b"".join(parts)
        if hashlib.sha256(data).hexdigest() != self.snapshot.sha256:
            raise SnapshotError(f"{self.path} was damaged after it arrived: remove it and start again")
        return data


class Shelf:
    """One kind's files in the fetcher's folder. Used by one thread at a time.

    ``KIND.json`` names the copy in use and the newest version seen of each run; ``KIND.part`` is the download under
    way and ``KIND.part.json`` says of what. Whatever moment the process is killed at, the next one starts from the
    copy in use and resumes the download.

    Args:
        folder: where; made when it is missing.
        kind: of the snapshots.
        identity: ours; what was kept under another identity is thrown away.
    """

    def __init__(self, folder: Path, kind: str, identity: Mapping[str, Any]) -> None:
        self._folder, self._kind, self._identity = folder, kind, dict(identity)
        self._state, self._plan = folder / f"{kind}.json", folder / f"{kind}.part.json"
        self.part = folder / f"{kind}.part"
        self.seen: dict[str, int] = {}
        self.current: Arrived | None = None
        self.partial: tuple[str, Snapshot] | None = None
        self._before: Path | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._recover()

    def begin(self, run: str, snapshot: Snapshot) -> None:
        """Plan a download; an earlier one is given up."""
        self.drop()
        plan = {"schema": SCHEMA, "run": run, "snapshot": json.loads(snapshot.to_json())}
        write_atomically(self._plan, json.dumps(plan).encode())
        self.partial = (run, snapshot)

    def drop(self) -> None:
        """Give up the download under way. The bytes go before the plan: they are never taken for another's."""
        self.part.unlink(missing_ok=True)
        self._plan.unlink(missing_ok=True)
        self.partial = None

    def accept(self, moved: int) -> Arrived:
        """Make the finished download the copy in use.

        Raises:
            SnapshotError: it is not what its manifest says; it is thrown away.
        """
        if self.partial is None:
            raise SnapshotError("no download is under way")
        run, snapshot = self.partial
        size, digest = self.part.stat().st_size, hash_file(self.part)
        if size != snapshot.size or digest != snapshot.sha256:
            self.drop()
            raise SnapshotError(
                f"version {snapshot.version} arrived damaged: {size} bytes with sha256 {digest[:12]}, "
                f"expected {snapshot.size} with {snapshot.sha256[:12]}"
            )
        with self.part.open("rb") as file:
            os.fsync(file.fileno())
        path = self._bytes_path(run, snapshot)
        os.replace(self.part, path)
        arrived = Arrived(snapshot, run, path, time.time(), moved)
        self._remember(run, snapshot.version)
        self._write_state(arrived)
        self._before, self.current = (self.current.path if self.current else None), arrived
        self.drop()
        self._tidy()
        return arrived

    def _remember(self, run: str, version: int) -> None:
        self.seen.pop(run, None)
        self.seen[run] = version  # last in order: the oldest run is the first to be forgotten
        while len(self.seen) > _RUNS_REMEMBERED:
            del self.seen[next(iter(self.seen))]

    def _write_state(self, arrived: Arrived) -> None:
        state = {
            "schema": SCHEMA,
            "identity": self._identity,
            "run": arrived.run,
            "snapshot": json.loads(arrived.snapshot.to_json()),
            "arrived": arrived.arrived,
            "seen": self.seen,
        }
        write_atomically(self._state, json.dumps(state).encode())

    def _bytes_path(self, run: str, snapshot: Snapshot) -> Path:
        tag = hashlib.sha256(run.encode()).hexdigest()[:8]  # a run's id comes from the peer: never part of a path
        return self._folder / f"{self._kind}-{tag}-{snapshot.version:08d}.bin"

    def _tidy(self) -> None:
        """Remove what is neither in use nor was until just now: a caller may be opening that by its path."""
        kept = {self.current.path if self.current else None, self._before}
        for path in (*self._folder.glob(f"{self._kind}-*.bin"), *self._folder.glob(f".{self._kind}.*.tmp")):
            if path not in kept:
                with suppress(OSError):
                    path.unlink()

    def _recover(self) -> None:
        """Find what an earlier process left; whatever is not whole is as if it had never been."""
        with suppress(FileNotFoundError):
            self._recover_copy()
        with suppress(FileNotFoundError):
            self._recover_partial()
        self._tidy()

    def _recover_copy(self) -> None:
        try:
            state = parse_object(self._state.read_bytes())
            snapshot = Snapshot.from_json(json.dumps(state.get("snapshot")).encode())
            run, seen, arrived = str(state["run"]), state["seen"], float(state["arrived"])
            self.seen = {str(key): int(value) for key, value in seen.items()}
        except (SnapshotError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("%s is damaged and not used: %s", self._state, error)
            return
        if state.get("identity") != self._identity or snapshot.kind != self._kind:
            log.warning("%s was kept for another task and is not used", self._state)
            self.seen = {}
            return
        path = self._bytes_path(run, snapshot)
        if not path.exists() or hash_file(path) != snapshot.sha256:
            log.warning("%s is damaged and fetched again", path)
            self.seen[run] = min(self.seen.get(run, 0), snapshot.version - 1)
            return
        self.current = Arrived(snapshot, run, path, arrived, 0)

    def _recover_partial(self) -> None:
        try:
            plan = parse_object(self._plan.read_bytes())
            run, snapshot = str(plan["run"]), Snapshot.from_json(json.dumps(plan.get("snapshot")).encode())
        except (SnapshotError, KeyError) as error:
            log.warning("%s is damaged and not resumed: %s", self._plan, error)
            self.drop()
            return
        if snapshot.kind != self._kind or snapshot.version <= self.seen.get(run, 0):
            self.drop()
            return
        moved_already = self._bytes_path(run, snapshot)
        if moved_already.exists() and not self.part.exists():  # killed between the move and the note of it
            os.replace(moved_already, self.part)
        self.partial = (run, snapshot)
