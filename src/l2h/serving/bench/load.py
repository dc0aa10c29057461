"""Load on a server of the Open Inference Protocol: so many connections, each with one request under way at a time.

The request is made once and sent over and over; of an answer only its status and length are read, so that the measuring
takes little of the machine that is measured.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from l2h.errors import L2HError, SettingsError
from l2h.protocol import Tensor, encode_request


class LoadError(L2HError, RuntimeError):
    """The server cannot be reached, or none of its answers was a good one."""


@dataclass(frozen=True)
class LoadResult:
    """What a server did under load.

    Attributes:
        seconds: measured, after the warm-up.
        connections: at a time.
        requests: answered with 200.
        inputs: in each request.
        statuses: answers by HTTP status; 0 for connections that broke.
        latency_ms: percentiles of the requests answered with 200: ``p50``, ``p90``, ``p99``, ``max``.
    """

    seconds: float
    connections: int
    requests: int
    inputs: int
    statuses: dict[int, int]
    latency_ms: dict[str, float]

    @property
    def per_second(self) -> float:
        """Good answers a second."""
        return self.requests / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seconds": round(self.seconds, 3),
            "connections": self.connections,
            "requests": self.requests,
            "inputs_per_request": self.inputs,
            "requests_per_second": round(self.per_second, 1),
            "inputs_per_second": round(self.per_second * self.inputs, 1),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "latency_ms": {name: round(value, 3) for name, value in self.latency_ms.items()},
        }


def measure(
    server: str,
    model: str,
    X: np.ndarray[Any, Any],
    *,
    connections: int = 64,
    seconds: float = 10.0,
    warm: float = 1.0,
    binary: bool = True,
    key: str | None = None,
    input_name: str = "x",
    context: ssl.SSLContext | None = None,
) -> LoadResult:
    """Ask a server for a while.

    Args:
        server: its address, such as ``http://127.0.0.1:8080``.
        model: its name there.
        X: the inputs of every request.
        connections: kept open, each with one request under way.
        seconds: to measure.
        warm: seconds before, not counted.
        binary: binary tensors, else JSON.
        key: an API key.
        input_name: of the model's input.
        context: for TLS.

    Raises:
        SettingsError: an address or a number that cannot be used.
        LoadError: nothing was answered.
    """
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{server!r} is no address: give one such as http://127.0.0.1:8080")
    if connections < 1 or seconds <= 0 or warm < 0:
        raise SettingsError(f"connections={connections}, seconds={seconds}, warm={warm}: at least 1, above 0, from 0")
    body, headers = encode_request([Tensor(input_name, X)], binary=binary)
    lines = [f"POST {parts.path.rstrip('/')}/v2/models/{model}/infer HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"] + ([] if key is None else [f"Authorization: Bearer {key}"])
    message = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    port = parts.port or (443 if parts.scheme == "https" else 80)
    tls = (context or ssl.create_default_context()) if parts.scheme == "https" else None
    return asyncio.run(_run(parts.hostname, port, tls, message, connections, seconds, warm, len(X)))


async def _run(
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    message: bytes,
    connections: int,
    seconds: float,
    warm: float,
    n: int,
) -> LoadResult:
    loop = asyncio.get_running_loop()
    begin = time.perf_counter() + warm
    counted = _Count(begin, begin + seconds)

    async def keep() -> None:
        """One connection after the other, until the time is up."""
        while time.perf_counter() < counted.end:
            try:
                transport, asking = await loop.create_connection(
                    lambda: _Asking(message, counted), host, port, ssl=tls, server_hostname=host if tls else None
                )
            except OSError:
                counted.broken()
                await asyncio.sleep(0.05)
                continue
            await asking.over
            transport.close()

    await asyncio.gather(*(keep() for _ in range(connections)))
    good = np.array(counted.latencies)
    if not len(good):
        why = ": it wants a key" if {401, 403} & set(counted.statuses) else ""
        raise LoadError(
            f"{host}:{port} gave no good answer{why}; by status (0: none, or a broken one): {dict(counted.statuses)}"
        )
    at = dict(zip(("p50", "p90", "p99"), np.percentile(good, [50, 90, 99]).tolist(), strict=True))
    latency = {name: 1e3 * value for name, value in (at | {"max": float(good.max())}).items()}
    return LoadResult(seconds, connections, len(good), n, dict(counted.statuses), latency)


class _Count:
    """What all connections saw between two points in time."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []

    def answered(self, status: int, asked: float, now: float) -> None:
        if self.begin <= now <= self.end:
            self.statuses[status] += 1
            if status == 200:
                self.latencies.append(now - asked)

    def broken(self) -> None:
        if self.begin <= time.perf_counter() <= self.end:
            self.statuses[0] += 1


class _Asking(asyncio.Protocol):
    """A connection that asks again as soon as it is answered."""

    def __init__(self, message: bytes, counted: _Count) -> None:
        self.message, self.counted = message, counted
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left, self.buffer, self.asked, self.status = -1, b"", 0.0, 0
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """A part of an answer, or several."""
        self.buffer += data
        if self.left < 0 and not self._head():
            return
        if len(self.buffer) < self.left:
            return
        self.buffer = self.buffer[self.left :]
        self.left = -1
        now = time.perf_counter()
        self.counted.answered(self.status, self.asked, now)
        if now >= self.counted.end or self.closing:
            self._end()
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """Broken unless it was over."""
        if not self.over.done():
            self.counted.broken()
            self._end()

    def _ask(self) -> None:
        self.asked = time.perf_counter()
        self.transport.write(self.message)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _head(self) -> bool:
        """Read status and length of an answer; False while its headers are not all there."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = self.buffer[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        try:
            self.status = int(head[9:12])
            self.left = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        except ValueError:
            self.status, self.left, self.closing = 0, 0, True
        self.closing = self.closing or at < 0 or b"\r\nconnection: close" in head
        self.buffer = self.buffer[end + 4 :]
        return True
