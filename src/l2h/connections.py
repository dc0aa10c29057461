"""Connections within bounds: uvicorn's, limited in number, in the size of headers, and in the wait for a slow peer."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of a request line and its headers; and of what may follow a chunked body.
_HEAD = 32 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Beside what uvicorn does: a connection beyond the number is refused with 503. One is closed whose headers do not
    come in time or are too large, that goes on sending a body long after the answer, or that takes no answers. What
    follows a chunked body (trailers) is skipped.

    With a bound per address, strangers give way: a newcomer beyond either number takes the place of the oldest
    connection, of its address where that is crowded, which has no request under way and none answered for which the
    application set ``scope["state"]["known"]``. Only where there is none is it refused.
    """

    max_connections = 1024
    idle_timeout = 60.0
    max_per_address: int | None = None
    #: Shared by the connections of one server: how many each address has, and those of strangers, oldest first.
    addresses: ClassVar[Counter[str]] = Counter()
    strangers: ClassVar[dict["BoundedProtocol", None]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head: int | None = None
        self._size = self._trailers = 0
        self._chunk_empty = False
        self._unanswered = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._discard_until = self.loop.time() + self.idle_timeout
        self.address = self.client[0] if self.client else ""
        self.addresses[self.address] += 1
        crowded = self.max_per_address is not None and self.addresses[self.address] > self.max_per_address
        if (crowded or len(self.connections) > self.max_connections) and not self._displace(crowded):
            self._refuse(503, "too many connections: try again later", b"retry-after: 1\r\n")
            return
        self.strangers[self] = None
        self._start_timer("idle", self.idle_timeout, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)  # with an error uvicorn would leave its timer, and all that hangs on it, running
        for timer in self._timers.values():
            timer.cancel()
        self.addresses[self.address] -= 1
        if not self.addresses[self.address]:
            del self.addresses[self.address]
        self.strangers.pop(self, None)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._stop_timer("idle")
        super().data_received(data)
        self._trailers = self._trailers + len(data) if self._chunk_empty else 0
        if self._trailers > _HEAD:
            self.transport.abort()
        elif self._head is not None:
            self._head += len(data)
            if self._head > _HEAD:
                self._refuse_head()
            else:
                self._start_timer("head", self.idle_timeout, self.transport.close)
        elif not self._unanswered:
            # Blank lines, or a body answered before its end, read on so that the peer gets to read the answer.
            left = self._discard_until - self.loop.time()
            self._start_timer("idle", max(0.0, left), self.transport.close)

    def on_message_begin(self) -> None:
        self._head = self._size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:  # else it is a trailer
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        self._chunk_empty = True  # until bytes come; the last chunk has none

    def on_chunk_complete(self) -> None:
        self._chunk_empty = False

    def on_body(self, body: bytes) -> None:
        self._chunk_empty = False
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._head = None
        self._stop_timer("head")
        super().on_headers_complete()
        self._unanswered += 1

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        self._discard_until = self.loop.time() + self.idle_timeout
        if self in self.strangers and self.cycle.scope["state"].get("known"):
            del self.strangers[self]
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer("write", self.idle_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer("write")

    def send_400_response(self, msg: str) -> None:
        if self._size > _HEAD:
            self._refuse_head()
        else:
            self._refuse(400, msg)

    def give_way(self) -> bool:
        """Close the connection, unless a request is under way; return whether it was closed."""
        if self._unanswered or self.transport.is_closing():
            return False
        self.transport.abort()
        return True

    def _displace(self, crowded: bool) -> bool:
        """Close the oldest connection of a stranger, of this address where that is crowded, if there is one."""
        if self.max_per_address is None:
            return False
        return any(other.give_way() for other in self.strangers if not crowded or other.address == self.address)

    def _start_timer(self, name: str, seconds: float, act: Callable[[], object]) -> None:
        """Start a timer, unless it runs."""
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, act)

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    def _count(self, size: int) -> None:
        """Count the bytes of a head that came in one piece; the parser turns what is raised here into a 400."""
        self._size += size
        if self._size > _HEAD:
            raise ValueError("too many headers")

    def _refuse_head(self) -> None:
        self._refuse(431, f"the headers are larger than {_HEAD} bytes")

    def _refuse(self, status: int, sentence: str, further: bytes = b"") -> None:
        body = json.dumps({"error": sentence}).encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
            + further
            + b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        self.transport.close()


def bounded(max_connections: int, idle_timeout: float, max_per_address: int | None = None) -> Any:
    """Return a protocol class with these bounds, for one server."""
    bounds = {"max_connections": max_connections, "idle_timeout": idle_timeout, "max_per_address": max_per_address}
    return type("Bounded", (BoundedProtocol,), {**bounds, "addresses": Counter(), "strangers": {}})
