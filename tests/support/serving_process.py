"""A server as a process of its own, and a plain client of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg
from waiting import STUCK

from l2h import protocol
from l2h.serving.accounts import open_keys


class Server:
    """``python -m l2h.serving``, which ``l2h serve`` becomes, with any further settings; ready when made."""

    def __init__(
        self,
        bundle: Path,
        folder: Path,
        *,
        command: list[str] | None = None,
        wait: bool = True,
        stderr: int | None = None,
        cwd: Path | None = None,
        **settings,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ledger = folder, Path(settings.get("ledger", folder / "ledger.db"))
        self.log, self.accounts = folder / "log.jsonl", settings.get("accounts")
        # Nobody is refused because this machine is busy.
        values = {"bundle": str(bundle), "port": 0, "ledger": str(self.ledger), "watch": 0.1, "threads": 1}
        values |= {"max_wait": 60.0, **settings}
        self.process = subprocess.Popen(
            command or [sys.executable, "-P", "-m", "l2h.serving", json.dumps(values)],
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab") if stderr is None else stderr,
            text=True,
            cwd=cwd,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.line = ""
        if wait:
            self.line = self.process.stdout.readline()
            found = re.search(r"at (https?)://[^:]+:(\d+),", self.line)
            if found is None:
                raise RuntimeError(f"no server: {self.line!r} {self.log.read_text()}")
            self.scheme, self.port = found[1], int(found[2])
            self.version = self.line.split()[2]

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers."""
        return self.children("worker")

    def children(self, module: str) -> list[int]:
        """Process ids of the children that run a module of ``l2h.serving.process``."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = []
        for pid in path.read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                if f"l2h.serving.process.{module}\0" in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(int(pid))
        return found

    def memory(self, field: str = "VmRSS") -> int:
        """MiB of all workers: resident now, or with VmHWM at most so far."""
        status = "".join(Path(f"/proc/{pid}/status").read_text() for pid in self.workers)
        return sum(int(size) for size in re.findall(rf"{field}:\s+(\d+) kB", status)) // 1024

    def events(self, name: str) -> list[dict]:
        """Lines of the log."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]

    def rows(self, columns: str = "*", where: str = "true") -> list[tuple]:
        """Rows of the ledger."""
        if self.accounts is not None:
            with psycopg.connect(self.accounts) as db:
                return db.execute(f"SELECT {columns} FROM l2h.charges WHERE {where}".encode()).fetchall()
        with contextlib.closing(sqlite3.connect(self.ledger, timeout=10)) as db:
            return db.execute(f"SELECT {columns} FROM charges WHERE {where}").fetchall()

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """A plain request."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=STUCK) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metric(self, name: str, **headers: str) -> float:
        """A number of /metrics."""
        text = self.get("/metrics", **headers)[1].decode()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """Stop it, if it runs; its exit status."""
        if self.process.poll() is None:
            self.signal()
        try:
            return self.process.wait(STUCK)
        finally:
            self.kill()

    def kill(self) -> None:
        """``kill -9`` of the server and its workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def scores(self) -> np.ndarray:
        length = protocol.header_length(self.headers.get(protocol.LENGTH_HEADER.lower()))
        return protocol.decode_response(self.body, length).outputs[0].data

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]


class Client:
    """One connection, kept; made again after a failure."""

    def __init__(self, server: Server, key: str | None = None, name: str = "digits"):
        self.server, self.key, self.path = server, key, f"/v2/models/{name}/infer"
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, headers: dict[str, str] | None = None, path: str | None = None) -> Reply:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=STUCK)
        headers = dict(headers or {})
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            self._connection.request("POST", path or self.path, body, headers)
            answer = self._connection.getresponse()
            reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except BaseException:
            self.close()
            raise
        if reply.headers.get("connection") == "close":
            self.close()
        return reply

    def ask(self, x: np.ndarray, *, binary: bool = True, **headers: str) -> Reply:
        body, sent = protocol.encode_request([protocol.Tensor("x", x)], binary=binary)
        return self.post(body, {**sent, **{k.replace("_", "-"): v for k, v in headers.items()}})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass
class Load:
    """Threads that ask over and over until told to stop; what came of it."""

    server: Server
    threads: int = 8
    key: str | None = None
    statuses: Counter = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    good: list[str] = field(default_factory=list)  # idempotency keys of the answers with 200
    versions: Counter = field(default_factory=Counter)

    def __enter__(self):
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(self.threads)
        self._all = [self._pool.submit(self._run, i) for i in range(self.threads)]
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._pool.shutdown()
        for one in self._all:
            one.result()

    def _run(self, number: int) -> None:
        client = Client(self.server, self.key)
        rng = np.random.default_rng(number)
        count = 0
        while not self._stop.is_set():
            count += 1
            name = f"{number}-{count}-{time.time_ns()}"
            x = rng.integers(0, 255, (1, 1, 4, 4)).astype(np.uint8)
            try:
                reply = client.ask(x, Idempotency_Key=name)
            except (OSError, http.client.HTTPException) as error:
                self.broken.append(repr(error))
                if isinstance(error, ConnectionRefusedError):
                    time.sleep(0.02)
                continue
            self.statuses[reply.status] += 1
            if reply.status == 200:
                self.good.append(name)
                self.versions[
                    protocol.decode_response(
                        reply.body, protocol.header_length(reply.headers.get(protocol.LENGTH_HEADER.lower()))
                    ).version
                ] += 1
            elif reply.status in (429, 503):
                time.sleep(0.02)
        client.close()


def make_key(folder: Path, name: str = "alice", **options) -> tuple[Path, str, str]:
    """A key file with a key: the file, the key's id, the key."""
    path = folder / "keys.json"
    key, text = open_keys(path).add(name, **options)
    return path, key.id, text
