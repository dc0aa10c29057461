"""Answers of a server, kept by what was asked: in memory, or in an SQLite file that survives a crash.

The answers of one call are written in one transaction, which is on the disk before the next call is made.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from l2h.errors import L2HError

#: The file in a cache's folder.
FILE = "answers.db"
#: One answer: scores (K,), one score, or a label as a number or as text.
Output = npt.NDArray[np.float64] | float | int | str
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (input BLOB PRIMARY KEY, output NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (time REAL, server TEXT, version TEXT, inputs INTEGER);
"""
_FOREIGN = "SELECT 1 FROM sqlite_master WHERE type IN ('view', 'trigger') OR sql LIKE 'CREATE VIRTUAL%'"
#: Seconds to wait for another process that writes the same file.
_TIMEOUT = 60.0


class CacheError(L2HError, RuntimeError):
    """A file of answers that cannot be read or written."""


class AnswerCache:
    """The answers of servers by the hash of what was asked; from any thread, and from several processes at a time.

    ``folder`` holds the file; None keeps the answers in memory. Nothing is made on the disk before the first answer.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    @property
    def place(self) -> str:
        """Where the answers are, for people."""
        return "memory" if self.folder is None else str(self.folder / FILE)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, Output]:
        query, out = "SELECT output FROM answers WHERE input = ?", {}
        if self._is_empty():
            return {}
        with self._opened() as db:
            for key in dict.fromkeys(keys):
                row = db.execute(query, (key,)).fetchone()
                if row is not None:
                    out[key] = np.frombuffer(row[0], dtype="<f8") if isinstance(row[0], bytes) else row[0]
        return out

    def add(self, answers: Mapping[bytes, Output], server: str, version: str) -> None:
        with self._opened() as db, db:
            rows = [
                (key, output.astype("<f8").tobytes() if isinstance(output, np.ndarray) else output)
                for key, output in answers.items()
            ]
            db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)
            db.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", (time.time(), server, version, len(rows)))

    def counts(self) -> tuple[int, int]:
        """Return how many calls were answered so far, and how many inputs they had."""
        if self._is_empty():
            return 0, 0
        with self._opened() as db:
            calls, inputs = db.execute("SELECT count(*), coalesce(sum(inputs), 0) FROM calls").fetchone()
        return int(calls), int(inputs)

    def keep_in(self, folder: Path) -> None:
        """Move answers that are in memory into a folder; do nothing where they have a file already."""
        if self.folder is not None:
            return
        memory, self._db, self.folder = self._db, None, folder
        if memory is not None:
            with closing(memory), self._opened() as db, db:
                answers, calls = (memory.execute(f"SELECT * FROM {table}") for table in ("answers", "calls"))
                db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", answers)
                db.executemany("INSERT INTO calls VALUES (?, ?, ?, ?)", calls)

    def _is_empty(self) -> bool:
        return self._db is None and (self.folder is None or not (self.folder / FILE).exists())

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread at a time; what fails is a :class:`CacheError`."""
        try:
            with self._lock:
                if self._db is None:
                    if self.folder is not None:
                        self.folder.mkdir(parents=True, exist_ok=True)
                    place = ":memory:" if self.folder is None else self.folder / FILE
                    self._db = _connect(place)
                yield self._db
        except (sqlite3.Error, OSError, ValueError) as error:  # the last for scores that are no numbers
            raise CacheError(f"the answers in {self.place} cannot be used ({error}): name another folder") from error


def _connect(place: str | Path) -> sqlite3.Connection:
    """Open a file whose tables are plain ones: a view or a trigger of a stranger could run for ever."""
    db = sqlite3.connect(place, timeout=_TIMEOUT, check_same_thread=False)
    try:
        if db.execute(_FOREIGN).fetchone() is not None:
            raise ValueError("it holds more than plain tables")
        with suppress(sqlite3.OperationalError):  # a file that can only be read has its tables
            db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db
