"""The tables in PostgreSQL, in the schema ``l2h``, and what brings those of an older L2H up to date."""

from collections.abc import Mapping
from typing import Any

import psycopg

from l2h.serving.errors import LedgerError

#: PostgreSQL from 14 on can end a process and wait for its end (``pg_terminate_backend``).
LEAST_SERVER = 14
_FIRST = """
CREATE TABLE meta (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    version integer NOT NULL,
    keys_changed bigint NOT NULL DEFAULT 0,
    -- What is added to the wall clock of the database, so that the sum never jumps; and how often that was changed.
    clock_shift float8 NOT NULL DEFAULT 0,
    clock_steps bigint NOT NULL DEFAULT 0
);
INSERT INTO meta (version) VALUES (0);
CREATE TABLE keys (
    id text PRIMARY KEY,
    place bigint GENERATED ALWAYS AS IDENTITY,
    record jsonb NOT NULL
);
CREATE TABLE charges (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    time float8 NOT NULL,
    key_id text COLLATE "C" NOT NULL,
    request_id text NOT NULL,
    idempotency_key text COLLATE "C",
    fingerprint bytea,
    model text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    inputs bigint NOT NULL,
    units bigint NOT NULL,
    delivered smallint
);
CREATE UNIQUE INDEX charges_once ON charges (key_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX charges_time ON charges (time);
CREATE TABLE usage (
    key_id text COLLATE "C" NOT NULL,
    period bigint NOT NULL,
    number bigint NOT NULL,
    used bigint NOT NULL,
    ends float8 NOT NULL,
    PRIMARY KEY (key_id, period)
) WITH (fillfactor = 50);
CREATE TABLE totals (
    day bigint NOT NULL,
    key_id text COLLATE "C" NOT NULL,
    model text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    requests bigint NOT NULL,
    inputs bigint NOT NULL,
    units bigint NOT NULL,
    undelivered bigint NOT NULL,
    unconfirmed bigint NOT NULL,
    PRIMARY KEY (day, key_id, model, version)
);
CREATE TABLE rates (key_id text COLLATE "C" PRIMARY KEY, empty_at float8 NOT NULL) WITH (fillfactor = 50);
-- The rule is that of l2h.serving.accounts.rates. Records are locked in the order of their names, and the time is read
-- after that: nobody can be let through twice, and no two callers wait for one another.
CREATE FUNCTION take_rates(names text[], per_second float8[], burst float8[], inputs float8[], paid float8[])
RETURNS float8[] LANGUAGE plpgsql AS $$
DECLARE
    now float8;
    filled float8;
    waits float8[] := '{}';
BEGIN
    INSERT INTO l2h.rates SELECT DISTINCT unnest(names), '-infinity'::float8 ORDER BY 1 ON CONFLICT DO NOTHING;
    PERFORM 1 FROM l2h.rates WHERE key_id = ANY (names) ORDER BY key_id FOR UPDATE;
    SELECT extract(epoch FROM clock_timestamp()) + clock_shift INTO now FROM l2h.meta;
    FOR i IN 1 .. cardinality(names) LOOP
        SELECT greatest(empty_at, now) - now INTO filled FROM l2h.rates WHERE key_id = names[i];
        waits := waits || filled - (paid[i] + burst[i] - least(inputs[i], burst[i])) / per_second[i];
        IF waits[i] <= 0 THEN
            UPDATE l2h.rates SET empty_at = now + filled + (inputs[i] - paid[i]) / per_second[i]
            WHERE key_id = names[i];
        END IF;
    END LOOP;
    RETURN waits;
END
$$
"""
#: What was copied from ledgers of SQLite: the last row of each, and what was used and charged in it by then, in sums.
_SECOND = """
CREATE TABLE copies (
    source text PRIMARY KEY,
    last_id bigint NOT NULL DEFAULT 0,
    used jsonb NOT NULL DEFAULT '{}'  -- of the reserve of a host: what went beyond quotas, and until when that counts
);
CREATE TABLE copied (LIKE totals INCLUDING ALL);
ALTER TABLE copied ADD COLUMN source text NOT NULL;
ALTER TABLE copied DROP CONSTRAINT copied_pkey;
ALTER TABLE copied ADD PRIMARY KEY (source, day, key_id, model, version)
"""
#: What makes the tables of each version from those of the version before, the first from nothing.
MIGRATIONS: Mapping[int, str] = {1: _FIRST, 2: _SECOND}
VERSION = max(MIGRATIONS)
#: Of the lock that lets one server at a time make the tables.
_LOCK = 0x4C324850


def migrate(db: psycopg.Connection[Any], place: str) -> None:
    """Make the tables, or bring those of an older L2H up to date, in one transaction."""
    if db.info.server_version < LEAST_SERVER * 10_000:
        found = db.info.server_version // 10_000
        raise LedgerError(f"{place} is PostgreSQL {found}: accounts need PostgreSQL {LEAST_SERVER} or newer")
    if _version(db, place) == VERSION:  # nothing is written, which may not be possible now
        return
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if not _one(db, "SELECT count(*) FROM pg_namespace WHERE nspname = 'l2h'"):
            db.execute("CREATE SCHEMA l2h")
        version = _version(db, place)
        db.execute("SET LOCAL search_path = l2h")
        for number in range(version + 1, VERSION + 1):
            db.execute(MIGRATIONS[number].encode())
        db.execute("UPDATE meta SET version = %s", (VERSION,))


def require_version(db: psycopg.Connection[Any], place: str) -> None:
    """Raise a ``LedgerError`` where the tables are not those of this version."""
    version = _version(db, place)
    if version < VERSION:
        what = "has no accounts of L2H yet" if not version else f"has accounts of an older L2H (version {version})"
        raise LedgerError(f"{place} {what}: `l2h serve` and `l2h keys add NAME --accounts URL` make or update them")


def _version(db: psycopg.Connection[Any], place: str) -> int:
    """The version of the tables; 0 where there are none."""
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'l2h'::regnamespace AND relkind = 'r'"
    if not _one(db, "SELECT count(*) FROM pg_namespace WHERE nspname = 'l2h'") or not _one(db, tables):
        return 0
    if _one(db, "SELECT to_regclass('l2h.meta') IS NULL OR to_regclass('l2h.charges') IS NULL"):
        raise LedgerError(f"{place} has a schema l2h that is not L2H's: name another database")
    version = _one(db, "SELECT version FROM l2h.meta")
    if version is None:
        raise LedgerError(f"{place} is damaged, its table l2h.meta is empty: restore it from a backup")
    if version > VERSION:
        raise LedgerError(
            f"the accounts at {place} were written by a newer L2H (version {version}, this one reads up to {VERSION}): "
            f"update L2H, or name another database"
        )
    return int(version)


def _one(db: psycopg.Connection[Any], query: str) -> Any:
    row = db.execute(query.encode()).fetchone()
    return None if row is None else row[0]
