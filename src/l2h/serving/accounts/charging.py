"""The thread that charges: it takes all requests that wait and has them charged in one transaction."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from l2h.serving.accounts.key import Key
from l2h.serving.accounts.store import AccountStore, ChargeResult
from l2h.serving.errors import StoreDownError
from l2h.serving.model.batching import PendingRequest
from l2h.serving.process.logs import log_event

#: Seconds between tries to write to a store that is down.
_PAUSE = 0.5
#: Requests of one transaction, about.
_MOST = 256


class ChargeWriter:
    """Charges requests in the order in which they come, and gives them to ``deliver``, in its thread.

    While the store is down (a full disk, a lock that is not given back, a file removed) requests get the outcome
    "store_down" and nothing is charged. Then :attr:`trouble` says why, until a write succeeds again; the thread tries
    by itself. ``committed`` gets the number of requests and the seconds of each transaction.
    """

    def __init__(
        self,
        store: AccountStore,
        deliver: Callable[[list[PendingRequest]], None],
        committed: Callable[[int, float], None],
    ) -> None:
        self.trouble: str | None = None
        self._store, self._deliver, self._committed = store, deliver, committed
        self._queue: SimpleQueue[Sequence[PendingRequest] | None] = SimpleQueue()
        self._since: float | None = None
        self._used_up: dict[str, tuple[object, float]] = {}
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Have requests charged; from any thread."""
        self._queue.put(requests)

    def lag(self) -> float:
        """Return the seconds that the current transaction has taken so far."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def used_up(self, key: Key) -> float:
        """Return the seconds for which the key's quota is known to be used up; 0.0 where it is not known to be."""
        known = self._used_up.get(key.id)
        if known is None or known[0] != key.quota:
            return 0.0
        left = known[1] - time.time()
        if left <= 0.0:
            self._used_up.pop(key.id, None)
        return max(0.0, left)

    def close(self) -> None:
        """Charge what waits, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        running = True
        while running:
            requests, running = self._gather()
            if requests:
                self._charge(requests)
            elif running:
                self._probe()

    def _gather(self) -> tuple[list[PendingRequest], bool]:
        """What waits now, or the next that comes; nothing after a pause, where the store is down."""
        requests: list[PendingRequest] = []
        try:
            some = self._queue.get(timeout=None if self.trouble is None else _PAUSE)
            while some is not None:
                requests.extend(some)
                if len(requests) >= _MOST:
                    return requests, True
                some = self._queue.get_nowait()
        except Empty:
            return requests, True
        return requests, False

    def _charge(self, requests: list[PendingRequest]) -> None:
        self._since = time.monotonic()
        try:
            results = self._store.charge([request.charge for request in requests])
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was charged, and the thread goes on
            results = [ChargeResult("store_down")] * len(requests)
            self._note(error)
        else:
            self._committed(len(requests), time.monotonic() - self._since)
            self._note(None)
        for request, result in zip(requests, results, strict=True):
            request.result = result
            if result.outcome == "over_quota" and result.quota_left == 0:
                self._used_up[request.charge.key.id] = request.charge.key.quota, time.time() + result.retry_after
        self._since = None
        self._deliver(requests)

    def _probe(self) -> None:
        try:
            self._store.probe()
        except StoreDownError as error:
            self._note(error)
        else:
            self._note(None)

    def _note(self, error: Exception | None) -> None:
        if error is not None and self.trouble is None:
            log_event("error", "ledger_failed", error=str(error))
        elif error is None and self.trouble is not None:
            log_event("info", "ledger_recovered", after=self.trouble)
        self.trouble = None if error is None else str(error)
