"""The accounts of one host: a key file, tables of rates and of reservations, and a ledger in SQLite.

The ledger has a row for every charged request, committed before the answer leaves; afterwards the row is marked by
whether the answer was delivered. Old rows may be summed up (:mod:`l2h.serving.accounts.history`). The ledger is in WAL
mode with ``synchronous=NORMAL``: a committed row is in the operating system's hands and survives ``kill -9``. The quota
is counted in the same transaction, which holds the write lock from its first read on (``BEGIN IMMEDIATE``), so that no
two workers can both take the last input of a period. The time is read inside it.

A period ends when the time since the system's start says so, which nobody can set; the wall clock says only when the
next one is to end. If the log is removed while the ledger is open, every worker refuses until all have closed it, by
which SQLite saves what the log held.
"""

import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from l2h.clock import boot_id, boot_time
from l2h.serving.accounts import history
from l2h.serving.accounts.key import Key
from l2h.serving.accounts.keyfile import KeyFile
from l2h.serving.accounts.periods import (
    ChargeName,
    Now,
    Period,
    PeriodName,
    decide,
    present_period,
    quota_periods,
    with_rows,
)
from l2h.serving.accounts.rates import RateTable
from l2h.serving.accounts.reservations import ReservationTable, UsedQuota
from l2h.serving.accounts.store import Charge, ChargeResult, Delivery, Room
from l2h.serving.errors import LedgerError, StoreDownError

T = TypeVar("T")
_log = logging.getLogger("l2h.serving")
VERSION = 4
#: Written into the file's header, so that no other database is taken for a ledger.
APPLICATION = 0x4C32484C
_SCHEMA = """
CREATE TABLE charges (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    key_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    idempotency_key TEXT,
    fingerprint BLOB,
    model TEXT NOT NULL,
    version TEXT NOT NULL,
    inputs INTEGER NOT NULL,
    units INTEGER NOT NULL,
    delivered INTEGER,
    UNIQUE (key_id, idempotency_key)
);
CREATE TABLE usage (
    key_id TEXT NOT NULL,
    period INTEGER NOT NULL,
    number INTEGER NOT NULL,
    used INTEGER NOT NULL,
    boot TEXT NOT NULL DEFAULT '',
    ends REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (key_id, period)
) WITHOUT ROWID;
CREATE TABLE beat (id INTEGER PRIMARY KEY CHECK (id = 1), time REAL NOT NULL);
CREATE TABLE totals (
    day INTEGER NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    version TEXT NOT NULL,
    requests INTEGER NOT NULL,
    inputs INTEGER NOT NULL,
    units INTEGER NOT NULL,
    undelivered INTEGER NOT NULL,
    unconfirmed INTEGER NOT NULL,
    PRIMARY KEY (day, key_id, model, version)
) WITHOUT ROWID
"""
#: What tells this ledger from all others. It is the same in copies of the file, so that no charge is taken for two.
_IDENTITY = "CREATE TABLE IF NOT EXISTS identity (source TEXT NOT NULL)"
#: What brings a ledger of a version to the next one.
_UPGRADES = {
    1: (
        "ALTER TABLE usage ADD COLUMN boot TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE usage ADD COLUMN ends REAL NOT NULL DEFAULT 0",
    ),
    2: ("ALTER TABLE charges ADD COLUMN delivered INTEGER", _SCHEMA.rsplit(";", 1)[-1]),
    3: (_IDENTITY,),
}
#: Of a row, as :class:`Charge` has them after the time.
COLUMNS = "time, key_id, request_id, idempotency_key, fingerprint, model, version, inputs, units"
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BEAT = "INSERT OR REPLACE INTO beat VALUES (1, ?)"
#: Rows of one statement. A statement gives up and takes back the interpreter's lock once, however many rows it has.
_ROWS = 64
#: Pages of the log after which a commit copies it into the database.
_CHECKPOINT = 4000
#: Seconds to wait for another process's transaction, each of which takes about a millisecond.
_LOCK_TIMEOUT = 1.0
#: Seconds between two looks for rows that are older than is to be kept.
_AGED = 600.0


def prepare_ledger(path: Path) -> None:
    """Make the ledger, readable by its owner alone, or check that the existing one can be used."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(_connect(path)) as db:
            _prepare(db, path)
    except OSError as error:
        raise LedgerError(
            f"cannot write the ledger {path}: {error.strerror or error}; --ledger names another"
        ) from error
    except sqlite3.Error as error:
        raise LedgerError(f"cannot use the ledger {path}: {error}; --ledger names another") from error


class SqliteAccounts:
    """The :class:`~l2h.serving.accounts.store.AccountStore` of the workers of one host.

    Without a key file everybody may ask. ``rates`` and ``reserved`` are the tables that the workers share. With
    ``keep``, rows that are more than so many seconds old are summed up.
    """

    def __init__(
        self, key_file: Path | None, ledger: Path, rates: RateTable, reserved: ReservationTable, keep: float | None
    ) -> None:
        self._path = ledger
        self._files = str(ledger), str(_beside(ledger, "-wal"))
        self._rates, self._reserved = rates, reserved
        self._keep, self._aged = keep, 0.0
        self._boot = boot_id() or ""
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        self._unsaved = False
        with self._writing():
            pass
        self.keys = None if key_file is None else KeyFile(key_file)
        if self.keys is not None:
            self.keys.refresh()

    down, pending = None, 0  # there is no reserve: what cannot be written is refused

    async def take_rate(self, key: Key, inputs: int, paid: int = 0) -> float:
        return 0.0 if key.rate is None else self._rates.take(key.id, key.rate, inputs, paid)

    def used_up(self, key: Key) -> float:
        return 0.0 if key.quota is None else self._reserved.used_up(key)

    async def reserve(self, key: Key, inputs: int) -> Room:
        def read() -> UsedQuota | None:
            return self._read(lambda db: _used(db, key, self._now()))

        return self._reserved.reserve(key, inputs, read)

    def settle(self, key: Key, inputs: int, result: ChargeResult | None) -> None:
        self._reserved.settle(key, inputs, result)

    def flush(self) -> None:
        self._reserved.flush()

    async def was_charged(self, key: Key, idempotency_key: str) -> bool:
        known = self._read(lambda db: _fingerprint(db, key.id, idempotency_key) is not None)
        return known is not False

    async def foresee(self, charge: Charge) -> ChargeResult:
        def look(db: sqlite3.Connection) -> ChargeResult:
            decided = decide([charge], _periods(db, [charge.key]), _known(db, [charge]), self._now())
            return decided[0][0] if decided else ChargeResult("charged")

        return self._read(look) or ChargeResult("charged")

    def charge(self, charges: Sequence[Charge], delivered: Sequence[Delivery] = ()) -> list[ChargeResult]:
        with self._writing() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                now = self._now()
                results = _charge(db, charges, None, now)
                if results is None:
                    db.execute("ROLLBACK")
                    db.execute("BEGIN IMMEDIATE")
                    results = _charge(db, charges, _known(db, charges), now)
                    assert results is not None
                _mark(db, delivered)
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            self._unsaved = True
            return results

    def probe(self) -> None:
        with self._writing() as db:
            db.execute(_BEAT, (time.time(),))

    def maintain(self) -> None:
        if self._keep is not None and boot_time() >= self._aged:
            self._aged = boot_time() + _AGED
            old = threading.Thread(
                target=self._sum_up, args=(time.time() - self._keep,), name="ledger-age", daemon=True
            )
            with suppress(RuntimeError):  # no thread to be had: later
                old.start()
        with self._writing():
            self._rates.note_time()
            if self._unsaved:
                # Charges need not wait for the disk meanwhile.
                copy = threading.Thread(target=_copy_log, args=(self._path,), name="ledger-copy", daemon=True)
                with suppress(RuntimeError):  # no thread to be had: once more the next time
                    copy.start()
                    self._unsaved = False

    def close(self) -> None:
        # The last connection of all workers copies the log into the database.
        with self._reading:
            for db in (self._writer, self._reader):
                if db is not None:
                    with suppress(sqlite3.Error):
                        db.close()
            self._writer = self._reader = None

    def _now(self) -> Now:
        return Now(time.time(), boot_time(), self._boot)

    def _sum_up(self, before: float) -> None:
        """Sum up old rows, a few at a time, so that no charge waits long for the file."""
        try:
            with closing(_connect(self._path)) as db:
                rows = history.sum_up(db, before, pause=True)
        except (sqlite3.Error, OSError) as error:
            _log.warning("ledger_not_pruned", extra={"fields": {"error": str(error)}})
        else:
            if rows:
                _log.info("ledger_pruned", extra={"fields": {"rows": rows, "before": history.stamp(before)}})

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T | None:
        """Ask the ledger; None where it cannot be read. It never blocks, except while the connections are closed."""
        with self._reading:
            try:
                if self._reader is None:
                    self._reader = _connect(self._path)
                return query(self._reader)
            except (sqlite3.Error, OSError):
                self._reader = None
                return None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that writes; after a failure, unless by a lock, the next call opens a new one."""
        try:
            if self._writer is None:
                self._writer = _connect(self._path)
                self._known = [file_identity(file) for file in self._files]
            for file, known in zip(self._files, self._known, strict=True):
                if file_identity(file) != known:  # SQLite would go on writing into a file that was removed
                    raise FileNotFoundError(f"{file} was replaced by another file")
            yield self._writer
        except (sqlite3.Error, OSError) as error:
            if "locked" not in str(error):
                self.close()
            raise StoreDownError(str(error)) from error


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _connect(path: Path) -> sqlite3.Connection:
    log, index = _beside(path, "-wal"), _beside(path, "-shm")
    # SQLite makes the log before its index, and removes it after.
    if not log.exists() and index.exists() and not log.exists():
        raise FileNotFoundError(
            f"{log} was removed while the ledger was in use: put it back, or remove {index.name} as well and lose the "
            "charges of the last seconds"
        )
    where = f"{path.absolute().as_uri()}?mode=rw"
    db = sqlite3.connect(where, uri=True, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # makes the log
    except BaseException:
        db.close()
        raise
    return db


def _copy_log(path: Path) -> None:
    with suppress(sqlite3.Error, OSError), closing(_connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        for statement in (*_SCHEMA.split(";"), _IDENTITY):
            db.execute(statement)
        version = VERSION
        db.execute(f"PRAGMA application_id = {APPLICATION}")
    elif application != APPLICATION:
        raise LedgerError(f"{path} is a database, but no ledger of L2H: --ledger names another file")
    elif version > VERSION:
        raise LedgerError(
            f"the ledger {path} was written by a newer L2H (version {version}, this one reads up to {VERSION}): "
            f"update L2H, or name another with --ledger"
        )
    for number in range(version, VERSION):
        for statement in _UPGRADES[number]:
            db.execute(statement)
    # An older L2H gave none: then copies have the first charge in common.
    name = "coalesce((SELECT time || ' ' || request_id FROM charges ORDER BY id LIMIT 1), ?)"
    db.execute(f"INSERT INTO identity SELECT {name} WHERE NOT EXISTS (SELECT 1 FROM identity)", (str(uuid.uuid4()),))
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute(_BEAT, (time.time(),))
    db.execute("COMMIT")


def file_identity(path: str | Path) -> tuple[int, int]:
    """Return what tells a file from another that is put in its place."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _charge(
    db: sqlite3.Connection, charges: Sequence[Charge], known: Mapping[ChargeName, bytes | None] | None, now: Now
) -> list[ChargeResult] | None:
    """Charge requests, of which those in ``known`` were charged before; None where it must be looked for others."""
    decided = decide(charges, _periods(db, [charge.key for charge in charges]), known, now)
    if decided is None:
        return None
    results, periods = decided
    taken = [charge for charge, result in zip(charges, results, strict=True) if result.outcome == "charged"]
    rows: list[int] = []
    for first in range(0, len(taken), _ROWS):
        some = taken[first : first + _ROWS]
        values = [value for charge in some for value in _values(charge, now.wall)]
        places = ", ".join([_ROW] * len(some))
        done = db.execute(f"INSERT INTO charges ({COLUMNS}) VALUES {places} ON CONFLICT DO NOTHING", values)
        if done.rowcount < len(some):
            return None
        assert done.lastrowid is not None
        rows += range(done.lastrowid - len(some) + 1, done.lastrowid + 1)  # nobody else writes meanwhile
    for name, period in periods.items():
        db.execute("INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?, ?)", (*name, *period))
    return with_rows(results, rows)


def _used(db: sqlite3.Connection, key: Key, now: Now) -> UsedQuota:
    assert key.quota is not None
    period = present_period(key.quota, _periods(db, [key]).get((key.id, key.quota.seconds)), now)
    return UsedQuota(period.used, period.ends)


def _mark(db: sqlite3.Connection, delivered: Sequence[Delivery]) -> None:
    """Mark the rows of earlier charges by whether their answers were delivered."""
    for first, last, arrived in delivered:
        db.execute("UPDATE charges SET delivered = ? WHERE id BETWEEN ? AND ?", (arrived, first, last))


def _periods(db: sqlite3.Connection, keys: Iterable[Key]) -> dict[PeriodName, Period]:
    """The last periods of keys with quotas, where there are any."""
    query = "SELECT number, used, boot, ends FROM usage WHERE key_id = ? AND period = ?"
    found = ((name, db.execute(query, name).fetchone()) for name in quota_periods(keys))
    return {name: Period(*row) for name, row in found if row is not None}


def _known(db: sqlite3.Connection, charges: Sequence[Charge]) -> dict[ChargeName, bytes | None]:
    """The fingerprints of requests that were charged before."""
    names = [(charge.key.id, charge.idempotency_key) for charge in charges if charge.idempotency_key is not None]
    found = ((name, _fingerprint(db, *name)) for name in names)
    return {name: row[0] for name, row in found if row is not None}


def _fingerprint(db: sqlite3.Connection, key_id: str, idempotency_key: str) -> tuple[bytes] | None:
    """The one column of the row, or None where the request was not charged."""
    query = "SELECT fingerprint FROM charges WHERE key_id = ? AND idempotency_key = ?"
    row: tuple[bytes] | None = db.execute(query, (key_id, idempotency_key)).fetchone()
    return row


def _values(charge: Charge, now: float) -> tuple[Any, ...]:
    """The values of :data:`COLUMNS`, which are in the order of :class:`Charge`."""
    key, *others = charge
    return (now, key.id, *others)
