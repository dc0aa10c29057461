"""Reading the body of a request, within bounds of size, time and memory."""

import asyncio
import zlib
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Self

from l2h.serving.errors import GoneError, RefusalError
from l2h.serving.http.exchange import Receive
from l2h.serving.process.service import Service

#: Bytes that are unpacked at a time; in between, other requests have their turn.
_PIECE = 128 * 1024


class BodyReader:
    """Reads one body. The memory that it takes is given back at the end of the ``with`` block."""

    __slots__ = ("_held", "_most", "_service")

    def __init__(self, service: Service) -> None:
        self._service, self._most, self._held = service, service.max_body, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._service.free_memory += self._held

    async def read(self, receive: Receive, length: bytes | None) -> bytes:
        """Return the body as it was sent; ``length`` is its ``Content-Length``, where there is one.

        Raises:
            RefusalError: 413 for a body too large, 408 for one too slow, 503 without memory for it.
            GoneError: the peer hung up.
        """
        if length is not None and int(length) > self._most:
            raise self._too_large()
        if not getattr(getattr(receive, "__self__", None), "more_body", True):  # it has all come: nothing to wait for
            return self._take(await receive(), 0)
        parts: list[bytes] = []
        seconds, size, more = self._service.config.body_timeout, 0, True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    part = self._take(message, size)
                    size += len(part)
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            sentence = f"the body did not come within {seconds:g} s; {size} bytes did"
            raise RefusalError(408, sentence, "slow") from None
        return b"".join(parts)

    async def unpack(self, body: bytes, encoding: bytes) -> bytes:
        """Undo the ``Content-Encoding``.

        Raises:
            RefusalError: 415 for an unknown one, 400 for damaged bytes, 413 for a body too large, 503 without memory
                for it.
        """
        if encoding.lower() == b"identity":
            return body
        window = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}.get(encoding.strip().lower())
        if window is None:
            shown = encoding.decode("latin-1")[:40]
            raise RefusalError(415, f"Content-Encoding {shown!r} is not read: gzip, deflate or none", "encoding")
        unpacker = zlib.decompressobj(window)
        parts: list[bytes] = []
        size = 0
        try:
            while not unpacker.eof:
                part = unpacker.decompress(body, _PIECE)
                body = unpacker.unconsumed_tail
                if not part and not body and not unpacker.eof:
                    break
                size += len(part)
                self._hold(part, size)
                parts.append(part)
                await asyncio.sleep(0)
        except zlib.error as error:
            sentence = f"the body is not what its Content-Encoding says: {error}"
            raise RefusalError(400, sentence, "encoding") from error
        if not unpacker.eof or unpacker.unused_data:
            raise RefusalError(400, "the packed body is cut short, or followed by other bytes", "encoding")
        return b"".join(parts)

    def _take(self, message: MutableMapping[str, Any], before: int) -> bytes:
        if message["type"] != "http.request":
            raise GoneError
        part: bytes = message.get("body", b"")
        self._hold(part, before + len(part))
        return part

    def _hold(self, part: bytes, size: int) -> None:
        if size > self._most:
            raise self._too_large()
        if len(part) > self._service.free_memory:
            raise RefusalError(503, "the server holds too many large requests: try again later", "memory", 1.0)
        self._service.free_memory -= len(part)
        self._held += len(part)

    def _too_large(self) -> RefusalError:
        sentence = f"the body is larger than {self._most} bytes: send fewer inputs in a request"
        return RefusalError(413, sentence, "too_large")
