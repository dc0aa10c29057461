"""Somebody's API as a process of its own: it classifies the clouds, counts what it is paid for, and fails when told.

    python api_process.py FOLDER

``POST /ask`` takes ``{"rows": [[...]]}`` and gives ``{"scores": [[...]]}``. In the folder it writes its port, and a
line of ``bill`` for every answer: the hashes of its rows. The file ``mode`` says what it does: ``up``; ``down``, status
503; ``N down``, the same after N more answers.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np


class Api:
    """The API's side that a test sees."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{(self.folder / 'port').read_text()}/ask"

    def do(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)

    @property
    def calls(self) -> list[list[str]]:
        """The rows of every call that was answered."""
        bill = self.folder / "bill"
        return [line.split() for line in bill.read_text().splitlines()] if bill.exists() else []

    @property
    def paid(self) -> Counter[str]:
        """How often each row was answered."""
        return Counter(row for call in self.calls for row in call)


@contextmanager
def running_api(folder: Path) -> Iterator[Api]:
    api = Api(folder)
    api.do("up")
    process = subprocess.Popen([sys.executable, __file__, str(folder)])
    try:
        while not (folder / "port").exists():
            assert process.poll() is None
            time.sleep(0.02)
        yield api
    finally:
        process.kill()
        process.wait()


def hashed(row: Any) -> str:
    return hashlib.sha256(np.asarray(row, np.float64).tobytes()).hexdigest()[:16]


def post(url: str, X: np.ndarray, timeout: float = 30.0) -> np.ndarray:
    """Ask it, as an adapter would."""
    body = json.dumps({"rows": X.reshape(len(X), -1).tolist()}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=timeout) as answer:
        return np.array(json.load(answer)["scores"])


def serve(folder: Path) -> None:
    centres = np.random.default_rng(0).normal(size=(3, 4)) * 1.5  # those of the clouds

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["rows"]
            mode = (folder / "mode").read_text()
            if mode == "down":
                return self._reply(503, {"error": "come back later"})
            if mode != "up":
                left, then = mode.split()
                (folder / "mode").write_text(then if left == "1" else f"{int(left) - 1} {then}")
            with (folder / "bill").open("a") as bill:
                bill.write(" ".join(map(hashed, rows)) + "\n")
            scores = np.array(rows) @ centres.T - (centres**2).sum(axis=1) / 2
            self._reply(200, {"scores": scores.tolist()})

        def _reply(self, status: int, values: dict[str, Any]) -> None:
            body = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    (folder / "port.tmp").write_text(str(server.server_port))
    (folder / "port.tmp").rename(folder / "port")
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
