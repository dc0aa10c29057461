"""Waiting for what another thread or process brings about, and ports for it to listen on."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds after which what a test waits for counts as stuck; a busy machine takes ten times what a quiet one does.
STUCK = 900
#: The same, for a notebook.
NBCLIENT = dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), STUCK)


def until(check: Callable[[], T], seconds: float = STUCK, *, alive: Callable[[], object] = lambda: None) -> T:
    """Poll until ``check`` gives something true, and return that; ``alive`` may raise meanwhile.

    Raises:
        AssertionError: it did not happen within ``seconds``.
    """
    end = time.monotonic() + seconds
    while not (value := check()):
        alive()
        assert time.monotonic() < end, f"it did not happen within {seconds:g} s"
        time.sleep(0.01)
    return value


def stop_when(reached: Callable[[], object], process: subprocess.Popen[str], how: signal.Signals) -> int:
    """Send a process the signal as soon as ``reached`` is true; return its exit status."""

    def runs() -> None:
        assert process.poll() is None, f"it ended too early: {process.stderr and process.stderr.read()}"

    until(reached, alive=runs)
    process.send_signal(how)
    process.communicate(timeout=STUCK)
    return process.returncode


class Stopwatch:
    """Measures a block: ``seconds`` is what it took less ``late``, what the machine was late by in waking a sleeper."""

    def __enter__(self) -> Stopwatch:
        self.late, self._over = 0.0, threading.Event()
        self._sleeper = threading.Thread(target=self._sleep)
        self._sleeper.start()
        self._begun = time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        taken = time.monotonic() - self._begun
        self._over.set()
        self._sleeper.join()
        self.seconds = taken - self.late

    def _sleep(self) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            time.sleep(0.005)
            self.late = max(self.late, time.monotonic() - begun - 0.005)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]
