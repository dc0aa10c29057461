"""Permits in an SQLite file, for a cap that outlives the process and is shared by all processes that name the file.

The database is in WAL mode. A permit is committed before it is given, in a transaction that holds the write
lock from its first read on (``BEGIN IMMEDIATE``), so two processes cannot both take the last one. The operating
system has a committed permit: it survives ``kill -9`` of the process. To survive a loss of power as well, every
permit must wait for the disk; that is ``power_safe``.

A permit's time is read inside the transaction: while a process waits for the lock the window moves on. All processes
share one clock, kept in the file: the wall clock when the first of them opened it, and from then on the time since the
system's start, which nobody can set. After a restart of the system it goes on from the wall clock, or from the last
permit if that is later.

Each process keeps a copy of the window. A refusal is decided on the copy alone, which may lack the latest
permits of the others but never holds one too many; only a grant needs the file. For a share of requests every
request is written, since it moves the window.
"""

import math
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from l2h.clock import boot_id, boot_time
from l2h.limits.permits import Clock, Confirm, PermitWindow, StoreBusyError, StoreUnavailableError
from l2h.limits.rate import LimitError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS permits (id INTEGER PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY, window TEXT NOT NULL, requests INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY, boot TEXT NOT NULL, ahead REAL NOT NULL);
"""
#: Seconds to wait for another process's transaction, each of which takes well under a millisecond.
_TIMEOUT = 5.0
# Connections of a parent process. Closing one in the child could disturb the parent's file.
_inherited: list[sqlite3.Connection] = []


class SqliteStore(PermitWindow):
    """Permits in an SQLite file, which is created with its folder where it is missing."""

    def __init__(
        self, path: str | os.PathLike[str], cap: int, length: float, by_time: bool, power_safe: bool = False
    ) -> None:
        super().__init__(cap, length, by_time)
        self._path = Path(path)
        self._power_safe = power_safe
        self._last_id = 0
        self._requests = 0
        self._ahead = 0.0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._connect()
            self._prepare()
            self._pull()
        except OSError as error:
            raise LimitError(f"cannot make the folder of {self._path} ({error.strerror or error})") from error
        except sqlite3.Error as error:
            raise LimitError(
                f"cannot keep permits in {self._path} ({error}): name a file that can be written and is a "
                f"limiter's own, or a new one"
            ) from error

    def begin_request(self, now: float, again: bool = False) -> None:
        # The number of a request is only known inside the transaction: this is the least it can be.
        self._move(now if self.by_time else self._requests + (not again))

    def clock(self) -> float:
        """Return the time that all processes of this file share."""
        return boot_time() + self._ahead

    def end_request(
        self, wanted: bool, clock: Clock, timeout: float | None, again: bool = False, confirm: Confirm | None = None
    ) -> bool:
        if (self.by_time or again) and not wanted:
            return False
        try:
            self._begin(_TIMEOUT if timeout is None else max(0.0, min(timeout, _TIMEOUT)))
            self._pull()
            if self.by_time:
                self._move(clock())
            else:
                self._requests += not again
                self._move(self._requests)
                self._db.execute("UPDATE state SET requests = ?", (self._requests,))
            granted = wanted and not self.full and (confirm is None or confirm())
            if granted:
                self._db.execute("INSERT INTO permits (id, at) VALUES (?, ?)", (self._last_id + 1, self.position))
                # What has left the window may be deleted only here: the new permit tells every process, whatever its
                # clock says, that the window has moved this far. Ids have no gaps: the last row is never deleted.
                self._db.execute("DELETE FROM permits WHERE id <= ?", (self._last_id - self.used,))
            self._db.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._forget()  # the whole window is read again at the next request
            if isinstance(error, sqlite3.Error):
                kind = StoreBusyError if _is_busy(error) else StoreUnavailableError
                raise kind(f"{self._path}: {error}") from error
            raise
        if granted:
            self._last_id += 1
            self._at.append(self.position)
        return granted

    def refresh(self, now: float) -> None:
        try:
            self._pull()
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"{self._path}: {error}") from error
        self._move(now if self.by_time else self._requests)

    def reopen(self) -> bool:
        try:
            db = self._connect()
        except sqlite3.Error as error:
            raise LimitError(f"cannot open {self._path} after a fork ({error})") from error
        _inherited.append(self._db)
        self._db = db
        self._forget()  # the parent may have been in the middle of a request
        return True

    def close(self) -> None:
        self._db.close()

    def _connect(self) -> sqlite3.Connection:
        # Threads take turns under the limiter's lock.
        db = sqlite3.connect(self._path, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {'FULL' if self._power_safe else 'NORMAL'}")
            db.execute("PRAGMA busy_timeout = 0")
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _prepare(self) -> None:
        """Create the tables, or see that those in the file are for this window."""
        mine = f"{self.length!r} {'s' if self.by_time else 'requests'}"
        self._begin(_TIMEOUT)
        for statement in _SCHEMA.strip().split("\n"):
            self._db.execute(statement)
        self._db.execute("INSERT OR IGNORE INTO state VALUES (1, ?, 0)", (mine,))
        (stored,) = self._db.execute("SELECT window FROM state").fetchone()
        self._set_clock()
        self._db.execute("COMMIT")
        if stored != mine:
            self._db.close()
            raise LimitError(
                f"{self._path} holds the permits of a window of {stored}, not {mine}: name another file, or "
                f"remove this one to start afresh"
            )

    def _begin(self, wait: float) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if not _is_busy(error):
                raise
            self._db.execute(f"PRAGMA busy_timeout = {int(wait * 1000)}")
            try:
                self._db.execute("BEGIN IMMEDIATE")
            finally:
                self._db.execute("PRAGMA busy_timeout = 0")

    def _set_clock(self) -> None:
        boot, now = boot_id(), boot_time()
        (newest,) = self._db.execute("SELECT max(at) FROM permits").fetchone()
        known = self._db.execute("SELECT ahead FROM clock WHERE boot = ?", (boot,)).fetchone()
        ahead = time.time() - now if known is None else known[0]
        self._ahead = max(ahead, -math.inf if newest is None else newest - now)
        if boot is not None and (self._ahead,) != known:
            self._db.execute("INSERT OR REPLACE INTO clock VALUES (1, ?, ?)", (boot, self._ahead))

    def _pull(self) -> None:
        """Take over what other processes have recorded."""
        (self._requests,) = self._db.execute("SELECT requests FROM state").fetchone()
        rows = self._db.execute("SELECT id, at FROM permits WHERE id > ? ORDER BY id", (self._last_id,)).fetchall()
        if rows:
            self._at.extend(at if self.by_time else int(at) for _, at in rows)
            self._last_id = rows[-1][0]
        self._move(self._requests if not self.by_time else self.position)

    def _forget(self) -> None:
        self._at.clear()
        self._head = self._last_id = 0
        if not self.by_time:
            self.position = self._requests = 0


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
