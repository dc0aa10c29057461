"""A proxy between a device and its server, as a process of its own, that does to the link what it is told on stdin.

It reads whole requests and answers, so that it can say of every request what became of it. Commands, a line each:
``mode NAME DELAY``, of which only the mode ``delay`` uses the seconds; ``report`` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
from typing import Any

MODES = ("pass", "cut", "delay", "half-open", "garbage", "lose")


class Proxy:
    """One listening socket before one server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.mode, self.delay = "pass", 0.0
        self.changed = asyncio.Event()
        self.open: set[asyncio.StreamWriter] = set()
        #: Idempotency keys handed to the server, and of them those whose good answer reached the device whole.
        self.forwarded: dict[str, int] = {}
        self.answered: dict[str, str] = {}
        self.random = random.Random(0)

    def set(self, mode: str, delay: str) -> None:
        """Change what is done; a cut hits what is open."""
        assert mode in MODES, mode
        self.mode, self.delay = mode, float(delay)
        self.changed.set()
        self.changed = asyncio.Event()
        if mode == "cut":
            for writer in list(self.open):
                writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the device, and one to the server behind it."""
        self.open.add(writer)
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                head, body = await message(reader)
                mode = self.mode
                if mode == "half-open":  # taken, and nothing ever comes back
                    await self.changed.wait()
                    return
                if mode == "cut":
                    return
                if mode == "delay":
                    await asyncio.sleep(self.delay)
                if upstream is None:
                    upstream = await asyncio.open_connection("127.0.0.1", self.port)
                key = field(head, b"idempotency-key")
                self.forwarded[key] = self.forwarded.get(key, 0) + 1
                upstream[1].write(head + body)
                await upstream[1].drain()
                answer, content = await message(upstream[0])
                if self.mode == "lose":  # the server has answered, and charged, and the link breaks on the way back
                    return
                if self.mode == "garbage":
                    answer, content = self.spoiled(answer, content)
                elif answer[9:12] == b"200":
                    self.answered[key] = field(answer, b"l2h-charged")
                writer.write(answer + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.open.discard(writer)
            writer.transport.abort()
            if upstream is not None:
                upstream[1].transport.abort()

    def spoiled(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """An answer that is none, in one of several ways."""
        bad = self.random.choice(
            [
                b"<html>hello</html>",
                b"{",
                b'{"model_name":"digits","outputs":[]}',
                b'{"model_name":"digits","outputs":[{"name":"scores","datatype":"FP32","shape":[1,2],"data":[1,2]}]}',
                b'{"model_name":"digits","outputs":[{"name":"scores","datatype":"FP32","shape":[1,10],'
                b'"data":[NaN,1,2,3,4,5,6,7,8,9]}]}',
                os.urandom(len(body)),
            ]
        )
        return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(bad), bad


def field(head: bytes, name: bytes) -> str:
    """A header's value; empty where there is none."""
    for line in head.split(b"\r\n"):
        if line.lower().startswith(name + b":"):
            return line.split(b":", 1)[1].strip().decode()
    return ""


async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of a request or an answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(field(head, b"content-length") or 0))


async def main(port: int) -> None:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=2**22)
    say({"port": server.sockets[0].getsockname()[1]})
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while line := (await stdin.readline()).decode().split():
        if line[0] == "mode":
            proxy.set(*line[1:])
            say({"mode": proxy.mode})
        else:
            say({"forwarded": proxy.forwarded, "answered": proxy.answered})


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1])))
