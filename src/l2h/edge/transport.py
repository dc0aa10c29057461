"""Asking the server: one answer to a set of inputs, with the repeats that are safe, by a given time."""

import asyncio
import json
import logging
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from l2h import protocol
from l2h.bundle import Manifest
from l2h.edge import messages, reasons
from l2h.edge.options import EdgeError, EdgeOptions
from l2h.edge.pool import Attempt, ConnectionPool
from l2h.edge.reasons import FaultError
from l2h.edge.reporting import Reporter
from l2h.edge.stats import Recorder
from l2h.edge.tracing import CallTrace
from l2h.fleet import HEADER
from l2h.metadata import ExpectedModel, MetadataError, class_names, tensor_names
from l2h.telemetry import event

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]
log = logging.getLogger("l2h.edge")
#: JSON of so many bytes is read and written in a thread, not on the loop. No metadata beyond it is read, the names of
#: the classes not counted.
_LARGE = 1 << 16
#: Bytes of an answer beside its scores, and at most so many per score: JSON writes a float64 in up to 25.
_HEAD, _SCORE = 1 << 16, 32


@dataclass(frozen=True)
class Reply:
    """What came of asking about some inputs."""

    reason: str | None  # why there are no labels; None where there are
    label: Labels | None  # (n,), the server's
    healthy: (
        bool | None
    )  # whether the server did its part, for the circuit breaker; None where it had no fair chance to


class RequestScope:
    """How long a reply is waited for: until a time on the clock ``time.monotonic``, or until its caller has gone."""

    __slots__ = ("_timeout", "abandoned", "trace", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.abandoned = False
        self.trace: CallTrace | None = None  # of the call that it is a part of
        self._timeout: asyncio.Timeout | None = None

    def open(self) -> asyncio.Timeout:
        """Return the scope that raises ``TimeoutError`` when the wait is over; call this on the loop."""
        self._timeout = asyncio.timeout_at(0.0 if self.abandoned else self.until)  # the loop has the same clock
        return self._timeout

    @property
    def over(self) -> bool:
        """Whether a reply would come too late, or for nobody."""
        return self.abandoned or time.monotonic() >= self.until

    def abandon(self) -> None:
        """End the wait, since the caller has gone; call this on the loop."""
        self.abandoned = True
        if self._timeout is not None:
            with suppress(RuntimeError):  # it is over already
                self._timeout.reschedule(0.0)


class Transport:
    """Asks one server, whose model is to be the one of the manifest. Everything here runs on one event loop."""

    def __init__(self, options: EdgeOptions, manifest: Manifest, recorder: Recorder) -> None:
        self._options, self._manifest, self._recorder = options, manifest, recorder
        self._classes = manifest.codec
        longest = max(len(json.dumps(value)) for value in manifest.labels or (0,))
        self._row = max(len(manifest.classes) * _SCORE, longest + _SCORE)  # bytes of its scores or its label
        datatype = protocol.datatype(manifest.input.dtype)
        self._expected = ExpectedModel("the bundle", options.model, manifest.input.shape, datatype, manifest.classes)
        self._model_path = f"/v2/models/{quote(options.model, safe='')}"
        self.classes_compared = False  # whether the server's metadata, when last read, gave names of classes to compare
        self.versions: list[str] = []  # of its model, when last read
        self._pool = ConnectionPool(options, recorder)
        source, output = options.input_name, options.output_name
        self._names = None if source is None or output is None else (source, output)
        self._names_lock = asyncio.Lock()
        self.reporter: Reporter | None = None  # that tells the server of this device

    async def ask(self, X: Array, scope: RequestScope) -> Reply:
        """Return the server's labels for inputs (n, ...), or why there are none; never raise."""
        attempt = Attempt(None if scope.trace is None else scope.trace.request(self._options.server, len(X)))
        try:
            async with scope.open():
                label = await self._ask(X, scope, attempt)
            attempt.end()
            return Reply(None, label, healthy=True)
        except TimeoutError:
            fault = attempt.fault or FaultError(reasons.DEADLINE, "no answer within the deadline")
            if attempt.silent and not attempt.fresh:  # other kept connections may have died with this one
                self._pool.drop_idle()
        except FaultError as raised:
            fault = raised
        except Exception as error:  # noqa: BLE001 - the caller has a local answer and gets it, whatever happened here
            trace = self._masked("".join(traceback.format_exception(error)))
            what = event("request_failed", server=self._options.server)
            log.warning("asking the server failed in a way that was not foreseen\n%s", trace, extra=what)
            fault = FaultError(reasons.SERVER_UNREACHABLE, f"{type(error).__name__}: {error}")
        text = self._masked(f"{fault.reason}: {fault}")
        if not scope.abandoned and self._recorder.failed(text):
            what = event("server_trouble", server=self._options.server, reason=fault.reason)
            log.info("%s: %s", self._options.server, text, extra=what)
        attempt.end(fault.reason, text)
        return Reply(fault.reason, None, self._verdict(fault, attempt))

    async def check(self, until: float) -> None:
        """See that the server is ready and its model is the bundle's; an :class:`EdgeError` says what differs."""
        try:
            await self._check(until)
        except EdgeError as error:
            text = self._masked(str(error))
            if text == str(error):
                raise
            raise EdgeError(text) from None

    async def _check(self, until: float) -> None:
        server = self._options.server
        try:
            async with RequestScope(until).open():
                try:
                    await self._pool.exchange("GET", "/v2/health/ready", most=_LARGE)
                except FaultError as fault:
                    if fault.reason in (reasons.REFUSED, reasons.BAD_ANSWER):
                        raise EdgeError(f"{server} is no server of the Open Inference Protocol: {fault}") from fault
                    raise EdgeError(f"{server} is not ready: {fault}") from fault
                await self._read_metadata()
                await self._try_key()
        except TimeoutError:
            raise EdgeError(f"{server} gave no answer in time") from None
        except FaultError as fault:
            raise EdgeError(f"{server}: {fault}") from fault

    def _masked(self, text: str) -> str:
        """Return a text of the server's without the key, should it repeat that, as it is or quoted."""
        key = self._options.key
        if key is not None:
            for form in (key, repr(key)[1:-1], json.dumps(key)[1:-1]):
                text = text.replace(form, "***")
        return text

    async def report(self) -> None:
        """Tell the server of this device, also when it is asked nothing; run this beside the requests."""
        assert self.reporter is not None
        await self.reporter.run(self._pool)

    async def close(self) -> None:
        """Close the connections."""
        self._pool.drop_idle()

    async def _try_key(self) -> None:
        """See that the key is accepted: by a request without inputs, which is refused for that and costs nothing."""
        path, headers = f"{self._model_path}/infer", {"Content-Type": protocol.JSON}
        try:
            await self._pool.exchange("POST", path, most=_LARGE, body=b'{"inputs": []}', headers=headers)
        except FaultError as fault:
            if fault.reason == reasons.NOT_AUTHORISED:
                what = "wants a key" if self._options.key is None else "does not take the key"
                raise EdgeError(f"{self._options.server} {what}: {fault}") from fault

    def _verdict(self, fault: FaultError, attempt: Attempt) -> bool | None:
        """Return what a fault says of the server: nothing where it was not asked, or had no time to answer."""
        if attempt.since is None:
            return None
        hasty = fault.reason == reasons.DEADLINE and attempt.waited() < self._options.fair_wait
        return None if hasty and not attempt.blamed else fault.healthy

    async def _ask(self, X: Array, scope: RequestScope, attempt: Attempt) -> Labels:
        id = uuid4().hex
        source, output = await self._tensor_names(attempt)
        tensors, binary = [protocol.Tensor(source, X)], self._options.binary
        encode = partial(protocol.encode_request, tensors, binary=binary, id=id, outputs=[output])
        body, headers = encode() if binary or X.size < _LARGE else await asyncio.to_thread(encode)
        headers |= {"Idempotency-Key": id, "X-Request-Id": id}
        if attempt.trace is not None:
            headers |= attempt.trace.headers
        left, stale, sent = self._options.retries, self._options.connections, 0
        while True:
            if scope.over:
                raise FaultError(reasons.DEADLINE, "no time was left to send the request")
            self._recorder.sent(len(body), repeat=sent > 0)
            attempt.repeats, sent = sent, sent + 1
            try:
                return await self._exchange(X, body, headers, output, id, attempt)
            except FaultError as fault:
                # A kept connection that had ended says nothing of the server: it is replaced at once, and there
                # are no more of them than connections.
                if fault.stale and stale > 0:
                    stale -= 1
                    continue
                if fault.retry_in is None or left == 0 or time.monotonic() + fault.retry_in >= scope.until:
                    raise
                left -= 1
                attempt.blamed |= not fault.healthy
                attempt.paused += fault.retry_in
                await asyncio.sleep(fault.retry_in)

    async def _exchange(
        self, X: Array, body: bytes, headers: dict[str, str], output: str, id: str, attempt: Attempt
    ) -> Labels:
        begun = time.monotonic()
        path, most = f"{self._model_path}/infer", _HEAD + len(X) * self._row
        news = {} if self.reporter is None else self.reporter.header()
        replied, answer = await self._pool.exchange(
            "POST", path, most=most, body=body, headers={**headers, **news} if news else headers, attempt=attempt
        )
        if news and self.reporter is not None:
            self.reporter.heard(replied.get(HEADER.lower()))
        expected: dict[str, Any] = {"rows": len(X), "classes": self._classes, "gives": self._options.gives}
        expected |= {"model": self._options.model, "output": output, "id": id}
        decode = partial(messages.read_labels, answer, replied, **expected)
        label, version = decode() if len(answer) < _LARGE else await asyncio.to_thread(decode)
        shown = None if version is None else self._masked(version)
        self._recorder.replied(time.monotonic() - begun, shown, replied.get("l2h-charged"))
        return label

    async def _tensor_names(self, attempt: Attempt) -> tuple[str, str]:
        """Return the names of input and output, from the server's metadata where the options leave one open."""
        if self._names is None:
            async with self._names_lock:
                try:
                    return self._names or await self._read_metadata(attempt)
                except EdgeError as error:
                    raise FaultError(reasons.BAD_ANSWER, str(error)) from error
        return self._names

    async def _read_metadata(self, attempt: Attempt | None = None) -> tuple[str, str]:
        """Compare the server's model with the bundle, and return the names of its input and output."""
        options = self._options
        most = _LARGE + len(json.dumps([self._manifest.classes, self._manifest.labels]))
        try:
            _, body = await self._pool.exchange("GET", self._model_path, most=most, attempt=attempt)
        except FaultError as fault:
            if fault.reason != reasons.REFUSED:
                raise
            raise FaultError(fault.reason, f"it has no model {options.model!r}: {fault}") from fault
        try:
            metadata = json.loads(body)
        except (ValueError, RecursionError):
            metadata = None
        try:
            self._names = names = tensor_names(metadata, self._expected, options.input_name, options.output_name)
        except MetadataError as error:
            raise EdgeError(f"{options.server}: {error}") from error
        self.classes_compared = class_names(metadata) is not None
        versions = metadata.get("versions")
        self.versions = [self._masked(str(version)) for version in versions] if isinstance(versions, list) else []
        return names
