"""The circuit breaker: a server that fails again and again is not asked for a while, then tried by one request.

pybreaker keeps the states and counts the failures. By itself it would let every concurrent caller through while it is
half-open, time its rest by the wall clock, and count a request that began before the circuit opened. So
:class:`Breaker` admits one probe at a time, uses a clock that does not jump, and counts only requests of the present
state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pybreaker

from l2h.edge.options import check_seconds, check_whole
from l2h.telemetry import event

log = logging.getLogger("l2h.edge")


class _FailedError(Exception):
    """Stands for a failed request in pybreaker's count."""


class Admission:
    """Permission to ask the server once. Its first report counts, later ones are ignored."""

    __slots__ = ("_breaker", "epoch", "reported")

    def __init__(self, breaker: Breaker, epoch: int) -> None:
        self._breaker, self.epoch, self.reported = breaker, epoch, False

    def report(self, healthy: bool | None) -> None:
        """Report how the request went; None where it says nothing of the server, such as when the caller gave up."""
        self._breaker.record(self, healthy)


class Breaker:
    """Decides whether the server is worth trying; any number of threads may ask.

    So many ``failures`` in a row open it. It then stays open for ``rest`` seconds before one request may probe.

    Example:
        >>> now = 0.0
        >>> breaker = Breaker(failures=2, rest=5.0, clock=lambda: now)
        >>> for admission in breaker.admit(2):
        ...     admission.report(healthy=False)
        >>> breaker.state, breaker.admit(2)
        ('open', [])
        >>> now = 5.0
        >>> (probe,) = breaker.admit(2)
        >>> breaker.state, breaker.admit(2)
        ('half-open', [])
        >>> probe.report(healthy=True)
        >>> breaker.state
        'closed'
    """

    def __init__(
        self, failures: int, rest: float, whose: str = "the server", clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_whole("failures", failures, least=1)
        self._rest, self._whose, self._clock = check_seconds("rest", rest), whose, clock
        self._circuit = pybreaker.CircuitBreaker(
            fail_max=failures, reset_timeout=self._rest, throw_new_error_on_trip=False, name="l2h server"
        )
        self._lock = threading.Lock()
        self._epoch = 0
        self._until = 0.0
        self._probing = False
        self.opened = 0  # how often

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        return self._circuit.current_state

    def blocked(self) -> bool:
        """Return whether :meth:`admit` would now refuse."""
        with self._lock:
            return self._refuses()

    def admit(self, wanted: int) -> list[Admission]:
        """Admit so many requests, one where the server is only tried, or none. Every admission must be reported."""
        with self._lock:
            if wanted < 1 or self._refuses():
                return []
            if self._circuit.current_state != pybreaker.STATE_CLOSED:
                if self._circuit.current_state == pybreaker.STATE_OPEN:
                    self._circuit.half_open()
                    self._epoch += 1
                self._probing = True
                wanted = 1
            return [Admission(self, self._epoch) for _ in range(wanted)]

    def record(self, admission: Admission, healthy: bool | None) -> None:
        """Count what an admitted request says of the server."""
        with self._lock:
            first, admission.reported = not admission.reported, True
            # A request that set out in an earlier state says nothing of this one.
            if first and admission.epoch == self._epoch:
                self._probing = False
                if healthy is not None:
                    self._count(healthy)

    def _refuses(self) -> bool:
        state = self._circuit.current_state
        if state == pybreaker.STATE_CLOSED:
            return False
        return self._probing or (state == pybreaker.STATE_OPEN and self._clock() < self._until)

    def _count(self, healthy: bool) -> None:
        before = self._circuit.current_state
        with suppress(_FailedError), self._circuit.calling():
            if not healthy:
                raise _FailedError
        after = self._circuit.current_state
        if after == before:
            return
        self._epoch += 1
        if after == pybreaker.STATE_OPEN:
            self.opened += 1
            self._until = self._clock() + self._rest
            what = event("circuit_opened", server=self._whose, rest=self._rest)
            log.warning("%s is not asked for %g s: it failed too often", self._whose, self._rest, extra=what)
        else:
            log.info("%s answers again", self._whose, extra=event("circuit_closed", server=self._whose))
