"""A server started for a measurement, and what bounds it: the model alone."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from l2h.bundle import ServerBundle
from l2h.protocol import numpy_type
from l2h.serving.accounts import open_keys
from l2h.serving.bench.load import LoadError
from l2h.serving.process.config import ServingConfig

#: Batch sizes at which the model alone is tried.
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@contextmanager
def running(
    bundle: Path, *, workers: int = 1, port: int | None = None, **settings: Any
) -> Iterator[tuple[str, str, ServerBundle]]:
    """A server with a key, a ledger and metrics, in a folder that is removed afterwards.

    Args:
        bundle: to serve.
        workers: processes.
        port: None for one that is free.
        settings: more of :class:`ServingConfig`.

    Yields:
        Its address, the key, and the model.

    Raises:
        LoadError: it did not come up; the message ends with what it said.
    """
    model = ServerBundle(bundle)
    with tempfile.TemporaryDirectory(prefix="l2h-bench-") as made:
        folder = Path(made)
        _, key = open_keys(folder / "keys.json").add("bench")
        config = ServingConfig(
            bundle=str(bundle),
            port=_free_port() if port is None else port,
            workers=workers,
            keys=str(folder / "keys.json"),
            ledger=str(folder / "ledger.db"),
            **settings,
        )
        address = f"http://{config.host}:{config.port}"
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", "l2h.serving", config.to_json()], stdout=out, stderr=out)
        try:
            _wait(process, address, log)
            yield address, key, model
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(config.drain + 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def describe(
    address: str, model: str | None, key: str | None, context: ssl.SSLContext | None = None
) -> tuple[str, tuple[int, ...], str]:
    """Name, input shape and type of a model at a running server; without a name, of its only model.

    Raises:
        LoadError: there is no such server or model, or its input is not one tensor.
    """
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        verify = context or ssl.create_default_context()
        with httpx.Client(base_url=address.rstrip("/"), headers=headers, timeout=5.0, verify=verify) as client:
            if client.get("/v2").status_code != 200:
                raise LoadError(f"{address} is no server of the Open Inference Protocol: it has nothing at /v2")
            if model is None:
                found = client.post("/v2/repository/index", json={})
                names = [one["name"] for one in found.json()] if found.status_code == 200 else []
                if len(names) != 1:
                    raise LoadError(f"{address} does not say which model it has: give --model")
                model = names[0]
            found = client.get(f"/v2/models/{model}")
            if found.status_code != 200:
                said = " ".join(found.text[:200].split())
                raise LoadError(f"{address} answers {found.status_code} for the model {model!r}: {said}")
            inputs = found.json()["inputs"]
            shape = tuple(int(edge) for edge in inputs[0]["shape"][1:])
            if len(inputs) != 1 or min(shape, default=1) < 1:
                raise LoadError(f"{model!r} at {address} takes {inputs}: one tensor of a known shape is needed")
            return str(model), shape, str(numpy_type(inputs[0]["datatype"]))
    except httpx.TransportError as error:
        raise LoadError(f"{address} cannot be reached: {error}") from error
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise LoadError(f"{address} is no server of the Open Inference Protocol: {error}") from error


def raw_throughput(model: ServerBundle, *, seconds: float = 3.0) -> dict[str, Any]:
    """Inputs a second of the model alone, at the best of some batch sizes, in this process and thread."""
    rng = np.random.default_rng(0)
    best: dict[str, Any] = {"inputs_per_second": 0.0, "batch": 0}
    for batch in BATCHES:
        X = rng.integers(0, 256, (batch, *model.input_shape)).astype(model.input_dtype)
        model.run(X)
        begun, done = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds / len(BATCHES):
            model.run(X)
            done += batch
        rate = done / (time.perf_counter() - begun)
        if rate > best["inputs_per_second"]:
            best = {"inputs_per_second": round(rate, 1), "batch": batch}
    return best


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{address}/v2/health/ready", timeout=1.0).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise LoadError(f"the server did not come up: {log.read_text(errors='replace')[-1000:]}")
