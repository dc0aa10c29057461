"""Servers of others as real processes, each in an environment of its own, hosting an ONNX file of ours."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from waiting import free_port

HERE = Path(__file__).parent
#: Seconds within which a server must be ready.
START = 120.0


@contextmanager
def bentoml_server(python: Path, model: Path, folder: Path) -> Iterator[str]:
    """The address of BentoML, whose API is ``POST /infer`` with ``{"x": ...}``."""
    port = free_port()
    command = [python, "-m", "bentoml", "serve", "bento_service:Model", "--host", "127.0.0.1", "--port", str(port)]
    settings = {"MODEL": str(model), "BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(folder / "bento")}
    with _running(command, settings, f"http://127.0.0.1:{port}", "/readyz", folder / "bentoml.log") as address:
        yield address


@contextmanager
def pytriton_server(
    python: Path, model: Path, name: str, shape: tuple[int, ...], classes: int, folder: Path
) -> Iterator[str]:
    """The address of PyTriton, which speaks the Open Inference Protocol."""
    port = free_port()
    given = [str(model), name, str(port), str(classes), *map(str, shape)]
    # Triton starts an interpreter by the library that the system finds first, and gives it the modules of this one.
    library = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    command = [python, "pytriton_server.py", *given]
    ready = f"/v2/models/{name}/ready"
    with _running(
        command, {"LD_LIBRARY_PATH": library}, f"http://127.0.0.1:{port}", ready, folder / "pytriton.log"
    ) as address:
        yield address


@contextmanager
def _running(
    command: list[str | Path], settings: Mapping[str, str], address: str, ready: str, log: Path
) -> Iterator[str]:
    """Yield the address once the server is ready; end it afterwards, with all that it started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings}
    environment.pop("PYTHONPATH", None)
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=HERE, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        end = time.monotonic() + START
        while True:
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{command[0]} did not come up: {log.read_text(errors='replace')[-2000:]}")
            try:
                if httpx.get(address + ready, timeout=1).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
