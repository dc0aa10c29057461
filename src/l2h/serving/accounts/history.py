"""What a ledger tells: sums by key, day, month or model, what keys have used, and old rows summed up.

A row that is summed up is added to the table ``totals``, by day (UTC), key, model and version, and removed, in one
transaction. So every sum stays exact; what is lost is the single request, and with it the memory that it was charged.
"""

import csv
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from l2h.errors import SettingsError
from l2h.limits import LimitError, RateLimit
from l2h.serving.accounts.key import Key
from l2h.serving.errors import LedgerError

DAY = 86400
#: What sums may be told by, and how a row of ``totals`` gives it; ``{date}`` is its day as text.
GROUPS = {"key": "key_id", "day": "{date}", "month": "substr({date}, 1, 7)", "model": "model", "version": "version"}
#: Seconds that rows may be kept.
LEAST_AGE, MOST_AGE = 3600.0, 1e10
SUMS = ("requests", "inputs", "units", "undelivered", "unconfirmed")
#: Rows that are looked at in one transaction, and how many times as long as it took the next one waits.
_ROWS, _PAUSE = 2000, 10
#: Charges that are looked at to see which keys are used most.
_LAST = 100_000
COLUMNS = f"day, key_id, model, version, {', '.join(SUMS)}"
#: Charges as rows of ``totals``, before they are summed; ``{day}`` is the number of the day.
SINGLE = """
SELECT {day} AS day, key_id, model, version, 1 AS requests, inputs, units,
    CASE WHEN delivered = 0 THEN 1 ELSE 0 END AS undelivered,
    CASE WHEN delivered IS NULL THEN 1 ELSE 0 END AS unconfirmed
FROM charges"""
#: The same, for SQLite.
SINGLE_SQLITE = SINGLE.format(day=f"CAST(time / {DAY} AS INTEGER)")


#: The version of ledgers that have totals, and rows that say whether the answer was delivered.
_SINCE = 3


class LedgerHistory(ABC):
    """Reads a ledger, also while a server writes it; a :class:`LedgerError` says that it cannot be read."""

    #: How the database writes a row's day as text.
    date: str

    @abstractmethod
    def recent(self, seconds: float) -> dict[str, int]:
        """Return the inputs that were charged to each key in the last seconds; reads no more rows than it has to."""

    @abstractmethod
    def prune(self, before: float) -> int:
        """Sum up the rows of charges before a time; return how many. A server may go on meanwhile."""

    @abstractmethod
    def ask(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, in which question marks stand for values."""

    @abstractmethod
    def rows(self) -> str:
        """Return the query of all charges as rows of ``totals``, summed up or not."""

    def report(self, by: Sequence[str], since: float = 0.0, until: float = 1e12) -> list[dict[str, Any]]:
        """Return the sums of all charges, one row per group, in the order of the groups.

        Args:
            by: names of :data:`GROUPS`; without any there is one row, of all charges.
            since: the first day that counts, as seconds since 1970; the whole of the day (UTC) is counted.
            until: the end, like ``since``; the day that begins there is not counted.
        """
        unknown = [name for name in by if name not in GROUPS]
        if unknown:
            raise LedgerError(f"no sums by {unknown[0]!r}: one of {', '.join(GROUPS)}")
        columns = [f'{GROUPS[name].format(date=self.date)} AS "{name}"' for name in by]
        sums = [f"CAST(coalesce(sum({name}), 0) AS bigint) AS {name}" for name in SUMS]
        places = ", ".join(str(i + 1) for i in range(len(by)))
        groups = f"GROUP BY {places} ORDER BY {places}" if by else ""
        query = f"""
            SELECT {", ".join(columns + sums)} FROM ({self.rows()}) AS found
            WHERE day >= ? AND day < ? {groups}"""
        days = since // DAY, -(-until // DAY)
        return [dict(zip([*by, *SUMS], row, strict=True)) for row in self.ask(query, days)]

    def used(self, keys: Iterable[Key]) -> dict[str, int]:
        """Return what each key with a quota has used of its present period, by the wall clock."""
        found = {}
        rows = self.ask("SELECT key_id, period, number, used FROM usage")
        periods = {(key_id, period): (number, used) for key_id, period, number, used in rows}
        for key in keys:
            if key.quota is not None:
                number, used = periods.get((key.id, key.quota.seconds), (-1, 0))
                found[key.id] = used if number >= key.quota.window(time.time())[0] else 0
        return found

    def most_used(self) -> list[str]:
        """Return the ids of the keys, the one with the most inputs first, by the totals and the last charges."""
        last = f"SELECT key_id, inputs FROM charges WHERE id > (SELECT max(id) FROM charges) - {_LAST}"
        rows = f"SELECT key_id, inputs FROM totals UNION ALL {last}"
        return [
            row[0] for row in self.ask(f"SELECT key_id FROM ({rows}) AS found GROUP BY 1 ORDER BY sum(inputs) DESC")
        ]


class SqliteHistory(LedgerHistory):
    """Reads the SQLite file of a server."""

    date = f"date(day * {DAY}, 'unixepoch')"

    def __init__(self, path: Path, prepare: Callable[[Path], None]) -> None:
        self._path, self._prepare = path, prepare  # the latter brings the ledger of an older L2H up to date

    def recent(self, seconds: float) -> dict[str, int]:
        since = time.time() - seconds
        with self._reading() as db:
            first, end = db.execute("SELECT coalesce(min(id), 0), coalesce(max(id), -1) + 1 FROM charges").fetchone()
            while first < end:  # rows are in the order of their time
                middle = (first + end) // 2
                row = db.execute("SELECT time FROM charges WHERE id >= ? ORDER BY id LIMIT 1", (middle,)).fetchone()
                first, end = (middle + 1, end) if row is not None and row[0] < since else (first, middle)
            sums = "SELECT key_id, sum(inputs) FROM charges WHERE id >= ? GROUP BY key_id"
            return dict(db.execute(sums, (first,)).fetchall())

    def prune(self, before: float) -> int:
        self._prepare(self._path)
        try:
            with closing(self._connect("rw")) as db:
                return sum_up(db, before)
        except sqlite3.Error as error:
            raise LedgerError(f"cannot prune the ledger {self._path}: {error}") from error

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._reading() as db:
            return db.execute(query, values).fetchall()

    def rows(self) -> str:
        ((version,),) = self.ask("PRAGMA user_version")
        if version < _SINCE:
            return SINGLE_SQLITE.replace("WHEN delivered", "WHEN NULL")
        return f"SELECT {COLUMNS} FROM totals UNION ALL {SINGLE_SQLITE}"

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._connect("ro")) as db:
                yield db
        except sqlite3.Error as error:
            raise LedgerError(f"cannot read the ledger {self._path}: {error}") from error

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}", uri=True, timeout=10, isolation_level=None
        )


def name_keys(rows: Iterable[dict[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return rows of a report by key with the key's name after its id; empty where the name is not known."""
    named = []
    for row in rows:
        items = list(row.items())
        place = list(row).index("key") + 1
        named.append(dict([*items[:place], ("name", names.get(row["key"], "")), *items[place:]]))
    return named


def write_csv(rows: Sequence[dict[str, Any]], by: Sequence[str], file: TextIO) -> None:
    """Write a report by some groups as CSV; a name that a spreadsheet would compute has an apostrophe before it."""
    writer = csv.DictWriter(file, list(rows[0]) if rows else [*by, *SUMS], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({column: _plain(value) for column, value in row.items()})


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value


def sum_up(db: sqlite3.Connection, before: float, pause: bool = False) -> int:
    """Sum up the charges before a time; return how many. With ``pause`` others get the file in between."""
    last = count = 0
    # Not the last, without which SQLite would give its number, and those before it, to other charges.
    begin = (
        f"SELECT id, time FROM charges WHERE id > ? AND id < (SELECT max(id) FROM charges) ORDER BY id LIMIT {_ROWS}"
    )
    while True:
        start = time.monotonic()
        end, old = db.execute(f"SELECT max(id), sum(time < ?) FROM ({begin})", (before, last)).fetchone()
        if not old:  # rows are in the order of their time
            return count
        which = "WHERE id > ? AND id <= ? AND time < ?"
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)
        sums = ", ".join(f"sum({name})" for name in SUMS)
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(
                f"INSERT INTO totals ({COLUMNS}) SELECT day, key_id, model, version, {sums} "
                f"FROM ({SINGLE_SQLITE} {which}) WHERE true GROUP BY 1, 2, 3, 4 ON CONFLICT DO UPDATE SET {added}",
                (last, end, before),
            )
            count += db.execute(f"DELETE FROM charges {which}", (last, end, before)).rowcount
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        last = end
        if pause:
            time.sleep(_PAUSE * (time.monotonic() - start))


def parse_age(text: str) -> float:
    """Return the seconds of ``90d`` or ``12h``; raise a ``SettingsError`` where it is no age that rows may reach."""
    try:
        seconds = RateLimit(1, per=text).per
    except LimitError:
        seconds = None
    if seconds is None or not LEAST_AGE <= seconds <= MOST_AGE:
        raise SettingsError(f"--keep {text!r}: how long rows are kept, from 1h: write 90d or 12h")
    return seconds


def stamp(seconds: float) -> str:
    """Return a time as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
