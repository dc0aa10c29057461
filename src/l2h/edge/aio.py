"""``AsyncEdgeClient``: the device's side, for coroutines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy.typing as npt

from l2h.answers import Answers
from l2h.bundle import DeviceBundle
from l2h.costs import Costs
from l2h.decision import Judgement
from l2h.edge.client import EdgeClient
from l2h.edge.core import Call, Draft
from l2h.edge.errors import EdgeError
from l2h.edge.stats import EdgeStats

T = TypeVar("T")


class AsyncEdgeClient:
    """:class:`EdgeClient` with ``await``; the arguments and the answers are the same.

    The event loop is never blocked: the device's own answer is computed in a thread, and the requests run on a loop of
    the client's own, so that one client may be used from several loops. A ``predict`` that is cancelled takes its
    requests with it, and sends none where it had not yet. The deadline counts from the call on, the wait for a thread
    included.

    Example:
        >>> async with AsyncEdgeClient("bundle/", server="http://host:8080") as edge:  # doctest: +SKIP
        ...     answers = await edge.predict(x)
    """

    def __init__(self, bundle: str | Path | DeviceBundle, server: str | None = None, **options: Any) -> None:
        self._edge = EdgeClient(bundle, server, **options)
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="l2h-edge-local")

    @property
    def bundle(self) -> DeviceBundle:
        """The device's half of the system."""
        return self._edge.bundle

    @property
    def costs(self) -> Costs:
        """As :attr:`EdgeClient.costs`."""
        return self._edge.costs

    @costs.setter
    def costs(self, costs: Costs | None) -> None:
        self._edge.costs = costs

    @property
    def classes_compared(self) -> bool:
        """As :attr:`EdgeClient.classes_compared`."""
        return self._edge.classes_compared

    @property
    def server_versions(self) -> list[str]:
        """As :attr:`EdgeClient.server_versions`."""
        return self._edge.server_versions

    async def predict(self, X: npt.ArrayLike, costs: Costs | None = None, deadline: float | None = None) -> Answers:
        """As :meth:`EdgeClient.predict`."""
        core, call = self._edge._core, Call()
        work = self._submit(core.begin, X, costs, deadline, call)
        try:
            draft = await asyncio.wrap_future(work)
        except BaseException:
            call.gone = True
            work.add_done_callback(_give_up)
            raise
        if isinstance(draft, Answers):
            return draft
        waiting = [asyncio.wrap_future(part.future) for part in draft.parts]
        try:
            await asyncio.wait(waiting, timeout=max(0.0, draft.at - time.monotonic()))
        except BaseException:
            draft.give_up()
            raise
        return core.finish(draft)

    async def judge(self, X: npt.ArrayLike, costs: Costs | None = None) -> Judgement:
        """As :meth:`EdgeClient.judge`."""
        return await asyncio.wrap_future(self._submit(self._edge.judge, X, costs))

    async def check(self, timeout: float = 5.0) -> None:
        """As :meth:`EdgeClient.check`."""
        future = asyncio.wrap_future(self._edge._core.start_check(timeout))
        try:
            await asyncio.wait_for(asyncio.shield(future), timeout + 0.5)
        except TimeoutError:
            raise EdgeError(f"{self._edge._core.options.server} gave no answer in time") from None

    def stats(self) -> EdgeStats:
        """As :meth:`EdgeClient.stats`; needs no ``await``."""
        return self._edge.stats()

    async def close(self) -> None:
        """As :meth:`EdgeClient.close`."""
        await asyncio.to_thread(self._edge.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._edge!r}"

    def _submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return self._threads.submit(work, *arguments)
        except RuntimeError:  # the threads are gone
            raise EdgeError("this edge client is closed: make another") from None


def _give_up(work: Future[Draft | Answers]) -> None:
    """End what was sent before the caller was known to have gone."""
    if not work.cancelled() and work.exception() is None:
        draft = work.result()
        if isinstance(draft, Draft):
            draft.give_up()
