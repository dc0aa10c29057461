"""A connection that has yet to begin TLS."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from l2h.connections.places import Places

#: Seconds for TLS to begin.
_HANDSHAKE = 5.0


class TlsHandshake(asyncio.Protocol):
    """A peer that has yet to begin TLS. It holds a place like every connection, as a stranger, for a few seconds.

    ``make`` makes the protocol of the connection that it then becomes, ``context`` gives what TLS begins with.
    """

    answering = False  # no request before the handshake

    def __init__(self, make: Callable[[], Any], context: Callable[[], ssl.SSLContext]) -> None:
        self._inner, self._context = make(), context
        self._places: Places = self._inner.places

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._places.enter(self, transport.get_extra_info("peername")):
            try:
                self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            except OSError:  # no descriptor is left
                self._places.leave(self)
                self._places.note("refused")
            else:
                self._socket.setblocking(False)
                self._task = asyncio.get_running_loop().create_task(self._begin())
        transport.abort()  # nothing was read yet: the copy of the socket begins afresh

    def give_way(self) -> bool:
        """Close the connection; return that it was closed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        return True

    async def _begin(self) -> None:
        self._inner.successor_of = self
        loop, given = asyncio.get_running_loop(), (lambda: self._inner, self._socket)
        try:
            await loop.connect_accepted_socket(*given, ssl=self._context(), ssl_handshake_timeout=_HANDSHAKE)
        except OSError:
            if self._places.leave(self):  # else it gave way, and was counted
                self._places.note("without_tls")
