"""The process that ``l2h serve`` is: it binds the port, prepares the accounts, and keeps the workers alive."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from l2h.bundle import verify
from l2h.serving.accounts import open_keys, prepare_accounts
from l2h.serving.errors import ServingError
from l2h.serving.process.config import ServingConfig, is_loopback
from l2h.serving.process.listeners import bind, check_tls, url
from l2h.serving.process.logs import log_as_json, log_event
from l2h.serving.process.metrics import FOLDER, forget_worker, make_folder
from l2h.serving.process.worker import READY

#: Starts in a row that may fail before the server gives up.
_TRIES = 3
#: A worker that dies within so many seconds of its start waits before the next start.
_SOON = 10.0
#: Seconds beyond ``--drain`` after which workers that still run are killed.
_MARGIN = 5.0
#: Seconds after which a worker that says nothing is stuck (stopped, or its event loop held) and is killed.
_SILENCE = 15.0


@dataclass
class _Worker:
    """A worker's process. Its socket outlives the process, so that connections wait for the next one."""

    socket: socket.socket
    process: subprocess.Popen[bytes] | None = None
    status: int = -1
    ready: bool = False
    started: float = 0.0
    failures: int = 0
    deaths: int = 0
    start_at: float = 0.0
    heard: float = 0.0

    @property
    def running(self) -> subprocess.Popen[bytes] | None:
        """The process, if it has not ended."""
        return self.process if self.process is not None and self.process.poll() is None else None


class Supervisor:
    """Runs the server until it is told to stop.

    Args:
        config: the settings.
    """

    def __init__(self, config: ServingConfig) -> None:
        self.config = config
        self._workers: list[_Worker] = []
        self._stopping = self._announced = False
        self._deadline = self._last_turn = 0.0

    def run(self) -> int:
        """Serve; return the exit status.

        Raises:
            L2HError: the server cannot start, or its workers do not stay alive.
        """
        config = self.config
        log_as_json(config.log_level)
        keys = _describe_keys(config)
        manifest = verify(Path(config.bundle), "server")
        check_tls(config.tls_cert, config.tls_key)
        self._workers = [_Worker(sock) for sock in bind(config.host, config.port, config.workers)]
        self._inherited = prepare_accounts(config.ledger)
        self._metrics, self._metrics_lock = make_folder()
        self._selector = selectors.DefaultSelector()
        self._catch_signals()
        where = url(self._workers[0].socket, config.tls_cert is not None)
        self._line = (
            f"serving {manifest.name} {manifest.version} at {where}, "
            f"{config.workers} worker{'s' * (config.workers > 1)} of {config.model_threads} "
            f"thread{'s' * (config.model_threads > 1)}, {keys}, ledger {config.ledger}"
        )
        try:
            return self._loop()
        finally:
            self._end()

    def _catch_signals(self) -> None:
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._reload)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def _loop(self) -> int:
        while True:
            self._kill_stuck()
            for worker in self._workers:
                self._tend(worker)
            alive = [worker for worker in self._workers if worker.process is not None]
            if self._stopping:
                if not alive:
                    log_event("info", "stopped")
                    return 0
                if time.monotonic() > self._deadline:
                    log_event("error", "drain_overrun", workers=len(alive))
                    return 1
            elif not self._announced and all(worker.ready for worker in self._workers):
                self._announced = True
                with suppress(OSError):  # nobody reads it
                    sys.stdout.write(self._line + "\n")
                    sys.stdout.flush()
            for key, _ in self._selector.select(timeout=0.5):
                if key.data is None:
                    os.read(self._wake, 4096)
                else:
                    self._read_status(key.data)

    def _kill_stuck(self) -> None:
        """Kill the workers that are stuck: the connections they hold would wait for ever."""
        now = time.monotonic()
        if now - self._last_turn > _SILENCE / 5:  # we were stopped ourselves, and perhaps they with us
            for worker in self._workers:
                worker.heard = now
        self._last_turn = now
        for worker in self._workers:
            if worker.process is None or not worker.ready or self._stopping or now - worker.heard < _SILENCE:
                continue
            log_event("error", "worker_stuck", worker=worker.process.pid, silent=round(now - worker.heard, 1))
            worker.process.kill()
            worker.heard = now

    def _tend(self, worker: _Worker) -> None:
        """Start a worker, and start it again where it has died."""
        if worker.running is not None:
            return
        if worker.process is not None:
            self._bury(worker, worker.process)
            if self._stopping:
                return
            if worker.failures and not self._announced:
                raise ServingError("a worker could not start; the line above says why")
            if worker.failures >= _TRIES:
                raise ServingError(f"a worker could not be started again in {_TRIES} tries; the lines above say why")
        if not self._stopping and time.monotonic() >= worker.start_at:
            self._start(worker)

    def _bury(self, worker: _Worker, process: subprocess.Popen[bytes]) -> None:
        """Clean up after a worker that has ended, and decide when the next one starts."""
        forget_worker(self._metrics, process.pid)
        if not self._stopping:
            log_event("error", "worker_died", worker=process.pid, status=process.returncode)
        self._close_status(worker)
        if process.stdin is not None:
            process.stdin.close()
        worker.failures = 0 if worker.ready else worker.failures + 1
        worker.deaths = worker.deaths + 1 if time.monotonic() - worker.started < _SOON else 0
        worker.process, worker.ready = None, False
        worker.start_at = time.monotonic() + (0.5 * 2 ** min(worker.deaths - 2, 5) if worker.deaths > 1 else 0.0)

    def _start(self, worker: _Worker) -> None:
        status, write_end = os.pipe()
        descriptors = (worker.socket.fileno(), write_end, *self._inherited)
        arguments = [self.config.to_json(), *map(str, descriptors)]
        worker.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "l2h.serving.process.worker", *arguments],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            env={**os.environ, FOLDER: str(self._metrics)},
        )
        os.close(write_end)
        worker.status, worker.started = status, time.monotonic()
        self._selector.register(status, selectors.EVENT_READ, worker)
        if self._stopping:  # the signal came while it was being started
            worker.process.terminate()

    def _read_status(self, worker: _Worker) -> None:
        """Note that a worker is ready, that it lives, or that it has ended."""
        message = os.read(worker.status, 4096)
        if message.startswith(READY):
            worker.ready, worker.failures = True, 0
            if self._announced and worker.process is not None:
                log_event("info", "worker_replaced", worker=worker.process.pid)
        worker.heard = time.monotonic()
        if not message:
            self._close_status(worker)

    def _close_status(self, worker: _Worker) -> None:
        if worker.status >= 0:
            self._selector.unregister(worker.status)
            os.close(worker.status)
            worker.status = -1

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._stopping and number == signal.SIGINT:
            self._deadline = 0.0  # asked twice: at once
        elif not self._stopping:
            self._stopping = True
            self._deadline = time.monotonic() + self.config.drain + _MARGIN
            for worker in self._workers:
                if worker.running is not None:
                    worker.running.terminate()

    def _reload(self, number: int, frame: FrameType | None) -> None:
        for worker in self._workers:  # one that is not ready would die of it, and reads the newest anyway
            if worker.ready and worker.running is not None:
                worker.running.send_signal(signal.SIGHUP)

    def _end(self) -> None:
        for worker in self._workers:
            if worker.running is not None:
                worker.running.kill()
                worker.running.wait()
            worker.socket.close()
        signal.set_wakeup_fd(-1)
        shutil.rmtree(self._metrics, ignore_errors=True)


def _describe_keys(config: ServingConfig) -> str:
    """What the first line says of the keys; they are read, so that a bad file is refused at the start."""
    if config.keys is None:
        if is_loopback(config.host):
            return "open to everybody on this machine (no --keys)"
        log_event("warning", "open_server", host=config.host, why="--open without --keys")
        return "OPEN TO EVERYBODY"
    path = Path(config.keys)
    count = sum(key.enabled for key in open_keys(path).read())
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        what = "everybody can read or write the key file: chmod 600 it"
        log_event("warning", "key_file_open", file=str(path), warning=what)
    return f"keys {path} ({count} in use)"
