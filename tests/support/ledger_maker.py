"""Ledgers with charges that were never asked for."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

from l2h.serving.accounts import prepare_accounts
from l2h.serving.accounts.history import DAY

NOW = 20_600 * DAY + 1000.0


def fill(path: Path, rows: int, seed: int = 0) -> list[tuple]:
    """A ledger with charges of half a year, some out of order, and what they are."""
    for descriptor in prepare_accounts(str(path)):
        os.close(descriptor)
    rng = random.Random(seed)
    charges = [
        (
            NOW - 180 * DAY * (1 - i / rows) + rng.uniform(-1, 1) * DAY,
            rng.choice(["a", "b", "c"]),
            f"r{i}",
            rng.choice(["digits", "letters"]),
            rng.choice(["1", "2"]),
            rng.randint(1, 64),
            rng.randint(0, 2**40),
            rng.choice([0, 1, 1, 1, None]),
        )
        for i in range(rows)
    ]
    columns = "time, key_id, request_id, model, version, inputs, units, delivered"
    with closing(sqlite3.connect(path)) as db, db:
        db.executemany(f"INSERT INTO charges ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", charges)
    return charges
