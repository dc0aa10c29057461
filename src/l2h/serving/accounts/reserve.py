"""What a host may answer while the database of its accounts is down: a small ledger of its own.

Every charge is written to a SQLite file, and moved to the database once that is back, each row once, whatever ends in
between. A key with a quota may use so many inputs that were not moved yet, over all workers of the host. Of those that
were moved, what went beyond the quota counts until the key's period has ended. So that is what a quota may be exceeded
by in a period, for each host, however often the database is down.
"""

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from l2h.clock import boot_id, boot_time
from l2h.serving.accounts.key import Key, Quota
from l2h.serving.accounts.rates import RateTable
from l2h.serving.accounts.reservations import ReservationTable
from l2h.serving.accounts.sqlite import COLUMNS, SqliteAccounts, prepare_ledger
from l2h.serving.accounts.store import Charge, ChargeResult
from l2h.serving.errors import StoreDownError

#: Seconds of the one period that all inputs of a key are counted in until they are moved.
_ALWAYS = 10**10
#: Which file it is, and the last row that was moved; that row stays, so that no number is given twice.
_TABLES = (
    "CREATE TABLE IF NOT EXISTS moved (source TEXT NOT NULL, last INTEGER NOT NULL)",
    # Inputs of a key that were moved and went beyond its quota. They count until a time, by the clock since the
    # system's start, which nobody can set; after another start by the wall clock.
    "CREATE TABLE IF NOT EXISTS beyond "
    "(key_id TEXT PRIMARY KEY, inputs INTEGER NOT NULL, until REAL NOT NULL, boot TEXT NOT NULL, ends REAL NOT NULL)",
)
_DOUBTS = "CREATE TABLE IF NOT EXISTS doubts (doubt TEXT PRIMARY KEY)"
_WAITING = "SELECT coalesce(sum(inputs), 0) FROM charges WHERE id > (SELECT last FROM moved)"
_ENDED = "FROM beyond WHERE CASE WHEN boot = ? AND boot <> '' THEN ends < ? ELSE until < ? END"
_COUNT = """
UPDATE usage SET used = (SELECT coalesce(sum(inputs), 0) FROM charges, moved WHERE key_id = usage.key_id AND id > last)
    + (SELECT coalesce(sum(inputs), 0) FROM beyond WHERE key_id = usage.key_id)"""


class OutageReserve(NamedTuple):
    """The reserve of a host: its file, and the inputs that a key with a quota may use."""

    file: str
    inputs: int

    @property
    def keys(self) -> Path:
        """Where the keys are kept that were known last."""
        return Path(f"{self.file}-keys")


class WaitingRows(NamedTuple):
    """Rows that are yet to be moved, with their numbers first; ``source`` tells the file from those of other hosts."""

    source: str
    rows: list[tuple[Any, ...]]


def prepare_reserve(reserve: OutageReserve) -> None:
    """Make the file, or check the one that is there."""
    prepare_ledger(Path(reserve.file))
    with _opened(reserve.file) as db:
        for table in _TABLES:
            db.execute(table)
        new = f"reserve {uuid.uuid4()}"
        db.execute("INSERT INTO moved SELECT ?, 0 WHERE NOT EXISTS (SELECT 1 FROM moved)", (new,))


def waiting_inputs(file: str) -> int:
    """Return the inputs of a reserve's file that were answered and are not charged yet; 0 where there is no file."""
    if not Path(file).is_file():
        return 0
    with _opened(file) as db:
        return int(db.execute(_WAITING).fetchone()[0])


class ReserveLedger:
    """Charges of one worker while the database is down."""

    def __init__(self, reserve: OutageReserve, rates: RateTable, reserved: ReservationTable) -> None:
        self._reserve = reserve
        self._store = SqliteAccounts(None, Path(reserve.file), rates, reserved, None)
        self.pending = 0  # inputs that are yet to be moved, of all workers
        self.count()

    async def take_rate(self, key: Key, inputs: int, paid: int) -> float:
        """Let inputs through by the rate of this host alone."""
        return await self._store.take_rate(key, inputs, paid)

    def charge(self, charges: Sequence[Charge]) -> list[ChargeResult]:
        """Charge requests; where the reserve is used up, the outcome is "store_down" and nothing is written."""
        bounded = [charge._replace(key=_bounded(charge.key, self._reserve.inputs)) for charge in charges]
        results = self._store.charge(bounded)
        return [ChargeResult("store_down" if each.outcome == "over_quota" else each.outcome) for each in results]

    def count(self) -> None:
        """Bring :attr:`pending` up to date, and what periods have used of the reserve that have ended."""
        now = boot_id() or "", boot_time(), time.time()
        with _opened(self._reserve.file) as db:
            if db.execute(f"SELECT 1 {_ENDED}", now).fetchone() is not None:
                db.execute("BEGIN IMMEDIATE")
                db.execute(f"DELETE {_ENDED}", now)
                db.execute(_COUNT)
                db.execute("COMMIT")
        self.pending = waiting_inputs(self._reserve.file)

    def waiting(self, most: int) -> WaitingRows:
        """Return the first rows that are yet to be moved, at most so many."""
        with _opened(self._reserve.file) as db:
            ((source, last),) = db.execute("SELECT source, last FROM moved")
            query = f"SELECT id, {COLUMNS} FROM charges WHERE id > ? ORDER BY id LIMIT ?"
            rows = db.execute(query, (last, most)).fetchall()
        return WaitingRows(source, rows)

    def forget(self, last: int, beyond: Mapping[str, tuple[int, float]]) -> None:
        """Note that the rows up to a number were moved; what they used may be used again.

        What went ``beyond`` a quota may not, for so many seconds; both by the key's id.
        """
        with _opened(self._reserve.file) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE moved SET last = max(last, ?)", (last,))
            db.execute("DELETE FROM charges WHERE id < ?", (last,))
            for key_id, (inputs, left) in beyond.items():
                until = time.time() + left, boot_id() or "", boot_time() + left
                db.execute("INSERT OR REPLACE INTO beyond VALUES (?, ?, ?, ?, ?)", (key_id, inputs, *until))
            db.execute(_COUNT)
            db.execute("COMMIT")
        self.count()

    def probe(self) -> None:
        """Write something without meaning, to see whether :meth:`charge` would work."""
        self._store.probe()

    def maintain(self) -> None:
        """Do what bounds a loss; see :class:`~l2h.serving.accounts.store.AccountStore`."""
        self._store.maintain()

    def close(self) -> None:
        """Give back what is open."""
        self._store.close()


class DoubtFile:
    """Keeps which charges are to be undone in the database, of all workers; the file is made with the first of them."""

    def __init__(self, file: str) -> None:
        self._file = file

    def note(self, doubt: str) -> None:
        """Keep what is to be undone, whoever is there to do it."""
        try:
            os.close(os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise StoreDownError(f"cannot write {self._file}: {error.strerror or error}") from error
        with _opened(self._file) as db:
            db.execute(_DOUBTS)
            db.execute("INSERT OR IGNORE INTO doubts VALUES (?)", (doubt,))

    def read(self) -> list[str]:
        """Return what is to be undone."""
        if not Path(self._file).is_file():
            return []
        with _opened(self._file) as db:
            db.execute(_DOUBTS)  # whoever makes the file may not have come to it
            return [doubt for (doubt,) in db.execute("SELECT doubt FROM doubts")]

    def drop(self, doubt: str) -> None:
        """Note that it was undone."""
        with _opened(self._file) as db:
            db.execute("DELETE FROM doubts WHERE doubt = ?", (doubt,))


@lru_cache(maxsize=4096)
def _bounded(key: Key, inputs: int) -> Key:
    return key if key.quota is None else replace(key, quota=Quota(inputs, _ALWAYS))


@contextmanager
def _opened(file: str) -> Iterator[sqlite3.Connection]:
    where = f"{Path(file).absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(where, uri=True, timeout=1.0, isolation_level=None)) as db:
            yield db
    except sqlite3.Error as error:
        raise StoreDownError(f"cannot use {file}: {error}") from error
