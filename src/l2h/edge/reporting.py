"""Reports of a device to its servers: in a header of requests that are made anyway, and else by a rare request.

Every server that has an address is told of this device: its counters, its alarm, its bundle and how long answers take.
Of other servers it learns neither names nor round trips.
"""

import asyncio
import logging
import random
import time
import weakref
from collections.abc import Callable
from typing import Any

from l2h.bundle import Manifest
from l2h.edge import reasons
from l2h.edge.options import EdgeSettingsError, check_seconds
from l2h.edge.pool import ConnectionPool
from l2h.edge.reasons import FaultError
from l2h.edge.stats import EdgeStats
from l2h.errors import shown
from l2h.fleet import DEVICE, HEADER, PATH, DeviceReport, made_at, told_counts, told_name
from l2h.telemetry import event

News = weakref.WeakMethod[Callable[[str], dict[str, Any]]]
log = logging.getLogger("l2h.edge")
#: Seconds without a report after which ``report=True`` makes a request for it.
EVERY = 900.0
#: Parts of that time: between two reports on requests that are made anyway; at most before the first request of its
#: own; and by which the time is drawn longer or shorter, so that a fleet does not report at once.
_RIDES, _FIRST, _JITTER = 1 / 90, 0.1, 0.1
#: Seconds that a request of its own may take, and bytes of its answer.
_PATIENCE, _MOST = 5.0, 1 << 13
#: Reasons of inputs for which a server was chosen but not asked.
_NOT_SENT = frozenset({reasons.NO_SERVER, reasons.CIRCUIT_OPEN, reasons.CROWDED})
_LATEST = 2**53


def check_report(report: Any, device: Any) -> float | None:
    """Return the seconds of ``report=``, None where it is off; raise where it or the device's name cannot be used."""
    if device is not None and (not isinstance(device, str) or not DEVICE.fullmatch(device)):
        raise EdgeSettingsError(
            f"device={shown(device, 80)} is no device's name: 1 to 64 of letters, digits, '.', '_', ':' and '-', of "
            "which the first is a letter or a digit"
        )
    if report is False or report is None:
        return None
    if device is None:
        raise EdgeSettingsError("report= tells servers of this device: give device=, its name, such as device='cam-7'")
    seconds = EVERY if report is True else check_seconds("report", report)
    if seconds > 1e7:
        raise EdgeSettingsError(f"report={report!r} is more than 10,000,000 seconds: leave it out to report nothing")
    return seconds


class Reporter:
    """Reports to one server; all methods run on the event loop of its requests.

    ``news`` is a weak reference to what returns the values of a :class:`l2h.fleet.DeviceReport` for a server, by its
    name, beside those that tell reports apart. Whatever fails here is logged and never raised.
    """

    def __init__(self, device: str, every: float, news: News, server: str) -> None:
        self._device, self._every, self._news, self._server = device, every, news, server
        self._start, self._count = time.time_ns() // 10**6, 0
        self._made = self._next = time.monotonic()  # the latter: when a report may ride on a request
        self._own = self._made + random.random() * _FIRST * every  # when a request of its own is due
        self._trouble: str | None = None

    def header(self) -> dict[str, str]:
        """Return the header for a request that is made anyway; nothing where the last report is not old enough."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + _RIDES * self._every
        return self._make(now) or {}

    def heard(self, latest: str | None) -> None:
        """Note that a report arrived; ``latest`` is the server's header, the start that it knows, if that is later."""
        self._own = time.monotonic() + self._every * random.uniform(1 - _JITTER, 1 + _JITTER)
        if latest is not None and latest.isascii() and latest.isdigit() and len(latest) < 17:
            # The clock went back since the device's last start, or another uses its name.
            self._start, self._count = max(self._start, min(int(latest) + 1, _LATEST)), 0

    async def run(self, pool: ConnectionPool) -> None:
        """Make a request of its own whenever none carried a report for long; end with the client."""
        while True:
            wait = self._own - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            header, latest = self._make(time.monotonic()), None
            if header is None:
                return
            try:
                if header:
                    async with asyncio.timeout(_PATIENCE):
                        answered, _ = await pool.exchange("POST", PATH, most=_MOST, headers=header)
                    latest, self._trouble = answered.get(HEADER.lower()), None
            except Exception as error:  # noqa: BLE001 - it tries again, and answers go on
                if isinstance(error, FaultError) and error.stale:
                    continue  # a kept connection that the server had closed: there are few of them
                self._note(f"a report failed: {str(error) or f'no answer within {_PATIENCE:g} s'}")
                if isinstance(error, FaultError) and error.reason == reasons.REFUSED:
                    return  # it takes no reports: another make, or an older version
            self.heard(latest)

    def _make(self, now: float) -> dict[str, str] | None:
        """Return the header, nothing where it cannot be made; None when the client is gone."""
        news = self._news()
        if news is None:
            return None
        self._count += 1
        try:
            values = {"device": self._device, "start": self._start, "count": self._count, **news(self._server)}
            return {HEADER: DeviceReport(every=self._every, uptime=round(now - self._made), **values).encode()}
        except Exception as error:  # noqa: BLE001 - the request matters more
            self._note(f"cannot report: {type(error).__name__}: {error}")
            return {}

    def _note(self, text: str) -> None:
        if text != self._trouble:
            log.warning("%s: %s", self._device, text, extra=event("report_failed", device=self._device, error=text))
        self._trouble = text


def news_for(server: str, local: set[str], stats: EdgeStats, manifest: Manifest) -> dict[str, Any]:
    """Return what one server is told; ``local`` are the names of the answerers on the device."""
    own = stats.servers[server]
    sent = [n for each in stats.servers.values() for why, n in each.faults.items() if why not in _NOT_SENT]
    return {
        "model": told_name(manifest.name),
        "version": told_name(manifest.version),
        "created": made_at(manifest.created),
        "inputs": stats.answers,
        "asked": sum(each.answers for each in stats.servers.values()) + sum(sent),  # those of audits as well
        "answerers": told_counts(stats.answerers, {server, *local}),
        "reasons": told_counts(stats.reasons),
        "expected_saving": None if stats.expected_saving is None else _short(stats.expected_saving),
        "drift": stats.drift,
        "breaker": own.breaker,
        "latency": _pair(stats.latency),
        "round_trip": _pair(own.round_trip),
    }


def _pair(seconds: dict[str, float]) -> tuple[float, float] | None:
    return (_short(seconds["p50"]), _short(seconds["p95"])) if seconds else None


def _short(value: float) -> float:
    return float(f"{value:.4g}")
