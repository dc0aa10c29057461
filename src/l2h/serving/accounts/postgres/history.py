"""What the ledger in PostgreSQL tells, and its old rows summed up."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from l2h.serving.accounts.history import COLUMNS, DAY, SINGLE, SUMS, LedgerHistory
from l2h.serving.accounts.postgres.connection import Connection, connect, one_line, shown_place
from l2h.serving.errors import LedgerError

#: Rows of one transaction, and how many times as long as it took the next one waits.
_ROWS, _PAUSE = 2000, 10
#: How sums are added to those that are there.
ADDED = ", ".join(f"{name} = totals.{name} + excluded.{name}" for name in SUMS)


def single_rows(table: str) -> str:
    """Return the query of the charges in a table as rows of ``totals``, before they are summed."""
    return SINGLE.format(day=f"floor(time / {DAY})::bigint").replace("FROM charges", f"FROM {table}")


#: Each row is removed by one transaction alone, whoever else sums up at the same time.
_SUM_UP = f"""
WITH charges AS (
    DELETE FROM charges WHERE id IN (
        SELECT id FROM charges WHERE time < %s ORDER BY time LIMIT {_ROWS} FOR UPDATE SKIP LOCKED
    ) RETURNING *
), added AS (
    INSERT INTO totals ({COLUMNS})
    SELECT day, key_id, model, version, {", ".join(f"sum({name})" for name in SUMS)}
    FROM ({single_rows("charges")}) AS single GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (day, key_id, model, version) DO UPDATE SET {ADDED}
) SELECT count(*) FROM charges"""


class DatabaseHistory(LedgerHistory):
    """Reads the ledger of servers on several hosts."""

    date = "to_char(date '1970-01-01' + day::integer, 'YYYY-MM-DD')"

    def __init__(self, url: str) -> None:
        self._url, self._place = url, shown_place(url)

    def recent(self, seconds: float) -> dict[str, int]:
        query = "SELECT key_id, sum(inputs)::bigint FROM charges WHERE time >= ? GROUP BY key_id"
        return dict(self.ask(query, (time.time() - seconds,)))

    def prune(self, before: float) -> int:
        with self._asking() as db:
            return sum_up(db, before)

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._asking() as db:
            return db.execute(query.replace("?", "%s").encode(), values).fetchall()

    def rows(self) -> str:
        return f"SELECT {COLUMNS} FROM totals UNION ALL {single_rows('charges')}"

    @contextmanager
    def _asking(self) -> Iterator[Connection]:
        try:
            with connect(self._url, patience=None) as db:
                yield db
        except psycopg.Error as error:
            raise LedgerError(f"cannot use the ledger at {self._place}: {one_line(error)}") from error


def sum_up(db: Connection, before: float, pause: bool = False) -> int:
    """Sum up the charges before a time; return how many. With ``pause`` others get the database in between."""
    count = 0
    while True:
        start = time.monotonic()
        ((rows,),) = db.execute(_SUM_UP.encode(), (before,)).fetchall()
        if not rows:
            return count
        count += rows
        if pause:
            time.sleep(_PAUSE * (time.monotonic() - start))
