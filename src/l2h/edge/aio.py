"""``AsyncEdgeClient``: the device's side for coroutines."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy.typing as npt

from l2h.answers import Answers
from l2h.bundle import DeviceBundle
from l2h.costs import Costs
from l2h.decision import Judgement
from l2h.edge.call import PredictCall
from l2h.edge.core import EdgeCore
from l2h.edge.errors import EdgeError

T = TypeVar("T")


class AsyncEdgeClient(EdgeCore):
    """:class:`EdgeClient` with ``await``; the arguments, the answers and the errors are the same.

    The event loop is never blocked: the device's own answer is computed in a thread, and the requests run on a loop of
    the client's own, so that one client may be used from several loops. A ``predict`` that is cancelled ends its
    requests, and sends none where it had not yet. The deadline counts from the call on, the wait for a thread included.

    Example:
        >>> async with AsyncEdgeClient("bundle/", server="http://host:8080") as edge:  # doctest: +SKIP
        ...     answers = await edge.predict(x)
    """

    def __init__(self, bundle: str | Path | DeviceBundle, server: str | None = None, **options: Any) -> None:
        super().__init__(bundle, server, **options)
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="l2h-edge-local")

    async def predict(self, X: npt.ArrayLike, costs: Costs | None = None, deadline: float | None = None) -> Answers:
        """Answer every input, as :meth:`EdgeClient.predict` does."""
        call = PredictCall()
        work = self._submit(self._begin, call, X, costs, deadline)
        try:
            answers = await asyncio.wrap_future(work)
        except BaseException:
            call.abandoned = True
            # What the thread sends before it sees that is ended as well.
            work.add_done_callback(lambda _: call.abandon())
            raise
        if answers is not None:
            return answers
        waiting = [asyncio.wrap_future(request.future) for request in call.requests]
        try:
            await asyncio.wait(waiting, timeout=call.seconds_left())
        except BaseException:
            call.abandon()
            raise
        return self._finish(call)

    async def judge(self, X: npt.ArrayLike, costs: Costs | None = None) -> Judgement:
        """Return what the rejector makes of every input, without asking the server."""
        return await asyncio.wrap_future(self._submit(self._judge, X, costs))

    async def check(self, timeout: float = 5.0) -> None:
        """Compare the server with the bundle, as :meth:`EdgeClient.check` does."""
        future = asyncio.wrap_future(self._start_check(timeout))
        try:
            await asyncio.wait_for(asyncio.shield(future), timeout + 0.5)
        except TimeoutError:
            raise self._late_check() from None

    async def close(self) -> None:
        """Close the connections; calls under way get their local answers, later ones raise :class:`EdgeError`."""
        await asyncio.to_thread(self._close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return self._threads.submit(work, *arguments)
        except RuntimeError:  # the threads are gone
            raise EdgeError("this edge client is closed: make another") from None
