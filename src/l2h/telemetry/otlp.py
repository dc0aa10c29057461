"""OpenTelemetry: traces and metrics, sent to a collector by OTLP over HTTP.

Nothing of OpenTelemetry is imported before it is used. A collector that is down or slow holds nobody up: what cannot be
sent in time is dropped. The environment variables of OpenTelemetry are followed, such as
``OTEL_EXPORTER_OTLP_HEADERS`` for a collector that wants a key, and ``OTEL_RESOURCE_ATTRIBUTES``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import l2h
from l2h.errors import SettingsError, missing_extra
from l2h.telemetry.families import Family

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.metrics.export import Metric
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Link, Span, TracerProvider

_log = logging.getLogger("l2h.telemetry")
#: Seconds between two messages with metrics, and between two with spans.
_METRICS, _SPANS = 10.0, 1.0
#: Seconds that one message may take, repeats included; and that the end of a process may wait for the last ones.
_PATIENCE, _LAST = 5.0, 1.0


def check_otlp(address: str, flag: str) -> str:
    """Return the address of a collector without a slash at its end; raise unless it is one and OpenTelemetry is there.

    ``flag`` is what the user gave it by.
    """
    try:
        url = urlsplit(address)
        usable = url.scheme in ("http", "https") and url.hostname and not (url.query or url.fragment) and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(f"{flag} {address!r} is no collector's address: write http://HOST:4318")
    missing = [name for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http") if not _is_there(name)]
    if missing:
        raise missing_extra(f"{flag} needs {missing[0]}", "otel")
    return address.rstrip("/")


class TraceLimit:
    """Bounds what is traced: so many per second, as many at once, and one at least unless it is 0."""

    def __init__(self, per_second: float) -> None:
        self._rate, self._burst = per_second, max(1.0, per_second) if per_second else 0.0
        self._room, self._last = self._burst, time.monotonic()

    def admits(self) -> bool:
        """Return whether another may be traced now, and count it."""
        now = time.monotonic()
        self._room = min(self._burst, self._room + (now - self._last) * self._rate)
        self._last = now
        if self._room < 1.0:
            return False
        self._room -= 1.0
        return True


class Tracer:
    """Makes spans.

    Args:
        otlp: the address of a collector; or a tracer provider of the program's own, which decides by itself what is
            kept, and is not closed.
        service: the name of the service, where ``OTEL_SERVICE_NAME`` does not say another.
        per_second: the bound of traces that begin here.
        instance: which of several it is; a random name where None.
    """

    def __init__(
        self, otlp: str | TracerProvider, service: str, per_second: float, instance: str | None = None
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        self._own = _make_provider(otlp, service, instance) if isinstance(otlp, str) else None
        provider: Any = self._own or otlp
        self._tracer = provider.get_tracer("l2h", l2h.__version__)
        self.begun = TraceLimit(per_second)  # of the traces that begin in this process

    def inside(self) -> bool:
        """Return whether the caller is within a span of its own that is recorded."""
        return self._trace.get_current_span().is_recording()

    def received(self, traceparent: str, tracestate: str) -> Context:
        """Return the context that the headers of a request name."""
        return self._propagator.extract({"traceparent": traceparent, "tracestate": tracestate})

    def start(self, name: str, parent: Context | None = None, kind: str = "internal", **more: Any) -> Span:
        """Start a span; without a parent, below the caller's own span if there is one."""
        span: Span = self._tracer.start_span(name, parent, self._trace.SpanKind[kind.upper()], **more)
        return span

    def link(self, span: Span) -> Link:
        """Return a link to a span."""
        return self._trace.Link(span.get_span_context())

    def below(self, span: Span) -> Context:
        """Return the context of what is done as a part of a span."""
        return self._trace.set_span_in_context(span)

    def headers(self, span: Span) -> dict[str, str]:
        """Return the headers by which a request tells what it is a part of."""
        found: dict[str, str] = {}
        self._propagator.inject(found, self.below(span))
        return found

    def fail(self, span: Span, text: str) -> None:
        """Note that what the span stands for failed."""
        span.set_status(self._trace.StatusCode.ERROR, text)

    def close(self) -> None:
        """Send what waits, within a second; what a collector does not take until then is dropped."""
        if self._own is not None:
            _within(_LAST, self._own.shutdown)


class MetricsSender:
    """Sends metrics to a collector every ten seconds and at the end, in a thread of its own."""

    def __init__(
        self, address: str, service: str, collect: Callable[[], Iterable[Any]], instance: str | None = None
    ) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._exporter = OTLPMetricExporter(f"{address}/v1/metrics", timeout=_PATIENCE)
        self._resource = _resource(service, instance)
        self._collect, self._since, self._ending = collect, time.time_ns(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="l2h-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the last numbers, within a second, and stop."""
        self._ending.set()
        self._thread.join(_LAST)
        self._exporter.shutdown()  # ends the wait before a repeat

    def _run(self) -> None:
        while not self._ending.wait(_METRICS):
            self._try()
        self._try()

    def _try(self) -> None:
        try:
            self._send()
        except Exception:  # noqa: BLE001 - the next numbers hold all that these would have said
            _log.warning("metrics_not_sent", exc_info=True)

    def _send(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        metrics = [_converted(family, self._since, time.time_ns()) for family in self._collect() if family.samples]
        scope = ScopeMetrics(InstrumentationScope("l2h", l2h.__version__), metrics, "")
        self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))


def _converted(family: Family, since: int, now: int) -> Metric:
    """Return a family in OpenTelemetry's words, under the name that Prometheus has, without ``_total``."""
    from opentelemetry.sdk.metrics import export

    times: dict[str, Any] = {"start_time_unix_nano": since, "time_unix_nano": now}
    data: Any
    if family.type == "histogram":
        points = [export.HistogramDataPoint(**histogram, **times) for histogram in _histograms(family)]
        data = export.Histogram(points, export.AggregationTemporality.CUMULATIVE)
    else:
        numbers = [
            export.NumberDataPoint(dict(labels), value=value, **times) for _, labels, value, *_ in family.samples
        ]
        data = export.Gauge(numbers)
        if family.type == "counter":
            data = export.Sum(numbers, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return export.Metric(family.name, family.documentation, "s" if family.name.endswith("_seconds") else "", data)


def _histograms(family: Family) -> Iterable[Mapping[str, Any]]:
    """Yield one histogram for each set of labels, with counts that are not added up."""
    found: dict[frozenset[tuple[str, str]], dict[str, Any]] = {}
    for name, labels, value, *_ in family.samples:
        own = {label: text for label, text in labels.items() if label != "le"}
        point = found.setdefault(frozenset(own.items()), {"attributes": own, "upto": []})
        if "le" in labels:
            point["upto"].append((float(labels["le"]), int(value)))
        else:
            point[name.rpartition("_")[2]] = value
    for point in found.values():
        bounds, counts = zip(*sorted(point.pop("upto")), strict=True)
        point["explicit_bounds"], before = bounds[:-1], (0, *counts)
        point["bucket_counts"] = [count - lower for count, lower in zip(counts, before, strict=False)]
        point["count"] = int(point.get("count", counts[-1]))
        yield {"sum": 0.0, "min": None, "max": None, **point}


def _make_provider(address: str, service: str, instance: str | None) -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # Not at the exit of the program, which would wait for a collector that is down.
    provider = TracerProvider(resource=_resource(service, instance), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{address}/v1/traces", timeout=_PATIENCE)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1e3 * _SPANS))
    return provider


def _resource(service: str, instance: str | None) -> Resource:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    named = {"service.name": service, "service.version": l2h.__version__}
    named |= {} if instance is None else {"service.instance.id": instance}
    return Resource.create(named).merge(OTELResourceDetector().detect())


def _within(seconds: float, work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
