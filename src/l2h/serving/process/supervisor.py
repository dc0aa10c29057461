"""The process that ``l2h serve`` is: it binds the port, prepares the accounts, and keeps the workers alive.

It holds the bundle that was accepted, as a private copy, from which workers are started. It watches the folder of the
bundle; whatever is new there is tried by a process of its own before the workers are told to take it over.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.errors import L2HError
from l2h.metadata import is_loopback
from l2h.serving.accounts import DOUBTS, forget_reserved, open_history, open_keys, prepare_accounts, prepare_tables
from l2h.serving.accounts.reserve import waiting_inputs
from l2h.serving.dashboard.login import prepare_logins
from l2h.serving.dashboard.recorder import TrafficRecorder
from l2h.serving.errors import LedgerError, ServingError, StoreDownError
from l2h.serving.process.candidate import copy_model, require_same_interface, try_model
from l2h.serving.process.certificates import open_certificates
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.folders import make_folder
from l2h.serving.process.logs import LogWriter, log_event
from l2h.serving.process.metrics import FOLDER, KeyLabels, forget_worker, open_metrics
from l2h.serving.process.service import SERVICE
from l2h.serving.process.sockets import bind, replaced, url_of
from l2h.serving.process.watch import Signature, signature
from l2h.serving.process.worker import READY
from l2h.telemetry import MetricsSender

#: A worker that dies within so many seconds of its start waits before the next start.
_SOON = 10.0
#: Seconds of that wait: of the first, and how often it is doubled.
_PAUSE, _DOUBLED = 0.5, 4
#: Seconds beyond ``--drain`` after which workers that still run are killed.
_MARGIN = 5.0
#: Seconds after which a worker that says nothing is stuck (stopped, or its event loop held) and is killed; and so many
#: beyond ``--load-timeout`` has a worker to start with a bundle that was accepted, or to take it over.
_SILENCE = 15.0


@dataclass
class _Worker:
    """A worker's process. Its socket outlives the process, so that connections wait for the next one."""

    number: int
    socket: socket.socket
    process: asyncio.subprocess.Process | None = None
    told: int = 0  # number of the bundle that it was started with or told to take
    has: int = 0  # number of the bundle that it answers with; 0 until it is ready
    since: float = 0.0  # when it was told
    heard: float = 0.0

    def send(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def tell(self, **order: Any) -> None:
        """Tell the process what to do, once it is ready."""
        if self.has and self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")


class Supervisor:
    """Runs the server until it is told to stop."""

    def __init__(self, config: ServingConfig, log: LogWriter) -> None:
        self.config, self._log = config, log
        self._stopping = asyncio.Event()
        self._look = asyncio.Event()  # at the bundle, at once
        self._announced = False
        self._deadline: asyncio.Timeout | None = None
        self._numbers = self._bundle = 1  # of the last bundle that was tried, and of the one that is accepted
        self._recorder: TrafficRecorder | None = None

    def run(self) -> int:
        """Serve; return the exit status. An L2HError where it cannot start."""
        config = self.config
        _prepare_accounts(config)
        keys = _describe_keys(config)
        self._copies, _ = make_folder("bundle", in_memory=False)
        try:
            self._seen = self._signature()
            self._manifest = copy_model(config, self._copies / "1")
            open_certificates(config.tls_cert, config.tls_key)  # a bad one is refused at the start
            sockets = bind(config.host, config.port, config.workers)
            self._workers = [_Worker(number, sock) for number, sock in enumerate(sockets)]
            self._inherited = prepare_accounts(config.place, config.workers, config.outage_reserve)
            self._inherited += prepare_logins(config)
            place = f"ledger {config.ledger}" if config.accounts is None else "accounts in PostgreSQL"
            where = url_of(self._workers[0].socket, config.tls_cert is not None)
            self._line = (
                f"serving {config.model_name(self._manifest)} {self._manifest.version} at {where}, "
                f"{config.workers} worker{'s' * (config.workers > 1)} of {config.model_threads} "
                f"thread{'s' * (config.model_threads > 1)}, {keys}, {place}"
            )
            self._metrics, _ = make_folder("metrics", in_memory=True)
            sender = None
            try:
                _prefer_keys(config, self._metrics)
                if config.otlp is not None:
                    sender = MetricsSender(config.otlp, SERVICE, open_metrics(self._metrics).collect)
                self._recorder = TrafficRecorder(config.ledger, self._metrics) if config.dashboard else None
                return asyncio.run(self._serve())
            finally:
                if self._recorder is not None:
                    self._recorder.close()
                if sender is not None:
                    sender.close()
                shutil.rmtree(self._metrics, ignore_errors=True)
        finally:
            shutil.rmtree(self._copies, ignore_errors=True)

    async def _serve(self) -> int:
        """Keep the workers until the server is stopped, then give them time to finish."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        workers: asyncio.Future[Any] = asyncio.gather(*(self._keep(worker) for worker in self._workers))
        stopping: asyncio.Future[Any] = asyncio.create_task(self._stopping.wait())
        watch = asyncio.create_task(self._watch())
        check = asyncio.create_task(self._check())
        if self._recorder is not None:
            self._recording = asyncio.create_task(self._recorder.run(self._able))
        try:
            await asyncio.wait([workers, stopping], return_when=asyncio.FIRST_COMPLETED)
            watch.cancel()  # a bundle that is being tried is let go
            async with asyncio.timeout(self.config.drain + _MARGIN) as self._deadline:
                await workers
        except TimeoutError:
            alive = sum(worker.process is not None for worker in self._workers)
            self._report("error", "drain_overrun", workers=alive)
            return 1
        finally:
            check.cancel()
            self._stopping.set()  # none is started again
            for worker in self._workers:
                worker.send(signal.SIGKILL)
                if worker.process is not None:
                    await worker.process.wait()
        self._report("info", "stopped")
        return 0

    async def _keep(self, worker: _Worker) -> None:
        """Run a worker, and start it again whenever it dies, until the server is stopped."""
        deaths = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                process = worker.process = await self._start(worker)
                status = await process.wait()
                forget_worker(self._metrics, process.pid)
                forget_reserved(self._inherited, worker.number, self.config.workers)
                died: dict[str, Any] = {"worker": process.pid, "status": status}
            except OSError as error:  # no more processes or descriptors
                died = {"error": str(error)}
            failed = not worker.has
            deaths = deaths + 1 if failed or time.monotonic() - started < _SOON else 0
            worker.process, worker.has = None, 0
            if self._stopping.is_set():
                return
            self._report("error", "worker_died", **died)
            if failed and not self._announced:
                raise ServingError("a worker could not start; the line above says why")
            if failed:  # nobody is to wait for it: others answer, or the connection is refused
                with suppress(OSError):
                    worker.socket = replaced(worker.socket)
            self._tell_down()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE * 2 ** min(deaths - 2, _DOUBLED) if deaths > 1 else 0.0):
                    await self._stopping.wait()

    async def _start(self, worker: _Worker) -> asyncio.subprocess.Process:
        worker.told, worker.since = self._bundle, time.monotonic()
        settings = self.config.for_worker(self._copies / str(worker.told))
        status, write_end = os.pipe()
        descriptors = (worker.socket.fileno(), write_end, *self._inherited)
        arguments = (settings, str(worker.number), *map(str, descriptors))
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "l2h.serving.process.worker", *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=descriptors,
                env={**os.environ, FOLDER: str(self._metrics), DOUBTS: self.config.doubts_file},
            )
        except OSError:
            os.close(status)
            raise
        finally:
            os.close(write_end)
        asyncio.get_running_loop().add_reader(status, self._read_status, worker, process, status)
        if self._stopping.is_set():  # the signal came while it was being started
            process.terminate()
        return process

    def _read_status(self, worker: _Worker, process: asyncio.subprocess.Process, status: int) -> None:
        """Note that a worker has its bundle, that it lives, or that it has ended."""
        message = os.read(status, 65536)
        if not message:
            asyncio.get_running_loop().remove_reader(status)
            os.close(status)
        if worker.process is not process:
            return
        worker.heard = time.monotonic()
        if READY not in message:
            return
        started, worker.has = not worker.has, worker.told
        self._tell_bundle(worker)
        if not started:
            return
        self._tell_down()
        if self._announced:
            self._report("info", "worker_replaced", worker=process.pid)
        elif all(other.has for other in self._workers) and not self._stopping.is_set():
            self._announced = True
            self._report("info", "started", version=self._manifest.version)
            with suppress(OSError):  # nobody reads it
                sys.stdout.write(self._line + "\n")
                sys.stdout.flush()

    async def _watch(self) -> None:
        """Follow changes of the bundle's folder."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.watch):
                    await self._look.wait()
            forced = self._look.is_set()
            self._look.clear()
            now = self._signature()
            # A folder being replaced has no manifest for a moment.
            if (now == self._seen and not forced) or not now or now[0] is None:
                continue
            self._seen = now
            try:
                await self._consider()
            except Exception:  # noqa: BLE001 - without its watcher the server would follow no change any more
                log_event("error", "watch_failed", traceback=traceback.format_exc().rstrip())

    async def _consider(self) -> None:
        """Accept the folder's bundle and have the workers take it over; one that cannot be used changes nothing."""
        self._numbers += 1
        copy, before = self._copies / str(self._numbers), self._manifest
        try:
            manifest = await try_model(self.config, copy)
            require_same_interface(manifest, before)
        except (L2HError, OSError) as error:
            self._report("error", "bundle_refused", error=str(error), serving=before.version)
            for worker in self._workers:
                worker.tell(refused=1)
        else:
            if manifest.version == before.version:
                log_event("info", "bundle_unchanged", version=before.version)
            else:
                self._bundle, self._manifest = self._numbers, manifest
                self._report("info", "bundle_accepted", version=manifest.version, before=before.version)
                for worker in self._workers:
                    self._tell_bundle(worker)
                while any(worker.process is not None and worker.has != self._bundle for worker in self._workers):
                    await asyncio.sleep(0.05)  # for as long as they may need the copy before
        finally:
            for old in self._copies.iterdir():
                if old.name != str(self._bundle):
                    shutil.rmtree(old, ignore_errors=True)

    def _tell_bundle(self, worker: _Worker) -> None:
        """Have a worker take over what is accepted, unless it has it, or is still at work on another."""
        if worker.has == worker.told != self._bundle:
            worker.told, worker.since = self._bundle, time.monotonic()
            worker.tell(bundle=str(self._copies / str(self._bundle)))

    def _report(self, level: str, event: str, **fields: Any) -> None:
        """Log an event, and have the dashboard remember it."""
        log_event(level, event, **fields)
        if self._recorder is not None:
            self._recorder.note(event, **fields)

    def _able(self) -> int:
        """How many workers can answer."""
        return sum(bool(worker.has) for worker in self._workers)

    def _tell_down(self) -> None:
        down = len(self._workers) - self._able()
        for worker in self._workers:
            worker.tell(down=down)

    async def _check(self) -> None:
        """Kill the workers that are stuck: the connections they hold would wait for ever."""
        last, dropped = time.monotonic(), 0
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            stopped = now - last > _SILENCE / 5  # we were stopped ourselves, and perhaps they with us
            last = now
            for worker in self._workers:
                if stopped:
                    worker.heard = worker.since = now
                if worker.process is None or self._stopping.is_set():
                    continue
                silent = now - worker.heard if worker.has else 0.0
                loading = now - worker.since if worker.has != worker.told else 0.0
                if silent > _SILENCE or loading > _SILENCE + self.config.load_timeout:
                    seconds = {"silent": round(silent, 1), "loading": round(loading, 1)}
                    self._report("error", "worker_stuck", worker=worker.process.pid, **seconds)
                    worker.send(signal.SIGKILL)
                    worker.heard = worker.since = now
            counting = next((worker for worker in self._workers if worker.has), None)
            if counting is not None and self._log.dropped > dropped:
                counting.tell(dropped=self._log.dropped - dropped)
                dropped = self._log.dropped

    def _stop(self, number: int) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            for worker in self._workers:
                worker.send(signal.SIGTERM)
        elif number == signal.SIGINT and self._deadline is not None:  # asked twice: at once
            self._deadline.reschedule(asyncio.get_running_loop().time())

    def _reload(self) -> None:
        self._look.set()
        for worker in self._workers:
            worker.tell(keys=True)

    def _signature(self) -> tuple[Signature, ...]:
        """Of the files that the model comes from; those of a function that is gone for the moment have none."""
        try:
            return tuple(signature(file) for file in self.config.files())
        except L2HError:
            return (None,)


def _prepare_accounts(config: ServingConfig) -> None:
    """Prepare a database, or say that the server begins without it; name what an earlier server left uncharged."""
    why = prepare_tables(config.place, config.outage_reserve)
    if why is not None:
        log_event("error", "accounts_down", error=why)
    if config.outage_reserve is not None:
        return
    try:
        waiting = waiting_inputs(config.reserve_file)
    except StoreDownError as error:  # this server does not need it
        log_event("warning", "reserve_unreadable", file=config.reserve_file, error=str(error))
        return
    if waiting:
        what = "start with --accounts and --when-accounts-fail serve to charge them"
        log_event("warning", "reserve_waiting", file=config.reserve_file, inputs=waiting, warning=what)


def _describe_keys(config: ServingConfig) -> str:
    """What the first line says of the keys; they are read, so that a bad file is refused at the start."""
    if config.accounts is not None and not config.open:
        count = sum(key.enabled for key in open_keys(config.accounts, config.outage_reserve).read())
        if not count:  # the first may be made from within a container that this server keeps alive
            what = "nobody can ask yet: `l2h keys add NAME --accounts URL` makes a key"
            log_event("warning", "no_keys", warning=what)
        return f"{count} keys in use"
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


def _prefer_keys(config: ServingConfig, metrics: Path) -> None:
    """Where there are more keys than may have metrics of their own, choose those that were used most."""
    place = config.key_place
    keys = [] if place is None else [key.id for key in open_keys(place, config.outage_reserve).read() if key.enabled]
    if len(keys) > config.metric_keys:
        known = set(keys)
        with suppress(LedgerError):  # a database that is down: whoever comes first
            used = [key_id for key_id in open_history(config.place).most_used() if key_id in known]
            KeyLabels(metrics, config.metric_keys).prefer(used)
