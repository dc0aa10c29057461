"""The options of an edge client, checked before anything is done with them."""

from __future__ import annotations

import ipaddress
import logging
import math
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from l2h.edge.errors import EdgeSettingsError

log = logging.getLogger("l2h.edge")
#: A server that had so many seconds, or this part of the client's deadline where that is less, had a fair chance.
_FAIR, _FAIR_SHARE = 0.25, 0.5


@dataclass(frozen=True)
class Options:
    """How the server is asked.

    Attributes:
        server: its address without a slash at the end; None: there is none.
        deadline: seconds for a whole ``predict``.
        model: its name on the wire.
        input_name: of the model's input; None: as the server's metadata says.
        output_name: of the scores; None likewise.
        binary: whether tensors travel as bytes, not as JSON.
        retries: at most so many repeats of a request.
        max_batch: at most so many inputs in a request.
        connections: at most so many requests at a time.
        key: for the server; never shown.
        tls: how the server's certificate is verified; None for plain HTTP.
    """

    server: str | None
    deadline: float
    model: str
    input_name: str | None
    output_name: str | None
    binary: bool
    retries: int
    max_batch: int
    connections: int
    key: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)

    @property
    def fair_wait(self) -> float:
        """Seconds that the server must have had before a time-out counts against it."""
        return min(_FAIR, _FAIR_SHARE * self.deadline)

    def headers(self) -> dict[str, str]:
        """Of every request."""
        plain = {"Accept-Encoding": "identity", "User-Agent": "l2h"}
        return plain if self.key is None else plain | {"Authorization": f"Bearer {self.key}"}


def make_options(
    *,
    server: str | None,
    deadline: float,
    model: str,
    input_name: str | None,
    output_name: str | None,
    binary: bool,
    retries: int,
    max_batch: int,
    connections: int,
    key: str | None,
    verify_tls: bool | str | Path,
) -> Options:
    """Options that can serve.

    Raises:
        EdgeSettingsError: one that cannot; the key is never named.
    """
    address = None if server is None else check_url(server)
    for name, text in (("model", model), ("input_name", input_name), ("output_name", output_name)):
        if text is not None and (not isinstance(text, str) or not text):
            raise EdgeSettingsError(f"{name}={text!r} must be a name")
    if key is not None:
        check_key(key)
        if address is not None and httpx.URL(address).scheme == "http" and not _is_here(httpx.URL(address).host):
            log.warning("the key goes to %s unencrypted: use https where others can listen", address)
    return Options(
        server=address,
        deadline=check_deadline(deadline),
        model=model,
        input_name=input_name,
        output_name=output_name,
        binary=bool(binary),
        retries=whole("retries", retries, least=0),
        max_batch=whole("max_batch", max_batch, least=1),
        connections=whole("connections", connections, least=1),
        key=key,
        tls=_tls(verify_tls, address),
    )


def check_url(server: Any) -> str:
    """The server's address without a slash at its end.

    Raises:
        EdgeSettingsError: it is none that could be asked.
    """
    wanted = "write http://HOST:PORT or https://HOST"
    if not isinstance(server, str):
        raise EdgeSettingsError(f"server={server!r} is no address: {wanted}")
    try:
        url = httpx.URL(server)
        usable = url.scheme in ("http", "https") and bool(url.host) and not (url.query or url.fragment)
        port = 1 if url.port is None else url.port
    except (httpx.InvalidURL, ValueError, UnicodeError) as error:
        raise EdgeSettingsError(f"server={server!r} is no address ({error}): {wanted}") from error
    if url.userinfo:
        raise EdgeSettingsError("the server's address holds a name or password: leave it out, and give key=")
    if not usable or not 0 < port < 65536 or any(c.isspace() for c in server):
        raise EdgeSettingsError(f"server={server!r} is no server's address: {wanted}")
    return str(url).rstrip("/")


def check_deadline(deadline: Any) -> float:
    """Seconds above zero.

    Raises:
        EdgeSettingsError: it is none.
    """
    return _seconds("deadline", deadline)


def check_key(key: Any) -> str:
    """A key that can stand in a header.

    Raises:
        EdgeSettingsError: it cannot; the message does not show it.
    """
    if not isinstance(key, str) or not key or not all("!" <= c <= "~" for c in key):
        raise EdgeSettingsError("the key is empty or has characters other than printable ASCII without spaces")
    return key


def check_breaker(failures: Any, rest: Any) -> tuple[int, float]:
    """The circuit breaker's options.

    Raises:
        EdgeSettingsError: one out of its range.
    """
    return whole("failures", failures, least=1), _seconds("rest", rest)


def whole(name: str, value: Any, *, least: int) -> int:
    """A whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise EdgeSettingsError(f"{name}={value!r} must be a whole number of {least} or more")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise EdgeSettingsError(f"{name}={value!r} must be a finite number of seconds above 0")
    return float(value)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls(verify_tls: bool | str | Path, address: str | None) -> ssl.SSLContext | None:
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
