"""The protocol of one connection: uvicorn's, within bounds of headers, of bodies, and of the wait for a slow peer."""

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from l2h.connections.places import Place, Places

#: Bytes of a request line and its headers; and of what may follow a chunked body.
_HEAD = 32 * 1024
#: Bytes of further requests that are kept while one is answered; beyond them the peer has to wait.
_AHEAD = 64 * 1024
#: The end of headers, and of a chunked body.
_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"
#: The line before a chunk, and what may yet become one. Whatever else a parser may take for such a line is refused.
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[^\r\n]*)?\r\n")
_CHUNK_PART = re.compile(rb"[0-9a-fA-F]{1,16}(?:;[^\r\n]*)?\r?")
#: Chunks that are read before others get their turn.
_TURN = 512
#: Bytes of a body that are read after its answer, before the connection is closed; and what a chunk adds to them.
_DISCARD, _DISCARD_CHUNK = 256 * 2**20, 4096
#: Seconds in which a refused peer may go on sending, so that it gets to read why; and how many such peers there may be.
_LINGER, _LINGERING = 1.0, 64
#: Seconds in which a peer may take what was still to be sent when its connection was closed.
_CLOSING = 1.0


class _Flow(FlowControl):
    """Flow control that reads no more while enough is kept for later."""

    full = False

    def resume_reading(self) -> None:
        if not self.full:
            super().resume_reading()


class _Answer:
    """The transport of an answer: its head is sent together with what follows, since each write is a system call."""

    __slots__ = ("_head", "_held", "_transport", "broken", "ended", "is_closing", "unsent")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head, self._held = transport, b"", False
        self.is_closing, self.unsent = transport.is_closing, transport.get_write_buffer_size
        self.ended = self.broken = False  # whether the connection has ended, and whether before all was sent

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        elif self._held or data.startswith(b"HTTP/1.1 100"):
            self._transport.write(data)
        else:
            self._head, self._held = data, True

    def close(self) -> None:
        self.end()
        self._transport.close()

    def end(self) -> None:
        """Send the head of an answer without a body, and be ready for the next answer."""
        if self._head:
            self._transport.write(self._head)
        self._head, self._held = b"", False


class BoundedProtocol(HttpToolsProtocol):
    """One connection.

    Beside what uvicorn does: a connection beyond the places is refused with 503. One is closed whose headers do not
    come in time or are too large, that goes on sending a body long after the answer, or that takes no answers. What
    follows a chunked body (trailers) is skipped, and a wish to upgrade to another protocol is ignored. Requests that
    come without waiting for answers (pipelining) are read one after the other: each when the one before was answered.

    An application sets ``scope["state"]["known"]`` for a peer that has shown a valid key.
    """

    idle_timeout = 60.0
    successor_of: Place | None = None  # held this connection's place so far
    places: ClassVar[Places] = Places(1024, None)  # shared by the connections of one server

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self._answer = _Answer(transport)
        self._kept = b""  # came, and was not read yet
        self._head = 0  # bytes of a head so far
        self._left = 0  # bytes of a body, or of a chunk and the end of its line, that are still to come
        self._in_body = self._chunked = self._upgrading = self._refused = False
        self._ending, self._trailers = False, 0  # what follows the chunks is read; its bytes
        self._chunks, self._discarded, self._waiting = 0, 0, False
        self._fault: str | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._discard_until = self.loop.time() + self.idle_timeout
        if self.successor_of is not None:
            self.places.leave(self.successor_of)
        if not self.places.enter(self, self.client):
            self._refuse_place()
        else:
            self._start_timer("idle", self.idle_timeout, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answer.broken |= exc is not None
        self._answer.ended = True
        super().connection_lost(None)  # with an error uvicorn would leave its timer, and all that hangs on it, running
        self.places.lingering -= "linger" in self._timers
        self._stop_timers()
        self.places.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if "idle" in self._timers:
            self._stop_timer("idle")
        if self._is_one_request(data):
            super().data_received(data)
        else:
            self._kept += data
            self._read()
        if not self.answering:
            self._watch()

    def eof_received(self) -> None:
        self._start_timer("abort", self.idle_timeout, self._abort)  # it is closed now

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._close()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrading = True
            return
        self._stop_timer("head")
        self._head = self._left = self._trailers = self._discarded = 0
        self._chunked = self._ending = False
        self._check_headers()
        super().on_headers_complete()
        self.cycle.transport = self._answer  # type: ignore[assignment]
        self._in_body = True
        self.headers = []  # for trailers, which nobody reads

    def on_message_complete(self) -> None:
        if not self._upgrading:
            self._in_body = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._answer.end()
        self._discard_until = self.loop.time() + self.idle_timeout
        if self.cycle.scope["state"].get("known"):
            self.places.know(self)
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_timer("abort", self.idle_timeout, self._abort)
        elif self._kept:
            self._read_more()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer("write", self.idle_timeout, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer("write")

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and self.cycle.response_started and self._in_body:
            self._close()  # the rest of a body that was answered
        else:
            self._refuse(400, self._fault or msg)

    def give_way(self) -> bool:
        """Close the connection, unless a request is under way; return whether it was closed."""
        if self.transport.is_closing():
            self.transport.abort()
            return True
        if self.answering:
            return False
        self._refuse_place()
        return True

    @property
    def answering(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def _close(self) -> None:
        """Close the connection, soon also where the peer does not take what is still to be sent."""
        self.transport.close()
        self._stop_timer("abort")
        self._start_timer("abort", _CLOSING, self._abort)

    def _abort(self) -> None:
        """End the connection of a peer that does not take what is still to be sent."""
        self._answer.broken |= self._answer.unsent() > 0
        self.transport.abort()

    def _is_one_request(self, data: bytes) -> bool:
        """Return whether these bytes, and no others, are one request, as is usual: then the parser may have them all.

        Where the parser sees another end of the request than we do, it refuses the request: two lengths, or chunks.
        """
        if self._in_body or self._kept or self._head or self.answering:
            return False
        end = data.find(_END, 0, _HEAD)
        head = data[: end + 2].lower()
        at = head.find(_LENGTH)
        if end < 0 or at < 0 or b"\r\nupgrade" in head:
            return False
        length = head[at + len(_LENGTH) : head.find(b"\r\n", at + 2)].strip(b" \t")
        return length.isdigit() and len(length) <= 12 and end + len(_END) + int(length) == len(data)

    def _watch(self) -> None:
        """Start the timer of what the peer is to send."""
        if self._refused or self.transport.is_closing():
            return
        if self._in_body or not (self._head or self._kept):
            # A body answered before its end is read on, so that the peer gets to read the answer.
            left = self._discard_until - self.loop.time()
            self._start_timer("idle", max(0.0, left), self._close)
        else:
            self._start_timer("head", self.idle_timeout, self._close)

    def _read(self) -> None:
        """Give the parser what was kept, up to the end of a request that must be answered before the next is read."""
        if self._waiting:
            return
        data, at = self._kept, 0
        view = memoryview(data)
        self._chunks = 0
        while at < len(data) and not self._refused and not self.transport.is_closing():
            if self._chunks >= _TURN or (not self._in_body and self.answering):
                break
            end = self._cut(data, at)
            if end == at:
                break
            piece, at = view[at:end], end
            if not self._in_body:
                self._head += len(piece)
                if self._head > _HEAD:
                    self._refuse(431, f"the headers are larger than {_HEAD} bytes")
                    break
            elif self._discards(len(piece)):
                self._close()
                break
            self._feed(piece)
        self._kept = b"" if self._refused else data[at:]
        if self._chunks >= _TURN and self._kept:
            self._waiting = True
            self.loop.call_soon(self._read_on)
        was_full, self._flow.full = self._flow.full, self._waiting or len(self._kept) > _AHEAD
        if self._flow.full:
            self.flow.pause_reading()
        elif was_full:
            self.flow.resume_reading()

    def _read_on(self) -> None:
        """Go on where :meth:`_read` let others have their turn."""
        self._waiting = False
        if not self._refused and not self.transport.is_closing():
            self._stop_timer("idle")
            self._read_more()

    def _read_more(self) -> None:
        self._read()
        if not self.answering:
            self._watch()

    def _discards(self, size: int) -> bool:
        """Count the bytes of a body; return whether they are too many after its answer, or after its chunks."""
        if not self.answering:
            self._discarded += size + self._chunks * _DISCARD_CHUNK
        return self._trailers > _HEAD or self._discarded > _DISCARD

    def _cut(self, data: bytes, at: int) -> int:
        """Where the next request may begin, or without such a place how far what came can be read."""
        if not self._in_body:
            return _cut(data, at)
        if self._ending:
            end = _cut(data, at)
            self._trailers += end - at
            return end
        if self._chunked:
            return self._cut_chunks(data, at)
        end = min(len(data), at + self._left)
        self._left -= end - at
        return end

    def _cut_chunks(self, data: bytes, at: int) -> int:
        """Where the chunks in what came end, or as many of them as are read in a turn."""
        start = at
        while self._chunks < _TURN:
            at += self._left
            self._left = max(0, at - len(data))
            if at >= len(data):
                return len(data)
            line = _CHUNK.match(data, at)
            if line is None:
                if len(data) - at > _HEAD or not _CHUNK_PART.fullmatch(data, at):
                    self.send_400_response("Invalid HTTP request received.")
                    return start
                return at
            self._chunks += 1
            size = int(line[1], 16)
            if not size:
                self._ending = True
                return line.end() - 2  # the end of this line may begin the end of the body
            at, self._left = line.end(), size + 2
        return at

    def _feed(self, piece: memoryview) -> None:
        super().data_received(piece)  # type: ignore[arg-type]
        if self._upgrading:  # the parser would take what follows for the other protocol: once more without the wish
            self._upgrading = False
            version = self.parser.get_http_version().encode()
            lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
            lines += [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            super().data_received(b"\r\n".join(lines) + _END)

    def _check_headers(self) -> None:
        """Learn how the body ends; what is raised makes the parser refuse the request with 400."""
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self._left = int(value)
            elif name == b"transfer-encoding":
                if self._chunked or value.strip().lower() != b"chunked":
                    self._fault = "Transfer-Encoding: only `chunked` is read"
                self._chunked = True
        version = self.parser.get_http_version()
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            self._fault = f"a request has one Host header; this one has {hosts}"
        elif self._chunked and version == "1.0":
            self._fault = "HTTP/1.0 has no Transfer-Encoding"
        if self._fault is not None:
            raise ValueError(self._fault)

    def _start_timer(self, name: str, seconds: float, act: Callable[[], object]) -> None:
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, act)

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _refuse_place(self) -> None:
        self._refuse(503, "too many connections: try again later", b"retry-after: 1\r\n")

    def _refuse(self, status: int, sentence: str, further: bytes = b"") -> None:
        """Answer with an error and close, but read on for a moment: a peer that still sends could not read it else."""
        self._refused = True
        self._stop_timers()
        if self.answering:  # whoever reads its body need not wait
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"error": sentence}).encode()
        self.transport.write(
            b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
            + further
            + b"content-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        self.places.leave(self)
        if self.places.lingering >= _LINGERING:
            self._close()
            return
        self.places.lingering += 1
        self._start_timer("linger", _LINGER, self._close)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _cut(data: bytes, at: int) -> int:
    """Where the next end of headers or of a chunked body may be; without one, the end of what can be no part of it."""
    end = data.find(_END, at)
    if end >= 0:
        return end + len(_END)
    for size in (3, 2, 1):
        if data.endswith(_END[:size], at):
            return len(data) - size
    return len(data)


def bounded(max_connections: int, idle_timeout: float, max_per_address: int | None = None) -> Any:
    """Return a protocol class with these bounds, for one server."""
    places = Places(max_connections, max_per_address)
    return type("Bounded", (BoundedProtocol,), {"idle_timeout": idle_timeout, "places": places})
