"""The settings of the server, in one object that travels to the workers as JSON."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from l2h.bundle.parts import NAME
from l2h.errors import SettingsError
from l2h.serving.accounts.history import LEAST_AGE, MOST_AGE
from l2h.serving.model.function import ModelSource
from l2h.telemetry import check_otlp

LEVELS = ("debug", "info", "warning", "error")


def _between(least: float, most: float, default: float | None) -> Any:
    """A setting with its range."""
    return field(default=default, metadata={"range": (least, most)})


@dataclass(frozen=True)
class ServingConfig:
    """The settings of ``l2h serve``, under the names of its options; times in seconds, sizes in bytes."""

    bundle: str  # the folder; empty where a function is described by the next ones
    server: str | None = None  # the name of one of its servers
    function: str | None = None
    name: str | None = None
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    classes: tuple[str, ...] = ()
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
        if self.keys is None and not self.open and not is_loopback(self.host):
            raise SettingsError(
                f"--host {self.host} can be reached from other machines and there are no keys: give --keys FILE, or "
                f"--open to let everybody in"
            )

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
    def source(self) -> ModelSource:
        """Where the model comes from."""
        described = tuple(self.shape), self.dtype, tuple(self.classes)
        return ModelSource(self.bundle, self.function, self.name, *described, self.server)

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

    def to_json(self) -> str:
        """Return text for :meth:`from_json` in another process."""
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str) -> ServingConfig:
        """Return the object that :meth:`to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        known = {setting.name for setting in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False
