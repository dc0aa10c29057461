"""The supervisor's part: once a second it adds what all workers have counted since to the ring, and notes events."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from l2h.serving.dashboard.counters import read_counters
from l2h.serving.dashboard.ring import RingWriter
from l2h.serving.process.logs import log_event

#: Seconds after a full second at which the one before is recorded: by then the workers have counted all of it.
_AFTER = 0.1


def ring_file(ledger: str) -> Path:
    """Return the file that the numbers are kept in, beside the ledger."""
    return Path(f"{ledger}-dashboard")


class TrafficRecorder:
    """Records the numbers of a server's workers, whose metrics lie in ``folder``."""

    def __init__(self, ledger: str, folder: Path) -> None:
        self._ring, self._folder = RingWriter(ring_file(ledger)), folder
        self._before: dict[str, float] = {}
        self._lock = threading.Lock()
        self._failed = False

    async def run(self, workers: Callable[[], int]) -> None:
        """Record until cancelled; ``workers`` returns how many can answer."""
        while True:
            await asyncio.sleep(1.0 + _AFTER - time.time() % 1.0)
            await asyncio.to_thread(self.record, workers())

    def record(self, workers: int) -> None:
        """Add what was counted since the last call to the second that has just ended."""
        with self._careful():
            sums, seen = read_counters(self._folder)
            before, self._before = self._before, sums
            since = {name: value - before.get(name, 0) for name, value in sums.items() if value != before.get(name, 0)}
            self._ring.add(time.time() - 0.5, since, {**seen, "workers": workers})

    def note(self, event: str, **fields: Any) -> None:
        """Remember an event."""
        with self._careful():
            self._ring.note({"time": round(time.time(), 3), "event": event, **fields})

    def close(self) -> None:
        """Record what the workers have counted until their end, and give the file back."""
        self.record(0)
        with self._lock:
            self._ring.close()

    @contextmanager
    def _careful(self) -> Iterator[None]:
        """One thread at a time; and the numbers of a page do not end the server."""
        with self._lock:
            try:
                yield
                self._failed = False
            except Exception as error:  # noqa: BLE001
                if not self._failed:
                    log_event("error", "dashboard_failed", error=f"{type(error).__name__}: {error}")
                self._failed = True
