"""Processes that keep permits or charges and may die at any write; each is forked in a millisecond.

``python lives.py SOCKET`` imports what they need, once. Every connection to the socket then gets a process of its own,
which does what it is told, one line of JSON at a time. A connection that ends says that the process has died.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from preload import Preload


class DiedError(Exception):
    """The process has died before it answered."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._lines = self._socket.makefile("rb")
        self._pid: int = json.loads(self._lines.readline())

    def tell(self, name: str, *arguments: Any) -> None:
        """Have something done; :meth:`answer` waits for it."""
        self._socket.sendall(json.dumps([name, *arguments]).encode() + b"\n")

    def answer(self) -> Any:
        """Return what came of it.

        Raises:
            DiedError: the process has died meanwhile.
        """
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = b""
        if not line.endswith(b"\n"):
            self.kill()
            raise DiedError
        return json.loads(line)

    def call(self, name: str, *arguments: Any) -> Any:
        self.tell(name, *arguments)
        return self.answer()

    def has_answered(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def kill(self) -> None:
        """``kill -9``; it is gone when this returns."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        while self._lines.read(1):  # the end comes when the kernel has closed its files, and with them its locks
            pass
        self._lines.close()
        self._socket.close()


class Lives:
    """The process that forks all others."""

    def __init__(self, folder: Path, preload: Preload) -> None:
        self._address = str(folder / "lives")
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address],
            stdout=subprocess.PIPE,
            env={**os.environ, **preload.environment, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._idle: list[Life] = []

    def begin(self) -> Life:
        """Return a process: a new one, or one that was given back alive."""
        return self._idle.pop() if self._idle else Life(self._address)

    def give_back(self, life: Life) -> None:
        """Have the process close what it has open, and keep it for the next history."""
        life.call("close")
        self._idle.append(life)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()  # the processes that are left have it too, and end with their connections


class Permits:
    """What a process does with a limiter."""

    def __init__(self, limit: str, path: str) -> None:
        from l2h.limits import Limiter, RateLimit

        self._limiter = Limiter(RateLimit.parse(limit), path=path, pacing=False)

    def allow(self) -> list[Any]:
        permit = self._limiter.allow(1.0)
        return [permit.granted, permit.reason, permit.position]

    def close(self) -> None:
        self._limiter.close()


class Charges:
    """What a worker does with a ledger; keys are written as [id, quota]."""

    def __init__(self, path: str) -> None:
        from l2h.serving.accounts import open_accounts, prepare_accounts

        inherited = prepare_accounts(path)
        try:
            self._store = open_accounts(None, path, inherited)
        finally:
            for descriptor in inherited:
                os.close(descriptor)

    def charge(self, rows: list[Any]) -> list[Any]:
        from l2h.serving.accounts.key import Key, Quota
        from l2h.serving.accounts.store import Charge

        charges = [
            Charge(
                Key(key, key, "", "", quota=None if quota is None else Quota.parse(quota)),
                *("r", name, None if name is None else content.encode(), "digits", "1", inputs, inputs),
            )
            for (key, quota), name, content, inputs in rows
        ]
        return [list(result)[:3] for result in self._store.charge(charges)]

    def probe(self) -> None:
        self._store.probe()

    def maintain(self) -> None:
        self._store.maintain()
        for thread in threading.enumerate():
            if thread.name == "ledger-copy":
                thread.join()

    def close(self) -> None:
        self._store.close()


def _serve(connection: socket.socket) -> None:
    """Make an object of a class here, then call its methods; an error of L2H is an answer."""
    from l2h.errors import L2HError

    thing: Any = None
    lines = connection.makefile("rb")
    connection.sendall(b"%d\n" % os.getpid())
    while line := lines.readline():
        name, *arguments = json.loads(line)
        try:
            if name in ("Permits", "Charges"):
                thing, result = globals()[name](*arguments), None
            else:
                result = getattr(thing, name)(*arguments)
        except L2HError as error:
            result = {"error": str(error)}
        connection.sendall(json.dumps(result).encode() + b"\n")


def main() -> None:
    import l2h.limits.sqlite
    import l2h.serving.accounts.sqlite  # noqa: F401

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.disable()  # a collection would copy every page that a process shares with its parent
    gc.freeze()
    os.write(1, b"ready\n")
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                _serve(connection)
            finally:
                os._exit(1)
        connection.close()


if __name__ == "__main__":
    main()
