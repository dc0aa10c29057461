"""What ``l2h bench serve`` measures: a server, running or started for a bundle, and what bounds it, the model alone.

The load is many connections, each with one request under way at a time. The request is made once and sent over and
over; of an answer only the status and the length are read, so that the measuring takes little of the machine that is
measured.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import numpy.typing as npt

from l2h.bundle import ServerBundle
from l2h.bundle.sessions import random_inputs
from l2h.errors import L2HError, SettingsError
from l2h.protocol import Tensor, encode_request, numpy_type
from l2h.serving.accounts import open_keys
from l2h.serving.process.config import ServingConfig

#: Seconds before the measurement, which are not counted.
_WARM_UP = 1.0
#: Batch sizes at which the model alone is tried.
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
#: Seconds within which a server that is started must be ready.
_START = 60.0
#: :class:`LoadResult` as plain values, for tensors in ``JSON`` and in ``binary``.
Results = dict[str, dict[str, Any]]


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


def measure_running(
    address: str, model: str | None, *, inputs: int, key: str | None, ca_file: Path | None, **load: Any
) -> Results:
    """Measure a running server with so many inputs per request."""
    try:
        context = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"--ca-file {ca_file}: {error.strerror or error}") from error
    name, shape, dtype = _describe(address, model, key, context)
    return _measure_both(address, name, random_inputs(shape, dtype, inputs), key=key, context=context, **load)


def measure_bundle(
    bundle: Path, settings: Mapping[str, Any], *, inputs: int, seconds: float, **load: Any
) -> tuple[Results, dict[str, Any]]:
    """Measure a server started for a bundle, with keys, ledger and metrics on, and the model alone."""
    with running_server(bundle, **settings) as (address, key, model):
        X = random_inputs(model.input_shape, model.input_dtype, inputs)
        results = _measure_both(address, model.name, X, key=key, seconds=seconds, **load)
    return results, raw_throughput(model, seconds=min(seconds, 3.0))


def _measure_both(address: str, name: str, X: Any, **options: Any) -> Results:
    kinds = {"JSON": False, "binary": True}
    return {kind: asdict(measure_load(address, name, X, binary=kinds[kind], **options)) for kind in kinds}


@contextmanager
def running_server(bundle: Path, **settings: Any) -> Iterator[tuple[str, str, ServerBundle]]:
    """Run a server with a key, a ledger and metrics, in a folder that is removed afterwards.

    ``settings`` are further ones of :class:`ServingConfig`. Yields its address, the key, and the model.
    """
    model = ServerBundle(bundle, server=settings.get("server"))
    with tempfile.TemporaryDirectory(prefix="l2h-bench-") as made:
        folder = Path(made)
        keys, log = folder / "keys.json", folder / "log"
        _, key = open_keys(keys).add("bench")
        config = ServingConfig(bundle=str(bundle), port=0, keys=str(keys), ledger=str(folder / "ledger.db"), **settings)
        command = [sys.executable, "-m", "l2h.serving", config.to_json()]
        with log.open("wb") as err:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
        assert process.stdout is not None
        timer = threading.Timer(_START, process.kill)
        timer.start()
        try:
            ready = re.search(r" at (http://[^,]+),", process.stdout.readline())
            timer.cancel()
            if ready is None:
                raise LoadError(f"the server did not come up: {log.read_text(errors='replace')[-1000:]}")
            yield ready[1], key, model
        finally:
            timer.cancel()
            process.terminate()
            try:
                process.wait(config.drain + 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def cost_per_million(requests_per_second: float, hour_cost: float, use: float) -> float:
    """Return what a million requests cost on a host that answers so many per second and is used to this share.

    Example:
        >>> cost_per_million(2000.0, hour_cost=0.36, use=0.5)
        0.1
    """
    return 1e6 / (requests_per_second * use) * hour_cost / 3600


def raw_throughput(model: ServerBundle, *, seconds: float) -> dict[str, Any]:
    """Return the inputs per second of the model alone, in this thread, at the best of some batch sizes."""
    best: dict[str, Any] = {"inputs_per_second": 0.0, "batch": 0}
    for batch in _BATCHES:
        X = random_inputs(model.input_shape, model.input_dtype, batch)
        model.run(X)
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds / len(_BATCHES):
            model.run(X)
            done += batch
        rate = done / (time.perf_counter() - start)
        if rate > best["inputs_per_second"]:
            best = {"inputs_per_second": round(rate, 1), "batch": batch}
    return best


def _describe(
    address: str, model: str | None, key: str | None, context: ssl.SSLContext | None
) -> tuple[str, tuple[int, ...], str]:
    """Return name, input shape and type of a model at a running server; without a name, of its only model."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        verify = context or ssl.create_default_context()
        with httpx.Client(base_url=address.rstrip("/"), headers=headers, timeout=5.0, verify=verify) as client:
            if client.get("/v2").status_code != 200:
                raise LoadError(f"{address} is no server of the Open Inference Protocol: it has nothing at /v2")
            if model is None:
                index = client.post("/v2/repository/index", json={})
                names = [entry["name"] for entry in index.json()] if index.status_code == 200 else []
                if len(names) != 1:
                    raise LoadError(f"{address} does not say which model it has: give --model")
                model = names[0]
            answer = client.get(f"/v2/models/{model}")
            if answer.status_code != 200:
                text = " ".join(answer.text[:200].split())
                raise LoadError(f"{address} answers {answer.status_code} for the model {model!r}: {text}")
            inputs = answer.json()["inputs"]
            shape = tuple(int(edge) for edge in inputs[0]["shape"][1:])
            if len(inputs) != 1 or min(shape, default=1) < 1:
                raise LoadError(f"{model!r} at {address} takes {inputs}: one tensor of a known shape is needed")
            return str(model), shape, str(numpy_type(inputs[0]["datatype"]))
    except httpx.TransportError as error:
        raise LoadError(f"{address} cannot be reached: {error}") from error
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise LoadError(f"{address} is no server of the Open Inference Protocol: {error}") from error


def measure_load(
    server: str, model: str, X: npt.NDArray[Any], *, binary: bool, key: str | None = None, **load: Any
) -> LoadResult:
    """Send a request with inputs X over and over, under the ``load`` of :func:`measure_posts`; measure the answers."""
    body, headers = encode_request([Tensor("x", X)], binary=binary)
    headers = headers if key is None else {**headers, "Authorization": f"Bearer {key}"}
    return measure_posts(server, f"/v2/models/{model}/infer", body, headers, inputs=len(X), **load)


def measure_posts(
    server: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    inputs: int,
    connections: int,
    seconds: float,
    context: ssl.SSLContext | None = None,
) -> LoadResult:
    """Post a body, of so many inputs, over and over, for so many seconds, on so many connections; measure the answers.

    It is for servers of any protocol.
    """
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"{server!r} is no address: give one such as http://127.0.0.1:8080")
    if connections < 1 or seconds <= 0:
        raise SettingsError(f"connections={connections}, seconds={seconds}: at least 1, and above 0")
    lines = [f"POST {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()] + [f"Content-Length: {len(body)}"]
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
        inputs_per_request=inputs,
        requests_per_second=round(rate, 1),
        inputs_per_second=round(rate * inputs, 1),
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
