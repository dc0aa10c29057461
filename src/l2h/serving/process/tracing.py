"""The traces of a worker: a span for a request, and below it those of the model call and of the charge."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from l2h.telemetry import TraceLimit, Tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span

#: ``traceparent`` of W3C Trace Context: version, trace, span and flags, of which the last bit says "recorded".
_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]([0-9a-f])(-.*)?")
_numbers = count(1)


@dataclass(slots=True)
class ModelCall:
    """A call of the model, for the traces of the requests that it computed."""

    begun: float  # on the clock ``time.monotonic``
    ended: float
    inputs: int
    requests: int
    number: int = field(default_factory=_numbers.__next__)
    traced: list[Span] = field(default_factory=list)  # the requests that have a trace


class RequestTracer(Tracer):
    """Decides which requests are traced: so many per second that have no trace yet, as many whose caller has one."""

    def __init__(self, otlp: str, service: str, per_second: float) -> None:
        super().__init__(otlp, service, per_second)
        self._joined = TraceLimit(per_second)

    def begin(self, headers: Mapping[bytes, bytes], path: str) -> RequestSpan | None:
        """Return the trace of a request, None where it has none, and where its caller says that it is not recorded."""
        sent = headers.get(b"traceparent")
        parent = None if sent is None else _PARENT.fullmatch(sent)
        recorded = parent is None or int(parent[1], 16) & 1
        if not recorded or not (self.begun if parent is None else self._joined).admits():
            return None
        context = None
        if sent is not None and parent is not None:
            state = headers.get(b"tracestate", b"").decode("latin-1")
            context = self.received(sent.decode("ascii"), state)
        attributes = {"http.request.method": "POST", "url.path": path}
        return RequestSpan(self, self.start("infer", context, "server", attributes=attributes))


class RequestSpan:
    """The trace of one request."""

    __slots__ = ("_span", "_tracer", "call", "charged", "trace_id")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self.trace_id = f"{span.get_span_context().trace_id:032x}"
        self.call: ModelCall | None = None
        self.charged: float | None = None  # when the charge was written, on the clock ``time.monotonic``

    def computed(self, call: ModelCall) -> None:
        """Note the call of the model that computed it; from the model's thread."""
        self.call = call
        call.traced.append(self._span)

    def end(self, at: float, status: int, noted: Mapping[str, Any]) -> None:
        """Make the spans of the parts, and end that of the request; ``noted`` is what the log says of it."""
        since = time.time_ns() - time.monotonic_ns()
        if self.call is not None:
            self._add_parts(self.call, since)
        named = {f"l2h.{name}": value for name, value in noted.items() if isinstance(value, str | int | float)}
        self._span.set_attributes({**named, "http.response.status_code": status})
        if status >= 500:
            self._tracer.fail(self._span, str(noted.get("reason", "")))
        self._span.end(since + int(1e9 * at))

    def _add_parts(self, call: ModelCall, since: int) -> None:
        below = self._tracer.below(self._span)
        links: list[Link] = [self._tracer.link(other) for other in call.traced if other is not self._span]
        batch = {"l2h.batch.number": call.number, "l2h.batch.inputs": call.inputs, "l2h.batch.requests": call.requests}
        times = [since + int(1e9 * at) for at in (call.begun, call.ended)]
        model = self._tracer.start("model", below, attributes=batch, links=links, start_time=times[0])
        model.end(times[1])
        if self.charged is not None:
            charge = self._tracer.start("charge", below, start_time=times[1])
            charge.end(since + int(1e9 * self.charged))
