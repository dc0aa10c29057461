"""Connections within bounds: uvicorn's, limited in number, in headers, and in the patience with a slow peer."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes of a request line and its headers; and of what may follow a chunked body.
_HEAD = 32 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Beside what uvicorn does: a connection beyond the number is refused with 503; one whose headers do not come in time,
    that sends too many of them, that goes on sending a body long answered, or that takes no answers is closed. What
    follows a chunked body (trailers) is read over.
    """

    max_connections = 1024
    patience = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer has connected."""
        super().connection_made(transport)
        self._head: int | None = None
        self._size = self._trailers = 0
        self._chunk_empty = False
        self._unanswered = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._late = self.loop.time() + self.patience
        if len(self.connections) > self.max_connections:
            self._refuse(503, "too many connections: try again later", b"retry-after: 1\r\n")
            return
        self._idle_timer = self.loop.call_later(self.patience, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        super().connection_lost(None)  # with an error uvicorn would leave its timer, and all that hangs on it, running
        for timer in (self._idle_timer, self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.transport.is_closing():
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        super().data_received(data)
        self._trailers = self._trailers + len(data) if self._chunk_empty else 0
        if self._trailers > _HEAD:
            self.transport.abort()
        elif self._head is not None:
            self._wait_for_head(len(data))
        elif not self._unanswered:
            self._discard()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head = self._size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of its address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers, or of its trailers."""
        if self._head is not None:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        """A chunk begins, perhaps the last, which has no bytes."""
        self._chunk_empty = True

    def on_chunk_complete(self) -> None:
        """It has ended."""
        self._chunk_empty = False

    def on_body(self, body: bytes) -> None:
        """Bytes of the body."""
        self._chunk_empty = False
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Its headers have come."""
        self._head = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()
        self._unanswered += 1

    def on_response_complete(self) -> None:
        """It was answered."""
        self._unanswered -= 1
        self._late = self.loop.time() + self.patience
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The peer takes no answers."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP, or too many."""
        if self._size > _HEAD:
            self._refuse_head()
        else:
            self._refuse(400, msg)

    def _count(self, size: int) -> None:
        """Of a head that came in one piece; the parser makes an error of what is raised here."""
        self._size += size
        if self._size > _HEAD:
            raise ValueError("too many headers")

    def _refuse_head(self) -> None:
        self._refuse(431, f"the headers are larger than {_HEAD} bytes")

    def _wait_for_head(self, size: int) -> None:
        """Headers have begun and not ended."""
        self._head = (self._head or 0) + size
        if self._head > _HEAD:
            self._refuse_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.patience, self.transport.close)

    def _discard(self) -> None:
        """Bytes of no request: blank lines, or a body answered before its end, so that the peer gets to read that."""
        left = self._late - self.loop.time()
        self._idle_timer = self.loop.call_later(max(0.0, left), self.transport.close)

    def _refuse(self, status: int, sentence: str, further: bytes = b"") -> None:
        body = json.dumps({"error": sentence}).encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
            + further
            + b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        self.transport.close()


def bounded(max_connections: int, patience: float) -> Any:
    """A protocol with these bounds."""
    return type("Bounded", (BoundedProtocol,), {"max_connections": max_connections, "patience": patience})
