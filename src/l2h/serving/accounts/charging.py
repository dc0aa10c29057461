"""The thread that charges: it takes all requests that wait and has them charged in one transaction."""

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from l2h.serving.accounts.key import Key
from l2h.serving.accounts.store import AccountStore, Charge, ChargeResult, Delivery
from l2h.serving.model.batching import PendingRequest
from l2h.serving.process.logs import log_event

#: Seconds between tries to write to a store that is down.
_PAUSE = 0.5
#: Seconds between calls of the store's ``maintain``.
_UPKEEP = 1.0
#: Requests of one transaction, about.
_MOST = 256
#: Where a transaction had several requests, but no more than these, and took longer than so many seconds, the next one
#: waits for as long as it took, at the longest so many: more requests share it, and the store has half of the work.
_FEW, _WORTH, _LONGEST = 12, 3e-4, 2e-3
#: Inputs that a key may have computed without charge: at first, for each that was charged, and at most.
_CREDIT, _CREDIT_EACH, _MOST_CREDIT = 256, 3, 10_000


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
        self._rest = 0.0  # before the next transaction
        self._delivered: deque[Delivery] = deque()  # not yet marked in the store
        self._credit: dict[str, int] = {}
        self._under_way: set[tuple[str, str]] = set()
        self._upkeep = time.monotonic() + _UPKEEP
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Have requests charged; from any thread."""
        self._queue.put(requests)

    def lag(self) -> float:
        """Return the seconds that the current transaction has taken so far."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def note_delivery(self, rows: Delivery) -> None:
        """Have rows of charges marked by whether their answers were delivered, with the next transaction."""
        self._delivered.append(rows)

    def take_credit(self, key: Key, inputs: int) -> bool:
        """Count inputs that are to be computed; return False where too many of the key's were computed for nothing.

        That a request repeats another is known only after the model ran; this bounds how often that happens. Called on
        the event loop alone, as :meth:`give_credit`, which follows a charge.
        """
        credit = self._credit.get(key.id, _CREDIT)
        if credit > 0:
            self._credit[key.id] = credit - inputs
        return credit > 0

    def give_credit(self, key: Key, inputs: int) -> None:
        """Note that inputs were charged."""
        self._credit[key.id] = min(self._credit.get(key.id, _CREDIT) + _CREDIT_EACH * inputs, _MOST_CREDIT)

    def begin(self, charge: Charge) -> bool:
        """Note a request until :meth:`end`; return False where one with its Idempotency-Key is under way already."""
        pair = charge.key.id, charge.idempotency_key or ""
        first = pair not in self._under_way
        self._under_way.add(pair)
        return first

    def end(self, charge: Charge) -> None:
        """Forget a request that :meth:`begin` returned True for."""
        self._under_way.discard((charge.key.id, charge.idempotency_key or ""))

    def close(self) -> None:
        """Charge what waits, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Exception:  # noqa: BLE001 - nothing could be charged any more: the supervisor starts another worker
            log_event("error", "ledger_thread_failed", traceback=traceback.format_exc().rstrip())
            os._exit(1)

    def _work(self) -> None:
        running = True
        while running:
            requests, running = self._gather()
            if requests:
                self._charge(requests)
            elif self.trouble is not None and running:
                self._try(self._store.probe)
            late = time.monotonic() >= self._upkeep
            if self._delivered and self.trouble is None and (late or not running):
                self._charge([])
            if late and self.trouble is None:
                self._try(self._store.maintain)
                self._upkeep = time.monotonic() + _UPKEEP

    def _gather(self) -> tuple[list[PendingRequest], bool]:
        """What waits now, or the next that comes; nothing after a pause."""
        requests: list[PendingRequest] = []
        try:
            some = self._queue.get(timeout=_UPKEEP if self.trouble is None else _PAUSE)
            if self._rest and some is not None:
                time.sleep(self._rest)
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
        delivered = [self._delivered.popleft() for _ in range(len(self._delivered))]
        try:
            results = self._store.charge([request.charge for request in requests], delivered)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was charged, and the thread goes on
            results = [ChargeResult("store_down")] * len(requests)
            self._delivered.extend(delivered)
            self._rest = 0.0
            self._note(error)
        else:
            took = time.monotonic() - self._since
            self._rest = min(took, _LONGEST) if 1 < len(requests) <= _FEW and took > _WORTH else 0.0
            self._committed(len(requests), took)
            self._note(None)
        for request, result in zip(requests, results, strict=True):
            request.result = result
        self._since = None
        if requests:
            self._deliver(requests)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - without its thread the worker would answer nobody any more
            self._note(error)
        else:
            self._note(None)

    def _note(self, error: Exception | None) -> None:
        if error is not None and self.trouble is None:
            log_event("error", "ledger_failed", error=str(error))
        elif error is None and self.trouble is not None:
            log_event("info", "ledger_recovered", after=self.trouble)
        self.trouble = None if error is None else str(error)
