"""Joining the requests of many connections into one call of the model, in a thread of its own.

As soon as the thread is free it takes whatever waits, up to a bound, so that a lone request runs at once. Only while
requests do come together (recent calls held several) does it wait for more of them, at most the delay. The
interpreter's lock is free while the model computes.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.serving.accounts.store import Charge, ChargeResult
from l2h.serving.errors import GoneError, RefusalError, malformed
from l2h.serving.model.model import ServedModel, Timing
from l2h.serving.process.logs import log_event
from l2h.serving.process.tracing import ModelCall, RequestSpan

#: Weight of the latest call in the running mean of requests per call.
_NEW = 0.2
#: From so many requests per call on, it is worth waiting for more.
_SEVERAL = 1.5
#: After so many delays without a request the next one runs at once.
_REST = 10
#: Requests that are handed to the model's thread together.
_TOGETHER = 8
_not_finite = partial(
    malformed, "the model has no finite scores for these inputs: their values are beyond what it was made for"
)
_model_failed = partial(RefusalError, 500, "the model failed on this request; nothing was charged", "failed")


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that was admitted, on its way to the model, to the ledger, and back; each stage fills in its part."""

    model: ServedModel  # answers it, also where another one is loaded meanwhile
    x: npt.NDArray[Any]
    charge: Charge
    future: asyncio.Future[None]  # done at the end
    cycle: Any = None  # uvicorn's object for this request and its answer
    trace: RequestSpan | None = None
    scores: npt.NDArray[np.float32] | None = None  # (n, K)
    batch: int = 0  # inputs of the call that computed them
    # Makes the error of a request without scores. The error itself would keep alive, by its traceback, all that the
    # request held.
    failure: Callable[[], Exception] | None = None
    result: ChargeResult | None = None

    @property
    def gone(self) -> bool:
        """Whether the peer has hung up: then nothing is computed and nothing charged."""
        return bool(getattr(self.cycle, "disconnected", False))


class Batcher:
    """Runs the model for requests in the order in which they come, at most ``most`` inputs per call.

    Its thread calls ``computed`` with the requests that have scores, ``failed`` with those that have a failure instead,
    and ``called`` with the inputs and the seconds of each call.
    """

    def __init__(
        self,
        most: int,
        delay: float,
        computed: Callable[[list[PendingRequest]], None],
        failed: Callable[[list[PendingRequest]], None],
        called: Callable[[int, float], None],
    ) -> None:
        self.most, self.delay = most, delay
        self._computed, self._failed, self._called = computed, failed, called
        self._queue: SimpleQueue[list[PendingRequest] | None] = SimpleQueue()
        self._fresh: list[PendingRequest] = []
        self._put = self._taken = 0  # each written by one thread alone
        self._gathered: deque[PendingRequest] = deque()
        self._stopping = False
        self._busy_until = 0.0
        self._begun: float | None = None  # when the call under way began
        self._usual = 1.0
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def submit(self, request: PendingRequest) -> None:
        """Have a request computed; from the event loop's thread.

        Requests that come in one turn of the loop wake the model's thread a few times, not each of them.
        """
        self._put += len(request.x)
        self._fresh.append(request)
        if len(self._fresh) == 1:
            asyncio.get_running_loop().call_soon(self._hand_over)
        elif len(self._fresh) >= _TOGETHER:
            self._hand_over()

    @property
    def waiting(self) -> int:
        """Inputs that no call has taken yet."""
        return self._put - self._taken

    def wait(self, timing: Timing) -> float:
        """Return the expected seconds until an input that comes now would begin to be computed."""
        running = max(0.0, self._busy_until - time.monotonic())
        waiting = self.waiting
        return running + timing.wait(waiting) if waiting else running

    def running(self) -> float:
        """Return for how many seconds the call under way has been running; 0 where there is none."""
        begun = self._begun
        return 0.0 if begun is None else time.monotonic() - begun

    def close(self) -> None:
        """Compute what waits, then stop."""
        self._hand_over()
        self._queue.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        if self._fresh:
            self._queue.put(self._fresh)
            self._fresh = []

    def _run(self) -> None:
        while self._gather():
            requests = self._choose()
            self._taken += sum(len(request.x) for request in requests)
            self._call(requests)

    def _gather(self) -> bool:
        """Wait for a request, and for whatever comes with it; False at the end."""
        if not self._gathered and not self._stopping:
            since = time.monotonic()
            self._take(self._queue.get())
            if time.monotonic() - since > _REST * self.delay:
                self._usual = 1.0
        deadline: float | None = None
        while not self._stopping:
            try:
                self._take(self._queue.get_nowait())
                continue
            except Empty:
                count = len(self._gathered)
            if self._usual < _SEVERAL or count >= self._usual or self.waiting >= self.most or self.delay <= 0.0:
                break
            now = time.monotonic()
            deadline = deadline or now + self.delay
            try:
                self._take(self._queue.get(timeout=max(0.0, deadline - now)))
            except Empty:
                if count == 1:
                    self._usual /= 2  # waited for nobody
                break
        self._usual += _NEW * (len(self._gathered) - self._usual)
        return bool(self._gathered)

    def _take(self, requests: list[PendingRequest] | None) -> None:
        if requests is None:
            self._stopping = True
        else:
            self._gathered.extend(requests)

    def _choose(self) -> list[PendingRequest]:
        """The requests of the next call: the first, and those after it that fit and are for the same model."""
        requests = [self._gathered.popleft()]
        model, inputs = requests[0].model, len(requests[0].x)
        while self._gathered and self._gathered[0].model is model:
            inputs += len(self._gathered[0].x)
            if inputs > self.most:
                break
            requests.append(self._gathered.popleft())
        return requests

    def _call(self, requests: list[PendingRequest]) -> None:
        gone = [request for request in requests if request.gone]
        if gone:
            self._fail(gone, GoneError)
            requests = [request for request in requests if request.failure is None]
        if not requests:
            return
        try:
            scores, call = self._scores(requests)
        except Exception as error:  # noqa: BLE001 - whatever a model does, the server goes on
            if len(requests) == 1:
                log_event("error", "model_failed", error=str(error), request_id=requests[0].charge.request_id)
                self._fail(requests, _model_failed)
            else:  # each by itself, so that one cannot take the others with it
                for request in requests:
                    self._call([request])
            return
        finite = bool(np.isfinite(scores).all())
        not_finite: list[PendingRequest] = []
        end = 0
        for request in requests:
            begin, end = end, end + len(request.x)
            request.scores, request.batch = scores[begin:end], len(scores)
            if request.trace is not None:
                request.trace.computed(call)
            if not finite and not np.isfinite(request.scores).all():
                not_finite.append(request)
        if not_finite:
            self._fail(not_finite, _not_finite)
            requests = [request for request in requests if request.failure is None]
        if requests:
            self._computed(requests)

    def _fail(self, requests: list[PendingRequest], failure: Callable[[], Exception]) -> None:
        for request in requests:
            request.failure = failure
        self._failed(requests)

    def _scores(self, requests: list[PendingRequest]) -> tuple[npt.NDArray[np.float32], ModelCall]:
        """Scores of all inputs of all requests, in their order, and the call that computed them."""
        model = requests[0].model
        start = time.monotonic()
        try:
            x = requests[0].x if len(requests) == 1 else np.concatenate([request.x for request in requests])
            self._begun, self._busy_until = start, start + model.timing.call(len(x))
            scores = model.run(x)
        finally:
            self._begun, self._busy_until = None, 0.0
        end = time.monotonic()
        model.timing.observe(len(x), end - start)
        self._called(len(x), end - start)
        return scores, ModelCall(start, end, len(x), len(requests))
