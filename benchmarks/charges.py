"""The cost of a charge: accounts in PostgreSQL and in SQLite, each beside a bare insert of the same rows.

OMP_NUM_THREADS=1 python benchmarks/charges.py [--rounds 200] [--json FILE]

It starts a PostgreSQL server of its own, as the tests do, with its disk writes as they are by default (--no-fsync
leaves them to the system). A bare insert is one statement with the rows of the batch, in a transaction, on a connection
of the same library. All are measured in turns, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
from postgres_process import Postgres

from l2h.serving.accounts import open_accounts, prepare_accounts
from l2h.serving.accounts.key import Key, Quota, Rate
from l2h.serving.accounts.store import Charge

KEY = Key("0123456789ab", "bench", "", "", quota=Quota(10**12, 604800), rate=Rate(1e9, 10**9))
COLUMNS = "time, key_id, request_id, idempotency_key, fingerprint, model, version, inputs, units"
BATCHES = (1, 16, 64)


def batch(size: int, number: int) -> list[Charge]:
    """Requests of one model call, as devices send them: each with an idempotency key."""
    return [
        Charge(KEY, f"request-{number}-{i}", f"{size}-{number}-{i}", bytes(16), "digits", "0a1b2c3d", 1, 1)
        for i in range(size)
    ]


def bare_postgres(url: str) -> Callable[[list[Charge]], None]:
    db = psycopg.connect(url, autocommit=True)
    db.execute(
        "CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, time float8, key_id text, "
        "request_id text, idempotency_key text, fingerprint bytea, model text, version text, inputs bigint, "
        "units bigint)"
    )
    types = ["text[]"] * 3 + ["bytea[]"] + ["text[]"] * 2 + ["bigint[]"] * 2
    query = f"INSERT INTO bare ({COLUMNS}) SELECT %s, * FROM unnest({', '.join(f'%s::{name}' for name in types)})"

    def insert(charges: list[Charge]) -> None:
        columns = zip(*((charge.key.id, *charge[1:]) for charge in charges), strict=True)
        db.execute(query.encode(), (time.time(), *map(list, columns)))

    return insert


def bare_sqlite(path: Path) -> Callable[[list[Charge]], None]:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"CREATE TABLE bare (id INTEGER PRIMARY KEY, {COLUMNS})")

    def insert(charges: list[Charge]) -> None:
        places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(charges))
        values = [value for charge in charges for value in (time.time(), charge.key.id, *charge[1:])]
        db.execute(f"INSERT INTO bare ({COLUMNS}) VALUES {places}", values)

    return insert


async def measure_rates(place: str, rounds: int) -> list[float]:
    """Microseconds of one take of a rate, one after another."""
    store = open_accounts(None, place, prepare_accounts(place))
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await store.take_rate(KEY, 1)
        taken.append(1e6 * (time.perf_counter() - begun))
    store.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--no-fsync", action="store_true", help="let PostgreSQL leave its writes to the system")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    server = Postgres(fsync=not arguments.no_fsync)
    try:
        with tempfile.TemporaryDirectory() as folder:
            url, file = server.new(), str(Path(folder) / "ledger.db")
            stores = {place: open_accounts(None, place, prepare_accounts(place)) for place in (url, file)}
            ways: dict[str, Callable[[list[Charge]], object]] = {
                "PostgreSQL, bare insert": bare_postgres(server.new()),
                "PostgreSQL, charge": stores[url].charge,
                "SQLite, bare insert": bare_sqlite(Path(folder) / "bare.db"),
                "SQLite, charge": stores[file].charge,
            }
            taken: dict[tuple[str, int], list[float]] = {(way, size): [] for way in ways for size in BATCHES}
            for number in range(arguments.rounds):
                for (way, size), times in taken.items():
                    charges = batch(size, number)
                    begun = time.perf_counter()
                    ways[way](charges)
                    times.append(1e6 * (time.perf_counter() - begun))
            rates = {place: asyncio.run(measure_rates(place, arguments.rounds)) for place in (url, file)}
    finally:
        server.remove()
    rows = []
    for (way, size), times in taken.items():
        median = statistics.median(times)
        low = statistics.quantiles(times, n=20)[0]
        rows.append({"way": way, "batch": size, "us": median, "us_each": median / size, "us_lowest_twentieth": low})
        print(f"{way:24} batch of {size:2}: {median:7.0f} us, {median / size:6.1f} us each (lowest {low:6.0f})")
    for name, place in (("PostgreSQL", url), ("SQLite", file)):
        print(f"{name}, a take of a rate: {statistics.median(rates[place]):.0f} us")
    if arguments.json:
        told = {"charges": rows, "rates": {"postgres": rates[url], "sqlite": rates[file]}}
        arguments.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
