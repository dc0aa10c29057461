"""Keys in PostgreSQL, which ``l2h keys`` changes and running servers follow."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg.types.json import Jsonb

from l2h.serving.accounts.key import Key
from l2h.serving.accounts.keyfile import KeyFile
from l2h.serving.accounts.keylist import KeyList, parse_key
from l2h.serving.accounts.postgres.connection import Connection, connect, one_line, prepare_database, shown_place
from l2h.serving.errors import KeyStoreError, LedgerError

#: Begins a change: other changes wait for its end, and servers see that there was one.
CHANGE = "UPDATE meta SET keys_changed = keys_changed + 1"


class DatabaseKeys(KeyList):
    """The :class:`~l2h.serving.accounts.store.KeyStore` of servers on several hosts.

    With ``cache``, a file, a worker that begins while the database is down knows the keys that were read last.
    """

    def __init__(self, url: str, cache: Path | None = None) -> None:
        super().__init__(shown_place(url))
        self._url, self._known, self._cache = url, cache or Path(), None if cache is None else KeyFile(cache)
        self._db: Connection | None = None
        self._seen: int | None = None
        self._failing = False
        self._lock = threading.RLock()

    def read(self) -> list[Key]:
        try:
            with self._asking() as db:
                return read_keys(db)
        except KeyStoreError:
            if self._cache is None or not self._known.is_file():
                raise
            return self._cache.read()

    @contextmanager
    def changing(self, make: bool) -> Iterator[list[Key]]:
        if make:
            prepare_database(self._url)
        with self._asking() as db, db.transaction():
            db.execute(CHANGE)
            yield read_keys(db)

    def write(self, keys: list[Key], changed: list[Key]) -> None:
        assert self._db is not None
        for key in changed:
            put_key(self._db, key)

    def begin(self) -> None:
        """Load the keys, from the cache if need be."""
        try:
            self.refresh()
        except KeyStoreError:
            self._failing = False  # the next refresh tells why, if it still cannot
            self.know(self.read())

    def refresh(self) -> int | None:
        try:
            count = self._follow()
        except KeyStoreError:
            if self._failing:  # it was told once
                return None
            self._failing = True
            raise
        self._failing = False
        return count

    def _follow(self) -> int | None:
        with self._asking() as db:
            ((number,),) = db.execute("SELECT keys_changed FROM meta").fetchall()
            if number == self._seen:
                return None
            keys = read_keys(db)
            count = self.know(keys)
            if self._cache is not None:
                self._cache.replace(keys)
            self._seen = number
            return count

    def close(self) -> None:
        """Give the connection back."""
        if self._db is not None:
            with suppress(psycopg.Error):
                self._db.close()
            self._db = None

    @contextmanager
    def _asking(self) -> Iterator[Connection]:
        try:
            with self._lock:
                if self._db is None:
                    self._db = connect(self._url)
                yield self._db
        except (psycopg.Error, LedgerError) as error:
            self.close()
            raise KeyStoreError(f"cannot use the keys at {self._place}: {one_line(error)}") from error
        except BaseException:
            self.close()
            raise


def put_key(db: Connection, key: Key) -> None:
    """Write a key, new or changed."""
    put = "INSERT INTO keys (id, record) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET record = excluded.record"
    db.execute(put, (key.id, Jsonb(key.as_dict())))


def read_keys(db: Connection) -> list[Key]:
    """Return all keys, in the order in which they were added."""
    return [parse_key(record) for (record,) in db.execute("SELECT record FROM keys ORDER BY place").fetchall()]
