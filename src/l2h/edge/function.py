"""Asking a function in place of a server, with the same deadline, circuit, limits and counters."""

import asyncio
import importlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle import Manifest
from l2h.classifiers import CallableClassifier
from l2h.columns import EncodedTable
from l2h.edge import messages, reasons
from l2h.edge.options import EdgeOptions
from l2h.edge.pool import Attempt
from l2h.edge.reasons import FaultError
from l2h.edge.stats import Recorder
from l2h.edge.transport import RequestScope, Transport

Array = npt.NDArray[Any]


class FunctionTransport(Transport):
    """Calls a function of a batch, each call in a thread of its own that nobody waits for beyond its time.

    At most ``connections`` such threads exist: while so many calls have not returned, none is made (``crowded``). A
    call is never repeated, since it may have been paid for.
    """

    def __init__(
        self, function: Callable[[Array], Any], options: EdgeOptions, manifest: Manifest, recorder: Recorder
    ) -> None:
        super().__init__(options, manifest, recorder)
        self._function = CallableClassifier(function)
        self._running = 0
        if manifest.columns is not None:
            # The function gets a data frame, and loading pandas takes longer than a deadline.
            with suppress(ModuleNotFoundError):
                importlib.import_module("pandas")

    async def _ask(self, X: Array, scope: RequestScope, attempt: Attempt) -> npt.NDArray[np.int64]:
        if self._running >= self._options.connections:
            raise FaultError(reasons.CROWDED, f"{self._running} calls of the function have not returned")
        attempt.begin()
        begun = time.monotonic()
        self._recorder.sent(0, repeat=False)
        output = await self._call(X)
        label = messages.labels_of(output, len(X), self._classes, self._options.gives)
        self._recorder.replied(time.monotonic() - begun, None, None)
        return label

    async def _check(self, until: float) -> None:
        """Do nothing: to call the function may cost."""

    async def _call(self, X: Any) -> Array:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Array] = loop.create_future()

        def finish(settle: Callable[[], None]) -> None:
            self._running -= 1
            if not reply.done():  # else its caller has gone
                settle()

        def work() -> None:
            try:
                given = self._function.from_table(X) if isinstance(X, EncodedTable) else X
                settle = partial(reply.set_result, self._function.raw(given)[0])
            except BaseException as error:  # noqa: BLE001 - whatever it raises, the device has an answer
                lost = isinstance(error, OSError)  # of the network: a refused connection, a time-out
                reason = reasons.SERVER_UNREACHABLE if lost else reasons.SERVER_ERROR
                settle = partial(reply.set_exception, FaultError(reason, f"{type(error).__name__}: {error}"))
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(finish, settle)

        threading.Thread(target=work, name="l2h-edge-function", daemon=True).start()
        self._running += 1
        return await reply
