"""The body of a request: read within bounds of size, time and memory; long ones are read away from the event loop."""

import asyncio
import zlib
from collections.abc import Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from l2h.json_lists import LONG
from l2h.serving.errors import GoneError, RefusalError
from l2h.serving.http.exchange import Receive
from l2h.serving.process.service import Service

T = TypeVar("T")

#: Bytes that are given to the unpacker at a time, and that it gives back at most.
_PACKED, _UNPACKED = 16 * 1024, 256 * 1024
#: A packed body may become so many bytes, or so many times its size: whatever is more.
_ENOUGH, _RATIO = 2**20, 100
#: Does the long work of all requests, one piece after the other, so that at most one thread competes with the loop.
_thread = ThreadPoolExecutor(1, "bodies")


class BodyReader:
    """Reads one body, within bounds of size, time and memory; the ``with`` block gives back the memory at its end."""

    __slots__ = ("_held", "_most", "_service")

    def __init__(self, service: Service) -> None:
        self._service, self._most, self._held = service, service.max_body, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._service.free_memory += self._held

    async def read(self, receive: Receive, length: bytes | None) -> bytes | bytearray:
        """Return the body as it was sent; ``length`` is its ``Content-Length``, where there is one."""
        if length is not None and int(length) > self._most:
            raise self._too_large(self._most)
        if not getattr(getattr(receive, "__self__", None), "more_body", True):  # it has all come: nothing to wait for
            return self._take(await receive(), 0)
        body, more = bytearray(), True
        seconds = self._service.config.body_timeout
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    body += self._take(message, len(body))
                    more = message.get("more_body", False)
        except TimeoutError:
            sentence = f"the body did not come within {seconds:g} s; {len(body)} bytes did"
            raise RefusalError(408, sentence, "slow") from None
        return body

    async def unpack(self, packed: bytes | bytearray, encoding: bytes) -> bytes | bytearray:
        """Undo the ``Content-Encoding``."""
        if encoding.lower() == b"identity":
            return packed
        window = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}.get(encoding.strip().lower())
        if window is None:
            shown = encoding.decode("latin-1")[:40]
            raise RefusalError(415, f"Content-Encoding {shown!r} is not read: gzip, deflate or none", "encoding")
        most = min(self._most, max(_ENOUGH, _RATIO * len(packed)))
        unpacker, body, view = zlib.decompressobj(window), bytearray(), memoryview(packed)
        waiting: bytes | memoryview = b""
        at = 0
        try:
            while not unpacker.eof and (waiting or at < len(view)):
                if not waiting:  # in slices: what the unpacker did not take it copies every time
                    waiting, at = view[at : at + _PACKED], at + _PACKED
                if len(body) > LONG:
                    part = await self.work(unpacker.decompress, waiting, _UNPACKED)
                else:
                    part = unpacker.decompress(waiting, _UNPACKED)
                waiting = unpacker.unconsumed_tail
                self._hold(part, len(body) + len(part), most)
                body += part
        except zlib.error as error:
            sentence = f"the body is not what its Content-Encoding says: {error}"
            raise RefusalError(400, sentence, "encoding") from error
        if not unpacker.eof or unpacker.unused_data or at < len(view):
            raise RefusalError(400, "the packed body is cut short, or followed by other bytes", "encoding")
        return body

    async def work(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function about a body of more than ``LONG`` bytes in the thread for such bodies."""
        seconds = self._service.config.body_timeout
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(_thread, function, *given)
        except TimeoutError:
            sentence = f"the server reads too many large requests: this one was not read within {seconds:g} s"
            raise RefusalError(503, sentence, "busy", 1.0) from None

    def _take(self, message: MutableMapping[str, Any], before: int) -> bytes:
        if message["type"] != "http.request":
            raise GoneError
        part: bytes = message.get("body", b"")
        self._hold(part, before + len(part), self._most)
        return part

    def _hold(self, part: bytes, size: int, most: int) -> None:
        if size > most:
            raise self._too_large(most)
        if len(part) > self._service.free_memory:
            raise RefusalError(503, "the server holds too many large requests: try again later", "memory", 1.0)
        self._service.free_memory -= len(part)
        self._held += len(part)

    def _too_large(self, most: int) -> RefusalError:
        if most < self._most:
            sentence = f"the body unpacks to more than {most} bytes, {_RATIO} times its size: send it unpacked"
        else:
            sentence = f"the body is larger than {most} bytes: send fewer inputs in a request"
        return RefusalError(413, sentence, "too_large")
