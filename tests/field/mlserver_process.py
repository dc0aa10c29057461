"""MLServer as a real process, hosting a bundle by the files of deploy/, in an environment that ``make setup`` makes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from field_processes import come_up
from waiting import free_ports

ROOT = Path(__file__).resolve().parents[2]
PYTHON = Path(os.environ.get("L2H_MLSERVER_PYTHON", ROOT / ".venv-mlserver" / "bin" / "python"))


@contextmanager
def mlserver(folder: Path, bundle: Path, name: str, python: Path = PYTHON) -> Iterator[str]:
    """Its address, once it is ready; it is ended afterwards."""
    if not python.exists():
        raise AssertionError(f"MLServer's environment is not there ({python.parent.parent}): `make setup` makes it")
    http, grpc, metrics = free_ports(3)
    shutil.copytree(ROOT / "deploy" / "mlserver", folder, dirs_exist_ok=True)
    half = folder / "bundle"
    half.mkdir()
    for file in ("manifest.json", "server.onnx"):
        shutil.copy(bundle / file, half)
    server = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "host": "127.0.0.1", "parallel_workers": 0}
    described = json.loads((folder / "model-settings.json").read_text()) | {"name": name}
    (folder / "settings.json").write_text(json.dumps(server))
    (folder / "model-settings.json").write_text(json.dumps(described))
    environment = os.environ | {"PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    log = folder / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, "-m", "mlserver.cli.main", "start", folder], stdout=out, stderr=out, env=environment
        )
    address = f"http://127.0.0.1:{http}"
    try:
        come_up(process, f"{address}/v2/models/{name}/ready", log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
