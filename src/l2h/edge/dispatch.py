"""Which requests are sent when: no more at a time than the server answers in time, and none that would be too late."""

import os
import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy.typing as npt

from l2h.bundle import Manifest
from l2h.edge import reasons
from l2h.edge.function import FunctionTransport
from l2h.edge.loop import LoopThread
from l2h.edge.options import EdgeOptions
from l2h.edge.stats import Recorder
from l2h.edge.transport import Reply, RequestScope, Transport

Array = npt.NDArray[Any]
#: What came of a request that was not sent, and of one that the client's end cut short.
CROWDED, _CLOSED = Reply(reasons.CROWDED, None, healthy=None), Reply(reasons.SERVER_UNREACHABLE, None, healthy=None)


class Pace:
    """How many requests may be under way, and how long an answer takes, as the last ones showed.

    A request that failed because of the server halves the number, once for all that were under way with it. An answer
    raises it by a part of one, if it took less than half of its time, or hardly longer than the quickest do: on a slow
    link fewer requests would not be quicker. Answers are expected to take as long as the slowest lately, and as long as
    the last time-out until an answer to a later request is quicker.

    Example:
        >>> pace = Pace(most=4)
        >>> pace.learn(begun=0.0, now=0.2, until=0.2, healthy=False, full=True)
        >>> pace.limit, pace.admits(left=0.1), pace.admits(left=0.3)
        (2.0, False, True)
        >>> pace.learn(begun=0.2, now=0.21, until=0.4, healthy=True, full=True)
        >>> pace.limit
        2.5
    """

    def __init__(self, most: int) -> None:
        self._most, self.limit = most, float(most)
        self._halved = 0.0  # when the limit last fell
        self._quick = self.slowest = 0.0  # seconds of the quickest answers lately, and of the slowest
        self._late, self._late_at = 0.0, 0.0  # seconds without an answer, and when they were over

    @property
    def expected(self) -> float:
        """Seconds that an answer takes."""
        return max(self.slowest, self._late)

    def admits(self, left: float) -> bool:
        """Return whether an answer is to be expected within so many seconds, beside others under way."""
        return left > self.expected

    def learn(self, *, begun: float, now: float, until: float, healthy: bool | None, full: bool) -> None:
        """Take in what came of a request: what it says of the server, and whether all places were taken."""
        seconds = now - begun
        if healthy:
            self._quick, self.slowest = self._quick or seconds, self.slowest or seconds
            self._quick += (seconds - self._quick) / (32 if seconds > self._quick else 2)
            self.slowest += (seconds - self.slowest) / (2 if seconds > self.slowest else 32)
            if full and seconds < max(0.5 * (until - begun), 1.5 * self._quick):
                self.limit = min(self._most, self.limit + 1 / self.limit)
            if begun >= self._late_at:  # what was asked since the time-out is answered
                self._late = min(self._late / 2, 4 * seconds)
        elif now >= until:
            self._late, self._late_at = max(self._late, seconds), now
        if healthy is False and begun >= self._halved:
            self.limit, self._halved = max(1.0, self.limit / 2), now


class Inquiry:
    """Some inputs of a call, its ``rows``, that travel in one request; ``future`` has what came of it."""

    __slots__ = ("X", "begun", "future", "rows", "scope")

    def __init__(self, X: Array, rows: npt.NDArray[Any], until: float) -> None:
        self.X, self.rows, self.scope = X, rows, RequestScope(until)
        self.begun = 0.0  # when it was let through
        self.future: Future[Reply] = Future()


class Dispatcher:
    """Sends requests from any thread, on an event loop of its own.

    Those that have no place wait. The oldest goes first while it has time enough, at least twice that of an answer;
    else the newest, which has the most time left: so too many callers are not all too late. One that has less time left
    than an answer needs is refused; where none is under way and none waited it is tried all the same, so that there is
    something to learn from.
    """

    def __init__(self, options: EdgeOptions, manifest: Manifest, recorder: Recorder) -> None:
        given = options, manifest, recorder
        self.transport = Transport(*given) if options.function is None else FunctionTransport(options.function, *given)
        self.loop = LoopThread(self.transport.close)
        self._lock = threading.Lock()
        self._pace = Pace(options.connections)
        self._active = 0
        self._waiting: dict[Inquiry, None] = {}
        self._stopped = False
        self._pid = os.getpid()

    @property
    def expected(self) -> float:
        """Seconds that an answer takes, as the last ones and time-outs showed; 0 before the first."""
        return self._pace.expected

    @property
    def slowest(self) -> float:
        """Seconds that the slowest answers took lately; 0 before the first."""
        return self._pace.slowest

    def send(self, inquiry: Inquiry) -> None:
        """Send it now or when there is a place; raise ``RuntimeError`` where the loop has ended."""
        with self._lock:
            if self._stopped:
                raise RuntimeError("the dispatcher is stopped")
            if self._active >= int(self._pace.limit):
                self._waiting[inquiry] = None
                return
            admitted = self._admit(inquiry, alone=not self._active)
        self._start(inquiry, admitted)

    def withdraw(self, inquiry: Inquiry) -> bool:
        """Return whether it still waits; if so, it will not be sent."""
        with self._lock:
            waits = inquiry in self._waiting
            self._waiting.pop(inquiry, None)
            return waits

    def abandon(self, inquiry: Inquiry) -> None:
        """End it, since its caller has gone."""
        if not self.withdraw(inquiry):
            self.loop.call(inquiry.scope.abandon)

    def stop(self, timeout: float = 2.0) -> None:
        """End what waits or is under way, and the loop; do nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._stopped = True
            waiting, self._waiting = list(self._waiting), {}
        for inquiry in waiting:
            inquiry.future.set_result(_CLOSED)
        self.loop.stop(timeout)

    def _next(self, now: float) -> Inquiry:
        oldest = next(iter(self._waiting))
        return oldest if self._pace.admits((oldest.scope.until - now) / 2) else next(reversed(self._waiting))

    def _admit(self, inquiry: Inquiry, alone: bool = False) -> bool:
        inquiry.begun = time.monotonic()
        admitted = alone or self._pace.admits(inquiry.scope.until - inquiry.begun)
        self._active += admitted
        return admitted

    def _start(self, inquiry: Inquiry, admitted: bool) -> None:
        if not admitted:
            inquiry.future.set_result(CROWDED)
            return
        try:
            task = self.loop.submit(self._ask(inquiry))
        except RuntimeError:
            self._leave(inquiry, None)
            raise
        task.add_done_callback(lambda _: self._end_unbegun(inquiry))

    def _end_unbegun(self, inquiry: Inquiry) -> None:
        """End a request that was cancelled before its first step; any other has its reply by now."""
        if not inquiry.future.done():
            self._leave(inquiry, None)
            inquiry.future.set_result(_CLOSED)

    async def _ask(self, inquiry: Inquiry) -> None:
        reply = _CLOSED
        try:
            reply = await self.transport.ask(inquiry.X, inquiry.scope)
        finally:
            # Its caller may ask again at once, and is not to meet its own request.
            self._leave(inquiry, None if inquiry.scope.abandoned else reply.healthy)
            inquiry.future.set_result(reply)

    def _leave(self, inquiry: Inquiry, healthy: bool | None) -> None:
        """Give its place to those that wait."""
        now, until = time.monotonic(), inquiry.scope.until
        next_ones = []
        with self._lock:
            full = bool(self._waiting) or self._active >= int(self._pace.limit)
            self._pace.learn(begun=inquiry.begun, now=now, until=until, healthy=healthy, full=full)
            self._active -= 1
            while self._waiting and self._active < int(self._pace.limit):
                waiting = self._next(now)
                del self._waiting[waiting]
                next_ones.append((waiting, self._admit(waiting)))
        for waiting, admitted in next_ones:
            try:
                self._start(waiting, admitted)
            except RuntimeError:  # the loop has ended
                waiting.future.set_result(_CLOSED)
