"""What an edge client counts: answers by reason, traffic, latency. Bounded in memory, safe under threads."""

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.edge.reasons import REASONS
from l2h.telemetry import Distribution, Family

#: Over how many of the last latencies the percentiles are taken.
_MEMORY = 4096
#: Over how many a report takes them, which is to cost next to nothing.
FEW = 256
_COUNTED = ("requests", "retries", "charged", "repeats", "bytes_sent", "bytes_received")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What was exchanged with servers since the client was made."""

    requests: int  # sent, repeats included
    retries: int  # the repeats among them: after a broken connection, or when a busy server asked for one
    charged: int  # requests that the server says it charged for
    repeats: int  # requests that it says were charged before
    bytes_sent: int  # bodies of requests
    bytes_received: int  # bodies of answers, as far as they were read
    round_trip: dict[str, float]  # seconds of the last requests that were answered: p50, p95, p99, max; empty at first
    breaker: str  # closed, open or half-open; of several servers the worst: open before half-open before closed
    breaker_opened: int  # how often it opened
    version: str | None  # of the model that answered last
    error: str | None  # the last problem with the server; it stays when all is well again


@dataclass(frozen=True, kw_only=True)
class ServerStats(Traffic):
    """Counters of one server since the client was made."""

    answers: int  # inputs that it answered
    faults: dict[str, int]  # inputs that it was chosen for and did not answer, by reason; another server may have


@dataclass(frozen=True, kw_only=True)
class EdgeStats(Traffic):
    """Counters since the client was made, of all servers together where there are several."""

    calls: int  # of predict
    answers: int  # inputs answered
    local: int  # those answered by this device
    remote: int  # those answered by a server
    reasons: dict[str, int]  # answers by reason; those that never occurred are left out
    answerers: dict[str, int]  # answers by the name of the answerer; those that never answered are left out
    latency: dict[str, float]  # seconds of the last calls of predict, as ``round_trip``
    expected_saving: float | None  # by what servers answered, as the rejector expected; None unless ``report=``
    limit: dict[str, Any] | None  # the limiter's status, where there is one; by name where limits were given by name
    servers: dict[str, ServerStats]  # by name
    #: ``above`` or ``below`` while many more, or fewer, of the recent inputs are worth asking about than of the
    #: calibration samples; None where not, or where the bundle has no such samples.
    drift: str | None
    bundle: str  # version of the bundle in service
    reloads: int  # how often another one took over
    rolled_back: str | None  # version of the last one that was taken back by itself
    audit: dict[str, Any] | None  # the counters of audits, where there are any

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Recorder:
    """The counters behind :class:`ServerStats`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._round_trip: deque[float] = deque(maxlen=_MEMORY)
        self._round_trips = Distribution()
        self._count = dict.fromkeys(_COUNTED, 0)
        self._answers = 0
        self._faults: Counter[str] = Counter()
        self._version: tuple[float, str | None] = (0.0, None)  # and when it was seen
        self._error: tuple[float, str | None] = (0.0, None)

    def sent(self, size: int, repeat: bool) -> None:
        """Count a request of so many bytes."""
        with self._lock:
            self._count["requests"] += 1
            self._count["retries"] += repeat
            self._count["bytes_sent"] += size

    def received(self, size: int) -> None:
        """Count bytes of an answer."""
        with self._lock:
            self._count["bytes_received"] += size

    def replied(self, seconds: float, version: str | None, charged: str | None) -> None:
        """Count a usable answer; ``charged`` is the header ``L2H-Charged``."""
        with self._lock:
            self._round_trip.append(seconds)
            self._round_trips.observe(seconds)
            self._version = time.monotonic(), version
            self._count["charged"] += charged == "1"
            self._count["repeats"] += charged == "0"

    def failed(self, error: str) -> bool:
        """Note a problem, and return whether it differs from the last one."""
        with self._lock:
            changed = error != self._error[1]
            self._error = time.monotonic(), error
            return changed

    def settled(self, inputs: int, reason: str | None) -> None:
        """Count inputs that it was chosen for: None where it answered them, or the reason why not."""
        with self._lock:
            if reason is None:
                self._answers += inputs
            else:
                self._faults[reason] += inputs

    def stats(self, breaker: str, opened: int, last: int = _MEMORY) -> ServerStats:
        """Return the counters as of now, with the breaker's state and percentiles of so many round trips."""
        with self._lock:
            trips, faults, count = _last(self._round_trip, last), dict(self._faults), dict(self._count)
            answers, version, error = self._answers, self._version[1], self._error[1]
        return ServerStats(
            answers=answers,
            faults=faults,
            round_trip=_percentiles(trips),
            breaker=breaker,
            breaker_opened=opened,
            version=version,
            error=error,
            **count,
        )

    def add_round_trips(self, family: Family, server: str) -> None:
        """Add the seconds of all round trips to a family of histograms."""
        with self._lock:
            self._round_trips.add_to(family, server=server)

    def latest(self, last: int = _MEMORY) -> tuple[list[float], tuple[float, str | None], tuple[float, str | None]]:
        """Return the seconds of the last round trips, the last version and the last error, these with their times."""
        with self._lock:
            return _last(self._round_trip, last), self._version, self._error


class AnswerCounter:
    """The counters of the answers that callers got; ``answerers`` are the names behind the columns."""

    def __init__(self, answerers: tuple[str, ...], local: int) -> None:
        self._names, self._local = answerers, local
        self._lock = threading.Lock()
        self._calls = 0
        self._reasons = [0] * len(REASONS)
        self._by = [0] * len(answerers)
        self._latency: deque[float] = deque(maxlen=_MEMORY)
        self._latencies = Distribution()
        self._saving: float | None = None

    def saved(self, saving: float) -> None:
        """Add what the servers' answers of a call were expected to save."""
        with self._lock:
            self._saving = saving + (self._saving or 0.0)

    def answered_one(self, code: int, column: int, latency: float) -> None:
        """Count a call of ``predict`` with one input."""
        with self._lock:
            self._reasons[code] += 1
            self._by[column] += 1
            self._calls += 1
            self._latency.append(latency)
            self._latencies.observe(latency)

    def answered(self, codes: npt.NDArray[np.int8], columns: npt.NDArray[np.intp], latency: float) -> None:
        """Count a call of ``predict``, with the reason and the answerer of every answer."""
        if len(codes) == 1:
            return self.answered_one(codes.item(), columns.item(), latency)
        reasons = np.bincount(codes, minlength=len(REASONS)).tolist()
        by = np.bincount(columns, minlength=len(self._names)).tolist()
        with self._lock:
            self._reasons = [a + b for a, b in zip(self._reasons, reasons, strict=True)]
            self._by = [a + b for a, b in zip(self._by, by, strict=True)]
            self._calls += 1
            self._latency.append(latency)
            self._latencies.observe(latency)

    def add_latencies(self, family: Family) -> None:
        """Add the seconds of all calls to a family of histograms."""
        with self._lock:
            self._latencies.add_to(family)

    def stats(
        self,
        servers: Mapping[str, ServerStats],
        counters: Mapping[str, Recorder],
        limit: dict[str, Any] | None,
        bundle: dict[str, Any],
        audit: dict[str, Any] | None,
        last: int = _MEMORY,
    ) -> EdgeStats:
        """Return the counters as of now, with those of the servers, the limiters, the bundle and audits.

        Percentiles are taken over so many of the ``last`` values.
        """
        with self._lock:
            reasons, by, calls, latency = list(self._reasons), list(self._by), self._calls, _last(self._latency, last)
            saving = self._saving
        trips, versions, errors = zip(*(counter.latest(last) for counter in counters.values()), strict=True)
        last_error, whose = max(zip(errors, counters, strict=True), key=lambda pair: pair[0][0])
        named = len(counters) > 1 and last_error[1] is not None
        states = {stats.breaker for stats in servers.values()}
        return EdgeStats(
            calls=calls,
            answers=sum(by),
            local=sum(by[: self._local]),
            remote=sum(by[self._local :]),
            reasons={reason: n for reason, n in zip(REASONS, reasons, strict=True) if n},
            answerers={name: n for name, n in zip(self._names, by, strict=True) if n},
            latency=_percentiles(latency),
            round_trip=_percentiles([seconds for each in trips for seconds in each]),
            breaker=next(state for state in ("open", "half-open", "closed") if state in states),
            breaker_opened=sum(stats.breaker_opened for stats in servers.values()),
            version=max(versions, key=lambda seen: seen[0])[1],
            error=f"{whose}: {last_error[1]}" if named else last_error[1],
            expected_saving=saving,
            limit=limit,
            servers=dict(servers),
            **bundle,
            audit=audit,
            **{name: sum(getattr(stats, name) for stats in servers.values()) for name in _COUNTED},
        )


def _last(values: deque[float], count: int) -> list[float]:
    return list(islice(reversed(values), count))


def _percentiles(values: list[float]) -> dict[str, float]:
    # Without arrays: of few values, as a report has them, to make one takes longer than to sort them.
    ordered, found = sorted(values), {}
    for name, share in {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}.items() if values else ():
        below, part = divmod(share * (len(ordered) - 1), 1)
        low, high = ordered[int(below)], ordered[min(int(below) + 1, len(ordered) - 1)]
        found[name] = low + part * (high - low)
    return found
