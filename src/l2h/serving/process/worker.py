"""One worker: a process with a model, the accounts, and a socket of its own at the common port.

It is started by :mod:`l2h.serving.process.supervisor`, which tells it what to do by JSON lines on its standard input.
When that closes, the supervisor has ended, and the worker stops as if told to.
"""

import asyncio
import contextlib
import ctypes
import gc
import itertools
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn

from l2h.connections import Places, TlsHandshake, bounded
from l2h.errors import L2HError
from l2h.serving.errors import KeyStoreError, ServingError
from l2h.serving.http.app import App
from l2h.serving.model.model import ServedModel
from l2h.serving.process.certificates import Certificates, open_certificates
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.logs import PrintedLines, log_as_json, log_event
from l2h.serving.process.metrics import FOLDER
from l2h.serving.process.service import Service

#: What is written to the supervisor once requests can come, and whenever another bundle was taken over.
READY = b"ready\n"
#: Written to it every second from then on: the event loop still turns.
_BEAT = b"."
#: Seconds, at the end, in which connections are still taken and all are told to close after their next answer; and
#: then for the requests of those that were taken last.
_NOTICE = 0.3
#: Seconds between two flushes of the metrics.
_FLUSH = 0.05
#: Seconds between two times that the news of devices are written.
_NEWS = 1.0
#: Descriptors beside those of connections.
_DESCRIPTORS = 128
#: New objects after which garbage is looked for.
_YOUNG = 10_000
#: Seconds after which the interpreter's lock changes hands; the usual 5 ms would be added to every request.
_SWITCH = 0.0005

#: Of Linux: a filter of packets for a socket, and its instruction "return", here with 0 bytes.
_ATTACH_FILTER, _RETURN = 26, 0x06


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves the signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: list[str]) -> int:
    """Run a worker; return the exit status.

    The arguments are the settings as JSON, the worker's number, then the inherited descriptors: the socket, the pipe to
    the supervisor, and those of the accounts.
    """
    for ignored in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all; the supervisor decides
        signal.signal(ignored, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH)
    log = log_as_json(json.loads(arguments[0])["log_level"])
    sys.stdout = PrintedLines()
    number, listener, status, *inherited = map(int, arguments[1:])
    try:
        config = ServingConfig.from_json(arguments[0])
        config = replace(config, max_connections=_allow_connections(config.max_connections))
        certificates = open_certificates(config.tls_cert, config.tls_key)
        with asyncio.Runner(loop_factory=_fast_loop(certificates)) as runner:
            service = partial(Service, config, log, inherited, number)
            runner.run(_serve(service, socket.socket(fileno=listener), status, certificates))
    except (L2HError, OSError) as error:
        log_event("error", "worker_failed", error=str(error))
        return 1
    except Exception:  # noqa: BLE001 - Python would write it to stderr, where a full pipe would hold it
        log_event("error", "worker_failed", traceback=traceback.format_exc().rstrip())
        return 1
    finally:
        log.close()
    return 0


def _fast_loop(certificates: Certificates | None) -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop where there is one, which counts a peer as a connection before TLS begins."""
    try:
        from uvloop import Loop
    except ImportError:  # not for every platform
        from asyncio import SelectorEventLoop as Loop  # type: ignore[assignment]

    class Bounded(Loop):
        async def create_server(self, *given: Any, **options: Any) -> Any:
            if certificates is not None:
                given = partial(TlsHandshake, given[0], certificates.current), *given[1:]
            return await super().create_server(*given, **options)

    return Bounded


def _allow_connections(wanted: int) -> int:
    """Raise the limit of descriptors to what connections need; return how many connections the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            log_event("warning", "few_descriptors", limit=soft, connections=soft - _DESCRIPTORS)
            return max(1, soft - _DESCRIPTORS)
    return wanted


async def _serve(
    make: Callable[[], Service], listener: socket.socket, status: int, certificates: Certificates | None
) -> None:
    loop = asyncio.get_running_loop()
    service = make()
    config = service.config
    per_address = config.max_per_address or config.max_connections
    protocol = bounded(config.max_connections, config.idle_timeout, per_address)
    uvicorn_config = uvicorn.Config(
        App(service),
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(config.idle_timeout)),
        timeout_graceful_shutdown=max(1, round(config.drain)),
        backlog=2048,
    )
    server = _Server(uvicorn_config)
    stop, orders = asyncio.Event(), _Orders(service, status)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    threading.Thread(target=_listen, args=(loop, orders, stop), name="supervisor", daemon=True).start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if serving.done():
                await serving
            await asyncio.sleep(0.005)
        gc.collect()
        gc.freeze()  # what was made so far stays: to look at it again and again takes time from every request
        gc.set_threshold(_YOUNG)
        os.write(status, READY)
        os.set_blocking(status, False)
        background = [
            asyncio.create_task(_watch_files(service, orders.look, protocol.places, certificates)),
            asyncio.create_task(_report(service, server, status)),
            asyncio.create_task(_keep_news(service)),
        ]
        await stop.wait()
        await _drain(service, server, listener)
        for task in background:
            task.cancel()
        await serving
    finally:
        service.close()


async def _drain(service: Service, server: uvicorn.Server, listener: socket.socket) -> None:
    """Take no more connections, and let uvicorn finish what is in flight."""
    service.draining = True
    log_event("info", "draining", in_flight=service.in_flight)
    await asyncio.sleep(min(_NOTICE, service.config.drain))
    await _close_listener(listener)
    await asyncio.sleep(min(_NOTICE, service.config.drain))  # for the requests of those just taken
    server.should_exit = True


async def _close_listener(sock: socket.socket) -> None:
    """Take no more connections, and lose none that was made: the event loop accepts first those that wait.

    To close the descriptor would not be enough, since the supervisor holds the socket as well.
    """
    with contextlib.suppress(OSError):
        if sys.platform == "linux":  # from here on the kernel answers no new connections
            nothing = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
            sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(nothing)))
        for _ in range(100):
            await asyncio.sleep(0.01)
            if not select.select([sock], [], [], 0)[0]:
                break
        sock.shutdown(socket.SHUT_RDWR)


class _Orders:
    """Does what the supervisor says; all methods run on the event loop."""

    def __init__(self, service: Service, status: int) -> None:
        self.look = asyncio.Event()  # the keys and the certificate are to be read at once
        self._service, self._status, self._loop = service, status, asyncio.get_running_loop()

    def follow(self, order: dict[str, Any]) -> None:
        """Do what one line says."""
        metrics = self._service.metrics
        metrics.reloads.labels("refused").inc(order.get("refused", 0))
        metrics.log_dropped.inc(order.get("dropped", 0))
        self._service.workers_down = order.get("down", self._service.workers_down)
        if "keys" in order:
            self.look.set()
        if "bundle" in order:  # not in the loop's threads, whose end is waited for
            threading.Thread(target=self._load, args=(order["bundle"],), name="load", daemon=True).start()

    def _load(self, bundle: str) -> None:
        """Load what the supervisor accepted; a worker that does not manage is killed and started with it."""
        try:
            model = self._service.load(bundle)
        except (L2HError, OSError) as error:
            log_event("error", "bundle_refused", error=str(error), serving=self._service.current.model.version)
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take, model)

    def _take(self, model: ServedModel) -> None:
        self._service.current.replace(model)
        with contextlib.suppress(OSError):
            os.write(self._status, READY)


async def _watch_files(
    service: Service, look: asyncio.Event, places: Places, certificates: Certificates | None
) -> None:
    """Follow changes of the keys and the certificate. A peer whose key was revoked is a stranger again."""
    keys, cert = service.accounts.keys, service.config.tls_cert
    file = service.config.keys or "the database"
    while keys is not None or certificates is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(service.config.watch):
                await look.wait()
        look.clear()
        try:
            count = None if keys is None else await asyncio.to_thread(keys.refresh)
            if count is not None:
                places.forget_known()
                log_event("info", "keys_reloaded", file=file, keys=count)
        except KeyStoreError as error:
            log_event("error", "keys_refused", file=file, error=str(error))
        except Exception:  # noqa: BLE001 - without its watcher the server would follow no change any more
            log_event("error", "watch_failed", traceback=traceback.format_exc().rstrip())
        try:
            if certificates is not None and await asyncio.to_thread(certificates.refresh):
                log_event("info", "certificate_reloaded", file=cert)
        except ServingError as error:
            log_event("error", "certificate_refused", file=cert, error=str(error))


async def _report(service: Service, server: uvicorn.Server, status: int) -> None:
    """Bring the metrics up to date, and show the supervisor that this process is not stuck."""
    for count in itertools.count(1):
        await asyncio.sleep(_FLUSH)
        service.metrics.flush()
        service.deliveries.look()
        service.accounts.flush()
        if count % 10 == 0:
            service.update_gauges()
            service.metrics.connections.set(len(server.server_state.connections))
        if count % 20 == 0:
            if service.batcher.running() > service.config.load_timeout:
                log_event("error", "model_stuck", seconds=round(service.batcher.running(), 1))
                service.log.close()
                os._exit(1)  # its thread cannot be ended; the supervisor starts another worker
            with contextlib.suppress(OSError):
                os.write(status, _BEAT)


async def _keep_news(service: Service) -> None:
    """Write what devices reported, once a second."""
    while True:
        await asyncio.sleep(_NEWS)
        await asyncio.to_thread(service.devices.flush, service.current.model.origin)


def _listen(loop: asyncio.AbstractEventLoop, orders: _Orders, stop: asyncio.Event) -> None:
    """Hand on what the supervisor says. When it has ended, clean up in its place, and stop."""
    with contextlib.suppress(RuntimeError):  # the loop has ended
        with contextlib.suppress(OSError), open(0, "rb", closefd=False) as lines:
            for line in lines:
                loop.call_soon_threadsafe(orders.follow, json.loads(line))
        shutil.rmtree(os.environ.get(FOLDER, ""), ignore_errors=True)
        loop.call_soon_threadsafe(stop.set)


if __name__ == "__main__":
    # A thread that still loads a model would abort the process where the interpreter ends in order.
    os._exit(main(sys.argv[1:]))
