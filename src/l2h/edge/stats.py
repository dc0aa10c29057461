"""What an edge client counts: answers by reason, traffic, latency. Bounded in memory, safe under threads."""

import threading
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.answers import WITHIN_LIMIT, WORTH_ASKING
from l2h.edge.reasons import REASONS

#: Over how many of the last latencies the percentiles are taken.
_MEMORY = 4096


@dataclass(frozen=True)
class EdgeStats:
    """Counters since the client was made.

    Attributes:
        calls: of predict.
        answers: inputs answered.
        local: those answered by this device.
        remote: those answered by the server.
        reasons: answers by reason; those that never occurred are left out.
        requests: sent to the server, repeats included.
        retries: the repeats among them: after a broken connection, or when a busy server asked for one.
        charged: requests that the server says it charged for.
        repeats: requests that it says were charged before.
        bytes_sent: bodies of requests.
        bytes_received: bodies of answers, as far as they were read.
        latency: seconds of the last calls of predict: p50, p95, p99, max; empty before the first.
        round_trip: the same of the last requests that were answered.
        breaker: closed, open or half-open.
        breaker_opened: how often it opened.
        version: of the model that answered last.
        error: the last problem with the server; it stays when all is well again.
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
        """Return plain values for JSON."""
        return asdict(self)


class Recorder:
    """The counters behind :class:`EdgeStats`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons = [0] * len(REASONS)
        self._latency: deque[float] = deque(maxlen=_MEMORY)
        self._round_trip: deque[float] = deque(maxlen=_MEMORY)
        self._count = {
            name: 0 for name in ("calls", "requests", "retries", "charged", "repeats", "bytes_sent", "bytes_received")
        }
        self._version: str | None = None
        self._error: str | None = None

    def answered_one(self, code: int, latency: float) -> None:
        """Count a call of ``predict`` with one input."""
        with self._lock:
            self._reasons[code] += 1
            self._count["calls"] += 1
            self._latency.append(latency)

    def answered(self, codes: npt.NDArray[np.int8], latency: float) -> None:
        """Count a call of ``predict``; ``codes`` has the reason of every answer."""
        counts = np.bincount(codes, minlength=len(REASONS)).tolist()
        with self._lock:
            self._reasons = [a + b for a, b in zip(self._reasons, counts, strict=True)]
            self._count["calls"] += 1
            self._latency.append(latency)

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
            self._version = version
            self._count["charged"] += charged == "1"
            self._count["repeats"] += charged == "0"

    def failed(self, error: str) -> bool:
        """Note a problem, and return whether it differs from the last one."""
        with self._lock:
            changed = error != self._error
            self._error = error
            return changed

    def stats(self, breaker: str, opened: int, limit: dict[str, Any] | None) -> EdgeStats:
        """Return the counters as of now, with the breaker's state and the limiter's status."""
        with self._lock:
            reasons = list(self._reasons)
            count = dict(self._count)
            latency, round_trip = list(self._latency), list(self._round_trip)
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
