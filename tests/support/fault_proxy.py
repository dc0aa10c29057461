"""A TCP proxy that does to a link what networks do to links."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from waiting import STUCK


class Looping:
    """Something that serves connections on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._live: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._live)

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(STUCK)

    def listen(self, serve: Any, tls: ssl.SSLContext | None = None) -> int:
        self._server = self.call(asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls, backlog=512))
        return int(self._server.sockets[0].getsockname()[1])

    def drop(self) -> None:
        """End every connection, idle ones included."""
        self.call(self._drop())

    async def _drop(self) -> None:
        tasks = list(self._live)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shut(self) -> None:
        self._server.close()
        await self._drop()

    def close(self) -> None:
        self.call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STUCK)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Fault:
    """What happens to a connection; ``after`` counts the bytes towards the client.

    Kinds: pass; refuse (reset at once); half_open (accepted, never answered); cut (reset after); truncate (closed
    after); stall (silent after); corrupt (the byte after is flipped); delay (``seconds`` before every piece); drip
    (``seconds`` after every byte); throttle (at the proxy's ``rate``).
    """

    kind: str = "pass"
    after: int = 0
    seconds: float = 0.0


class FaultProxy(Looping):
    """Listens on loopback and passes connections on to ``target``.

    Attributes:
        target: the port to pass on to; may be changed at any time.
        rate: bytes per second of throttled connections; may be changed at any time.
        seen: connections so far.
        down: bytes passed towards clients.
    """

    def __init__(self, target: int) -> None:
        super().__init__()
        self.target = target
        self.rate = 1e6
        self.seen = self.down = 0
        self._fault = Fault()
        self._schedule: deque[Fault] = deque()
        self.port = self.listen(self._serve)
        self.url = f"http://127.0.0.1:{self.port}"

    def use(self, fault: Fault, drop: bool = True) -> None:
        """From now on this, for every connection; those under way are reset, or suffer it as well."""
        self._fault = fault
        self._schedule.clear()
        if drop:
            self.drop()

    def schedule(self, faults: Sequence[Fault]) -> None:
        """One for each connection to come; then none."""
        self.use(Fault())
        self._schedule = deque(faults)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = self._schedule.popleft() if self._schedule else None
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        self.seen += 1
        clean = False
        try:
            clean = await self._pass_on(own, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._live.discard(task)
            if clean:
                writer.close()
            else:
                reset(writer)

    async def _pass_on(self, own: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        fault = own or self._fault
        if fault.kind == "refuse":
            return False
        if fault.kind == "half_open":
            await asyncio.Event().wait()
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        up = asyncio.create_task(_up(reader, to_server))
        down = asyncio.create_task(self._down(own, from_server, writer))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            return down.done() and not down.exception() and down.result()
        finally:
            for way in (up, down):
                way.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            to_server.close()

    async def _down(self, own: Fault | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass on what the server sends; whether the connection is to end as if nothing had been wrong."""
        sent = 0
        while chunk := await reader.read(max(1, int(self.rate / 50)) if self._throttled(own) else 65536):
            fault = own or self._fault
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
            if fault.kind == "throttle":
                await asyncio.sleep(len(chunk) / self.rate)
            ends = fault.kind in ("cut", "truncate", "stall") and sent + len(chunk) > fault.after
            if ends:
                chunk = chunk[: max(0, fault.after - sent)]
            if fault.kind == "corrupt" and sent <= fault.after < sent + len(chunk):
                at = fault.after - sent
                chunk = chunk[:at] + bytes([chunk[at] ^ 0x15]) + chunk[at + 1 :]
            await self._write(chunk, writer, fault)
            sent += len(chunk)
            self.down += len(chunk)
            if ends and fault.kind == "stall":
                await asyncio.Event().wait()
            if ends:
                return fault.kind == "truncate"
        return True

    def _throttled(self, own: Fault | None) -> bool:
        return (own or self._fault).kind == "throttle"

    @staticmethod
    async def _write(chunk: bytes, writer: asyncio.StreamWriter, fault: Fault) -> None:
        pieces = [chunk[i : i + 1] for i in range(len(chunk))] if fault.kind == "drip" else [chunk]
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if fault.kind == "drip":
                await asyncio.sleep(fault.seconds)


async def _up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset."""
    with suppress(OSError, AttributeError):
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
