"""The last news of every device that reports, over all workers and restarts: a SQLite file beside the ledger.

A name belongs to the key that first used it, until that key is revoked. A report that is not later than the last one
of its device, by start and count, changes nothing, so that a recorded report is of no use to anybody. The file is made
with the first report. It holds up no answer: what comes is kept in memory, and written once a second in a thread.
Where it cannot be written, the news wait there.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from l2h.fleet import DeviceReport, ReportError
from l2h.serving.accounts.history import stamp
from l2h.serving.accounts.key import Key
from l2h.serving.accounts.sqlite import file_identity
from l2h.serving.accounts.store import KeyStore
from l2h.serving.errors import LedgerError
from l2h.serving.process.logs import log_event

#: What became of a report. "stale": the device has reported later, or the very same. "foreign": the name is that of
#: another key's device. "crowded": too many new ones in a second. "failed": the file cannot be read.
Result = Literal["taken", "stale", "foreign", "malformed", "crowded", "failed"]
#: Why a device is marked.
FLAGS = ("drift", "offline", "old_bundle")
#: Devices that are kept, and reports that wait to be written.
_MOST, _MOST_WAITING = 10_000, 1024
#: A device is offline after so many times the seconds within which it reports. While the server does not run, nothing
#: is missed: every so many seconds it notes that it does, and it did not where the last note is older than this, or
#: the clock was set.
_MISSED, _NOTED, _PAUSED = 3.0, 60.0, 300.0
#: Seconds to wait for another process's lock: while an answer waits, and otherwise.
_MOMENT, _WHILE = 0.01, 1.0
APPLICATION, VERSION = 0x4C324844, 1
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS devices (device TEXT PRIMARY KEY, key_id TEXT NOT NULL, start INTEGER NOT NULL, "
    "count INTEGER NOT NULL, first REAL NOT NULL, time REAL NOT NULL, report BLOB NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS by_key ON devices (key_id, time)",
    # Since when the server hears devices without a pause, when it last noted that, and what it serves.
    "CREATE TABLE IF NOT EXISTS hearing (id INTEGER PRIMARY KEY CHECK (id = 1), since REAL NOT NULL, "
    "seen REAL NOT NULL, model TEXT NOT NULL, created INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
_TAKE = """
INSERT INTO devices VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6) ON CONFLICT DO UPDATE SET
    key_id = excluded.key_id, start = excluded.start, count = excluded.count, time = excluded.time,
    report = excluded.report
WHERE key_id = ?7 OR (key_id = ?2 AND (excluded.start, excluded.count) > (start, count))"""
_HEAR = f"""
INSERT INTO hearing VALUES (1, ?1, ?1, ?2, ?3) ON CONFLICT DO UPDATE SET
    since = CASE WHEN abs(excluded.seen - seen) > {_PAUSED} THEN excluded.seen ELSE since END,
    seen = excluded.seen, model = excluded.model, created = excluded.created"""
#: The key with the most devices loses those with the oldest news: nobody can crowd out the devices of others.
_DROP = """
DELETE FROM devices WHERE device IN (
    SELECT device FROM devices
    WHERE key_id = (SELECT key_id FROM devices GROUP BY key_id ORDER BY count(*) DESC LIMIT 1)
    ORDER BY time LIMIT max(0, (SELECT count(*) FROM devices) - ?))"""


class _Last(NamedTuple):
    """The last report of a device."""

    key_id: str
    start: int
    number: int  # of reports since the start
    time: float = 0.0
    report: bytes = b""
    former: str = ""  # the id of a key without use that had the name


def devices_file(ledger: str | Path) -> Path:
    """Return where the news of devices are kept."""
    return Path(f"{ledger}-devices")


class DeviceNews:
    """What one worker hears of devices; ``keys`` are those in use, None where everybody may ask."""

    def __init__(self, ledger: str, keys: KeyStore | None) -> None:
        self._path, self._keys = devices_file(ledger), keys
        self._waiting: dict[str, _Last] = {}
        self._writing: dict[str, _Last] = {}  # while they are written
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None  # kept open: the last one to close would lock the readers out
        self._identity: tuple[int, int] | None = None  # of the file that these have open
        self._noted, self._trouble = 0.0, ""
        self._flushing, self._changing = threading.Lock(), threading.Lock()  # the latter: what waits

    def take(self, key: Key, value: bytes) -> tuple[Result, str, int]:
        """Judge the report of a key that was accepted, and have it written; on the event loop, and never raises.

        Returns what became of it, the device's name, and where it came too late the start of the last report.
        """
        try:
            report = DeviceReport.decode(value)
        except ReportError:
            return "malformed", "", 0
        name, former = report.device, ""
        try:
            last = self._waiting.get(name) or self._writing.get(name) or self._read(name)
        except (sqlite3.Error, OSError):
            self._reader = None
            return "failed", name, 0
        if last is not None and last.key_id != key.id:
            if self._in_use(last.key_id):
                return "foreign", name, 0
            former = last.former or last.key_id
        elif last is not None and (report.start, report.count) <= (last.start, last.number):
            return "stale", name, last.start
        if name not in self._waiting and len(self._waiting) >= _MOST_WAITING:
            return "crowded", name, 0
        former = former or (last.former if last is not None else "")
        with self._changing:
            self._waiting[name] = _Last(key.id, report.start, report.count, time.time(), value, former)
        return "taken", name, 0

    def flush(self, served: tuple[str, int]) -> None:
        """Write what was heard, and that the server hears; in a thread.

        ``served`` are the name of the bundle that is served and when it was made, in seconds since 1970.
        """
        with self._flushing:  # at the end the last one may still be under way
            if self._waiting or (time.monotonic() >= self._noted and self._path.exists()):
                self._flush(served)

    def _flush(self, served: tuple[str, int]) -> None:
        with self._changing:
            self._writing, self._waiting = self._waiting, {}
        try:
            if not self._path.exists():  # else closing it would undo the locks of this process's connections
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            if self._writer is None or file_identity(self._path) != self._identity:  # or another was put in its place
                self._reader, self._writer, self._identity = None, _connect(self._path), file_identity(self._path)
                _prepare(self._writer, self._path)
            _write(self._writer, self._writing, served)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next try may write them
            self._writer = None
            with self._changing:
                self._waiting = {**self._writing, **self._waiting}
            if str(error) != self._trouble:
                log_event("error", "devices_failed", file=str(self._path), error=str(error))
            self._trouble = str(error)
        else:
            self._noted, self._trouble = time.monotonic() + _NOTED, ""
        self._writing = {}

    def _in_use(self, key_id: str) -> bool:
        key = None if self._keys is None else self._keys.find(key_id)
        return key is not None and key.enabled

    def _read(self, name: str) -> _Last | None:
        reader = self._reader  # the thread that writes may forget it meanwhile
        if reader is None:
            if not self._path.exists():
                return None
            reader = _connect(self._path, _MOMENT)
            if _is_empty(reader):  # it is being made
                return None
            self._reader = reader
        row = reader.execute("SELECT key_id, start, count FROM devices WHERE device = ?", (name,)).fetchone()
        return None if row is None else _Last(*row)


class DeviceHistory:
    """Reads the news of all devices, also while a server writes them; a :class:`LedgerError` says why it cannot."""

    def __init__(self, ledger: str | Path) -> None:
        self._path = devices_file(ledger)

    def view(self, names: Mapping[str, str], most: int | None = None) -> dict[str, Any]:
        """Return the devices, oldest news first, with what marks them; ``names`` are those of keys by their ids.

        At most so many are listed, marked ones before others; ``total`` and ``flagged`` count all.
        """
        found, (since, seen, model, created) = self._read()
        rows = []
        for key_id, first, at, value in found:
            with suppress(ReportError):  # of another version
                rows.append((key_id, first, at, DeviceReport.decode(value)))
        newest: dict[tuple[str, str], int] = {}
        for key_id, _, at, report in rows:
            if report.created <= at:  # no bundle is from the future
                place = key_id, report.model
                newest[place] = max(newest.get(place, created if report.model == model else 0), report.created)
        marks = []
        for key_id, _, at, report in rows:
            late = seen - max(at, since) > _MISSED * report.every
            old = 0 < report.created < newest.get((key_id, report.model), 0)
            marks.append(
                [name for name, marked in zip(FLAGS, (report.drift is not None, late, old), strict=True) if marked]
            )
        shown = sorted(sorted(range(len(rows)), key=lambda i: not marks[i])[:most])
        devices = []
        for i in shown:
            key_id, first, at, report = rows[i]
            whose = {"device": report.device, "key": key_id, "key_name": names.get(key_id, "")}
            heard = {"time": stamp(at), "age": round(max(0.0, seen - at), 1), "first": stamp(first)}
            devices.append({**whose, **heard, "flags": marks[i], **_told(report)})
        flagged = {name: sum(name in each for each in marks) for name in FLAGS}
        return {"now": stamp(seen), "total": len(rows), "flagged": flagged, "devices": devices}

    def forget(self, device: str) -> bool:
        """Forget a device, whose name is then free for any key; return whether it was known."""
        if not self._path.exists():
            return False
        try:
            with closing(_connect(self._path)) as db:
                return db.execute("DELETE FROM devices WHERE device = ?", (device,)).rowcount > 0
        except sqlite3.Error as error:
            raise LedgerError(f"cannot change {self._path}: {error}") from error

    def _read(self) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
        """Return the last reports, and since when they are heard, until when, and what is served."""
        unheard = (0.0, time.time(), "", 0)
        try:
            with closing(_connect(self._path)) as db:
                if self._path.exists() and not _is_empty(db):
                    db.execute("BEGIN")  # both as of one moment
                    found = db.execute("SELECT key_id, first, time, report FROM devices ORDER BY time, device")
                    rows, hearing = found.fetchall(), db.execute("SELECT since, seen, model, created FROM hearing")
                    return rows, hearing.fetchone() or unheard
        except sqlite3.Error as error:
            if self._path.exists():
                raise LedgerError(f"cannot read {self._path}: {error}") from error
        return [], unheard


def _told(report: DeviceReport) -> dict[str, Any]:
    """Return what a device tells, under the names of ``EdgeClient.stats``."""
    same = ("uptime", "every", "inputs", "asked", "answerers", "reasons", "expected_saving", "drift", "breaker")
    created = stamp(report.created) if report.created else None
    pairs = {"latency": report.latency, "round_trip": report.round_trip}
    return {
        "bundle": {"name": report.model, "version": report.version, "created": created},
        **{name: getattr(report, name) for name in same},
        **{name: None if pair is None else {"p50": pair[0], "p95": pair[1]} for name, pair in pairs.items()},
    }


def _connect(path: Path, timeout: float = _WHILE) -> sqlite3.Connection:
    where = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(where, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False)


def _is_empty(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables, or see that they are ours."""
    if _is_empty(db):
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            db.execute(statement)
        db.execute("COMMIT")
    found = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if found != [APPLICATION, VERSION]:
        raise LedgerError(f"{path} is not the news of devices that this version of L2H reads: move it away")
    db.execute("PRAGMA synchronous = NORMAL")


def _write(db: sqlite3.Connection, reports: Mapping[str, _Last], served: tuple[str, int]) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        for name, (key_id, start, count, at, report, former) in reports.items():
            db.execute(_TAKE, (name, key_id, start, count, at, report, former))
        db.execute(_DROP, (_MOST,))
        db.execute(_HEAR, (time.time(), *served))
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
