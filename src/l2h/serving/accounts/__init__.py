"""Accounts: API keys, quotas, rates, charges and the ledger, behind :mod:`l2h.serving.accounts.store`.

These functions alone know which implementation is used.
"""

from collections.abc import Sequence
from pathlib import Path

from l2h.serving.accounts.keyfile import KeyFile
from l2h.serving.accounts.rates import make_table
from l2h.serving.accounts.sqlite import SqliteAccounts, prepare_ledger
from l2h.serving.accounts.store import AccountStore, KeyStore


def open_keys(path: str | Path) -> KeyStore:
    """Return the keys of a file, for ``l2h keys`` and for a server's start."""
    return KeyFile(Path(path))


def prepare_accounts(ledger: str) -> tuple[int, ...]:
    """Make or check what the workers will open, once, before any of them starts.

    Returns the file descriptors that the workers must inherit and give to :func:`open_accounts`.
    """
    prepare_ledger(Path(ledger))
    return (make_table(),)


def open_accounts(key_file: str | None, ledger: str, inherited: Sequence[int]) -> AccountStore:
    """Open the accounts in a worker, with the descriptors of :func:`prepare_accounts`."""
    (rate_table,) = inherited
    return SqliteAccounts(None if key_file is None else Path(key_file), Path(ledger), rate_table)
