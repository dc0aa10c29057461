"""The process that ``l2h serve`` is: it binds the port, prepares the accounts, and keeps the workers alive."""

import asyncio
import errno
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.bundle import verify
from l2h.serving.accounts import open_keys, prepare_accounts
from l2h.serving.errors import ServingError
from l2h.serving.process.config import ServingConfig, is_loopback
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
    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    heard: float = 0.0

    def send(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Runs the server until it is told to stop."""

    def __init__(self, config: ServingConfig) -> None:
        self.config = config
        self._stopping = asyncio.Event()
        self._announced = False
        self._deadline: asyncio.Timeout | None = None

    def run(self) -> int:
        """Serve; return the exit status. An L2HError where it cannot start, or its workers do not stay alive."""
        config = self.config
        log_as_json(config.log_level)
        keys = _describe_keys(config)
        manifest = verify(Path(config.bundle), "server")
        _check_tls(config.tls_cert, config.tls_key)
        self._workers = [_Worker(sock) for sock in _bind(config.host, config.port, config.workers)]
        self._inherited = prepare_accounts(config.ledger)
        self._metrics, self._metrics_lock = make_folder()
        where = _url(self._workers[0].socket, config.tls_cert is not None)
        self._line = (
            f"serving {manifest.name} {manifest.version} at {where}, "
            f"{config.workers} worker{'s' * (config.workers > 1)} of {config.model_threads} "
            f"thread{'s' * (config.model_threads > 1)}, {keys}, ledger {config.ledger}"
        )
        try:
            return asyncio.run(self._serve())
        finally:
            shutil.rmtree(self._metrics, ignore_errors=True)

    async def _serve(self) -> int:
        """Keep the workers until the server is stopped, then give them time to finish."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        workers: asyncio.Future[Any] = asyncio.gather(*(self._keep(worker) for worker in self._workers))
        stopping: asyncio.Future[Any] = asyncio.create_task(self._stopping.wait())
        watch = asyncio.create_task(self._kill_stuck())
        try:
            await asyncio.wait([workers, stopping], return_when=asyncio.FIRST_COMPLETED)
            async with asyncio.timeout(self.config.drain + _MARGIN) as self._deadline:
                await workers
        except TimeoutError:
            alive = sum(worker.process is not None for worker in self._workers)
            log_event("error", "drain_overrun", workers=alive)
            return 1
        finally:
            watch.cancel()
            self._stopping.set()  # none is started again
            for worker in self._workers:
                worker.send(signal.SIGKILL)
                if worker.process is not None:
                    await worker.process.wait()
        log_event("info", "stopped")
        return 0

    async def _keep(self, worker: _Worker) -> None:
        """Run a worker, and start it again whenever it dies, until the server is stopped."""
        failures = deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            process = worker.process = await self._start(worker)
            status = await process.wait()
            forget_worker(self._metrics, process.pid)
            failures = 0 if worker.ready else failures + 1
            deaths = deaths + 1 if time.monotonic() - started < _SOON else 0
            worker.process, worker.ready = None, False
            if self._stopping.is_set():
                return
            log_event("error", "worker_died", worker=process.pid, status=status)
            if failures and not self._announced:
                raise ServingError("a worker could not start; the line above says why")
            if failures >= _TRIES:
                raise ServingError(f"a worker could not be started again in {_TRIES} tries; the lines above say why")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5 * 2 ** min(deaths - 2, 5) if deaths > 1 else 0.0):
                    await self._stopping.wait()

    async def _start(self, worker: _Worker) -> asyncio.subprocess.Process:
        status, write_end = os.pipe()
        descriptors = (worker.socket.fileno(), write_end, *self._inherited)
        arguments = [self.config.to_json(), *map(str, descriptors)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "l2h.serving.process.worker", *arguments),
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            env={**os.environ, FOLDER: str(self._metrics)},
        )
        os.close(write_end)
        asyncio.get_running_loop().add_reader(status, self._read_status, worker, process, status)
        if self._stopping.is_set():  # the signal came while it was being started
            process.terminate()
        return process

    def _read_status(self, worker: _Worker, process: asyncio.subprocess.Process, status: int) -> None:
        """Note that a worker is ready, that it lives, or that it has ended."""
        message = os.read(status, 4096)
        if not message:
            asyncio.get_running_loop().remove_reader(status)
            os.close(status)
        if worker.process is not process:
            return
        worker.heard = time.monotonic()
        if not message.startswith(READY):
            return
        worker.ready = True
        if self._announced:
            log_event("info", "worker_replaced", worker=process.pid)
        elif all(other.ready for other in self._workers) and not self._stopping.is_set():
            self._announced = True
            with suppress(OSError):  # nobody reads it
                sys.stdout.write(self._line + "\n")
                sys.stdout.flush()

    async def _kill_stuck(self) -> None:
        """Kill the workers that are stuck: the connections they hold would wait for ever."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            stopped = now - last > _SILENCE / 5  # we were stopped ourselves, and perhaps they with us
            last = now
            for worker in self._workers:
                if stopped:
                    worker.heard = now
                if not worker.ready or worker.process is None or now - worker.heard < _SILENCE:
                    continue
                if not self._stopping.is_set():
                    log_event("error", "worker_stuck", worker=worker.process.pid, silent=round(now - worker.heard, 1))
                    worker.send(signal.SIGKILL)
                    worker.heard = now

    def _stop(self, number: int) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            for worker in self._workers:
                worker.send(signal.SIGTERM)
        elif number == signal.SIGINT and self._deadline is not None:  # asked twice: at once
            self._deadline.reschedule(asyncio.get_running_loop().time())

    def _reload(self) -> None:
        for worker in self._workers:
            if worker.ready:  # another one would die of it, and reads the newest anyway
                worker.send(signal.SIGHUP)


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


def _bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Return sockets bound to the port, not yet listening, one per worker; the kernel shares connections among them.

    At first one is bound alone, so that somebody else's port is noticed even if its owner shares it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServingError(f"--host {host}: {error.strerror or error}") from error
    sockets: list[socket.socket] = []
    try:
        with socket.socket(family, kind, protocol) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            address = alone.getsockname()
            if count == 1:
                sockets.append(alone.dup())
                return sockets
        for _ in range(count):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
    except OSError as error:
        for sock in sockets:
            sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ServingError(f"port {port} of {host} is in use: stop what uses it, or give another --port") from error
        raise ServingError(f"cannot listen at {host} port {port}: {error.strerror or error}") from error
    return sockets


def _check_tls(cert: str | None, key: str | None) -> None:
    if cert is None or key is None:
        return

    def ask() -> str:
        raise ServingError(f"--tls-key {key} is protected by a passphrase: give one without (openssl pkey -in ...)")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=ask)
    except (ssl.SSLError, OSError) as error:
        why = error.strerror or str(error)
        raise ServingError(
            f"--tls-cert {cert} and --tls-key {key} are no certificate and its key, in PEM: {why}"
        ) from error


def _url(sock: socket.socket, tls: bool) -> str:
    host, port = sock.getsockname()[:2]
    return f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
