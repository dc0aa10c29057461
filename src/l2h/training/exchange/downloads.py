"""The fetcher's files: the snapshot in use, the newest versions seen, and the unfinished download."""

import hashlib
import json
import logging
import os
import shutil
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from l2h.files import read_whole, write_atomically
from l2h.training.exchange.snapshot import Snapshot, SnapshotError, hash_file, parse_object

log = logging.getLogger("l2h.training.exchange")

SCHEMA = 1
#: How many runs of publishers are remembered with their newest version.
_RUNS_REMEMBERED = 32


class ReceivedSnapshot:
    """A snapshot that arrived whole. Its file goes when two newer ones have arrived; :meth:`read` works even then."""

    def __init__(self, snapshot: Snapshot, run: str, path: Path, arrived: float, moved: int) -> None:
        # ``arrived`` is by our clock; ``moved`` are all bytes since the arrival before it, 0 for one found on the disk.
        self.snapshot, self.run, self.path, self.arrived, self.moved = snapshot, run, path, arrived, moved
        self.version, self.step, self.meta = snapshot.version, snapshot.step, snapshot.meta
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> bytes:
        """Return the bytes, verified once more; :class:`SnapshotError` where they were damaged since they arrived."""
        parts, have = [], 0
        while part := os.pread(self._descriptor, self.snapshot.size + 1 - have, have):
            parts.append(part)
            have += len(part)
        data = b"".join(parts)
        if hashlib.sha256(data).hexdigest() != self.snapshot.sha256:
            raise SnapshotError(f"{self.path} was damaged after it arrived: remove it and start again")
        return data


class DownloadFolder:
    """The files of one kind of snapshot in the fetcher's folder. Used by one thread at a time.

    ``KIND.json`` names the snapshot in use and the newest version seen of each run; ``KIND.part`` holds the bytes of
    the unfinished download, and ``KIND.part.json`` its manifest. Whenever the process is killed, the next one starts
    with the snapshot in use and resumes the download. What was kept under another identity is not used.
    """

    def __init__(self, folder: Path, kind: str, identity: Mapping[str, Any]) -> None:
        self._folder, self._kind, self._identity = folder, kind, dict(identity)
        self._state_file, self._part_manifest = folder / f"{kind}.json", folder / f"{kind}.part.json"
        self.part = folder / f"{kind}.part"
        self.seen: dict[str, int] = {}  # the newest version that arrived, by run
        self.current: ReceivedSnapshot | None = None
        self.unfinished: tuple[str, Snapshot] | None = None  # run and manifest of the download
        self._previous: Path | None = None
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self._recover_current()
        with suppress(FileNotFoundError):
            self._recover_unfinished()
        self._remove_old_files()

    def begin(self, run: str, snapshot: Snapshot) -> None:
        self.discard()
        manifest = {"schema": SCHEMA, "run": run, "snapshot": json.loads(snapshot.to_json())}
        write_atomically(self._part_manifest, json.dumps(manifest).encode())
        self.unfinished = (run, snapshot)

    def free_after(self, snapshot: Snapshot) -> int:
        """Return how many bytes the disk would have free once the unfinished download was whole."""
        have = self.part.stat().st_size if self.part.exists() else 0
        return shutil.disk_usage(self._folder).free - (snapshot.size - have)

    def discard(self) -> None:
        """Give up the unfinished download. Its bytes are removed first: they never pass for those of another."""
        self.part.unlink(missing_ok=True)
        self._part_manifest.unlink(missing_ok=True)
        self.unfinished = None

    def accept(self, moved: int) -> ReceivedSnapshot:
        """Make the finished download the snapshot in use; one whose bytes are not its manifest's is removed."""
        if self.unfinished is None:
            raise SnapshotError("no download is under way")
        run, snapshot = self.unfinished
        size, digest = self.part.stat().st_size, hash_file(self.part)
        if size != snapshot.size or digest != snapshot.sha256:
            self.discard()
            raise SnapshotError(
                f"version {snapshot.version} arrived damaged: {size} bytes with sha256 {digest[:12]}, "
                f"expected {snapshot.size} with {snapshot.sha256[:12]}"
            )
        with self.part.open("rb") as file:
            os.fsync(file.fileno())
        path = self._path(run, snapshot)
        os.replace(self.part, path)
        received = ReceivedSnapshot(snapshot, run, path, time.time(), moved)
        self.seen.pop(run, None)
        self.seen[run] = snapshot.version  # last in order: the oldest run is the first to be forgotten
        while len(self.seen) > _RUNS_REMEMBERED:
            del self.seen[next(iter(self.seen))]
        self._write_state(received)
        self._previous, self.current = (self.current.path if self.current else None), received
        self.discard()
        self._remove_old_files()
        return received

    def _write_state(self, received: ReceivedSnapshot) -> None:
        state = {
            "schema": SCHEMA,
            "identity": self._identity,
            "run": received.run,
            "snapshot": json.loads(received.snapshot.to_json()),
            "arrived": received.arrived,
            "seen": self.seen,
        }
        write_atomically(self._state_file, json.dumps(state).encode())

    def _path(self, run: str, snapshot: Snapshot) -> Path:
        # The publisher chooses the run's id: it is never part of a path, and may be no text that has a UTF-8 form.
        tag = hashlib.sha256(run.encode(errors="surrogatepass")).hexdigest()[:8]
        return self._folder / f"{self._kind}-{tag}-{snapshot.version:08d}.bin"

    def _remove_old_files(self) -> None:
        """Remove all but the snapshot in use and the one before it, which a caller may be opening by its path."""
        kept = {self.current.path if self.current else None, self._previous}
        for path in (*self._folder.glob(f"{self._kind}-*.bin"), *self._folder.glob(f".{self._kind}.*.tmp")):
            if path not in kept:
                with suppress(OSError):
                    path.unlink()

    def _recover_current(self) -> None:
        """Find the snapshot that an earlier process used; one that is not whole is fetched again."""
        try:
            state, run, snapshot = _read_manifest(self._state_file)
            arrived = float(state["arrived"])
            self.seen = {str(key): int(value) for key, value in state["seen"].items()}
        except (SnapshotError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            log.warning("%s is damaged and not used: %s", self._state_file, error)
            return
        if state.get("identity") != self._identity or snapshot.kind != self._kind:
            log.warning("%s was kept for another task and is not used", self._state_file)
            self.seen = {}
            return
        path = self._path(run, snapshot)
        if not path.exists() or hash_file(path) != snapshot.sha256:
            log.warning("%s is damaged and fetched again", path)
            self.seen[run] = min(self.seen.get(run, 0), snapshot.version - 1)
            return
        self.current = ReceivedSnapshot(snapshot, run, path, arrived, 0)

    def _recover_unfinished(self) -> None:
        try:
            _, run, snapshot = _read_manifest(self._part_manifest)
        except (SnapshotError, KeyError) as error:
            log.warning("%s is damaged and not resumed: %s", self._part_manifest, error)
            self.discard()
            return
        if snapshot.kind != self._kind or snapshot.version <= self.seen.get(run, 0):
            self.discard()
            return
        moved_already = self._path(run, snapshot)
        if moved_already.exists() and not self.part.exists():  # killed between the move and the writing of the state
            os.replace(moved_already, self.part)
        self.unfinished = (run, snapshot)


def _read_manifest(path: Path) -> tuple[dict[str, Any], str, Snapshot]:
    try:
        values = parse_object(read_whole(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SnapshotError(str(error)) from error
    return values, str(values["run"]), Snapshot.from_json(json.dumps(values.get("snapshot")).encode())
