"""Load on a server of the Open Inference Protocol: many connections, each with one request under way at a time.

The request is made once and sent over and over; of an answer only the status and the length are read, so that the
measuring takes little of the machine that is measured.
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
import numpy.typing as npt

from l2h.errors import L2HError, SettingsError
from l2h.protocol import Tensor, encode_request

#: Seconds before the measurement, which are not counted.
_WARM_UP = 1.0


class LoadError(L2HError, RuntimeError):
    """Raised when the server cannot be reached, or gave no good answer."""


@dataclass(frozen=True)
class LoadResult:
    """What a server did under load."""

    seconds: float  # measured, after the warm-up
    connections: int  # at a time
    requests: int  # answered with 200
    inputs_per_request: int  # the same in all of them
    requests_per_second: float  # of those answered with 200
    inputs_per_second: float  # the inputs of those
    statuses: dict[str, int]  # answers by HTTP status; "0" for connections that broke
    latency_ms: dict[str, float]  # percentiles of the requests answered with 200: ``p50``, ``p90``, ``p99``, ``max``


def measure_load(
    server: str,
    model: str,
    X: npt.NDArray[Any],
    *,
    connections: int,
    seconds: float,
    binary: bool,
    key: str | None = None,
    context: ssl.SSLContext | None = None,
) -> LoadResult:
    """Send the same request over and over for a while, and measure the answers.

    Args:
        server: its address, such as ``http://127.0.0.1:8080``.
        model: its name there.
        X: the inputs of every request.
        connections: kept open, each with one request under way.
        seconds: to measure.
        binary: binary tensors, else JSON.
        key: an API key.
        context: for TLS.

    Raises:
        SettingsError: an address or a number that cannot be used.
        LoadError: nothing was answered.
    """
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{server!r} is no address: give one such as http://127.0.0.1:8080")
    if connections < 1 or seconds <= 0:
        raise SettingsError(f"connections={connections}, seconds={seconds}: at least 1, and above 0")
    body, headers = encode_request([Tensor("x", X)], binary=binary)
    lines = [f"POST {parts.path.rstrip('/')}/v2/models/{model}/infer HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"] + ([] if key is None else [f"Authorization: Bearer {key}"])
    message = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    port = parts.port or (443 if parts.scheme == "https" else 80)
    tls = (context or ssl.create_default_context()) if parts.scheme == "https" else None
    tally = _Tally(time.perf_counter() + _WARM_UP, seconds)
    asyncio.run(_load(parts.hostname, port, tls, message, connections, tally))
    if not tally.latencies:
        why = ": it wants a key" if {401, 403} & set(tally.statuses) else ""
        raise LoadError(
            f"{parts.hostname}:{port} gave no good answer{why}; "
            f"by status (0: none, or a broken one): {dict(tally.statuses)}"
        )
    milliseconds = np.percentile(1e3 * np.array(tally.latencies), [50, 90, 99, 100]).round(3).tolist()
    rate = len(tally.latencies) / seconds
    return LoadResult(
        seconds=round(seconds, 3),
        connections=connections,
        requests=len(tally.latencies),
        inputs_per_request=len(X),
        requests_per_second=round(rate, 1),
        inputs_per_second=round(rate * len(X), 1),
        statuses={str(status): count for status, count in sorted(tally.statuses.items())},
        latency_ms=dict(zip(("p50", "p90", "p99", "max"), milliseconds, strict=True)),
    )


async def _load(
    host: str, port: int, tls: ssl.SSLContext | None, message: bytes, connections: int, tally: _Tally
) -> None:
    loop = asyncio.get_running_loop()

    async def keep_asking() -> None:
        """One connection after the other, until the time is up."""
        while time.perf_counter() < tally.end:
            try:
                transport, connection = await loop.create_connection(
                    lambda: _Connection(message, tally), host, port, ssl=tls, server_hostname=host if tls else None
                )
            except OSError:
                tally.count(0, 0.0)
                await asyncio.sleep(0.05)
                continue
            await connection.over
            transport.close()

    await asyncio.gather(*(keep_asking() for _ in range(connections)))


class _Tally:
    """What all connections saw while the measurement ran."""

    def __init__(self, begin: float, seconds: float) -> None:
        self.begin, self.end = begin, begin + seconds
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []

    def count(self, status: int, asked: float) -> None:
        """Count an answer to a request that was sent at ``asked``; status 0 for a connection that broke."""
        now = time.perf_counter()
        if self.begin <= now <= self.end:
            self.statuses[status] += 1
            if status == 200:
                self.latencies.append(now - asked)


class _Connection(asyncio.Protocol):
    """A connection that asks again as soon as it is answered."""

    def __init__(self, message: bytes, tally: _Tally) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._message, self._tally = message, tally
        self._length, self._buffer, self._asked, self._status = -1, b"", 0.0, 0
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._length < 0 and not self._read_head():
            return
        if len(self._buffer) < self._length:
            return
        self._buffer = self._buffer[self._length :]
        self._length = -1
        self._tally.count(self._status, self._asked)
        if self._closing or time.perf_counter() >= self._tally.end:
            self._end()
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self._tally.count(0, 0.0)
            self._end()

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._message)

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _read_head(self) -> bool:
        """Read status and length of an answer; False while its headers are not all there."""
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return False
        head = head.lower()
        at = head.find(b"\r\ncontent-length:")
        try:
            self._status = int(head[9:12])
            self._length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        except ValueError:
            self._status, self._length, self._closing = 0, 0, True
        self._closing = self._closing or at < 0 or b"\r\nconnection: close" in head
        self._buffer = rest
        return True
