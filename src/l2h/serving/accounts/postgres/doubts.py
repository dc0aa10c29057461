"""Transactions whose end was not heard: whether they were committed is found out later, and they are undone.

A worker that loses its connection while a transaction ends does not know whether its requests were charged. Rows
without an idempotency key are removed. Those with one may have been repeated meanwhile, which is free, so they stay;
those whose requests were refused are marked as not delivered. A file of the host keeps what is to be undone, since the
worker may end before the database is back.
"""

import json
from typing import NamedTuple

import psycopg
from psycopg import errors

from l2h.serving.accounts.periods import ChargeName
from l2h.serving.accounts.postgres.connection import Connection
from l2h.serving.accounts.reserve import DoubtFile

_UNDELIVERED = """
UPDATE charges SET delivered = 0 FROM unnest(%s::text[], %s::text[]) AS refused (key_id, idempotency_key)
WHERE time = %s AND xmin::text = %s
AND charges.key_id = refused.key_id AND charges.idempotency_key = refused.idempotency_key"""
_UNDO = """
WITH gone AS (
    DELETE FROM charges WHERE time = %s AND xmin::text = %s AND idempotency_key IS NULL RETURNING key_id, inputs
), sums AS (SELECT key_id, sum(inputs) AS inputs FROM gone GROUP BY key_id)
UPDATE usage SET used = greatest(0, used - sums.inputs)
FROM sums JOIN unnest(%s::text[], %s::bigint[], %s::bigint[]) AS periods (key_id, period, number) USING (key_id)
WHERE usage.key_id = sums.key_id AND usage.period = periods.period AND usage.number = periods.number"""


class Doubt(NamedTuple):
    """A transaction that may have ended either way; plain values, so that it can be kept as JSON."""

    transaction: int
    backend: int
    time: float  # of its rows
    periods: list[tuple[str, int, int]]  # in which it counted: the key's id, the seconds, the number
    refused: list[ChargeName]  # requests with idempotency keys that got 503

    def as_text(self) -> str:
        """Return what :func:`settle` reads from a file."""
        return json.dumps(self)


def undo(db: Connection, doubt: Doubt) -> None:
    """Undo a transaction if it was committed. May be repeated, and then marks what is known by then to be refused."""
    status = _status(db, doubt)
    if status == "in progress":  # its connection is gone, but the process at its other end does not know that yet
        db.execute("SELECT pg_terminate_backend(%s, 1000)", (doubt.backend,))
        status = _status(db, doubt)
    if status == "in progress":
        raise psycopg.OperationalError("a transaction of a lost connection has not ended yet")
    if status == "committed":
        rows = doubt.time, str(doubt.transaction % 2**32)
        if doubt.refused:
            db.execute(_UNDELIVERED, (*map(list, zip(*doubt.refused, strict=True)), *rows))
        columns = [list(column) for column in zip(*doubt.periods, strict=True)] or [[], [], []]
        db.execute(_UNDO, (*rows, *columns))


def settle(db: Connection, file: DoubtFile) -> None:
    """Undo all that a file keeps."""
    for text in file.read():
        undo(db, Doubt(*json.loads(text)))
        file.drop(text)


def _status(db: Connection, doubt: Doubt) -> str | None:
    try:
        row = db.execute("SELECT pg_xact_status(%s::text::xid8)", (str(doubt.transaction),)).fetchone()
    except errors.InvalidParameterValue:  # the database ended before it had written anything of the transaction
        return "aborted"
    return None if row is None else row[0]
