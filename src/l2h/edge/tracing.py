"""The traces of an edge client: a span for a call of ``predict``, and one below it for each request of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2h.answers import Answers
from l2h.edge.options import EdgeSettingsError
from l2h.telemetry import Tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class CallTracer(Tracer):
    """Decides which calls are traced: those within a recorded span of the program, and so many others per second."""

    def begin(self) -> CallTrace | None:
        """Return the trace of a call, None where it has none."""
        return CallTrace(self, self.start("predict")) if self.inside() or self.begun.admits() else None


class CallTrace:
    """The trace of one call."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span

    def request(self, server: str | None, inputs: int) -> RequestTrace:
        """Begin the span of a request."""
        attributes = {"server.address": str(server), "l2h.inputs": inputs}
        parent = self._tracer.below(self._span)
        return RequestTrace(self._tracer, self._tracer.start("ask", parent, "client", attributes=attributes))

    def end(self, answers: Answers) -> None:
        """End the span of the call, with who answered and why."""
        remote = int((answers.source == "remote").sum())
        self._span.set_attributes(
            {
                "l2h.inputs": len(answers),
                "l2h.remote": remote,
                "l2h.reasons": sorted(set(answers.reason.tolist())),
                "l2h.answerers": sorted(set(answers.by.tolist())),
            }
        )
        self._span.end()


class RequestTrace:
    """The span of a request, its repeats included."""

    __slots__ = ("_span", "_tracer", "headers")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self.headers = tracer.headers(span)  # by which the server's spans become a part of the trace

    def end(self, repeats: int, reason: str | None, text: str = "") -> None:
        """End the span; ``reason`` says why there is no answer."""
        self._span.set_attribute("http.request.resend_count", repeats)
        if reason is not None:
            self._span.set_attribute("l2h.reason", reason)
            self._tracer.fail(self._span, text)
        self._span.end()


def check_traces(traces: Any) -> float:
    """Return how many traces per second may be recorded."""
    if isinstance(traces, bool) or not isinstance(traces, int | float) or not 0 <= traces <= 1e6:
        raise EdgeSettingsError(f"traces={traces!r}: how many per second are recorded, 0 for none of its own")
    return float(traces)
