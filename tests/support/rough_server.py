"""A real HTTP server of the protocol that misbehaves on command."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fault_proxy import Looping, reset

from l2h import protocol

#: A small file that is large when unpacked.
BOMB = gzip.compress(b"\0" * 50_000_000, 9)


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    connection: int = 0
    at: float = field(default_factory=time.monotonic)

    def inputs(self) -> np.ndarray:
        length = protocol.header_length(self.headers.get(protocol.LENGTH_HEADER.lower()))
        return protocol.decode_request(self.body, length).inputs[0].data


class RoughServer(Looping):
    """Answers by the protocol, unless told otherwise.

    Args:
        scores: the model: inputs (n, ...) to scores (n, K).
        name: the model's name.
        shape: of one input.
        datatype: of the inputs, on the wire.
        classes: how many there are.
        tls: serve https.

    Attributes:
        mode: what is done to every inference from now on: the name of a method ``do_...``, an argument after a colon.
        script: modes of the next ones, before ``mode`` holds.
        asked: every request for inference.
        health: status of the question whether it is ready.
        key: that ``check()`` must have; None takes any.
    """

    def __init__(
        self,
        scores: Callable[[np.ndarray], np.ndarray],
        *,
        name: str,
        shape: tuple[int, ...],
        datatype: str,
        classes: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self.scores, self.name, self.version = scores, name, "abc123"
        self.key: str | None = None
        self.input_name, self.output_name = "x", "scores"
        self.metadata: dict[str, Any] = {
            "name": name,
            "versions": [self.version],
            "platform": "onnx",
            "inputs": [{"name": "x", "datatype": datatype, "shape": [-1, *shape]}],
            "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, classes]}],
        }
        self.mode = "answer"
        self.script: deque[str] = deque()
        self.asked: list[Asked] = []
        self.health = 200
        self.connections = 0
        self.sent = 0
        self.at_once = self.most_at_once = 0
        self.port = self.listen(self._serve, tls)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"

    def follow(self, modes: Iterable[str], then: str = "answer") -> None:
        self.script, self.mode = deque(modes), then

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._live.add(task)
        self.connections += 1
        number = self.connections
        try:
            while await self._one(reader, writer, number):
                pass
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            self._live.discard(task)
            with suppress(OSError):
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        first, *lines = head.split("\r\n")
        method, path, _ = first.split(" ")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(method, path, headers, body, number)
        if method == "GET":
            return await self._get(path, writer)
        if body == b'{"inputs": []}':  # as check() tries a key
            known = self.key is None or headers.get("authorization") == f"Bearer {self.key}"
            return await self._reply(writer, b'{"error": "no inputs, or no key"}', 400 if known else 401)
        self.asked.append(asked)
        mode, _, argument = (self.script.popleft() if self.script else self.mode).partition(":")
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            return bool(await getattr(self, f"do_{mode}")(asked, reader, writer, argument))
        finally:
            self.at_once -= 1

    async def _get(self, path: str, writer: asyncio.StreamWriter) -> bool:
        if path == "/v2/health/ready":
            return await self._reply(writer, b"", self.health)
        if path == "/v2":
            return await self._reply(writer, b'{"name": "rough", "extensions": ["binary_tensor_data"]}')
        if path == f"/v2/models/{self.name}":
            return await self._reply(writer, json.dumps(self.metadata).encode())
        return await self._reply(writer, b'{"error": "there is nothing here"}', 404)

    async def _reply(
        self, writer: asyncio.StreamWriter, body: bytes, status: int = 200, headers: dict[str, str] | None = None
    ) -> bool:
        lines = {"Content-Length": str(len(body)), **(headers or {})}
        head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return True

    def encoded(self, asked: Asked, **changes: Any) -> tuple[bytes, dict[str, str]]:
        """A good answer, but for the changes."""
        length = protocol.header_length(asked.headers.get(protocol.LENGTH_HEADER.lower()))
        request = protocol.decode_request(asked.body, length)
        assert [t.name for t in request.inputs] == [self.input_name]
        data = changes.get("data")
        if data is None:
            data = np.asarray(self.scores(request.inputs[0].data), dtype=np.float32)
        response = protocol.Response(
            [protocol.Tensor(changes.get("output", self.output_name), data)],
            changes.get("model", self.name),
            self.version,
            changes.get("id", request.id),
        )
        output = response.outputs[0].name
        return protocol.encode_response(response, {output: request.wants_binary(output)})

    # What can be done to a request; each returns whether the connection goes on.

    async def do_answer(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        body, headers = self.encoded(asked)
        return await self._reply(writer, body, 200, {**headers, "L2H-Charged": argument or "1"})

    async def do_slow(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        await asyncio.sleep(float(argument))
        return await self.do_answer(asked, reader, writer, "")

    async def do_answer_then_close(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        await self.do_answer(asked, reader, writer, "")
        return False

    async def do_close(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        return False

    async def do_reset(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        reset(writer)
        return False

    async def do_silent(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        await reader.read()  # until the client goes
        return False

    async def do_drip_head(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        return await self._drip(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: " + b"a" * 10000)

    async def do_drip_body(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        body, headers = self.encoded(asked)
        lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode())
        return await self._drip(writer, body)

    async def do_drip_error(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        writer.write(f"HTTP/1.1 {argument} X\r\nContent-Length: 4000\r\n\r\n".encode())
        return await self._drip(writer, b"a" * 4000)

    async def _drip(self, writer: Any, data: bytes) -> bool:
        for i in range(len(data)):
            writer.write(data[i : i + 1])
            await writer.drain()
            await asyncio.sleep(0.02)
        return True

    async def do_early(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        """One after another, answers that are not final."""
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
            await writer.drain()
            await asyncio.sleep(0.005)

    async def do_huge(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        """A body of a gigabyte."""
        length = "" if argument == "endless" else f"Content-Length: {2**30}\r\n"
        writer.write(f"HTTP/1.0 200 OK\r\n{length}\r\n".encode())
        block = b"[" * 2**20
        for _ in range(1024):
            writer.write(block)
            await writer.drain()
            self.sent += len(block)
        return False

    async def do_bomb(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        return await self._reply(writer, BOMB, 200, {"Content-Encoding": "gzip"})

    async def do_garbage(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        writer.write(bytes(range(256)) * 20 + b"\r\n\r\n")
        await writer.drain()
        return False

    async def do_redirect(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        return await self._reply(writer, b"", 307, {"Location": f"{self.url}{asked.path}"})

    async def do_old(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        """HTTP/1.0: the end of the connection is the end of the body."""
        body, headers = self.encoded(asked)
        lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        writer.write(f"HTTP/1.0 200 OK\r\n{lines}\r\n".encode() + body)
        await writer.drain()
        return False

    async def do_chunked(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        body, headers = self.encoded(asked)
        lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        writer.write(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{lines}\r\n".encode())
        for i in range(0, len(body), 50):
            writer.write(b"%x\r\n" % len(body[i : i + 50]) + body[i : i + 50] + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def do_short(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        """Half the body, then the end."""
        body, headers = self.encoded(asked)
        await self._reply(writer, body[: len(body) // 2], 200, {**headers, "Content-Length": str(len(body))})
        return False

    async def do_status(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        status, _, after = argument.partition(",")
        headers = {"Retry-After": after} if after else {}
        said = {"error": f"status {status} for {asked.headers.get('authorization', 'nobody')}"}
        return await self._reply(writer, json.dumps(said).encode(), int(status), headers)

    async def do_limited(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        """Refuse as ours does, with a reason."""
        return await self._reply(writer, b"{}", 429, {"Retry-After": "30", "L2H-Reason": argument})

    async def do_text(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        return await self._reply(writer, argument.encode())

    async def do_wrong(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        """A well-formed answer that is wrong in one thing."""
        good = np.asarray(self.scores(asked.inputs()), dtype=np.float32)
        n, k = good.shape
        changes: dict[str, Any] = {
            "nan": {"data": np.where(np.arange(k) == 0, np.float32(np.nan), good).astype(np.float32)},
            "infinite": {"data": np.where(np.arange(k) == 0, np.float32(np.inf), good).astype(np.float32)},
            "rows": {"data": np.concatenate([good, good])},
            "columns": {"data": good[:, :-1]},
            "empty": {"data": good[:0]},
            "flat": {"data": good.reshape(-1)},
            "label": {"data": np.full(n, k, dtype=np.int64)},
            "model": {"model": "another"},
            "output": {"output": "other"},
            "id": {"id": "another"},
        }[argument]
        body, headers = self.encoded(asked, **changes)
        return await self._reply(writer, body, 200, headers)

    async def do_labels(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        labels = self.scores(asked.inputs()).argmax(axis=1).astype(argument or "int64")
        body, headers = self.encoded(asked, data=labels)
        return await self._reply(writer, body, 200, headers)

    async def do_names(self, asked: Asked, reader: Any, writer: Any, argument: str) -> bool:
        """A column of labels that are one letter each."""
        labels = np.array(list(argument))[self.scores(asked.inputs()).argmax(axis=1)]
        body, headers = self.encoded(asked, data=labels[:, None])
        return await self._reply(writer, body, 200, headers)
