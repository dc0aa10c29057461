"""Charges in PostgreSQL: one transaction for all requests of a call, in two round trips.

The first takes the locks of the quotas, in the order of their names, and then reads the time; the second writes the
rows and what is used, and ends the transaction. That a request was charged before is found by the index of the table,
as a conflict: then all is taken back and decided once more, with a look at those requests.

A connection that breaks while the transaction ends leaves open whether it was charged. Then the requests are refused,
or answered from the reserve of the host, and the next connection undoes the transaction.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import errors

from l2h.clock import boot_time
from l2h.serving.accounts.periods import (
    ChargeName,
    Now,
    Period,
    PeriodName,
    decide,
    quota_periods,
    with_rows,
)
from l2h.serving.accounts.postgres import clock
from l2h.serving.accounts.postgres.connection import Connection
from l2h.serving.accounts.postgres.doubts import Doubt, undo
from l2h.serving.accounts.store import Charge, ChargeResult, Delivery

#: Tries of a transaction that another one was in the way of.
_TRIES = 10
#: The periods of keys, by their ids and the seconds.
USAGE = f"""
SELECT key_id, period, number, used, '{clock.SINCE}', ends FROM usage JOIN unnest(%s::text[], %s::bigint[])
AS wanted (key_id, period) USING (key_id, period)"""
_LOCKED = f"{USAGE} ORDER BY key_id, period FOR UPDATE OF usage"
_STATE = clock.READ.replace(" FROM meta", ", pg_current_xact_id()::text::bigint FROM meta")
_MAKE = """
INSERT INTO usage SELECT *, -1, 0, 0 FROM unnest(%s::text[], %s::bigint[]) ORDER BY 1, 2 ON CONFLICT DO NOTHING"""
_USE = """
UPDATE usage SET number = new.number, used = new.used, ends = new.ends
FROM unnest(%b::text[], %b::bigint[], %b::bigint[], %b::bigint[], %b::float8[])
AS new (key_id, period, number, used, ends)
WHERE usage.key_id = new.key_id AND usage.period = new.period"""
_INSERT = """
INSERT INTO charges (time, key_id, request_id, idempotency_key, fingerprint, model, version, inputs, units)
SELECT %b, * FROM unnest(
    %b::text[], %b::text[], %b::text[], %b::bytea[], %b::text[], %b::text[], %b::bigint[], %b::bigint[]
) RETURNING id"""
#: The fingerprints of requests that were charged before.
KNOWN = """
SELECT key_id, idempotency_key, fingerprint FROM charges
JOIN unnest(%s::text[], %s::text[]) AS wanted (key_id, idempotency_key) USING (key_id, idempotency_key)"""
_MARK = """
UPDATE charges SET delivered = marks.delivered
FROM unnest(%s::bigint[], %s::bigint[], %s::smallint[]) AS marks (first, last, delivered)
WHERE id BETWEEN first AND last"""


class LedgerWriter:
    """Charges on a connection, and remembers the transaction whose end is not known.

    The requests of a charge that fails count as refused there, unless somebody answers them all the same.
    """

    def __init__(self) -> None:
        self.clock = clock.DatabaseClock()
        self.doubt: Doubt | None = None

    def charge(
        self, db: Connection, charges: Sequence[Charge], delivered: Sequence[Delivery]
    ) -> tuple[list[ChargeResult], Now]:
        """Charge requests; raises a ``psycopg.Error`` where nothing was charged, or will be once that can be seen to.

        The results have the ends of periods on the steady clock.
        """
        self.settle(db)
        known: dict[ChargeName, bytes | None] | None = None
        for left in reversed(range(_TRIES)):
            try:
                done = self._try(db, charges, known, delivered)
                if done is not None:
                    return done
                known = _known(db, charges)
            except errors.UniqueViolation:
                known = _known(db, charges)  # also where another host was quicker than the last look
            except (errors.DeadlockDetected, errors.SerializationFailure):
                if not left:
                    raise
        raise psycopg.OperationalError(f"{_TRIES} tries to charge met other charges of the same requests")

    def settle(self, db: Connection) -> None:
        """Undo the transaction whose end was not heard, if it was committed."""
        if self.doubt is not None:
            undo(db, self.doubt)
            self.doubt = None

    def look(self, db: Connection) -> None:
        """Look at the clock, and correct it for everybody where it was set."""
        asked = boot_time()
        if self.clock.read(db.execute(clock.READ).fetchall()[0], asked) is None:
            self.clock.correct(db)

    def _try(
        self,
        db: Connection,
        charges: Sequence[Charge],
        known: Mapping[ChargeName, bytes | None] | None,
        delivered: Sequence[Delivery],
    ) -> tuple[list[ChargeResult], Now] | None:
        """Charge; None where it must be looked for earlier charges first. Whatever is raised, nothing was charged."""
        try:
            now = None
            while now is None:
                asked = boot_time()
                begun = _begin(db, quota_periods(charge.key for charge in charges))
                now = self.clock.read(begun.clock, asked)
                if now is None:
                    db.execute("ROLLBACK")
                    self.clock.correct(db)
            decided = decide(charges, begun.last, known, now)
            if decided is None:
                db.execute("ROLLBACK")
                return None
            results, periods = decided
            counted = [(*name, period.number) for name, period in periods.items()]
            self.doubt = Doubt(begun.transaction, db.info.backend_pid, now.wall, counted, named(charges))
            rows = _write(db, charges, results, periods, delivered, now)
        except psycopg.Error:
            if not db.broken and not db.closed:
                self.doubt = None  # the server said so itself: all is taken back
                db.execute("ROLLBACK")
            raise
        self.doubt = None
        return with_rows(results, rows), now


class _Begun(NamedTuple):
    last: dict[PeriodName, Period]
    clock: tuple[float, float, int]
    transaction: int


def read_periods(rows: Iterable[tuple[Any, ...]]) -> dict[PeriodName, Period]:
    """Return the periods of rows of the table of quotas."""
    return {(row[0], row[1]): Period(*row[2:]) for row in rows if row[2] >= 0}


def lock_usage(db: Connection, wanted: set[PeriodName]) -> dict[PeriodName, Period]:
    """Lock the quotas of a transaction, in the order of their names, and return them."""
    columns = _columns(wanted)
    db.execute(_MAKE, columns)
    return read_periods(db.execute(_LOCKED, columns).fetchall())


def use(db: Connection, periods: Mapping[PeriodName, Period]) -> None:
    """Write what is used of quotas that are locked."""
    if periods:
        used = [(*name, period.number, period.used, period.ends) for name, period in periods.items()]
        db.execute(_USE, [list(column) for column in zip(*used, strict=True)], prepare=True)


def _columns(names: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    pairs = sorted(names)
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _begin(db: Connection, wanted: set[PeriodName]) -> _Begun:
    """Begin a transaction, lock the quotas, and read them and then the time."""
    columns = _columns(wanted)
    rows: list[tuple[Any, ...]] = []
    while True:
        with db.pipeline():
            db.execute("BEGIN")
            found = db.execute(_LOCKED, columns) if wanted else None
            state = db.execute(_STATE)
        if found is not None:
            rows = found.fetchall()
        if len(rows) == len(wanted):
            wall, shift, steps, transaction = state.fetchall()[0]
            return _Begun(read_periods(rows), (wall, shift, steps), transaction)
        db.execute("ROLLBACK")
        db.execute(_MAKE, columns)


def _write(
    db: Connection,
    charges: Sequence[Charge],
    results: Sequence[ChargeResult],
    periods: Mapping[PeriodName, Period],
    delivered: Sequence[Delivery],
    now: Now,
) -> list[int]:
    """Write what was decided and end the transaction; return the rows of what was charged, in their order."""
    taken = [charge for charge, result in zip(charges, results, strict=True) if result.outcome == "charged"]
    # Rows with idempotency keys in the order of these: no two transactions wait for one another.
    order = sorted(range(len(taken)), key=lambda i: (taken[i].key.id, taken[i].idempotency_key or ""))
    columns = list(zip(*((taken[i].key.id, *taken[i][1:]) for i in order), strict=True))
    inserted = None
    # Prepared at their first use: psycopg would not see that one it prepares later comes after one that fails, and is
    # unknown to the server.
    with db.pipeline():
        if taken:
            inserted = db.execute(_INSERT, (now.wall, *map(list, columns)), prepare=True)
        use(db, periods)
        if delivered:
            db.execute(_MARK, [list(map(int, column)) for column in zip(*delivered, strict=True)], prepare=True)
        db.execute("COMMIT", prepare=False)
    rows = [0] * len(taken)
    for i, (row,) in zip(order, inserted.fetchall() if inserted else (), strict=True):
        rows[i] = row
    return rows


def _known(db: Connection, charges: Sequence[Charge]) -> dict[ChargeName, bytes | None]:
    return known_charges(db, named(charges))


def named(charges: Iterable[Charge]) -> list[ChargeName]:
    """Return the names of those requests that have one."""
    return [(charge.key.id, charge.idempotency_key) for charge in charges if charge.idempotency_key is not None]


def known_charges(db: Connection, names: Sequence[ChargeName]) -> dict[ChargeName, bytes | None]:
    """Return the fingerprints of those requests that were charged before."""
    found = db.execute(KNOWN, ([name[0] for name in names], [name[1] for name in names])).fetchall()
    return {(key_id, name): fingerprint for key_id, name, fingerprint in found}


def on_this_host(result: ChargeResult, now: Now) -> ChargeResult:
    """Return a result with the end of the period on the clock of this host."""
    return result._replace(ends=boot_time() + result.ends - now.steady) if result.used is not None else result
