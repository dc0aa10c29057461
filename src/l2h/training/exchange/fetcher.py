"""Fetches snapshots in a background thread that always has the last one that arrived whole."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from l2h.errors import CheckpointError
from l2h.training.exchange.connection import FetchFailure, FetchStopped, PublisherConnection, check_url
from l2h.training.exchange.downloads import DownloadFolder, ReceivedSnapshot
from l2h.training.exchange.identity import check_identity, check_token, plain_identity
from l2h.training.exchange.snapshot import ExchangeError, IdentityError, Snapshot, SnapshotError, check_kind

log = logging.getLogger("l2h.training.exchange")

#: The reason under which an error that says none is counted; any other is ``internal``.
_REASONS = {IdentityError: "identity", SnapshotError: "damaged", OSError: "disk", CheckpointError: "disk"}
#: The state of the link after a failure, by its reason; after any other failure it is ``faulty``.
_STATES = {
    **dict.fromkeys(("connect", "timeout", "cut"), "unreachable"),
    "refused": "refused",
    "identity": "wrong_peer",
}
#: Bytes of the disk that a download leaves to the training and to others.
_LEFT_FREE = 64 << 20
#: A person has to put these right: they are logged once and tried again slowly.
_FOR_A_PERSON = ("refused", "wrong_peer")


@dataclass(frozen=True)
class FetchStatus:
    """The state of the exchange."""

    #: ``connecting`` (no answer yet), ``ok``, ``unreachable``, ``refused`` (the token), ``wrong_peer`` (the identity),
    #: or ``faulty`` (an answer that could not be used or kept).
    state: str = "connecting"
    error: str | None = None  # the last failure; None while all is well
    version: int | None = None  # of the snapshot in use; None before the first
    step: int | None = None  # its training step at the publisher
    run: str | None = None  # the publisher's run it belongs to
    age_steps: int | None = None  # how many steps it is behind the newest step the publisher told of
    age_seconds: float | None = None  # since it arrived
    syncs: int = 0  # snapshots that arrived in this process
    bytes_moved: int = 0  # heads and bodies of all requests both ways, failed ones included, without TCP and TLS
    bytes_per_sync: float | None = None  # the mean of these bytes per snapshot, up to the last arrival
    failures: dict[str, int] = field(default_factory=dict)  # how many, by reason


class SnapshotFetcher:
    """Fetches a publisher's newest snapshots of a kind into a folder over a network that fails.

    No call waits for the network. A snapshot counts once its size and its SHA-256 are verified. A
    download that was cut is resumed while the publisher still has that version, even when there is a newer one, so that
    a link which never lasts for a whole snapshot still brings one. Versions only go up within a publisher's run, also
    across restarts of either side. A publisher with a new store has a new run id, and its versions are a series of
    their own; a run that comes back continues above the newest version seen of it.

    ``identity`` is what must be the same on the other side; ``data``, the fingerprint of the training samples, is
    compared for answers only, and answers require it. A snapshot of more than ``max_bytes``, or for which the disk has
    no room, is not fetched. The waits are in seconds: ``interval`` between two requests for
    something newer, ``timeout`` within an answer, and ``backoff`` after a failure, first and longest, with jitter.
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
            raise ExchangeError(
                "interval, timeout, max_bytes and backoff must be positive, and the first backoff not above the longest"
            )
        if kind == "answers" and "data" not in identity:
            raise ExchangeError("answers belong to certain samples: state their fingerprint as data in the identity")
        self._url, self._token, self._kind = check_url(url), token, kind
        self._identity = plain_identity(identity)
        self._interval, self._timeout, self._max_bytes, self._backoff = interval, timeout, max_bytes, backoff
        self._downloads = DownloadFolder(Path(folder), kind, self._identity)
        self._run = ""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards what follows; never held while reading, writing or sending
        self._newest = newest = self._downloads.current
        self._arrived_at = time.monotonic() - (max(0.0, time.time() - newest.arrived) if newest else 0.0)
        self._taken = False
        self._published_step = self._moved_at_sync = 0
        self._status = FetchStatus()

    def start(self) -> None:
        """Start fetching; returns at once, whether the publisher can be reached or not."""
        if self._thread is not None and self._thread.is_alive() and not self._stopping.is_set():
            return
        self._stopping = threading.Event()
        connection = PublisherConnection(self._url, self._token, self._timeout, self._stopping, self._count_bytes)
        arguments = (connection, self._stopping)
        self._thread = threading.Thread(target=self._fetch, args=arguments, name="l2h-fetcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop fetching, within about ``timeout``. What was downloaded stays for the next start."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(self._timeout + 1.0)

    def latest(self) -> ReceivedSnapshot | None:
        """Return the newest snapshot that arrived whole, in this process or before it; None before the first."""
        return self._newest

    def take(self) -> ReceivedSnapshot | None:
        """Return the newest snapshot once; then None until another arrives."""
        with self._lock:
            if self._taken or self._newest is None:
                return None
            self._taken = True
            return self._newest

    def status(self) -> FetchStatus:
        with self._lock:
            status, newest = self._status, self._newest
            if newest is None:
                return status
            return replace(
                status,
                version=newest.version,
                step=newest.step,
                run=newest.run,
                age_steps=max(0, self._published_step - newest.step),
                age_seconds=time.monotonic() - self._arrived_at,
            )

    def __enter__(self) -> SnapshotFetcher:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _fetch(self, connection: PublisherConnection, stopping: threading.Event) -> None:
        """Poll until the fetcher is stopped, whatever a poll brings: the work of the thread."""
        attempt = 0
        with closing(connection):
            while not stopping.is_set():
                saved = connection.saved
                try:
                    arrived = self._poll(connection, stopping)
                except FetchStopped:
                    return
                except Exception as error:  # noqa: BLE001 - the training must never lose its fetcher
                    state = self._note_failure(error)
                    # A download that got on is resumed soon, however often the link is cut.
                    attempt = 0 if state == "unreachable" and connection.saved > saved else attempt + 1
                    delay = self._delay(attempt, state)
                else:
                    self._set_state("ok", None)
                    attempt, delay = 0, 0.0 if arrived else self._interval
                stopping.wait(delay)

    def _poll(self, connection: PublisherConnection, stopping: threading.Event) -> bool:
        """Ask once for something newer and fetch it; return whether a snapshot arrived."""
        if connection.verified is None:
            theirs, digest = connection.identity()
            check_identity(self._identity, theirs, self._kind)
            self._run, connection.verified = str(theirs["run"]), digest
        downloads, seen = self._downloads, self._downloads.seen.get(self._run, 0)
        if downloads.unfinished is not None:
            run, snapshot = downloads.unfinished
            if run != self._run or snapshot.version <= seen:
                downloads.discard()
        if downloads.unfinished is None:
            offered = connection.latest(self._kind, seen)
            if offered is None:
                return False
            self._check_offer(offered, seen)
            downloads.begin(self._run, offered)
            snapshot = offered
        try:
            self._check_size(snapshot)
            connection.download(snapshot, downloads.part)
        except FetchFailure as failure:
            if failure.discard:
                downloads.discard()
            raise
        if stopping.is_set():
            raise FetchStopped
        self._accept()
        return True

    def _check_offer(self, snapshot: Snapshot, seen: int) -> None:
        if snapshot.kind != self._kind:
            raise FetchFailure("protocol", f"{snapshot.kind} were offered where {self._kind} were asked for")
        if snapshot.version <= seen:
            raise FetchFailure("older", f"version {snapshot.version} was offered, version {seen} of its run is here")
        with self._lock:
            self._published_step = snapshot.step

    def _check_size(self, snapshot: Snapshot) -> None:
        """Raise :class:`FetchFailure` where a snapshot is larger than expected, or than the disk has room for."""
        if snapshot.size > self._max_bytes:
            message = f"a snapshot of {snapshot.size} bytes is over the {self._max_bytes} that are expected"
            raise FetchFailure("too_large", message, discard=True)
        if self._downloads.free_after(snapshot) < _LEFT_FREE:
            message = f"a snapshot of {snapshot.size} bytes would leave less than {_LEFT_FREE} bytes of the disk free"
            raise FetchFailure("disk", message, discard=True)

    def _accept(self) -> None:
        moved, syncs = self._status.bytes_moved, self._status.syncs + 1
        received = self._downloads.accept(moved - self._moved_at_sync)
        with self._lock:
            self._newest, self._taken, self._arrived_at = received, False, time.monotonic()
            self._moved_at_sync = moved
            self._status = replace(self._status, syncs=syncs, bytes_per_sync=moved / syncs)
        log.debug(
            "arrived kind=%s version=%d step=%d bytes=%d moved=%d",
            self._kind, received.version, received.step, received.snapshot.size, received.moved,
        )  # fmt: skip

    def _count_bytes(self, count: int) -> None:
        with self._lock:
            self._status = replace(self._status, bytes_moved=self._status.bytes_moved + count)

    def _note_failure(self, error: Exception) -> str:
        """Count and log a failure; return the state of the link after it."""
        known = (reason for kind, reason in _REASONS.items() if isinstance(error, kind))
        reason = error.reason if isinstance(error, FetchFailure) else next(known, "internal")
        if reason == "internal":
            log.warning("fetching failed unexpectedly", exc_info=error)
        with self._lock:
            failures = self._status.failures
            self._status = replace(self._status, failures={**failures, reason: failures.get(reason, 0) + 1})
        state = _STATES.get(reason, "faulty")
        self._set_state(state, f"{self._url}: {error}")
        return state

    def _set_state(self, state: str, error: str | None) -> None:
        with self._lock:
            before = self._status.state
            self._status = replace(self._status, state=state, error=error)
        if state in _FOR_A_PERSON and state != before:
            log.warning("fetching %s: %s", self._kind, error)
        elif state != before or error:
            log.debug("fetching kind=%s state=%s error=%s", self._kind, state, error)

    def _delay(self, attempt: int, state: str) -> float:
        first, longest = self._backoff
        limit = longest if state in _FOR_A_PERSON else min(longest, first * 2.0 ** min(max(0, attempt - 1), 32))
        return limit * random.uniform(0.5, 1.0)
