"""The settings of the server, in one object that travels to the workers as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from l2h.bundle.parts import NAME
from l2h.errors import SettingsError
from l2h.metadata import is_loopback
from l2h.serving.accounts import account_place
from l2h.serving.accounts.history import LEAST_AGE, MOST_AGE
from l2h.serving.accounts.reserve import OutageReserve
from l2h.serving.model.function import ModelSource
from l2h.telemetry import check_otlp

FAILURES = ("refuse", "serve")
_USUAL_RESERVE = 1000
LEVELS = ("debug", "info", "warning", "error")


def _between(least: float, most: float, default: float | None) -> Any:
    """A setting with its range."""
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True)
class ServingConfig(ModelSource):
    """The settings of ``l2h serve``, under the names of its options; times in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = _between(0, 65535, 8080)
    workers: int = _between(1, 256, 1)
    threads: int = _between(0, 1024, 0)
    max_batch: int = _between(1, 65536, 64)
    batch_delay: float = _between(0.0, 1.0, 0.001)
    max_wait: float = _between(0.001, 600.0, 0.5)
    max_body: int = _between(0, 2**40, 0)
    max_connections: int = _between(1, 10**6, 1024)
    max_per_address: int = _between(0, 10**6, 512)
    max_memory: int = _between(2**20, 2**50, 256 * 2**20)
    body_timeout: float = _between(0.1, 3600.0, 10.0)
    idle_timeout: float = _between(0.1, 86400.0, 60.0)
    drain: float = _between(0.0, 3600.0, 30.0)
    watch: float = _between(0.05, 3600.0, 1.0)
    load_timeout: float = _between(1.0, 86400.0, 60.0)
    keys: str | None = None
    open: bool = False
    ledger: str = "ledger.db"
    accounts: str | None = None  # the URL of a PostgreSQL database, in place of a key file and a ledger
    when_accounts_fail: str = "refuse"
    reserve: int = _between(1, 10**12, _USUAL_RESERVE)
    price: int = _between(0, 10**9, 1)
    keep: float | None = _between(LEAST_AGE, MOST_AGE, None)
    dashboard: bool = False
    admin_key_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    otlp: str | None = None
    traces: float = _between(0.0, 1e6, 10.0)
    metric_keys: int = _between(0, 10**4, 50)
    log_requests: bool = True
    log_level: str = "info"

    def __post_init__(self) -> None:
        for setting in fields(self):
            least, most = setting.metadata.get("range", (None, None))
            value = getattr(self, setting.name)
            if least is not None and value is not None and not least <= value <= most:
                flag = setting.name.replace("_", "-")
                raise SettingsError(f"--{flag} {value}: it lies between {least} and {most}")
        self._check_source()
        if self.otlp is not None:
            check_otlp(self.otlp, "--otlp")
        if self.log_level not in LEVELS:
            raise SettingsError(f"--log-level {self.log_level!r}: one of {', '.join(LEVELS)}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("TLS needs both --tls-cert and --tls-key")
        if self.admin_key_file is not None and not self.dashboard:
            raise SettingsError("--admin-key-file goes with --dashboard")
        for name in ("keys", "admin_key_file", "tls_cert", "tls_key"):
            file = getattr(self, name)
            if file is not None and not Path(file).is_file():
                raise SettingsError(f"--{name.replace('_', '-')} {file}: there is no such file")
        if self.key_place is None and not self.open and not is_loopback(self.host):
            raise SettingsError(
                f"--host {self.host} can be reached from other machines and there are no keys: give --keys FILE, or "
                f"--open to let everybody in"
            )
        self._check_accounts()

    def _check_accounts(self) -> None:
        if self.when_accounts_fail not in FAILURES:
            raise SettingsError(f"--when-accounts-fail {self.when_accounts_fail!r}: one of {', '.join(FAILURES)}")
        if self.when_accounts_fail == "refuse":
            if self.reserve != _USUAL_RESERVE:
                raise SettingsError("--reserve goes with --when-accounts-fail serve")
        elif self.accounts is None:
            raise SettingsError("--when-accounts-fail serve goes with --accounts: a ledger is on this host")
        if self.accounts is None:
            return
        account_place(self.accounts, self.ledger)
        if self.keys is not None:
            raise SettingsError("--accounts has its own keys: leave out --keys, which `l2h accounts copy` takes over")

    def _check_source(self) -> None:
        if self.server is not None and not self.bundle:
            raise SettingsError(f"--server {self.server} names a server of a bundle: give --bundle DIR")
        if self.function is None and (self.name or self.shape or self.classes):
            raise SettingsError("--name, --shape and --classes go with a function: a bundle has its own")
        if self.function is not None and self.bundle and (self.shape or self.classes):
            raise SettingsError("--shape and --classes describe a function without a bundle: leave out --bundle")
        if self.function is not None and not self.bundle and (not self.shape or len(self.classes) < 2):
            raise SettingsError(
                f"{self.function}: say what it takes and gives, by --bundle DIR (as l2h export writes it), or by "
                "--shape 1,28,28 --dtype uint8 --classes cat,dog (or --classes 10)"
            )
        if self.dtype not in ("uint8", "float32") or any(size < 1 for size in self.shape):
            raise SettingsError(f"--shape {self.shape} --dtype {self.dtype}: sizes from 1, and uint8 or float32")
        if self.name is not None and not NAME.fullmatch(self.name):
            raise SettingsError(f"--name {self.name!r} cannot be part of an address: letters, digits, '.', '_' and '-'")

    @property
    def place(self) -> str:
        """Where the accounts are: the URL of a database, or the ledger's file."""
        return self.accounts or self.ledger

    @property
    def outage_reserve(self) -> OutageReserve | None:
        """What may be answered while the accounts are down; None where nothing may."""
        return OutageReserve(self.reserve_file, self.reserve) if self.when_accounts_fail == "serve" else None

    @property
    def reserve_file(self) -> str:
        """Where the answers of such times are kept until they are charged."""
        return f"{self.ledger}-reserve"

    @property
    def doubts_file(self) -> str:
        """Where it is kept which charges of a database are to be undone."""
        return f"{self.ledger}-doubts"

    @property
    def key_place(self) -> str | None:
        """Where the keys are: the URL of a database, or a file; None where everybody may ask."""
        return self.keys if self.accounts is None else None if self.open else self.accounts

    def for_worker(self, folder: Path) -> str:
        """Return the settings of a worker, whose model is the copy in a folder, as text for :meth:`from_json`.

        It is the worker that checks them: a key file that is gone must not end the supervisor.
        """
        own = {"bundle": str(folder), "function": None, "name": None, "shape": (), "classes": ()}
        return json.dumps(self.as_dict() | own)

    @property
    def model_threads(self) -> int:
        """Threads of one model call."""
        return self.threads or max(1, processors() // self.workers)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
