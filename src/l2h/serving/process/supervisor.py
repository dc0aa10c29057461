"""The process that ``l2h serve`` is: it binds the port, prepares the ledger, and keeps the workers alive."""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from l2h.serving.accounts import ledger
from l2h.serving.accounts.keys import read_keys, readable_by_all
from l2h.serving.accounts.rates import make_table
from l2h.serving.errors import ServingError
from l2h.serving.process.config import ServingConfig, is_loopback
from l2h.serving.process.listeners import bind, check_tls, url
from l2h.serving.process.logs import log_as_json
from l2h.serving.process.metrics import FOLDER, forget_worker, make_folder
from l2h.serving.process.worker import READY

log = logging.getLogger("l2h.serving")

#: Starts in a row that may fail before the server gives up.
_TRIES = 3
#: Seconds after which a worker's death is no sequel of its start; deaths before that are followed by a pause.
_SOON = 10.0
_MARGIN = 5.0
#: Seconds after which a worker that says nothing is stuck (stopped, or its event loop held) and is killed.
_SILENCE = 15.0


@dataclass
class _Worker:
    """A place for a worker: its socket stays, also over the worker's death, so that connections wait for the next."""

    socket: socket.socket
    process: subprocess.Popen[bytes] | None = None
    status: int = -1
    ready: bool = False
    started: float = 0.0
    failures: int = 0
    deaths: int = 0
    again: float = 0.0
    heard: float = 0.0


@dataclass
class Supervisor:
    """Runs the server until it is told to stop.

    Args:
        config: the settings.
    """

    config: ServingConfig
    _workers: list[_Worker] = field(default_factory=list)
    _stopping: bool = False
    _told: bool = False
    _deadline: float = 0.0
    _turned: float = 0.0

    def run(self) -> int:
        """Serve; gives the exit status.

        Raises:
            L2HError: it cannot start, or its workers will not live.
        """
        config = self.config
        log_as_json(config.log_level)
        keys = _read_keys(config)
        from l2h.bundle import verify

        manifest = verify(Path(config.bundle), "server")
        check_tls(config.tls_cert, config.tls_key)
        self._workers = [_Worker(one) for one in bind(config.host, config.port, config.workers)]
        ledger.prepare(Path(config.ledger))
        self._rates = make_table()
        self._metrics, self._metrics_lock = make_folder()
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        for number, handler in ((signal.SIGTERM, self._stop), (signal.SIGINT, self._stop), (signal.SIGHUP, self._look)):
            signal.signal(number, handler)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
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

    def _loop(self) -> int:
        while True:
            self._listen()
            for worker in self._workers:
                self._tend(worker)
            alive = [worker for worker in self._workers if worker.process is not None]
            if self._stopping:
                if not alive:
                    log.info("stopped")
                    return 0
                if time.monotonic() > self._deadline:
                    log.error("drain_overrun", extra={"fields": {"workers": len(alive)}})
                    return 1
            elif not self._told and all(worker.ready for worker in self._workers):
                self._told = True
                with suppress(OSError):  # nobody reads it
                    sys.stdout.write(self._line + "\n")
                    sys.stdout.flush()
            for key, _ in self._selector.select(timeout=0.5):
                if key.data is None:
                    os.read(self._wake, 4096)
                else:
                    self._hear(key.data)

    def _listen(self) -> None:
        """Kill the workers that are stuck: connections that wait for one would wait for ever."""
        now = time.monotonic()
        if now - self._turned > _SILENCE / 5:  # we were stopped ourselves, and perhaps they with us
            for worker in self._workers:
                worker.heard = now
        self._turned = now
        for worker in self._workers:
            if worker.process is None or not worker.ready or self._stopping or now - worker.heard < _SILENCE:
                continue
            fields = {"worker": worker.process.pid, "silent": round(now - worker.heard, 1)}
            log.error("worker_stuck", extra={"fields": fields})
            worker.process.kill()
            worker.heard = now

    def _tend(self, worker: _Worker) -> None:
        """See whether a worker lives, and start it again where it does not."""
        if worker.process is not None:
            code = worker.process.poll()
            if code is None:
                return
            forget_worker(self._metrics, worker.process.pid)
            if not self._stopping:
                log.error("worker_died", extra={"fields": {"worker": worker.process.pid, "status": code}})
            self._deafen(worker)
            if worker.process.stdin is not None:
                worker.process.stdin.close()
            worker.failures = 0 if worker.ready else worker.failures + 1
            worker.deaths = worker.deaths + 1 if time.monotonic() - worker.started < _SOON else 0
            worker.process, worker.ready = None, False
            worker.again = time.monotonic() + (0.5 * 2 ** min(worker.deaths - 2, 5) if worker.deaths > 1 else 0.0)
            if self._stopping:
                return
            if worker.failures and not self._told:
                raise ServingError("a worker could not start; the line above says why")
            if worker.failures >= _TRIES:
                raise ServingError(f"a worker could not be started again in {_TRIES} tries; the lines above say why")
        if not self._stopping and time.monotonic() >= worker.again:
            self._start(worker)

    def _start(self, worker: _Worker) -> None:
        ear, mouth = os.pipe()
        descriptors = (worker.socket.fileno(), self._rates, mouth)
        command = [
            sys.executable,
            "-P",
            "-m",
            "l2h.serving.process.worker",
            self.config.to_json(),
            *map(str, descriptors),
        ]
        worker.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            env={**os.environ, FOLDER: str(self._metrics)},
        )
        os.close(mouth)
        worker.status, worker.started = ear, time.monotonic()
        self._selector.register(ear, selectors.EVENT_READ, worker)
        if self._stopping:  # the signal came while it was being started
            worker.process.terminate()

    def _hear(self, worker: _Worker) -> None:
        """A worker says that it is ready, that it lives, or is gone."""
        said = os.read(worker.status, 4096)
        if said.startswith(READY):
            worker.ready, worker.failures = True, 0
            if self._told and worker.process is not None:
                log.info("worker_replaced", extra={"fields": {"worker": worker.process.pid}})
        worker.heard = time.monotonic()
        if not said:
            self._deafen(worker)

    def _deafen(self, worker: _Worker) -> None:
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
            self._signal(signal.SIGTERM)

    def _look(self, number: int, frame: FrameType | None) -> None:
        self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if number == signal.SIGHUP and not worker.ready:  # it would die of it, and reads the newest anyway
                continue
            if worker.process is not None and worker.process.poll() is None:
                worker.process.send_signal(number)

    def _end(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            worker.socket.close()
        signal.set_wakeup_fd(-1)
        shutil.rmtree(self._metrics, ignore_errors=True)


def _read_keys(config: ServingConfig) -> str:
    """Read the keys once, to refuse a bad file at the start; what the first line says of them."""
    if config.keys is None:
        if is_loopback(config.host):
            return "open to everybody on this machine (no --keys)"
        log.warning("open_server", extra={"fields": {"host": config.host, "why": "--open without --keys"}})
        return "OPEN TO EVERYBODY"
    path = Path(config.keys)
    count = sum(key.enabled for key in read_keys(path))
    if readable_by_all(path):
        what = "everybody can read or write the key file: chmod 600 it"
        log.warning("key_file_open", extra={"fields": {"file": str(path), "warning": what}})
    return f"keys {path} ({count} in use)"
