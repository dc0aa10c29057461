"""The ledger: a row for every charged request, in SQLite, committed before the answer leaves.

WAL with ``synchronous=NORMAL``: a committed row is in the operating system's hands and survives ``kill -9``. The quota
is counted in the same transaction, which holds the write lock from its first read on (``BEGIN IMMEDIATE``), so that
no two workers can both take the last input of a period.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from l2h.serving.errors import LedgerError
from l2h.serving.model.job import CHARGED, CONFLICT, QUOTA, REPEATED, Job

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
#: Rows of one statement. A statement gives up and takes back the interpreter's lock once, however many rows it has.
_TOGETHER = 64
#: Pages of the log after which a commit copies it into the database.
_CHECKPOINT = 4000
#: Seconds to wait for another process's transaction, each of which takes about a millisecond.
PATIENCE = 1.0


def prepare(path: Path) -> None:
    """Make the ledger, for its owner alone, or see that the one found can be used.

    Raises:
        LedgerError: it is of a newer version, is no ledger, or cannot be written.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        db = _connect(path)
    except OSError as error:
        raise LedgerError(
            f"cannot write the ledger {path}: {error.strerror or error}; --ledger names another"
        ) from error
    except sqlite3.Error as error:
        raise LedgerError(f"cannot use the ledger {path}: {error}; --ledger names another") from error
    try:
        db.execute("BEGIN IMMEDIATE")
        (version,), (application,) = (
            db.execute(f"PRAGMA {name}").fetchone() for name in ("user_version", "application_id")
        )
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
        db.execute("INSERT OR REPLACE INTO beat VALUES (1, ?)", (time.time(),))
        db.execute("COMMIT")
    except sqlite3.Error as error:
        raise LedgerError(f"cannot use the ledger {path}: {error}; --ledger names another") from error
    finally:
        db.close()


class Ledger:
    """One connection to the ledger, for one thread.

    Args:
        path: of a ledger that :func:`prepare` has seen.

    Raises:
        sqlite3.Error: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = _connect(path)
        found = path.stat()
        self._file = found.st_dev, found.st_ino

    def charge(self, jobs: Sequence[Job], now: float) -> None:
        """Charge all of them in one transaction, and set the ``outcome`` of each.

        Raises:
            sqlite3.Error: it failed; nothing was charged.
            OSError: the file is gone from its place; nothing was charged.
        """
        self._require_file()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if not self._together(jobs, now):
                self._db.execute("ROLLBACK")
                self._db.execute("BEGIN IMMEDIATE")
                for job in jobs:
                    self._alone(job, now)
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def holds(self, key_id: str, idempotency_key: str) -> bool:
        """Whether a request was charged before."""
        found = self._db.execute(
            "SELECT 1 FROM charges WHERE key_id = ? AND idempotency_key = ?", (key_id, idempotency_key)
        )
        return found.fetchone() is not None

    def beat(self) -> None:
        """Write something, to see whether it can be done.

        Raises:
            sqlite3.Error: it cannot.
            OSError: the file is gone from its place.
        """
        self._require_file()
        self._db.execute("INSERT OR REPLACE INTO beat VALUES (1, ?)", (time.time(),))

    def close(self) -> None:
        """Close the connection; the last one copies the log into the database."""
        with suppress(sqlite3.Error):
            self._db.close()

    def _require_file(self) -> None:
        """SQLite would go on writing into a file that was removed or replaced."""
        found = self._path.stat()
        if (found.st_dev, found.st_ino) != self._file:
            raise FileNotFoundError(f"{self._path} was replaced by another file")

    def _together(self, jobs: Sequence[Job], now: float) -> bool:
        """The usual case, in few statements: no repeats, and room in every quota. False where it is not so."""
        inserted = 0
        for first in range(0, len(jobs), _TOGETHER):
            some = jobs[first : first + _TOGETHER]
            values = [value for job in some for value in _row(job, now)]
            rows = ", ".join([_ROW] * len(some))
            done = self._db.execute(f"INSERT INTO charges ({_COLUMNS}) VALUES {rows} ON CONFLICT DO NOTHING", values)
            inserted += done.rowcount
        if inserted < len(jobs):
            return False
        asked: dict[str, list[Job]] = {}
        for job in jobs:
            if job.key.quota is not None:
                asked.setdefault(job.key.id, []).append(job)
        for some in asked.values():
            if not self._count(some[0], sum(job.inputs for job in some), now):
                return False
        for job in jobs:
            job.outcome = CHARGED
        return True

    def _alone(self, job: Job, now: float) -> None:
        if job.idempotency is not None:
            found = self._db.execute(
                "SELECT fingerprint FROM charges WHERE key_id = ? AND idempotency_key = ?",
                (job.key.id, job.idempotency),
            ).fetchone()
            if found is not None:
                job.outcome = REPEATED if found[0] == job.fingerprint else CONFLICT
                return
        if job.key.quota is not None and not self._count(job, job.inputs, now):
            job.outcome = QUOTA
            return
        self._db.execute(f"INSERT INTO charges ({_COLUMNS}) VALUES {_ROW}", _row(job, now))
        job.outcome = CHARGED

    def _count(self, job: Job, inputs: int, now: float) -> bool:
        """Add to what the key has used of its period, if there is room; else tell the job how little there is."""
        quota = job.key.quota
        assert quota is not None
        number = quota.window(now)
        found = self._db.execute(
            "SELECT number, used FROM usage WHERE key_id = ? AND period = ?", (job.key.id, quota.seconds)
        ).fetchone()
        used = 0
        if found is not None and found[0] >= number:  # a clock that went back does not open the period again
            number, used = found
        if used + inputs > quota.count:
            job.quota_left = max(0, quota.count - used)
            job.retry_after = (number + 1) * quota.seconds - now
            return False
        self._db.execute(
            "INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?)", (job.key.id, quota.seconds, number, used + inputs)
        )
        return True


def _row(job: Job, now: float) -> tuple[Any, ...]:
    return (
        now,
        job.key.id,
        job.request_id,
        job.idempotency,
        job.fingerprint,
        job.model.name,
        job.model.version,
        job.inputs,
        job.units,
    )


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
    )
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
    except BaseException:
        db.close()
        raise
    return db
