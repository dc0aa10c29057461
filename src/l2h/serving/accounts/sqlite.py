"""The accounts of one host: a key file, a table of rates in shared memory, and a ledger in SQLite.

The ledger has a row for every charged request, committed before the answer leaves. It is in WAL mode with
``synchronous=NORMAL``: a committed row is in the operating system's hands and survives ``kill -9``. The quota is
counted in the same transaction, which holds the write lock from its first read on (``BEGIN IMMEDIATE``), so that no two
workers can both take the last input of a period.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from l2h.serving.accounts.key import Key
from l2h.serving.accounts.keyfile import KeyFile
from l2h.serving.accounts.rates import RateTable
from l2h.serving.accounts.store import Charge, ChargeResult
from l2h.serving.errors import LedgerError, StoreDownError

VERSION = 1
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
    UNIQUE (key_id, idempotency_key)
);
CREATE TABLE usage (
    key_id TEXT NOT NULL,
    period INTEGER NOT NULL,
    number INTEGER NOT NULL,
    used INTEGER NOT NULL,
    PRIMARY KEY (key_id, period)
) WITHOUT ROWID;
CREATE TABLE beat (id INTEGER PRIMARY KEY CHECK (id = 1), time REAL NOT NULL);
"""
_COLUMNS = "time, key_id, request_id, idempotency_key, fingerprint, model, version, inputs, units"
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BEAT = "INSERT OR REPLACE INTO beat VALUES (1, ?)"
#: Rows of one statement. A statement gives up and takes back the interpreter's lock once, however many rows it has.
_ROWS = 64
#: Pages of the log after which a commit copies it into the database.
_CHECKPOINT = 4000
#: Seconds to wait for another process's transaction, each of which takes about a millisecond.
_LOCK_TIMEOUT = 1.0


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

    Without a key file everybody may ask. ``rate_table`` is a descriptor of
    :func:`l2h.serving.accounts.rates.make_table`, shared by the workers.
    """

    def __init__(self, key_file: Path | None, ledger: Path, rate_table: int) -> None:
        self._path = ledger
        self._rates = RateTable(rate_table)
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        with self._writing():
            pass
        self.keys = None if key_file is None else KeyFile(key_file)
        if self.keys is not None:
            self.keys.refresh()

    async def take_rate(self, key: Key, inputs: int) -> float:
        return 0.0 if key.rate is None else self._rates.take(key.id, key.rate, inputs)

    def rate_wait(self, key: Key) -> float:
        return 0.0 if key.rate is None else self._rates.peek(key.id, key.rate)

    async def was_charged(self, key: Key, idempotency_key: str) -> bool:
        try:
            if self._reader is None:
                self._reader = _connect(self._path)
            return _fingerprint(self._reader, key.id, idempotency_key) is not None
        except (sqlite3.Error, OSError):
            self._reader = None
            return True

    def charge(self, charges: Sequence[Charge]) -> list[ChargeResult]:
        now = time.time()
        with self._writing() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                results = _charge_together(db, charges, now)
                if results is None:
                    db.execute("ROLLBACK")
                    db.execute("BEGIN IMMEDIATE")
                    results = [_charge_alone(db, charge, now) for charge in charges]
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            return results

    def probe(self) -> None:
        with self._writing() as db:
            db.execute(_BEAT, (time.time(),))

    def close(self) -> None:
        # The last connection of all workers copies the log into the database.
        for db in (self._writer, self._reader):
            if db is not None:
                with suppress(sqlite3.Error):
                    db.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection that writes; after a failure, unless by a lock, the next call opens a new one."""
        try:
            if self._writer is None:
                self._writer = _connect(self._path)
                self._file = _identity(self._path)
            if _identity(self._path) != self._file:  # SQLite would go on writing into a file that was removed
                raise FileNotFoundError(f"{self._path} was replaced by another file")
            yield self._writer
        except (sqlite3.Error, OSError) as error:
            if self._writer is not None and "locked" not in str(error):
                with suppress(sqlite3.Error):
                    self._writer.close()
                self._writer = None
            raise StoreDownError(str(error)) from error


def _connect(path: Path) -> sqlite3.Connection:
    where = f"{path.absolute().as_uri()}?mode=rw"
    db = sqlite3.connect(where, uri=True, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute(f"PRAGMA application_id = {APPLICATION}")
    elif application != APPLICATION:
        raise LedgerError(f"{path} is a database, but no ledger of L2H: --ledger names another file")
    elif version > VERSION:
        raise LedgerError(
            f"the ledger {path} was written by a newer L2H (version {version}, this one reads up to {VERSION}): "
            f"update L2H, or name another with --ledger"
        )
    db.execute(_BEAT, (time.time(),))
    db.execute("COMMIT")


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _charge_together(db: sqlite3.Connection, charges: Sequence[Charge], now: float) -> list[ChargeResult] | None:
    """The usual case in few statements: no repeats, and room in every quota. None where it is not so."""
    inserted = 0
    for first in range(0, len(charges), _ROWS):
        some = charges[first : first + _ROWS]
        values = [value for charge in some for value in _values(charge, now)]
        rows = ", ".join([_ROW] * len(some))
        done = db.execute(f"INSERT INTO charges ({_COLUMNS}) VALUES {rows} ON CONFLICT DO NOTHING", values)
        inserted += done.rowcount
    if inserted < len(charges):
        return None
    by_key: dict[str, list[Charge]] = {}
    for charge in charges:
        if charge.key.quota is not None:
            by_key.setdefault(charge.key.id, []).append(charge)
    for same in by_key.values():
        if _count_inputs(db, same[0].key, sum(charge.inputs for charge in same), now) is not None:
            return None
    return [ChargeResult("charged")] * len(charges)


def _charge_alone(db: sqlite3.Connection, charge: Charge, now: float) -> ChargeResult:
    if charge.idempotency_key is not None:
        known = _fingerprint(db, charge.key.id, charge.idempotency_key)
        if known is not None:
            return ChargeResult("repeated" if known[0] == charge.fingerprint else "conflict")
    if charge.key.quota is not None:
        refused = _count_inputs(db, charge.key, charge.inputs, now)
        if refused is not None:
            return refused
    db.execute(f"INSERT INTO charges ({_COLUMNS}) VALUES {_ROW}", _values(charge, now))
    return ChargeResult("charged")


def _count_inputs(db: sqlite3.Connection, key: Key, inputs: int, now: float) -> ChargeResult | None:
    """Add to what the key has used of its period; where that is too much, add nothing and return how much is left."""
    quota = key.quota
    assert quota is not None
    number, used = quota.window(now), 0
    usage = "SELECT number, used FROM usage WHERE key_id = ? AND period = ?"
    row = db.execute(usage, (key.id, quota.seconds)).fetchone()
    if row is not None and row[0] >= number:  # a clock that went back does not open the period again
        number, used = row
    if used + inputs > quota.count:
        return ChargeResult("over_quota", max(0, quota.count - used), (number + 1) * quota.seconds - now)
    db.execute("INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?)", (key.id, quota.seconds, number, used + inputs))
    return None


def _fingerprint(db: sqlite3.Connection, key_id: str, idempotency_key: str) -> tuple[bytes] | None:
    """The one column of the row, or None where the request was not charged."""
    query = "SELECT fingerprint FROM charges WHERE key_id = ? AND idempotency_key = ?"
    row: tuple[bytes] | None = db.execute(query, (key_id, idempotency_key)).fetchone()
    return row


def _values(charge: Charge, now: float) -> tuple[Any, ...]:
    """The values of :data:`_COLUMNS`, which are in the order of :class:`Charge`."""
    key, *others = charge
    return (now, key.id, *others)
