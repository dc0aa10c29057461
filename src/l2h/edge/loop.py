"""A thread with an event loop, on which every request of an edge client runs."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Question = tuple[Any, ...]


class LoopThread:
    """Runs coroutines for callers of any thread, and ``ending`` last; the thread starts with the first of them."""

    def __init__(self, ending: Callable[[], Awaitable[None]]) -> None:
        self._ending = ending
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._pid = os.getpid()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; raise ``RuntimeError`` where the thread was stopped."""
        try:
            with self._lock:
                if self._stopped:
                    raise RuntimeError("the loop is stopped")
                if self._loop is None:
                    self._loop, self._thread = self._start()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise

    def call(self, work: Callable[[], object]) -> None:
        """Call a function on the loop, if it still runs."""
        with self._lock:
            if self._loop is not None and not self._stopped:
                self._loop.call_soon_threadsafe(work)

    def stop(self, timeout: float = 2.0) -> None:
        """Cancel what is under way and end the thread; do nothing in a forked child, which has no such thread."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            loop, thread = self._loop, self._thread
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _start(self) -> tuple[_Loop, threading.Thread]:
        loop = _Loop()
        thread = threading.Thread(target=self._run, args=(loop,), name="l2h-edge", daemon=True)
        try:
            thread.start()
        except BaseException:  # there are too many threads: the next caller tries again
            loop.close()
            raise
        return loop, thread

    def _run(self, loop: _Loop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            with suppress(TimeoutError):
                loop.run_until_complete(asyncio.wait_for(_gather(left), 1.0))
                loop.run_until_complete(asyncio.wait_for(_gather([self._ending()]), 1.0))
        finally:
            asyncio.set_event_loop(None)
            loop.close()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop on which a host name look-up that hangs holds nothing else up.

    The usual loop looks names up in a pool of few threads, for which the interpreter waits when it ends. Here every
    name has at most one look-up under way, in a thread that nobody waits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lookups: dict[Question, asyncio.Future[list[Any]]] = {}

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        question = (host, port, family, type, proto, flags)
        lookup = self._lookups.get(question)
        if lookup is None:
            lookup = self._lookups[question] = self.create_future()
            # Whoever asked may have gone: a failure that nobody reads is not to be logged.
            lookup.add_done_callback(lambda done: done.cancelled() or done.exception())
            thread = threading.Thread(target=self._look_up, args=(question, lookup), name="l2h-dns", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there are too many threads: the next caller tries again
                del self._lookups[question]
                raise OSError(f"cannot look {host} up: {error}") from error
        return await asyncio.shield(lookup)

    def _look_up(self, question: Question, lookup: asyncio.Future[list[Any]]) -> None:
        try:
            settle = partial(lookup.set_result, socket.getaddrinfo(*question))
        except (OSError, UnicodeError) as error:
            settle = partial(lookup.set_exception, error)

        def finish() -> None:
            self._lookups.pop(question, None)
            if not lookup.done():
                settle()

        with suppress(RuntimeError):  # the loop has ended meanwhile
            self.call_soon_threadsafe(finish)


async def _gather(work: Any) -> None:
    await asyncio.gather(*work, return_exceptions=True)
