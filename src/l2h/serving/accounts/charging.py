"""The writer of the ledger: one thread a process, which commits all that waits in one transaction."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from l2h.serving.accounts.keys import Key
from l2h.serving.accounts.ledger import Ledger
from l2h.serving.model.job import LEDGER, QUOTA, Job

log = logging.getLogger("l2h.serving")

#: Seconds between looks at a ledger that could not be written.
_PAUSE = 0.5
#: Jobs of one transaction.
_MOST = 256


class Cashier:
    """Charges jobs in the order in which they come.

    A ledger that cannot be written (a full disk, a lock that is not given back, a file removed) fails the jobs at hand
    with :data:`LEDGER`; nothing is charged. From then on :attr:`trouble` says why, until a write succeeds again; the
    thread tries on its own.

    Args:
        path: of the ledger.
        deliver: takes the jobs whose outcome is known; called in the thread.
        committed: told the number of jobs and the seconds of each transaction.
    """

    def __init__(
        self,
        path: Path,
        deliver: Callable[[list[Job]], None],
        committed: Callable[[int, float], None] = lambda jobs, seconds: None,
    ) -> None:
        self.trouble: str | None = None
        self._path, self._deliver, self._committed = path, deliver, committed
        self._queue: SimpleQueue[Sequence[Job] | None] = SimpleQueue()
        self._since: float | None = None
        self._spent: dict[str, tuple[object, float]] = {}
        self._ledger: Ledger | None = None
        self._reader: Ledger | None = None
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Open the ledger and start.

        Raises:
            sqlite3.Error: it cannot be opened.
        """
        self._ledger = Ledger(self._path)
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Have jobs charged; from any thread."""
        self._queue.put(jobs)

    def lag(self) -> float:
        """Seconds that the transaction at hand has taken so far."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def spent(self, key: Key) -> float:
        """Seconds for which the key's quota is known to be used up; 0.0 where it is not known to be."""
        found = self._spent.get(key.id)
        if found is None or found[0] != key.quota:
            return 0.0
        left = found[1] - time.time()
        if left <= 0.0:
            self._spent.pop(key.id, None)
        return max(0.0, left)

    def holds(self, key: Key, idempotency: str) -> bool:
        """Whether a request was charged before; from the event loop's thread."""
        try:
            if self._reader is None:
                self._reader = Ledger(self._path)
            return self._reader.holds(key.id, idempotency)
        except (sqlite3.Error, OSError):
            self._reader = None
            return True  # the transaction will tell

    def close(self) -> None:
        """Charge what waits, then stop."""
        self._queue.put(None)
        self._thread.join()
        if self._reader is not None:
            self._reader.close()

    def _run(self) -> None:
        running = True
        while running:
            jobs, running = self._gather()
            if jobs:
                self._charge(jobs)
            elif running:
                self._look()
        if self._ledger is not None:
            self._ledger.close()

    def _gather(self) -> tuple[list[Job], bool]:
        """What waits now, or the next that comes; nothing after a pause, where the ledger is in trouble."""
        jobs: list[Job] = []
        try:
            some = self._queue.get(timeout=None if self.trouble is None else _PAUSE)
            while some is not None:
                jobs.extend(some)
                if len(jobs) >= _MOST:
                    return jobs, True
                some = self._queue.get_nowait()
        except Empty:
            return jobs, True
        return jobs, False

    def _charge(self, jobs: list[Job]) -> None:
        self._since = time.monotonic()
        try:
            if self._ledger is None:
                self._ledger = Ledger(self._path)
            self._ledger.charge(jobs, time.time())
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was charged, and the thread goes on
            for job in jobs:
                job.outcome = LEDGER
            self._failed(error)
        else:
            self._committed(len(jobs), time.monotonic() - self._since)
            self._worked()
            self._remember(jobs)
        self._since = None
        self._deliver(jobs)

    def _look(self) -> None:
        """See whether the trouble is over."""
        try:
            if self._ledger is None:
                self._ledger = Ledger(self._path)
            self._ledger.beat()
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
        else:
            self._worked()

    def _failed(self, error: Exception) -> None:
        if self.trouble is None:
            log.error("ledger_failed", extra={"fields": {"error": str(error)}})
        self.trouble = str(error)
        if self._ledger is not None and "locked" not in self.trouble:
            self._ledger.close()
            self._ledger = None

    def _worked(self) -> None:
        if self.trouble is not None:
            log.info("ledger_recovered", extra={"fields": {"after": self.trouble}})
            self.trouble = None

    def _remember(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.outcome == QUOTA and job.quota_left == 0:
                self._spent[job.key.id] = job.key.quota, time.time() + job.retry_after
