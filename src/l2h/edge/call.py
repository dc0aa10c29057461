"""One call of ``predict``: its deadline, the device's answers, and the requests it sent to the server."""

import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import numpy as np
import numpy.typing as npt

from l2h.costs import Costs
from l2h.edge import reasons
from l2h.edge.breaker import Admission
from l2h.edge.transport import Reply


class PredictCall:
    """A call of ``predict`` from its beginning on.

    Attributes:
        begun: when it was made, on the clock ``time.monotonic``.
        abandoned: whether its caller has gone meanwhile.
        deadline: when the answers are due, on the same clock.
        costs: the prices in use.
        label: int64 (n,), the device's answers.
        codes: int8 (n,), the reason of every answer, as its place in :data:`l2h.edge.reasons.REASONS`.
        requests: what was sent.
    """

    __slots__ = ("abandoned", "begun", "codes", "costs", "deadline", "label", "requests")

    costs: Costs
    label: npt.NDArray[np.int64]
    codes: npt.NDArray[np.int8]

    def __init__(self) -> None:
        self.begun = self.deadline = time.monotonic()
        self.abandoned = False
        self.requests: list[SentRequest] = []

    def seconds_left(self) -> float:
        """Return the time until the deadline, 0 after it."""
        return max(0.0, self.deadline - time.monotonic())

    def abandon(self) -> None:
        """End what is under way, since the caller has gone."""
        self.abandoned = True
        for request in self.requests:
            request.abandon()


class SentRequest:
    """Some inputs of a call that travel in one request.

    Args:
        rows: which inputs of the call.
        admission: what the circuit breaker gave for it.
        future: of the reply.
        end: ends the request.
    """

    __slots__ = ("_admission", "_end", "future", "rows")

    def __init__(
        self, rows: npt.NDArray[np.intp], admission: Admission, future: Future[Reply], end: Callable[[], None]
    ) -> None:
        self.rows, self._admission, self.future, self._end = rows, admission, future, end
        future.add_done_callback(self._report)

    def abandon(self) -> None:
        """End the request, which then says nothing about the server."""
        self._admission.report(None)
        self._end()

    def reply(self) -> Reply:
        """Return what came of it by now."""
        if not self.future.done():  # it ends by itself at any moment, and then reports what it knows of the server
            return Reply(reasons.DEADLINE, None, healthy=None)
        self._report(self.future)
        try:
            return self.future.result()
        except CancelledError:  # the client was closed meanwhile
            return Reply(reasons.SERVER_UNREACHABLE, None, healthy=True)

    def _report(self, future: Future[Reply]) -> None:
        self._admission.report(None if future.cancelled() or future.exception() else future.result().healthy)
