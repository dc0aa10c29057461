"""Charges that were made elsewhere, moved to PostgreSQL: those of a host's reserve."""

from contextlib import suppress
from typing import Any

from psycopg.types.json import Jsonb

from l2h.serving.accounts.keylist import parse_key
from l2h.serving.accounts.periods import Period, PeriodName, present_period
from l2h.serving.accounts.postgres import clock
from l2h.serving.accounts.postgres.connection import Connection
from l2h.serving.accounts.postgres.ledger import known_charges, lock_usage, use
from l2h.serving.accounts.reserve import WaitingRows
from l2h.serving.accounts.sqlite import COLUMNS
from l2h.serving.errors import KeyStoreError

_SOURCE = "INSERT INTO copies (source) VALUES (%s) ON CONFLICT DO NOTHING"
_INSERT = f"""
INSERT INTO charges ({COLUMNS}) SELECT * FROM unnest(
    %s::float8[], %s::text[], %s::text[], %s::text[], %s::bytea[], %s::text[], %s::text[], %s::bigint[], %s::bigint[]
) ON CONFLICT DO NOTHING RETURNING key_id, inputs"""


def move_reserve(db: Connection, waiting: WaitingRows) -> tuple[int, dict[str, tuple[int, float]]]:
    """Write the rows of a reserve that are not there yet, and count what they use.

    Returns the number of the last, and by the ids of keys what has gone beyond their quotas by all rows of this reserve
    so far, with the seconds for which that counts.
    A request that was charged before by any host is not charged again: nobody could know while the database was down.
    Another one with the same idempotency key is, without its name.
    All counts in the present period: when a row was answered only the host's clock says, which may have been set. The
    quotas are those that the database has now, since another worker may have learnt of a key before this one.
    """
    with db.transaction():
        db.execute(_SOURCE, (waiting.source,))
        found = "SELECT last_id, used FROM copies WHERE source = %s FOR UPDATE"
        ((last, beyond),) = db.execute(found, (waiting.source,)).fetchall()
        new = [row for row in waiting.rows if row[0] > last]
        users = "SELECT record FROM keys WHERE id = ANY (%s)"
        keys = []
        for (record,) in db.execute(users, (list({row[2] for row in new}),)).fetchall():
            with suppress(KeyStoreError):  # of a newer L2H: nobody uses it here, and no row waits for it
                keys.append(parse_key(record))
        quotas = {(key.id, key.quota.seconds): key.quota for key in keys if key.quota is not None}
        periods = lock_usage(db, set(quotas))
        ((wall, shift, _),) = db.execute(clock.READ).fetchall()
        now = clock.steady_now(wall, shift)
        before = {name: present_period(quota, periods.get(name), now) for name, quota in quotas.items()}
        present = dict(before)
        new = _unknown(db, new)
        new.sort(key=lambda row: (row[2], row[4] or ""))  # in the order in which others insert theirs
        columns = [list(column) for column in zip(*new, strict=True)]
        for row in db.execute(_INSERT, columns[1:]).fetchall() if new else ():
            _count(present, *row)
        use(db, present)
        beyond = {key_id: (inputs, until) for key_id, (inputs, until) in beyond.items() if until > now.steady}
        for name, quota in quotas.items():
            more = present[name].used - max(quota.count, before[name].used)
            if more > 0:
                beyond[name[0]] = beyond.get(name[0], (0,))[0] + more, before[name].ends
        last = max((row[0] for row in waiting.rows), default=last)
        new_state = "UPDATE copies SET last_id = greatest(last_id, %s), used = %s WHERE source = %s"
        db.execute(new_state, (last, Jsonb(beyond), waiting.source))
    return int(last), {key_id: (inputs, until - now.steady) for key_id, (inputs, until) in beyond.items()}


def _unknown(db: Connection, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Leave out rows of requests that were charged before, and the names of others that have the same."""
    named = [row for row in rows if row[4] is not None]
    known = known_charges(db, [(row[2], row[4]) for row in named])
    kept = []
    for row in rows:
        if (row[2], row[4]) not in known:
            kept.append(row)
        elif known[row[2], row[4]] != row[5]:
            kept.append((*row[:4], None, None, *row[6:]))
    return kept


def _count(present: dict[PeriodName, Period], key_id: str, inputs: int) -> None:
    for name, period in present.items():
        if name[0] == key_id:
            present[name] = period._replace(used=period.used + inputs)
