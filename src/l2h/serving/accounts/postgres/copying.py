"""A SQLite ledger and its keys copied to PostgreSQL, in one transaction, as often as one likes.

A ledger that was copied before brings only what is new since. What was charged is compared in sums by day, key, model
and version: whatever was summed up or marked meanwhile, the sums of the database are exact.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.types.json import Jsonb

from l2h.serving.accounts.history import COLUMNS, SUMS
from l2h.serving.accounts.key import ANONYMOUS, Key, Quota
from l2h.serving.accounts.periods import present_period
from l2h.serving.accounts.postgres import clock
from l2h.serving.accounts.postgres.connection import Connection, connect, one_line, prepare_database, shown_place
from l2h.serving.accounts.postgres.history import ADDED, single_rows
from l2h.serving.accounts.postgres.keys import CHANGE, put_key, read_keys
from l2h.serving.accounts.postgres.ledger import lock_usage, use
from l2h.serving.accounts.source import LedgerSource, read_source
from l2h.serving.accounts.sqlite import COLUMNS as CHARGE
from l2h.serving.errors import KeyStoreError, LedgerError

#: Of the lock that lets one copy at a time through.
_LOCK = 0x4C324351
#: Charges between two reports of progress.
_STEP = 10_000
_STAGE = "CREATE TEMPORARY TABLE staged (LIKE charges) ON COMMIT DROP"
_STAGE_SUMS = f"CREATE TEMPORARY TABLE staged_sums ON COMMIT DROP AS SELECT {COLUMNS} FROM totals WHERE false"
#: A request that another ledger has charged as well keeps its row, and gives up the name.
_INSERT = f"""
INSERT INTO charges ({CHARGE}, delivered)
SELECT time, key_id, request_id, CASE WHEN EXISTS (
    SELECT 1 FROM charges AS others
    WHERE others.key_id = staged.key_id AND others.idempotency_key = staged.idempotency_key
) THEN NULL ELSE idempotency_key END, fingerprint, model, version, inputs, units, delivered FROM staged ORDER BY id"""
#: What the ledger has summed up, beyond what was copied before and the rows that are copied now.
_REST = f"""
INSERT INTO totals ({COLUMNS})
SELECT day, key_id, model, version, {", ".join(f"sum({name})" for name in SUMS)} FROM (
    SELECT {COLUMNS} FROM staged_sums
    UNION ALL SELECT day, key_id, model, version, {", ".join(f"-{name}" for name in SUMS)} FROM copied WHERE source = %s
    UNION ALL SELECT day, key_id, model, version, {", ".join(f"-{name}" for name in SUMS)}
    FROM ({single_rows("staged")}) AS new
) AS rest GROUP BY 1, 2, 3, 4 HAVING {" OR ".join(f"sum({name}) <> 0" for name in SUMS)}
ON CONFLICT (day, key_id, model, version) DO UPDATE SET {ADDED}"""


class Copied(NamedTuple):
    """What a copy brought: keys and charges that were new; ``requests`` counts those that were summed up as well.

    ``unknown`` are ids of keys in the ledger that the database does not know.
    """

    keys: int
    charges: int
    requests: int
    unknown: list[str]


def copy_accounts(
    ledger: Path, keys: Iterable[Key], url: str, progress: Callable[[int, int], None] = lambda done, of: None
) -> Copied:
    """Copy a ledger and keys to a database, all or nothing; ``progress`` is told how many of how many charges are done.

    Keys that the database has stay as they are there, but one that was revoked is revoked there too.
    """
    prepare_database(url)
    place, keys = shown_place(url), list(keys)
    try:
        with connect(url, patience=None) as db, db.transaction():
            # Before the ledger is read: a copy must have seen all that the one before it has brought.
            if db.execute("SELECT pg_try_advisory_xact_lock(%s)", (_LOCK,)).fetchall() != [(True,)]:
                raise LedgerError(f"another copy to {place} is under way: repeat this one when that has ended")
            with read_source(ledger) as source:
                return _copy(db, source, keys, place, progress)
    except psycopg.Error as error:
        raise LedgerError(f"nothing was copied to {place}: {one_line(error)}") from error


def _copy(
    db: Connection, source: LedgerSource, keys: list[Key], place: str, progress: Callable[[int, int], None]
) -> Copied:
    db.execute("INSERT INTO copies (source) VALUES (%s) ON CONFLICT DO NOTHING", (source.name,))
    found = "SELECT last_id, used FROM copies WHERE source = %s FOR UPDATE"
    ((last, used),) = db.execute(found, (source.name,)).fetchall()
    if source.last_id < last:  # its sums are lower, and would take away what the newer one has brought
        raise LedgerError(f"a newer copy of this ledger was copied to {place} before: copy that one again")
    _new_keys(db, keys, place)  # a name that is taken is told now, and not after the work
    charges = _copy_charges(db, source, last, progress)
    before = _requests(db, source)
    _copy_sums(db, source)
    # Last, since other changes of keys, and servers with charges, wait for what is locked from here on.
    db.execute(CHANGE)
    new = _new_keys(db, keys, place)
    revoked = {key.id for key in keys if not key.enabled}
    ended = [replace(key, enabled=False) for key in read_keys(db) if key.enabled and key.id in revoked]
    for key in [*new, *ended]:
        put_key(db, key)
    used = _copy_usage(db, source, used)
    db.execute(
        "UPDATE copies SET last_id = %s, used = %s WHERE source = %s",
        (source.last_id, Jsonb(used), source.name),
    )
    known = {ANONYMOUS.id, *(key.id for key in read_keys(db))}
    charged = db.execute("SELECT DISTINCT key_id FROM copied WHERE source = %s", (source.name,)).fetchall()
    unknown = sorted({key for (key,) in charged} - known)
    return Copied(len(new), charges, _requests(db, source) - before, unknown)


def _new_keys(db: Connection, keys: list[Key], place: str) -> list[Key]:
    known = read_keys(db)
    new = [key for key in keys if key.id not in {other.id for other in known}]
    names = {key.name for key in known if key.enabled}
    for key in new:
        if key.enabled and key.name in names:
            raise KeyStoreError(f"{place} has another key named {key.name!r} in use: revoke one of the two first")
    return new


def _copy_usage(db: Connection, source: LedgerSource, before: dict[str, list[int]]) -> dict[str, list[int]]:
    """Add what was used in periods that have not ended; return what the next copy will find was added."""
    periods = source.periods()
    last = lock_usage(db, set(periods))
    ((wall, shift, _),) = db.execute(clock.READ).fetchall()
    now, present = clock.steady_now(wall, shift), {}
    for name, period in periods.items():
        current = present_period(Quota(0, name[1]), last.get(name), now)
        number, used = before.get(json.dumps(name), (-1, 0))
        if period.number == current.number:
            present[name] = current._replace(used=current.used + period.used - (used if number == period.number else 0))
    use(db, present)
    return {json.dumps(name): [period.number, period.used] for name, period in periods.items()}


def _copy_charges(db: Connection, source: LedgerSource, last: int, progress: Callable[[int, int], None]) -> int:
    of, done = source.count(last), 0
    db.execute(_STAGE)
    with db.cursor() as cursor, cursor.copy(f"COPY staged (id, {CHARGE}, delivered) FROM STDIN") as copy:
        for row in source.charges(last):
            done += 1
            copy.write_row((done, *row))
            if done % _STEP == 0 or done == of:
                progress(done, of)
    db.execute(_INSERT)
    return done


def _copy_sums(db: Connection, source: LedgerSource) -> None:
    db.execute(_STAGE_SUMS)
    with db.cursor() as cursor, cursor.copy(f"COPY staged_sums ({COLUMNS}) FROM STDIN") as copy:
        for row in source.sums():
            copy.write_row(row)
    db.execute(_REST.encode(), (source.name,))
    db.execute("DELETE FROM copied WHERE source = %s", (source.name,))
    db.execute(f"INSERT INTO copied (source, {COLUMNS}) SELECT %s, {COLUMNS} FROM staged_sums", (source.name,))


def _requests(db: Connection, source: LedgerSource) -> int:
    query = "SELECT coalesce(sum(requests), 0)::bigint FROM copied WHERE source = %s"
    row: tuple[Any, ...] | None = db.execute(query, (source.name,)).fetchone()
    return 0 if row is None else int(row[0])
