"""A call of ``predict`` and its requests: what came of each, and how long it is waited for."""

import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import FloatArray
from l2h.decision import Proposal, Terms
from l2h.edge import reasons
from l2h.edge.auditing import AuditedCall
from l2h.edge.breaker import Admission
from l2h.edge.dispatch import CROWDED, Dispatcher, Inquiry
from l2h.edge.service import LiveBundle
from l2h.edge.tracing import CallTrace
from l2h.edge.transport import Reply

Rows = npt.NDArray[np.intp]


class SentRequest:
    """A request of a call, and what it says to the circuit breaker.

    Its server has time until ``until``. What has not come at ``ends``, a moment later, is not waited for.
    """

    __slots__ = (
        *("_admission", "_dispatcher", "_inquiry", "_withdrawn"),
        *("by_chance", "ends", "future", "rows", "server", "until"),
    )

    def __init__(
        self, inquiry: Inquiry, admission: Admission, server: int, dispatcher: Dispatcher, ends: float
    ) -> None:
        self._inquiry, self._admission, self._dispatcher = inquiry, admission, dispatcher
        self.rows, self.future, self.server = inquiry.rows, inquiry.future, server
        self.until, self.ends = inquiry.scope.until, ends
        self._withdrawn = False
        self.by_chance = False  # whether its inputs are an audit
        self.future.add_done_callback(self._report)

    def abandon(self) -> None:
        """End the request, which then says nothing about the server."""
        self._admission.report(None)
        self._dispatcher.abandon(self._inquiry)

    def is_under_way(self, now: float) -> bool:
        """Return whether its reply is still waited for; one that waits for its turn beyond its time is not sent."""
        if self.future.done() or now >= self.ends:
            return False
        if now < self.until:
            return True
        self._withdrawn = self._dispatcher.withdraw(self._inquiry)
        if self._withdrawn:
            self._admission.report(None)
        return not self._withdrawn

    def reply(self) -> Reply:
        """Return what came of it by now."""
        if self._withdrawn:
            return CROWDED
        if not self.future.done():  # it ends by itself at any moment, and then reports what it knows of the server
            return Reply(reasons.DEADLINE, None, healthy=None)
        self._report(self.future)
        return self.future.result()

    def _report(self, future: Future[Reply]) -> None:
        self._admission.report(future.result().healthy)


class PredictCall:
    """A call of ``predict``: its deadline, the answers so far, and the requests that are under way."""

    __slots__ = (
        *("abandoned", "audit", "begun", "codes", "column", "deadline", "gain", "inputs", "label", "live"),
        *("proposal", "requests", "terms", "trace", "until"),
    )

    inputs: Any  # as the caller gave them
    live: LiveBundle  # the bundle that was in service when it began
    terms: Terms
    proposal: Proposal
    label: npt.NDArray[np.int64]  # (n,), the answers
    column: Rows  # (n,), whose answers they are
    codes: npt.NDArray[np.int8]  # (n,), the reason of every answer, as its place in REASONS

    def __init__(self) -> None:
        self.begun = self.deadline = time.monotonic()
        self.until = self.begun  # when its requests end, so that it is back at the deadline
        self.abandoned = False  # whether its caller has gone meanwhile
        self.requests: list[SentRequest] = []
        self.trace: CallTrace | None = None
        self.audit: AuditedCall | None = None
        self.gain: FloatArray | None = None  # (n, S), what asking each server was expected to save, where it is counted

    def wait(self) -> float:
        """Return the seconds until something is to be done about a request, if none is answered before."""
        now = time.monotonic()
        return max(0.0, min(each.until if now < each.until else each.ends for each in self.requests) - now)

    def abandon(self) -> None:
        """End what is under way, since the caller has gone."""
        self.abandoned = True
        for request in self.requests:
            request.abandon()
