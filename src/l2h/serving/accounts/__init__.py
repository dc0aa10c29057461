"""Accounts: API keys, quotas, rates, charges and the ledger, behind :mod:`l2h.serving.accounts.store`.

These functions alone know which implementation is used: that of a place which is the URL of a PostgreSQL database, or
SQLite in the file at any other.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from l2h.errors import SettingsError, missing_extra
from l2h.serving.accounts.devices import DeviceHistory, devices_file
from l2h.serving.accounts.history import LedgerHistory, SqliteHistory
from l2h.serving.accounts.key import Key
from l2h.serving.accounts.keyfile import KeyFile
from l2h.serving.accounts.rates import RateTable, make_memory, make_table
from l2h.serving.accounts.reservations import ReservationTable, table_size
from l2h.serving.accounts.reserve import OutageReserve, prepare_reserve
from l2h.serving.accounts.sqlite import SqliteAccounts, prepare_ledger
from l2h.serving.accounts.store import AccountStore, KeyStore
from l2h.serving.errors import LedgerError

#: Names the file, in the environment of the workers, that keeps which charges are to be undone.
DOUBTS = "L2H_DOUBTS"


def is_database(place: str | Path) -> bool:
    """Return whether a place is the URL of a PostgreSQL database; raise where the extra for it is missing."""
    found = isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))
    if found and find_spec("psycopg") is None:
        raise missing_extra("accounts in PostgreSQL need psycopg", "postgres")
    return found


def account_place(url: str | None, file: str | Path) -> str | Path:
    """Return the URL of ``--accounts``, where one is given, or else a file; a ``SettingsError`` where it is no URL."""
    if url is None:
        return file
    if is_database(url):
        from l2h.serving.accounts.postgres.connection import is_well_formed

        if is_well_formed(url):
            return url
    raise SettingsError(  # without the text, which may hold a password
        "the accounts are at no address of PostgreSQL: write postgresql://USER@HOST/DATABASE, and / : @ % of a "
        "password as %2F %3A %40 %25"
    )


def hide_password(url: str) -> str:
    """Return a URL without its password, which goes to ``PGPASSWORD`` for this process and those that it starts.

    Whoever lists the processes of a machine sees their arguments.
    """
    account_place(url, "")
    from l2h.serving.accounts.postgres.connection import without_password

    url, password = without_password(url)
    if password is not None:
        os.environ["PGPASSWORD"] = password
    return url


def open_keys(place: str | Path, reserve: OutageReserve | None = None) -> KeyStore:
    """Return the keys of a file or a database, for ``l2h keys`` and for a server's start.

    With ``reserve``, those that were known last are read where a database is down.
    """
    if isinstance(place, str) and is_database(place):
        from l2h.serving.accounts.postgres.keys import DatabaseKeys

        return DatabaseKeys(place, None if reserve is None else reserve.keys)
    return KeyFile(Path(place))


def open_history(place: str | Path) -> LedgerHistory:
    """Return what a ledger tells, for ``l2h ledger`` and ``l2h keys list``."""
    if isinstance(place, str) and is_database(place):
        from l2h.serving.accounts.postgres.history import DatabaseHistory

        return DatabaseHistory(place)
    if not Path(place).is_file():
        raise _no_ledger(place)
    return SqliteHistory(Path(place), prepare_ledger)


def open_devices(ledger: str | Path, accounts: str | None = None) -> DeviceHistory:
    """Return the news of devices that are kept beside a ledger, for ``l2h devices`` and the dashboard.

    Where there are ``accounts``, the ledger gives only the name that the files of this host begin with.
    """
    if accounts is None and not Path(ledger).is_file() and not devices_file(ledger).is_file():
        raise _no_ledger(ledger)
    return DeviceHistory(ledger)


def copy_ledger(
    ledger: str | Path, keys: Iterable[Key], url: str, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Copy a ledger of SQLite and keys to a database, all or nothing; return how much was new.

    ``unknown`` there are the keys of the ledger that the database does not know. ``progress`` is told how many of how
    many charges are done.
    """
    from l2h.serving.accounts.postgres.copying import copy_accounts

    return copy_accounts(Path(ledger), keys, url, progress)._asdict()


def prepare_tables(place: str, reserve: OutageReserve | None = None) -> str | None:
    """Make the tables of a database, or bring them up to date, before its keys are read; a file needs nothing.

    With ``reserve`` a database that is down is left for later; returns why it is.
    """
    if is_database(place):
        from l2h.serving.accounts.postgres.connection import DatabaseDownError, prepare_database

        try:
            prepare_database(place)
        except DatabaseDownError as error:
            if reserve is None:
                raise
            return str(error)
    return None


def prepare_accounts(place: str, workers: int = 1, reserve: OutageReserve | None = None) -> tuple[int, ...]:
    """Make or check what the workers will open, once, before any of them starts.

    ``reserve`` is what may be answered while a database is down; None where nothing may. Returns the
    file descriptors that the workers must inherit and give to :func:`open_accounts`.
    """
    if is_database(place):
        prepare_tables(place, reserve)
        if reserve is not None:
            prepare_reserve(reserve)
        return make_table(), make_memory(table_size(workers))
    prepare_ledger(Path(place))
    rates = Path(f"{place}-rates")
    try:
        return make_table(rates), make_memory(table_size(workers))
    except OSError as error:
        raise LedgerError(f"cannot write {rates}: {error.strerror or error}; --ledger names another place") from error


def open_accounts(
    keys: str | None,
    place: str,
    inherited: Sequence[int],
    worker: int = 0,
    workers: int = 1,
    keep: float | None = None,
    reserve: OutageReserve | None = None,
) -> AccountStore:
    """Open the accounts in one of the workers, with the descriptors of :func:`prepare_accounts`.

    ``keys`` is the key file, or the same URL as ``place``; None where everybody may ask. With ``keep``, the first
    worker sums up rows that are more than so many seconds old.
    """
    rates, reserved = inherited
    tables = RateTable(rates), ReservationTable(reserved, workers, worker)
    keep = None if worker else keep
    if is_database(place):
        from l2h.serving.accounts.postgres.store import PostgresAccounts

        return PostgresAccounts(
            *(place, *tables),
            with_keys=keys is not None,
            keep=keep,
            reserve=reserve,
            moves=not worker,
            doubts=os.environ.get(DOUBTS),
        )
    return SqliteAccounts(None if keys is None else Path(keys), Path(place), *tables, keep)


def forget_reserved(inherited: Sequence[int], worker: int, workers: int) -> None:
    """Drop what a worker that has ended had reserved."""
    ReservationTable(inherited[1], workers, worker).drop()


def _no_ledger(path: str | Path) -> LedgerError:
    return LedgerError(f"there is no ledger {path}: --ledger names the file that `l2h serve` writes")
