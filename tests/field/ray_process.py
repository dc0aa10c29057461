"""Ray Serve as a real process, hosting a bundle by the file of deploy/, on a cluster of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from field_processes import come_up
from waiting import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@contextmanager
def ray_serve(folder: Path, bundle: Path, replicas: int = 1, *, fast: bool = False) -> Iterator[str]:
    """Its address, once it is ready; it is ended afterwards, with all that it started.

    ``fast`` puts HAProxy before the replicas, which is off by itself, and turns off what Ray Serve says costs speed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, config, log = free_port(), folder / "serve.json", folder / "log.txt"
    arguments = {"bundle": str(bundle), "replicas": str(replicas)}
    application = {"name": "l2h", "route_prefix": "/", "import_path": "ray_serve:app", "args": arguments}
    listening = {"http_options": {"host": "127.0.0.1", "port": port}, "logging_config": {"enable_access_log": False}}
    config.write_text(json.dumps({**listening, "applications": [application]}))
    command = [Path(sys.executable).with_name("serve"), "run", "--address", "local", config]
    paths = os.pathsep.join([str(DEPLOY), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    if fast:
        environment |= {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        come_up(process, f"{address}/v2/health/ready", log)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
