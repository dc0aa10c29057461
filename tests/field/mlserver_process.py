"""MLServer as a real process, hosting an ONNX file of ours, in an environment of its own that ``make setup`` makes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from waiting import free_ports

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("L2H_MLSERVER_PYTHON", ROOT / ".venv-mlserver" / "bin" / "python"))


@contextmanager
def mlserver(
    folder: Path,
    model: Path,
    name: str,
    shape: tuple[int, ...],
    datatype: str,
    classes: int,
    python: Path = PYTHON,
) -> Iterator[str]:
    """Its address, once it is ready; it is ended afterwards."""
    if not python.exists():
        raise AssertionError(f"MLServer's environment is not there ({python.parent.parent}): `make setup` makes it")
    http, grpc, metrics = free_ports(3)
    folder.mkdir(parents=True, exist_ok=True)
    server = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "host": "127.0.0.1", "parallel_workers": 0}
    described: dict[str, Any] = {
        "name": name,
        "implementation": "mlserver_model.OnnxModel",
        "parameters": {"uri": str(model), "version": "1"},
        "inputs": [{"name": "x", "datatype": datatype, "shape": [-1, *shape]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, classes]}],
    }
    (folder / "settings.json").write_text(json.dumps(server))
    (folder / "model-settings.json").write_text(json.dumps(described))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    log = folder / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, "-m", "mlserver.cli.main", "start", folder], stdout=out, stderr=out, env=environment
        )
    address = f"http://127.0.0.1:{http}"
    try:
        _wait(process, f"{address}/v2/models/{name}/ready", log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            if httpx.get(url, timeout=1).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"MLServer did not come up: {log.read_text(errors='replace')[-2000:]}")
