"""What an edge client counts: answers by reason, traffic, latency. Bounded in memory, safe under threads."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.answers import WITHIN_LIMIT, WORTH_ASKING
from l2h.edge.reasons import REASONS

#: How many of the last latencies the percentiles are taken over.
MEMORY = 4096


@dataclass(frozen=True)
class EdgeStats:
    """Counters since the client was made.

    Attributes:
        calls: of ``predict``.
        answers: inputs answered.
        local: of them by this device.
        remote: of them by the server.
        reasons: answers by reason; those that never occurred are left out.
        requests: sent to the server, repeats included.
        retries: of them repeats: after a broken connection, or when a busy server asked to come back.
        charged: answers of the server (to whole requests) that it says it charged for.
        repeats: answers that it says were charged before.
        bytes_sent: bodies of requests.
        bytes_received: bodies of answers, as far as they were read.
        latency: seconds of the last calls of ``predict``: ``p50``, ``p95``, ``p99``, ``max``; empty before the first.
        round_trip: the same of the last requests that were answered.
        breaker: ``closed``, ``open`` or ``half-open``.
        breaker_opened: how often it opened.
        version: of the model that answered last; None before.
        error: what went wrong with the server last; None where nothing did. Kept when all is well again.
        limit: the limiter's status, where a limiter keeps the limit.
    """

    calls: int
    answers: int
    local: int
    remote: int
    reasons: dict[str, int]
    requests: int
    retries: int
    charged: int
    repeats: int
    bytes_sent: int
    bytes_received: int
    latency: dict[str, float]
    round_trip: dict[str, float]
    breaker: str
    breaker_opened: int
    version: str | None
    error: str | None
    limit: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class Recent:
    """The last values of a series; the caller holds a lock."""

    __slots__ = ("_next", "_values")

    def __init__(self) -> None:
        self._values: list[float] = []
        self._next = 0

    def add(self, value: float) -> None:
        """Take in a value, in the place of the oldest where there are enough."""
        if len(self._values) < MEMORY:
            self._values.append(value)
        else:
            self._values[self._next] = value
            self._next = (self._next + 1) % MEMORY

    def values(self) -> list[float]:
        """A copy, in no order."""
        return list(self._values)


class Recorder:
    """The counters behind :class:`EdgeStats`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons = [0] * len(REASONS)
        self._latency, self._round_trip = Recent(), Recent()
        self._count = {
            name: 0 for name in ("calls", "requests", "retries", "charged", "repeats", "bytes_sent", "bytes_received")
        }
        self._version: str | None = None
        self._error: str | None = None

    def answered_one(self, code: int, latency: float) -> None:
        """A call of ``predict`` with one input."""
        with self._lock:
            self._reasons[code] += 1
            self._count["calls"] += 1
            self._latency.add(latency)

    def answered(self, codes: npt.NDArray[np.int8], latency: float) -> None:
        """A call of ``predict``."""
        counts = np.bincount(codes, minlength=len(REASONS)).tolist()
        with self._lock:
            self._reasons = [a + b for a, b in zip(self._reasons, counts, strict=True)]
            self._count["calls"] += 1
            self._latency.add(latency)

    def sent(self, size: int, repeat: bool) -> None:
        """A request goes out."""
        with self._lock:
            self._count["requests"] += 1
            self._count["retries"] += repeat
            self._count["bytes_sent"] += size

    def received(self, size: int) -> None:
        """Bytes of an answer came in."""
        with self._lock:
            self._count["bytes_received"] += size

    def replied(self, seconds: float, version: str | None, charged: str | None) -> None:
        """A whole answer that can be used; ``charged`` is the header of that name."""
        with self._lock:
            self._round_trip.add(seconds)
            self._version = version
            self._count["charged"] += charged == "1"
            self._count["repeats"] += charged == "0"

    def failed(self, error: str) -> bool:
        """What went wrong; returns whether it is another thing than the last time."""
        with self._lock:
            news = error != self._error
            self._error = error
            return news

    def stats(self, breaker: str, opened: int, limit: dict[str, Any] | None) -> EdgeStats:
        """All of it, as of now."""
        with self._lock:
            reasons = list(self._reasons)
            count = dict(self._count)
            latency, round_trip = self._latency.values(), self._round_trip.values()
            version, error = self._version, self._error
        total = sum(reasons)
        remote = reasons[REASONS.index(WORTH_ASKING)] + reasons[REASONS.index(WITHIN_LIMIT)]
        return EdgeStats(
            answers=total,
            local=total - remote,
            remote=remote,
            reasons={reason: n for reason, n in zip(REASONS, reasons, strict=True) if n},
            latency=_percentiles(latency),
            round_trip=_percentiles(round_trip),
            breaker=breaker,
            breaker_opened=opened,
            version=version,
            error=error,
            limit=limit,
            **count,
        )


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    p50, p95, p99, top = np.percentile(values, [50, 95, 99, 100]).tolist()
    return {"p50": p50, "p95": p95, "p99": p99, "max": top}
