"""One worker: a process with a model, a connection to the ledger, and a socket of its own at the common port.

It is started by :mod:`l2h.serving.process.supervisor`, which holds the other end of its standard input. When that end
closes
the supervisor is gone, and the worker ends as if told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import signal
import socket
import sqlite3
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import uvicorn

from l2h.errors import L2HError
from l2h.serving.http.app import App
from l2h.serving.http.connection import bounded
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.listeners import close_listener
from l2h.serving.process.logs import log_as_json
from l2h.serving.process.metrics import FOLDER
from l2h.serving.process.service import Service, make_service

log = logging.getLogger("l2h.serving")

#: Seconds, at the end, in which connections are still taken and all are told to close after their next answer; and
#: then for the requests of those that were taken last.
NOTICE = 0.3
#: What is written to the supervisor once requests can come.
READY = b"ready\n"
#: Written to it every second from then on: the event loop still turns.
BEAT = b"."
#: Seconds for TLS to begin. Such a peer is no connection yet, and counts as none.
HANDSHAKE = 5.0
_FLUSH = 0.05
#: Descriptors beside those of connections.
_DESCRIPTORS = 128
#: Seconds after which the interpreter's lock changes hands; the usual 5 ms would be added to every request.
_SWITCH = 0.0005


class _Server(uvicorn.Server):
    """uvicorn's, with signals left to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


def main(arguments: list[str]) -> int:
    """``CONFIG SOCKET RATES STATUS``: the settings as JSON, and the numbers of inherited descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the supervisor decides
    sys.setswitchinterval(_SWITCH)
    listener, rates, status = (int(number) for number in arguments[1:4])
    try:
        config = ServingConfig.from_json(arguments[0])
        log_as_json(config.log_level)
        config = replace(config, max_connections=_allow_connections(config.max_connections))
        with asyncio.Runner(loop_factory=_fast_loop()) as runner:
            runner.run(_serve(config, socket.socket(fileno=listener), rates, status))
    except (L2HError, sqlite3.Error, OSError) as error:
        log.error("worker_failed", extra={"fields": {"error": str(error)}})
        return 1
    return 0


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's where there is one, with little patience for peers that never shake hands."""
    try:
        from uvloop import Loop
    except ImportError:  # not for every platform
        from asyncio import SelectorEventLoop as Loop  # type: ignore[assignment]

    class Bounded(Loop):
        async def create_server(self, *given: Any, **options: Any) -> Any:
            if options.get("ssl") is not None:
                options["ssl_handshake_timeout"] = HANDSHAKE
            return await super().create_server(*given, **options)

    return Bounded


def _allow_connections(wanted: int) -> int:
    """Have as many descriptors as connections need, if the system lets us; else so many connections as it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            log.warning("few_descriptors", extra={"fields": {"limit": soft, "connections": soft - _DESCRIPTORS}})
            return max(1, soft - _DESCRIPTORS)
    return wanted


async def _serve(config: ServingConfig, listener: socket.socket, rates: int, status: int) -> None:
    loop = asyncio.get_running_loop()
    service = make_service(config, rates)
    app = App(service)
    server = _Server(_uvicorn_config(config, app))
    stop, look = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, look.set)
    threading.Thread(target=_outlive, args=(loop, stop), name="supervisor", daemon=True).start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if serving.done():
                await serving
            await asyncio.sleep(0.005)
        os.write(status, READY)
        os.set_blocking(status, False)
        background = [asyncio.create_task(_watch(service, look)), asyncio.create_task(_tell(app, server, status))]
        await stop.wait()
        await _drain(service, server, listener)
        for task in background:
            task.cancel()
        await serving
    finally:
        service.batcher.close()
        service.cashier.close()
        service.requests.close()


async def _drain(service: Service, server: uvicorn.Server, listener: socket.socket) -> None:
    """Take no more, and let uvicorn finish what is in flight."""
    service.draining = True
    log.info("draining", extra={"fields": {"in_flight": service.in_flight}})
    await asyncio.sleep(min(NOTICE, service.config.drain))
    await close_listener(listener)
    await asyncio.sleep(min(NOTICE, service.config.drain))  # for the requests of those just taken
    server.should_exit = True


async def _watch(service: Service, look: asyncio.Event) -> None:
    """Follow changes of the key file and the bundle."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(service.config.watch):
                await look.wait()
        forced = look.is_set()
        look.clear()
        try:
            service.ring.refresh()
            await service.slot.look(force=forced)
        except Exception:  # a watcher that dies would leave the server deaf
            log.exception("watch_failed")


async def _tell(app: App, server: uvicorn.Server, status: int) -> None:
    """Bring gauges and logs up to date, and show the supervisor that this process is not stuck."""
    count = 0
    while True:
        await asyncio.sleep(_FLUSH)
        app.service.requests.flush()
        app.service.metrics.flush()
        count += 1
        if count % 10 == 0:
            app.tell()
            app.service.metrics.connections.set(len(server.server_state.connections))
        if count % 20 == 0:
            with contextlib.suppress(OSError):
                os.write(status, BEAT)


def _outlive(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Wait for the end of the supervisor, and clean up in its place."""
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    shutil.rmtree(os.environ.get(FOLDER, ""), ignore_errors=True)
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stop.set)


def _uvicorn_config(config: ServingConfig, app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded(config.max_connections, config.idle_timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(config.idle_timeout)),
        timeout_graceful_shutdown=max(1, round(config.drain)),
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
        backlog=2048,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
