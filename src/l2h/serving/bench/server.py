"""A server started for a measurement, and what bounds it: the model alone."""

import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from l2h.bundle import ServerBundle
from l2h.bundle.random import random_inputs
from l2h.protocol import numpy_type
from l2h.serving.accounts import open_keys
from l2h.serving.bench.load import LoadError
from l2h.serving.process.config import ServingConfig

#: Batch sizes at which the model alone is tried.
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
#: Seconds within which a server that is started must be ready.
_START = 60.0


@contextmanager
def running_server(bundle: Path, **settings: Any) -> Iterator[tuple[str, str, ServerBundle]]:
    """Run a server with a key, a ledger and metrics, in a folder that is removed afterwards.

    Args:
        bundle: to serve.
        settings: more of :class:`ServingConfig`.

    Yields:
        Its address, the key, and the model.

    Raises:
        LoadError: it did not come up; the message ends with what it said.
    """
    model = ServerBundle(bundle)
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


def describe(
    address: str, model: str | None, key: str | None, context: ssl.SSLContext | None
) -> tuple[str, tuple[int, ...], str]:
    """Return name, input shape and type of a model at a running server; without a name, of its only model.

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
