"""What a SQLite ledger holds, as of one moment, for whoever copies it."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from l2h.serving.accounts.history import COLUMNS, SINGLE_SQLITE, SUMS
from l2h.serving.accounts.periods import Period, PeriodName
from l2h.serving.accounts.sqlite import COLUMNS as CHARGE
from l2h.serving.accounts.sqlite import prepare_ledger
from l2h.serving.errors import LedgerError


class LedgerSource:
    """A ledger that is read in one transaction; see :func:`read_source`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        ((self.name,),) = db.execute("SELECT source FROM identity")
        ((self.last_id,),) = db.execute("SELECT coalesce(max(id), 0) FROM charges")

    def count(self, after: int) -> int:
        """Return how many charges came after the one with a number."""
        ((count,),) = self._db.execute("SELECT count(*) FROM charges WHERE id > ?", (after,))
        return int(count)

    def charges(self, after: int) -> Iterator[tuple[Any, ...]]:
        """Give those charges, in their order: the columns of a charge, and whether the answer was delivered."""
        yield from self._db.execute(f"SELECT {CHARGE}, delivered FROM charges WHERE id > ? ORDER BY id", (after,))

    def sums(self) -> list[tuple[Any, ...]]:
        """Return the sums of all charges ever, as rows of ``totals``."""
        sums = ", ".join(f"sum({name})" for name in SUMS)
        rows = f"SELECT {COLUMNS} FROM totals UNION ALL {SINGLE_SQLITE}"
        query = f"SELECT day, key_id, model, version, {sums} FROM ({rows}) GROUP BY 1, 2, 3, 4"
        return self._db.execute(query).fetchall()

    def periods(self) -> dict[PeriodName, Period]:
        """Return what keys have used."""
        rows = self._db.execute("SELECT key_id, period, number, used, boot, ends FROM usage")
        return {(row[0], row[1]): Period(*row[2:]) for row in rows}


@contextmanager
def read_source(path: Path) -> Iterator[LedgerSource]:
    """Open a ledger for copying, also while a server writes it; one of an older L2H is brought up to date."""
    if not path.is_file() or not path.stat().st_size:
        raise LedgerError(f"there is no ledger {path} to copy")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=10.0)) as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'moved'").fetchone() is not None:
                raise LedgerError(
                    f"{path} is what a server answered while its database was down, and no ledger: "
                    f"`l2h serve --accounts URL --when-accounts-fail serve` charges it"
                )
        prepare_ledger(path)
        with closing(sqlite3.connect(path, timeout=10.0, isolation_level=None)) as db:
            db.execute("BEGIN")
            yield LedgerSource(db)
    except sqlite3.Error as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error
