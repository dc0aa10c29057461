"""The little of HTTP that is needed beside the ASGI server: bodies within bounds, and answers."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from l2h.serving.errors import GoneError, RefusalError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
#: Bytes that are unpacked at a time, between which others have their turn.
_PIECE = 128 * 1024


class Room:
    """Bytes of bodies that may be held at a time.

    Args:
        size: in bytes.
    """

    def __init__(self, size: int) -> None:
        self._free = size

    def take(self, size: int) -> None:
        """Hold so many more.

        Raises:
            RefusalError: 503, there is no room.
        """
        if size > self._free:
            raise RefusalError(503, "the server holds too many large requests: try again later", "memory", 1.0)
        self._free -= size

    def give(self, size: int) -> None:
        """Hold so many less."""
        self._free += size


async def read_body(receive: Receive, most: int, seconds: float, room: Room) -> tuple[bytes, int]:
    """The body of a request, and how much room was taken for it, which the caller gives back.

    Raises:
        RefusalError: 413 for one too large, 408 for one too slow, 503 without room for it.
        GoneError: the peer hung up.
    """
    if not getattr(getattr(receive, "__self__", None), "more_body", True):  # it has all come: nothing to wait for
        message = await receive()
        if message["type"] != "http.request":
            raise GoneError
        body: bytes = message["body"]
        _require_size(len(body), most)
        room.take(len(body))
        return body, len(body)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise GoneError
                part: bytes = message.get("body", b"")
                _require_size(size + len(part), most)
                room.take(len(part))
                size += len(part)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts), size
    except BaseException as error:
        room.give(size)
        if isinstance(error, TimeoutError):
            sentence = f"the body did not come within {seconds:g} s; {size} bytes did"
            raise RefusalError(408, sentence, "slow") from None
        raise


async def unpack(body: bytes, encoding: bytes | None, most: int, room: Room) -> tuple[bytes, int]:
    """Undo a ``Content-Encoding``; the body, and how much room was taken for it, which the caller gives back.

    Raises:
        RefusalError: 415 for an unknown one, 400 for damaged bytes, 413 for more than ``most`` of them, 503 without
            room for them.
    """
    if encoding is None or encoding.lower() == b"identity":
        return body, 0
    window = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}.get(encoding.strip().lower())
    if window is None:
        shown = encoding.decode("latin-1")[:40]
        raise RefusalError(415, f"Content-Encoding {shown!r} is not read: gzip, deflate or none", "encoding")
    reader = zlib.decompressobj(window)
    parts: list[bytes] = []
    size = 0
    try:
        left = body
        while not reader.eof:
            part = reader.decompress(left, _PIECE)
            left = reader.unconsumed_tail
            if not part and not left and not reader.eof:
                break
            _require_size(size + len(part), most)
            room.take(len(part))
            size += len(part)
            parts.append(part)
            await asyncio.sleep(0)
        if not reader.eof or reader.unused_data:
            raise RefusalError(400, "the packed body is cut short, or followed by other bytes", "encoding")
    except BaseException as error:
        room.give(size)
        if isinstance(error, zlib.error):
            sentence = f"the body is not what its Content-Encoding says: {error}"
            raise RefusalError(400, sentence, "encoding") from error
        raise
    return b"".join(parts), size


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise too_large(most)


def too_large(most: int) -> RefusalError:
    """A 413."""
    return RefusalError(413, f"the body is larger than {most} bytes: send fewer inputs in a request", "too_large")


async def send_answer(send: Send, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """One answer, whole."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def retry_header(seconds: float) -> tuple[bytes, bytes]:
    """``Retry-After``, in whole seconds from 1."""
    return b"retry-after", b"%d" % max(1, math.ceil(min(seconds, 10**9)))


def first_values(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name. Of one that comes twice the last counts."""
    return dict(headers)
