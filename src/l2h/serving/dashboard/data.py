"""The numbers of the dashboard as plain values for JSON."""

import io
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import l2h
from l2h.serving.accounts import open_devices, open_history
from l2h.serving.accounts.history import SUMS, name_keys, write_csv
from l2h.serving.accounts.key import ANONYMOUS, Key, Quota
from l2h.serving.dashboard.counters import added, count, divided, latency, read_counters
from l2h.serving.dashboard.recorder import ring_file
from l2h.serving.dashboard.ring import SPANS, Slot, read_events, read_slots
from l2h.serving.errors import KeyStoreError, LedgerError
from l2h.serving.process.metrics import FOLDER, INPUTS, served_versions
from l2h.serving.process.service import Service

#: What a file says is read again after so many seconds, or so many times the seconds that it took.
_FRESH, _TIMES = 1.0, 50.0
#: Days and keys that the page shows, of which the CSV has all, and devices, of which `l2h devices list` does.
_DAYS, _KEYS, _DEVICES = 31, 200, 500
#: Seconds over which the speed of a key is told.
_RECENT = 60.0
#: Seconds ago that a span ends: until then all is recorded.
_BEHIND = 1.2
#: The share of a period before which nothing is projected.
_EARLY = 0.01


class DashboardData:
    """Answers what the page asks for; every method may block, and may be called from any thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ring, self._metrics = ring_file(service.config.ledger), Path(os.environ[FOLDER])
        self._accounts = _Remembered(self._read_accounts, {"keys": [], "ledger": None})
        self._devices = _Remembered(self._read_devices, {"total": 0, "flagged": {}, "devices": []})

    def overview(self, span: str) -> dict[str, Any]:
        """Return all numbers: as they are now, since the server's start, and over a span of ``SPANS``."""
        workers, step, now = self._service.config.workers, SPANS[span].step, time.time()
        sums, seen = read_counters(self._metrics)
        slots = read_slots(self._ring, SPANS[span], now - _BEHIND)
        seconds = {"step": step, "last": min(step, now - _BEHIND + 1.0 - slots[-1].start)}
        models = served_versions(self._metrics)
        return {
            "time": now,
            "l2h": l2h.__version__,
            "models": [{"name": name, "version": version, "workers": n} for (name, version), n in models.items()],
            "workers": {"able": workers - self._service.workers_down, "all": workers},
            "now": seen,
            "since_start": _told(sums),
            "span": {"name": span, **seconds, **_told(added(slot.sums for slot in slots))},
            "slots": [_slot(slot) for slot in slots],
            "events": read_events(self._ring),
            **self._accounts.get(),
        }

    def devices(self) -> dict[str, Any]:
        """Return the last news of devices, oldest first."""
        return self._devices.get()

    def ledger_csv(self) -> bytes:
        """Return what was charged by day and key, all of it, as CSV."""
        rows = open_history(self._service.config.place).report(("day", "key"))
        names = {key.id: key.name for key in self._keys()}
        file = io.StringIO()
        write_csv(name_keys(rows, names), ("day", "key", "name"), file)
        return file.getvalue().encode()

    def _read_accounts(self) -> dict[str, Any]:
        history, keys = open_history(self._service.config.place), self._keys()
        rows = history.report(("day", "key"))
        charged: dict[str, dict[str, float]] = {}
        for row in rows:
            charged[row["key"]] = added((charged.get(row["key"], {}), {name: row[name] for name in SUMS}))
        known = {key.id: key for key in keys}
        names = {key.id: key.name for key in keys}
        keys += [Key(id_, "", "", "", enabled=False) for id_ in charged if id_ not in known]
        used, recent, now = history.used(keys), history.recent(_RECENT), time.time()
        uses = [key_use(key, used.get(key.id, 0), recent.get(key.id, 0) / _RECENT, now) for key in keys]
        for use in uses:
            use["charged"] = charged.get(use["id"]) or dict.fromkeys(SUMS, 0)
        uses.sort(key=lambda use: (-(use["share"] or 0.0), -use["charged"]["units"]))
        days = sorted({row["day"] for row in rows})[-_DAYS:]
        return {
            "keys": uses[:_KEYS],
            "more_keys": max(0, len(uses) - _KEYS),
            "ledger": {
                "all": dict.fromkeys(SUMS, 0) | added(charged.values()),
                "rows": name_keys((row for row in rows if days and row["day"] >= days[0]), names),
            },
        }

    def _read_devices(self) -> dict[str, Any]:
        names = {key.id: key.name for key in self._keys()}
        config = self._service.config
        return open_devices(config.ledger, config.accounts).view(names, most=_DEVICES)

    def _keys(self) -> list[Key]:
        store = self._service.accounts.keys
        return [ANONYMOUS] if store is None else store.read()


class _Remembered:
    """What a file says. It may be long, so it is read again only after a while; ``trouble`` says why it cannot be."""

    def __init__(self, read: Callable[[], dict[str, Any]], unread: dict[str, Any]) -> None:
        self._read, self._unread = read, unread
        self._lock = threading.Lock()
        self._value: dict[str, Any] = {}
        self._until = 0.0

    def get(self) -> dict[str, Any]:
        """Return what was read last; while one thread reads again, others get that."""
        if time.monotonic() >= self._until and self._lock.acquire(blocking=not self._value):
            try:
                start = time.monotonic()
                if start >= self._until:
                    self._value = self._look()
                    end = time.monotonic()
                    self._until = end + max(_FRESH, _TIMES * (end - start))
            finally:
                self._lock.release()
        return self._value

    def _look(self) -> dict[str, Any]:
        try:
            return {**self._read(), "trouble": None}
        except (LedgerError, KeyStoreError) as error:
            return {**self._unread, "trouble": str(error)}


def key_use(key: Key, used: int, per_second: float, now: float) -> dict[str, Any]:
    """Return what a key has used of its quota and its rate, and what it will have used at the period's end."""
    quota: dict[str, Any] | None = None
    if key.quota is not None:
        projected, runs_out = project(used, key.quota, now)
        quota = {
            "text": str(key.quota),
            "count": key.quota.count,
            "used": used,
            "ends": now + key.quota.window(now)[1],
            "projected": projected,
            "runs_out": runs_out,
        }
    shares = [used / key.quota.count if key.quota and key.quota.count else None]
    shares += [per_second / key.rate.per_second if key.rate else None]
    return {
        "id": key.id,
        "name": key.name,
        "enabled": key.enabled,
        "quota": quota,
        "rate": None if key.rate is None else {"per_second": key.rate.per_second, "burst": key.rate.burst},
        "per_second": per_second,
        "share": max((share for share in shares if share is not None), default=None),
    }


def project(used: int, quota: Quota, now: float) -> tuple[int | None, float | None]:
    """Return the inputs at the end of the quota's period if they go on as since its beginning, and when it runs out.

    Both are None early in a period; the latter also where the quota lasts.

    Example:
        >>> project(30, Quota(100, 3600), now=900.0)
        (120, 3000.0)
        >>> project(20, Quota(100, 3600), now=900.0)
        (80, None)
    """
    left = quota.window(now)[1]
    passed = quota.seconds - left
    if passed < _EARLY * quota.seconds:
        return None, None
    projected = round(used * quota.seconds / passed)
    return projected, now + (quota.count - used) * passed / used if projected > quota.count > used else None


def _told(sums: Mapping[str, float]) -> dict[str, Any]:
    """What was counted in some time."""
    batches = {float(bound): calls for bound, calls in divided(sums, "batch").items()}
    calls = sum(batches.values())
    return {
        "requests": count(sums, "requests"),
        "inputs": sums.get("inputs", 0),
        "units": sums.get("units", 0),
        "statuses": divided(sums, "requests"),
        "refused": divided(sums, "refused"),
        "reloads": divided(sums, "reloads"),
        "log_dropped": sums.get("log_dropped", 0),
        "latency": latency(sums),
        "calls": calls,
        "inputs_per_call": sums.get("batched", 0) / calls if calls else None,
        "batches": [
            {"inputs": f"{low + 1}" if high == low + 1 else f"{low + 1} to {high}", "calls": batches.get(high, 0)}
            for low, high in pairwise((0, *INPUTS))
        ]
        + [{"inputs": f"over {INPUTS[-1]}", "calls": batches.get(math.inf, 0)}],
    }


def _slot(slot: Slot) -> dict[str, Any]:
    """A point of the curves."""
    calls = count(slot.sums, "batch")
    return {
        "t": slot.start,
        "requests": count(slot.sums, "requests"),
        "inputs": slot.sums.get("inputs", 0),
        "refused": count(slot.sums, "refused"),
        "latency": latency(slot.sums),
        "inputs_per_call": slot.sums.get("batched", 0) / calls if calls else None,
        "queue": slot.most.get("queue"),
        "in_flight": slot.most.get("in_flight"),
        "workers": slot.least.get("workers"),
    }
