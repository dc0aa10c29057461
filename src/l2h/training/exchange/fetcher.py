"""The fetching side: a background thread that always has the last snapshot that arrived whole."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from l2h.errors import CheckpointError
from l2h.training.exchange.arrivals import Arrived, Shelf
from l2h.training.exchange.errors import ExchangeError, IdentityError, SnapshotError
from l2h.training.exchange.identity import check_peer, check_token, plain_identity
from l2h.training.exchange.peer import LinkFailure, Peer, Stopping, check_url
from l2h.training.exchange.snapshot import Snapshot, check_kind

log = logging.getLogger("l2h.training.exchange")

_UNREACHABLE = ("connect", "timeout", "cut")
#: What a person has to put right: tried again slowly, and said once.
_SLOW = {"refused": "refused", "identity": "wrong_peer"}


@dataclass(frozen=True)
class FetchStatus:
    """How the exchange stands.

    Attributes:
        state: ``connecting`` (nothing heard yet), ``ok``, ``unreachable``, ``refused`` (the token), ``wrong_peer`` (the
            identity), or ``faulty`` (reached, but what came could not be used or kept).
        error: what went wrong last; None while all is well.
        version: of the copy in use; None before the first.
        step: the publisher's, of the copy in use.
        run: the series of the copy in use.
        age_steps: how far the copy is behind the newest step heard of, or behind the step asked about.
        age_seconds: since the copy arrived.
        syncs: snapshots that arrived in this process.
        bytes_moved: heads and bodies of all requests, failed ones and polls included, both ways; TCP and TLS not.
        bytes_per_sync: of them, on the average, up to the last arrival.
        failures: how many of each reason.
    """

    state: str
    error: str | None
    version: int | None
    step: int | None
    run: str | None
    age_steps: int | None
    age_seconds: float | None
    syncs: int
    bytes_moved: int
    bytes_per_sync: float | None
    failures: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class SnapshotFetcher:
    """Fetches a publisher's newest snapshots into a folder, through whatever the network does.

    No call but :meth:`wait` waits for the network. A snapshot counts once its size and its sha256 are verified. A
    download that was cut goes on where it stopped while the publisher still has that version, even where a newer one
    is out, so that a link which never lasts for a whole snapshot still brings one. Versions only go up within a
    publisher's run, across restarts of either side; a publisher with a new store has another run id and starts a new
    series, and a run that comes back is taken up above the newest version seen of it.

    Args:
        url: ``http://HOST:PORT`` of the publisher; ``https`` where a TLS proxy stands before it.
        token: shared with the publisher.
        kind: ``"weights"`` or ``"answers"``.
        identity: ``classes``, ``input_shape`` and whatever else must be the same on the other side; ``data``, the
            fingerprint of the training samples, is compared for answers alone and must then be given.
        folder: holds the copy in use and the download under way; a restart goes on from them.
        interval: seconds between two questions for something newer.
        timeout: seconds for connecting, and for each wait within an answer.
        max_bytes: the largest snapshot that is fetched.
        backoff: the first and the longest wait after a failure, in seconds; doubled each time, with jitter.

    Raises:
        ExchangeError: an argument that cannot serve.
    """

    def __init__(
        self,
        url: str,
        token: str,
        kind: str,
        identity: Mapping[str, Any],
        folder: Path | str,
        *,
        interval: float = 1.0,
        timeout: float = 10.0,
        max_bytes: int = 4 << 30,
        backoff: tuple[float, float] = (0.2, 10.0),
    ) -> None:
        check_kind(kind)
        check_token(token)
        if not (interval > 0 and timeout > 0 and max_bytes > 0 and 0 < backoff[0] <= backoff[1]):
            raise ExchangeError("interval, timeout, max_bytes and backoff must be positive, the first wait the shorter")
        if kind == "answers" and "data" not in identity:
            raise ExchangeError("answers belong to certain samples: state their fingerprint as data in the identity")
        self._url, self._token, self._kind = check_url(url), token, kind
        self._identity = plain_identity(identity)
        self._interval, self._timeout, self._max_bytes, self._backoff = interval, timeout, max_bytes, backoff
        self._shelf = Shelf(Path(folder), kind, self._identity)
        self._stopping = threading.Event()
        self._arrival = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # over what follows; never held while reading, writing or sending
        self._newest = self._shelf.current
        self._since = time.monotonic() - (max(0.0, time.time() - self._newest.arrived) if self._newest else 0.0)
        self._taken = False
        self._heard_step: int | None = None
        self._state = "connecting"
        self._error: str | None = None
        self._failures: Counter[str] = Counter()
        self._peer: Peer | None = None
        self._syncs = self._moved_before = self._moved_at_sync = 0
        self._run = ""
        if self._newest is not None:
            self._arrival.set()

    def start(self) -> None:
        """Start fetching; returns at once, whether the publisher is there or not."""
        if self._thread is not None and self._thread.is_alive() and not self._stopping.is_set():
            return
        self._stopping = threading.Event()
        peer = Peer(self._url, self._token, self._timeout, self._stopping)
        with self._lock:
            self._moved_before, self._peer = self._moved(), peer
        arguments = (peer, self._stopping)
        self._thread = threading.Thread(target=self._work, args=arguments, name="l2h-fetcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop fetching; returns within ``timeout`` and a little. What was downloaded stays for the next start."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._timeout + 1.0)

    def latest(self) -> Arrived | None:
        """The newest snapshot that arrived whole, in this process or before it; None before the first."""
        return self._newest

    def take(self) -> Arrived | None:
        """The newest snapshot, once: None until another arrives."""
        with self._lock:
            if self._taken or self._newest is None:
                return None
            self._taken = True
            return self._newest

    def wait(self, timeout: float | None = None) -> Arrived | None:
        """Wait for the first snapshot, for whoever cannot begin without one; None when ``timeout`` passes."""
        self._arrival.wait(timeout)
        return self._newest

    def status(self, step: int | None = None) -> FetchStatus:
        """How the exchange stands.

        Args:
            step: count the age in steps from here; None: from the newest step heard of.
        """
        with self._lock:
            newest, heard = self._newest, self._heard_step if step is None else step
            return FetchStatus(
                state=self._state,
                error=self._error,
                version=newest.version if newest else None,
                step=newest.step if newest else None,
                run=newest.run if newest else None,
                age_steps=max(0, (newest.step if heard is None else heard) - newest.step) if newest else None,
                age_seconds=time.monotonic() - self._since if newest else None,
                syncs=self._syncs,
                bytes_moved=self._moved(),
                bytes_per_sync=self._moved_at_sync / self._syncs if self._syncs else None,
                failures=dict(self._failures),
            )

    def __enter__(self) -> SnapshotFetcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _work(self, peer: Peer, stopping: threading.Event) -> None:
        """The thread: rounds until it is stopped, whatever a round brings."""
        attempt = 0
        with peer:
            while not stopping.is_set():
                kept = peer.kept
                try:
                    arrived = self._round(peer, stopping)
                except Stopping:
                    return
                except Exception as error:  # noqa: BLE001 - the training must never lose its fetcher
                    reason = self._failed(error)
                    resumable = reason in _UNREACHABLE and peer.kept > kept
                    attempt = 0 if resumable else attempt + 1
                    delay = self._pause(attempt, reason)
                else:
                    self._turn("ok", None)
                    attempt, delay = 0, 0.0 if arrived else self._interval
                stopping.wait(delay)

    def _round(self, peer: Peer, stopping: threading.Event) -> bool:
        """Ask once, and fetch what is newer. Returns whether a snapshot arrived."""
        if peer.trusted is None:
            theirs, digest = peer.identity()
            check_peer(self._identity, theirs, self._kind)
            self._run, peer.trusted = str(theirs["run"]), digest
        shelf, seen = self._shelf, self._shelf.seen.get(self._run, 0)
        if shelf.partial is not None and (shelf.partial[0] != self._run or shelf.partial[1].version <= seen):
            shelf.drop()
        if shelf.partial is None:
            snapshot = peer.latest(self._kind, seen)
            if snapshot is None:
                return False
            self._check_offer(snapshot, seen)
            shelf.begin(self._run, snapshot)
        else:
            snapshot = shelf.partial[1]
        try:
            peer.download(snapshot, shelf.part)
        except LinkFailure as failure:
            if failure.spoiled:
                shelf.drop()
            raise
        if stopping.is_set():
            raise Stopping
        self._accept()
        return True

    def _check_offer(self, snapshot: Snapshot, seen: int) -> None:
        if snapshot.kind != self._kind:
            raise LinkFailure("protocol", f"{snapshot.kind} were offered where {self._kind} were asked for")
        if snapshot.version <= seen:
            raise LinkFailure("older", f"version {snapshot.version} was offered, version {seen} of its run is here")
        if snapshot.size > self._max_bytes:
            raise LinkFailure("too_large", f"a snapshot of {snapshot.size} bytes is over max_bytes={self._max_bytes}")
        with self._lock:
            self._heard_step = snapshot.step

    def _accept(self) -> None:
        with self._lock:
            moved = self._moved()
        arrived = self._shelf.accept(moved - self._moved_at_sync)
        with self._lock:
            self._newest, self._taken, self._since = arrived, False, time.monotonic()
            self._syncs += 1
            self._moved_at_sync = moved
        self._arrival.set()
        log.debug(
            "arrived kind=%s version=%d step=%d bytes=%d moved=%d",
            self._kind, arrived.version, arrived.step, arrived.snapshot.size, arrived.moved,
        )  # fmt: skip

    def _moved(self) -> int:
        return self._moved_before + (self._peer.moved if self._peer else 0)

    def _failed(self, error: Exception) -> str:
        """Note a failure; returns the word it is counted under."""
        if isinstance(error, LinkFailure):
            reason = error.reason
        elif isinstance(error, IdentityError):
            reason = "identity"
        elif isinstance(error, SnapshotError):
            reason = "damaged"
        elif isinstance(error, OSError | CheckpointError):
            reason = "disk"
        else:
            reason = "internal"
            log.warning("fetching failed in a way that was not foreseen", exc_info=error)
        with self._lock:
            self._failures[reason] += 1
        state = _SLOW.get(reason) or ("unreachable" if reason in _UNREACHABLE else "faulty")
        self._turn(state, f"{self._url}: {error}")
        return reason

    def _turn(self, state: str, error: str | None) -> None:
        with self._lock:
            before, self._state, self._error = self._state, state, error
        if state in _SLOW.values() and state != before:
            log.warning("fetching %s: %s", self._kind, error)
        elif state != before or error:
            log.debug("fetching kind=%s state=%s error=%s", self._kind, state, error)

    def _pause(self, attempt: int, reason: str) -> float:
        first, longest = self._backoff
        limit = longest if reason in _SLOW else min(longest, first * 2.0 ** min(max(0, attempt - 1), 32))
        return limit * random.uniform(0.5, 1.0)
