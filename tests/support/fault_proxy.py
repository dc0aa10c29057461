"""A TCP proxy that does to a link what networks do to links."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """What happens to one connection; ``after`` counts the bytes towards the client.

    Kinds: pass; refuse (reset at once); half_open (accepted, never answered); cut (reset after); truncate (closed
    after); stall (silent after); corrupt (the byte after is flipped); delay (``seconds`` before the first byte);
    throttle (at the proxy's ``rate``).
    """

    kind: str = "pass"
    after: int = 0
    seconds: float = 0.0


class FaultProxy:
    """Listens on loopback and passes connections on to ``target``.

    Attributes:
        target: the port to pass on to; may be changed at any time.
        rate: bytes a second of throttled connections; may be changed at any time.
        down: bytes passed towards clients.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.rate = 1e6
        self.down = 0
        self._default = Fault()
        self._schedule: deque[Fault] = deque()
        self._live: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def use(self, fault: Fault) -> None:
        """From now on this; connections under way are reset."""
        self._default = fault
        self._schedule.clear()
        self._call(self._reset())

    def schedule(self, faults: Sequence[Fault]) -> None:
        """One for each connection to come; then none."""
        self.use(Fault())
        self._schedule = deque(faults)

    def close(self) -> None:
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _reset(self) -> None:
        tasks = list(self._live)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shut(self) -> None:
        self._server.close()
        await self._reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._schedule.popleft() if self._schedule else self._default
        task = asyncio.current_task()
        self._live.add(task)
        clean = False
        try:
            clean = await self._pass_on(fault, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._live.discard(task)
            _close(writer, reset=not clean)

    async def _pass_on(self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if fault.kind == "refuse":
            return False
        if fault.kind == "half_open":
            await asyncio.Event().wait()
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        up = asyncio.create_task(_pump_up(reader, server_writer))
        try:
            return await self._pump_down(fault, server_reader, writer)
        finally:
            up.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await up
            _close(server_writer, reset=False)

    async def _pump_down(self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        sent = 0
        while True:
            chunk = await reader.read(max(1, int(self.rate / 50)) if fault.kind == "throttle" else 65536)
            if not chunk:
                return True
            if fault.kind == "delay" and sent == 0:
                await asyncio.sleep(fault.seconds)
            if fault.kind == "throttle":
                await asyncio.sleep(len(chunk) / self.rate)
            ends = fault.kind in ("cut", "truncate", "stall") and sent + len(chunk) > fault.after
            if ends:
                chunk = chunk[: fault.after - sent]
            if fault.kind == "corrupt" and sent <= fault.after < sent + len(chunk):
                at = fault.after - sent
                chunk = chunk[:at] + bytes([chunk[at] ^ 0x15]) + chunk[at + 1 :]
            writer.write(chunk)
            await writer.drain()
            sent += len(chunk)
            self.down += len(chunk)
            if ends and fault.kind == "stall":
                await asyncio.Event().wait()
            if ends:
                return fault.kind == "truncate"


async def _pump_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()


def _close(writer: asyncio.StreamWriter, reset: bool) -> None:
    with suppress(OSError):
        if reset:
            peer = writer.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()
