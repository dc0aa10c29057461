"""The options of an edge client, checked before anything is done with them, and the errors that its caller has to fix.

What the network does is never raised: the device answers instead.
"""

import logging
import math
import os
import ssl
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from inspect import iscoroutinefunction
from numbers import Real
from pathlib import Path
from typing import Any

import httpx

from l2h.errors import L2HError, SettingsError, warn
from l2h.functions import function_name
from l2h.metadata import is_loopback
from l2h.telemetry import event

log = logging.getLogger("l2h.edge")
#: A server that had so many seconds, or this part of the client's deadline where that is less, had a fair chance. One
#: of several may have to leave time for the next.
_FAIR, _FAIR_SHARE, _FAIR_SHARE_OF_SEVERAL = 0.25, 0.5, 0.25
_ADDRESS_FORMS = "write http://HOST:PORT or https://HOST"
#: Where the commands look for the key if no file is named.
_KEY_VARIABLE = "L2H_KEY"
_LONGEST_KEY = 4096


class EdgeError(L2HError, RuntimeError):
    """A server that does not fit the bundle, or a client that is closed or belongs to another process."""


class EdgeSettingsError(EdgeError, SettingsError):
    """An option of the edge client out of its range, or an invalid address."""


@dataclass(kw_only=True)
class EdgeOptions:
    """How the server is asked; :class:`l2h.EdgeClient` describes the options. They do not change once checked."""

    server: str | None  # its address without a slash at the end, or the name of the function
    alone: bool = True  # whether the client has no other servers
    function: Callable[..., Any] | None = None  # that is asked in place of a server
    deadline: float
    model: str
    gives: str | None = None  # what one number per input of two classes is
    input_name: str | None
    output_name: str | None
    binary: bool
    retries: int
    max_batch: int
    connections: int
    key: str | None = field(repr=False)  # never shown, nor in an error
    verify_tls: InitVar[bool | str | Path]
    tls: ssl.SSLContext | None = field(init=False, repr=False)  # None for plain HTTP

    def __post_init__(self, verify_tls: bool | str | Path) -> None:
        if self.function is not None:
            if iscoroutinefunction(self.function):
                raise EdgeSettingsError(
                    "server= is a coroutine function: give a plain one, which is called in a thread"
                )
            self.server = function_name(self.function)
        else:
            self.server = None if self.server is None else _check_url(self.server)
        for name in ("model", "input_name", "output_name"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or not text):
                raise EdgeSettingsError(f"{name}={text!r} must be a name")
        if self.key is not None:
            _check_key(self.key)
            if self.function is not None:
                raise EdgeSettingsError("key= goes with a server's address: a function has its own")
            url = httpx.URL(self.server or "")
            if url.scheme == "http" and not is_loopback(url.host):
                log.warning(
                    "the key goes to %s unencrypted: use https where others can listen",
                    self.server,
                    extra=event("key_unencrypted", server=self.server),
                )
        self.deadline = check_seconds("deadline", self.deadline)
        self.binary = bool(self.binary)
        check_whole("retries", self.retries, least=0)
        check_whole("max_batch", self.max_batch, least=1)
        check_whole("connections", self.connections, least=1)
        self.tls = _make_tls(verify_tls, self.server)

    @property
    def fair_wait(self) -> float:
        """Seconds that the server must have had before a time-out counts against it."""
        return min(_FAIR, (_FAIR_SHARE if self.alone else _FAIR_SHARE_OF_SEVERAL) * self.deadline)

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        plain = {"Accept-Encoding": "identity", "User-Agent": "l2h"}
        return plain if self.key is None else plain | {"Authorization": f"Bearer {self.key}"}


def check_seconds(name: str, value: Any) -> float:
    """Return the option as a float; raise :class:`EdgeSettingsError` unless it is a finite time above 0."""
    seconds = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise EdgeSettingsError(f"{name}={value!r} must be a finite number of seconds above 0")
    return seconds


def check_whole(name: str, value: Any, *, least: int) -> None:
    """Raise :class:`EdgeSettingsError` unless the option is a whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise EdgeSettingsError(f"{name}={value!r} must be a whole number of {least} or more")


def read_key(path: str | Path | None = None) -> str | None:
    """Return the key in a file, or else in the environment's ``L2H_KEY``; None where there is neither.

    Warns of a file that others may read. No message shows what the file holds.
    """
    if path is None:
        key = os.environ.get(_KEY_VARIABLE)
        return None if key is None else _check_key(key.strip())
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LONGEST_KEY + 1)
    except OSError as error:
        raise EdgeSettingsError(f"cannot read the key file {path}: {error.strerror or error}") from error
    if os.name == "posix" and mode & 0o077:
        warn(f"others can read the key file {path}: chmod 600 {path}")
    try:
        return _check_key(text.decode("ascii").strip() if len(text) <= _LONGEST_KEY else "")
    except (UnicodeDecodeError, EdgeSettingsError):
        raise EdgeSettingsError(f"{path} holds no key: one line of printable ASCII without spaces") from None


def _check_key(key: Any) -> str:
    """Return the key if it can stand in a header; the message of an error does not show it."""
    if not isinstance(key, str) or not key or not all("!" <= c <= "~" for c in key):
        raise EdgeSettingsError("the key is empty or has characters other than printable ASCII without spaces")
    return key


def _check_url(server: Any) -> str:
    """Return the server's address without a slash at its end."""
    if not isinstance(server, str):
        raise EdgeSettingsError(f"server={server!r} is no address: {_ADDRESS_FORMS}")
    try:
        url = httpx.URL(server)
        usable = url.scheme in ("http", "https") and bool(url.host) and not (url.query or url.fragment)
        port = 1 if url.port is None else url.port
    except (httpx.InvalidURL, ValueError, UnicodeError) as error:
        raise EdgeSettingsError(f"server={server!r} is no address ({error}): {_ADDRESS_FORMS}") from error
    if url.userinfo:
        raise EdgeSettingsError("the server's address holds a name or password: leave it out, and give key=")
    if not usable or not 0 < port < 65536 or any(c.isspace() for c in server):
        raise EdgeSettingsError(f"server={server!r} is no server's address: {_ADDRESS_FORMS}")
    return str(url).rstrip("/")


def _make_tls(verify_tls: bool | str | Path, address: str | None) -> ssl.SSLContext | None:
    if verify_tls is False:
        raise EdgeSettingsError(
            "verify_tls=False would hand key and inputs to anyone: give the path of the certificate to trust"
        )
    if verify_tls is not True and not isinstance(verify_tls, str | Path):
        raise EdgeSettingsError(f"verify_tls={verify_tls!r} must be True or the path of certificates to trust")
    if verify_tls is True:
        if address is None or not address.startswith("https:"):
            return None
        return ssl.create_default_context()
    path = Path(verify_tls)
    if not path.exists():
        raise EdgeSettingsError(f"verify_tls={str(path)!r} is not there")
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:
        raise EdgeSettingsError(f"verify_tls={str(path)!r} holds no certificates: {error}") from error
