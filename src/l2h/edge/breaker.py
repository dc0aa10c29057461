"""The circuit breaker: a server that fails again and again is left alone for a while, then tried by one request.

The states and the count of failures are pybreaker's. It would let every concurrent caller through while it is
half-open, times its rest by the wall clock, and takes the word of a request that began before the circuit opened. So
here stands a door before it: one probe at a time, a clock that does not jump, and verdicts on the present state alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pybreaker

log = logging.getLogger("l2h.edge")


class _FailedError(Exception):
    """Stands for a failed request in pybreaker's count."""


class Pass:
    """Leave to ask the server once. Its first verdict counts, a later one is ignored."""

    __slots__ = ("_breaker", "_epoch", "_open")

    def __init__(self, breaker: Breaker, epoch: int) -> None:
        self._breaker, self._epoch, self._open = breaker, epoch, True

    def settle(self, healthy: bool | None) -> None:
        """Say how it went; None: there is nothing to say of the server, such as where the caller gave up."""
        with self._breaker._lock:
            if self._open:
                self._open = False
                self._breaker._settle(self._epoch, healthy)


class Breaker:
    """Decides whether the server is worth trying; any number of threads may ask.

    Args:
        failures: in a row that open it.
        rest: seconds that it then stays open before one request may probe.
        clock: seconds that never go back.

    Example:
        >>> now = 0.0
        >>> breaker = Breaker(failures=2, rest=5.0, clock=lambda: now)
        >>> for leave in breaker.enter(2):
        ...     leave.settle(healthy=False)
        >>> breaker.state, breaker.enter(2)
        ('open', [])
        >>> now = 5.0
        >>> (probe,) = breaker.enter(2)
        >>> breaker.state, breaker.enter(2)
        ('half-open', [])
        >>> probe.settle(healthy=True)
        >>> breaker.state
        'closed'
    """

    def __init__(self, failures: int, rest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._circuit = pybreaker.CircuitBreaker(
            fail_max=failures, reset_timeout=rest, throw_new_error_on_trip=False, name="l2h server"
        )
        self._rest, self._clock = rest, clock
        self._lock = threading.Lock()
        self._epoch = 0
        self._until = 0.0
        self._probing = False
        #: How often it opened.
        self.opened = 0

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        return self._circuit.current_state

    def blocked(self) -> bool:
        """Whether :meth:`enter` would now refuse."""
        if self._circuit.current_state == pybreaker.STATE_CLOSED:
            return False
        with self._lock:
            return self._refuses()

    def enter(self, wanted: int) -> list[Pass]:
        """Leave to ask the server so many times, once where it is only tried, or never. Every pass must be settled."""
        with self._lock:
            if wanted < 1 or self._refuses():
                return []
            if self._circuit.current_state != pybreaker.STATE_CLOSED:
                if self._circuit.current_state == pybreaker.STATE_OPEN:
                    self._turn(self._circuit.half_open)
                self._probing = True
                wanted = 1
            return [Pass(self, self._epoch) for _ in range(wanted)]

    def _refuses(self) -> bool:
        state = self._circuit.current_state
        if state == pybreaker.STATE_CLOSED:
            return False
        return self._probing or (state == pybreaker.STATE_OPEN and self._clock() < self._until)

    def _settle(self, epoch: int, healthy: bool | None) -> None:
        if epoch != self._epoch:
            return  # it set out in an earlier state, and says nothing of this one
        self._probing = False
        if healthy is None:
            return
        before = self._circuit.current_state
        if healthy:
            self._circuit.call(_succeed)
        else:
            with suppress(_FailedError):
                self._circuit.call(_fail)
        after = self._circuit.current_state
        if after != before:
            self._turn(None)
        if after == pybreaker.STATE_OPEN:
            self.opened += 1
            self._until = self._clock() + self._rest
            log.warning("the server is left alone for %g s: it failed too often", self._rest)
        elif after != before:
            log.info("the server answers again")

    def _turn(self, move: Callable[[], None] | None) -> None:
        if move is not None:
            move()
        self._epoch += 1


def _succeed() -> None:
    """A request that went well."""


def _fail() -> None:
    raise _FailedError
