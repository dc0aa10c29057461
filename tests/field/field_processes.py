"""The server and the proxy before it, as real processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
from waiting import free_port, until

from l2h import EdgeClient

HERE = Path(__file__).parent


def come_up(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server answers, as long as its process runs."""

    def answers() -> bool:
        try:
            return client.get(url).status_code == 200
        except httpx.HTTPError:
            return False

    def runs() -> None:
        assert process.poll() is None, f"it did not come up: {log.read_text(errors='replace')[-3000:]}"

    with httpx.Client(timeout=30) as client:
        until(answers, alive=runs)


def calm_deadline(edge: EdgeClient, X: np.ndarray) -> float:
    """A deadline that is kept where nothing is broken: 0.4 s, or on a busy machine twenty times a slow answer."""

    def ask(i: int) -> float:
        begun = time.monotonic()
        edge.predict(X[i : i + 1])
        return time.monotonic() - begun

    with ThreadPoolExecutor(8) as pool:
        return max(0.4, 20 * float(np.quantile(list(pool.map(ask, range(160))), 0.95)))


class Server:
    """``l2h serve`` on a port of its own; it can be killed, stopped, started again, and denied its disk."""

    def __init__(self, bundle: Path, folder: Path, *flags: str) -> None:
        self.bundle, self.folder, self.flags = bundle, folder, flags
        self.port = free_port()
        self.ledger = folder / "ledger.db"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        command = [sys.executable, "-m", "l2h", "serve", str(self.bundle), "--port", str(self.port)]
        command += ["--ledger", str(self.ledger), *self.flags]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        come_up(self.process, f"{self.address}/v2/health/ready", self.folder / "server.log")
        return self

    def signal(self, number: int) -> None:
        """To every process of the server."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def stop(self) -> int:
        """End it as a process manager does, and return its status."""
        assert self.process is not None
        self.process.terminate()
        status, self.process = self.process.wait(), None
        return status

    def kill(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def allow_files(self, size: int) -> None:
        """No file that the server writes may grow beyond this: what a full disk is to it. -1: as before."""
        assert self.process is not None
        for pid in members(self.process.pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def members(group: int) -> list[int]:
    """The processes of a session, by ``/proc``."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == group:
                found.append(int(path.name))
    return found


class Proxy:
    """:mod:`field_proxy` as a process."""

    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "field_proxy.py"), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = f"http://127.0.0.1:{self._heard()['port']}"

    def mode(self, name: str, delay: float = 0.0) -> None:
        self._say(f"mode {name} {delay}")
        assert self._heard() == {"mode": name}

    def report(self) -> dict[str, Any]:
        self._say("report")
        return self._heard()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found
