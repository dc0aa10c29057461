"""Accounts: API keys, quotas, rates, charges and the ledger, behind :mod:`l2h.serving.accounts.store`.

These functions alone know which implementation is used.
"""

from collections.abc import Sequence
from pathlib import Path

from l2h.serving.accounts.devices import DeviceHistory
from l2h.serving.accounts.history import LedgerHistory
from l2h.serving.accounts.keyfile import KeyFile
from l2h.serving.accounts.rates import RateTable, make_memory, make_table
from l2h.serving.accounts.reservations import ReservationTable, table_size
from l2h.serving.accounts.sqlite import SqliteAccounts, prepare_ledger
from l2h.serving.accounts.store import AccountStore, KeyStore
from l2h.serving.errors import LedgerError


def open_keys(path: str | Path) -> KeyStore:
    """Return the keys of a file, for ``l2h keys`` and for a server's start."""
    return KeyFile(Path(path))


def open_history(ledger: str | Path) -> LedgerHistory:
    """Return what a ledger tells, for ``l2h ledger`` and ``l2h keys list``."""
    if not Path(ledger).is_file():
        raise _no_ledger(ledger)
    return LedgerHistory(Path(ledger), prepare_ledger)


def open_devices(ledger: str | Path) -> DeviceHistory:
    """Return the news of devices that are kept beside a ledger, for ``l2h devices`` and the dashboard."""
    if not Path(ledger).is_file():
        raise _no_ledger(ledger)
    return DeviceHistory(ledger)


def prepare_accounts(ledger: str, workers: int = 1) -> tuple[int, ...]:
    """Make or check what the workers will open, once, before any of them starts.

    Returns the file descriptors that the workers must inherit and give to :func:`open_accounts`.
    """
    prepare_ledger(Path(ledger))
    rates = Path(f"{ledger}-rates")
    try:
        return make_table(rates), make_memory(table_size(workers))
    except OSError as error:
        raise LedgerError(f"cannot write {rates}: {error.strerror or error}; --ledger names another place") from error


def open_accounts(
    key_file: str | None,
    ledger: str,
    inherited: Sequence[int],
    worker: int = 0,
    workers: int = 1,
    keep: float | None = None,
) -> AccountStore:
    """Open the accounts in one of the workers, with the descriptors of :func:`prepare_accounts`.

    With ``keep``, the first worker sums up rows that are more than so many seconds old.
    """
    rates, reserved = inherited
    tables = RateTable(rates), ReservationTable(reserved, workers, worker)
    return SqliteAccounts(None if key_file is None else Path(key_file), Path(ledger), *tables, None if worker else keep)


def forget_reserved(inherited: Sequence[int], worker: int, workers: int) -> None:
    """Drop what a worker that has ended had reserved."""
    ReservationTable(inherited[1], workers, worker).drop()


def _no_ledger(path: str | Path) -> LedgerError:
    return LedgerError(f"there is no ledger {path}: --ledger names the file that `l2h serve` writes")
