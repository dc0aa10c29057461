"""Publishes snapshots over the network: a small read-only HTTP server in a thread beside the training."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from l2h.errors import missing_extra
from l2h.training.exchange.identity import PREFIX, PROTOCOL, check_token, plain_identity
from l2h.training.exchange.snapshot import KINDS, ExchangeError
from l2h.training.exchange.store import SnapshotStore

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger("l2h.training.exchange")

_START_SECONDS = 10.0
_STOP_SECONDS = 3.0


class PublisherServer:
    """Offers a store over HTTP from a background thread with its own event loop; the training never waits for it.

    The traffic is not encrypted: for a network that is not trusted, listen on loopback behind a TLS proxy. Every
    request needs the header ``Authorization: Bearer TOKEN``.

    - ``GET /l2h/v1/identity``: ``identity`` with the protocol version, the store's run id and the kinds offered.
    - ``GET /l2h/v1/snapshots/latest?kind=KIND&after=VERSION``: the newest manifest; 204 when there is none yet, 304
      when none is newer than ``after``.
    - ``GET /l2h/v1/snapshots/VERSION?kind=KIND``: the bytes, with ``Range``, ``If-Range`` and the sha256 as ``ETag``;
      404 when that version is gone.

    ``identity`` holds ``classes`` and ``input_shape``, where answers are offered ``data``, the fingerprint of the
    training samples, and ``kinds`` where not both are offered. Port 0 takes any free one.
    """

    def __init__(
        self, store: SnapshotStore, identity: Mapping[str, Any], token: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        try:
            from l2h.training.exchange.app import build_app, build_server
        except ModuleNotFoundError as error:
            raise missing_extra(f"publishing snapshots needs the package {error.name!r}", "serve") from error
        check_token(token)
        full = {"kinds": list(KINDS), **plain_identity(identity), "protocol": PROTOCOL, "run": store.run}
        self._app, self._build_server = build_app(store, full, token), build_server
        self.host = host
        self.port = port
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    def start(self) -> None:
        if self._thread is not None:
            return
        listener = _listen(self.host, self.port)
        self.port = int(listener.getsockname()[1])
        server = self._build_server(self._app)
        thread = threading.Thread(target=server.run, args=([listener],), name="l2h-publisher", daemon=True)
        thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                server.should_exit = True
                listener.close()
                raise ExchangeError(f"the publisher on {self.url} did not start: see the log of uvicorn")
            time.sleep(0.005)
        self._server, self._thread = server, thread
        log.debug("publishing url=%s%s", self.url, PREFIX)

    def stop(self) -> None:
        """Stop listening and cut the running downloads; fetchers resume them when a publisher is there again."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._server.force_exit = True
        self._thread.join(_STOP_SECONDS)
        self._server = self._thread = None

    def __enter__(self) -> PublisherServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:  # the system would take it modulo 65536
        raise ExchangeError(f"port {port} does not exist: use 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=64)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ExchangeError(f"port {port} of {host} is in use: choose another, or 0 for any free one") from error
        raise ExchangeError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
