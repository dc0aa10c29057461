"""How an edge client shows what it does to others: metrics for Prometheus, traces and metrics for OpenTelemetry."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from l2h.edge.metrics import MetricsServer
from l2h.edge.options import EdgeSettingsError
from l2h.edge.tracing import CallTracer, check_traces
from l2h.errors import SettingsError
from l2h.telemetry import Family, MetricsSender, check_otlp, write_text

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_SERVICE = "l2h-edge"


class ObservedEdge:
    """What :class:`l2h.edge.core.EdgeCore` has of it."""

    _tracer: CallTracer | None = None

    def metrics_text(self) -> str:
        """Return the counters in Prometheus's text format, for a program that serves metrics of its own."""
        return write_text(self._families())

    def serve_metrics(self, port: int = 9464, host: str = "127.0.0.1") -> MetricsServer:
        """Serve the counters for Prometheus at ``http://HOST:PORT/metrics``, in a thread, until the client is closed.

        Args:
            port: 0 for any that is free; the ``port`` of what is returned says which.
            host: the address to listen at; ``"0.0.0.0"`` for all, where anybody who reaches the device may read them.

        Raises:
            EdgeSettingsError: the port is in use, or there is no such address.
        """
        server = MetricsServer(self._collector(), port, host)
        self._close_at_end(server.close)
        return server

    def _observe(self, otlp: str | TracerProvider | None, traces: float, device: str | None) -> None:
        """Trace the calls, and send metrics where there is a collector, under the device's name where it has one."""
        self._endings: list[Callable[[], None]] = []
        per_second = check_traces(traces)
        if otlp is None:
            return
        if isinstance(otlp, str):
            try:
                otlp = check_otlp(otlp, "otlp=")
            except SettingsError as error:
                raise EdgeSettingsError(str(error)) from error
            self._close_at_end(MetricsSender(otlp, _SERVICE, self._collector(), device).close)
        elif not callable(getattr(otlp, "get_tracer", None)):
            raise EdgeSettingsError(f"otlp={otlp!r} must be a collector's address or a tracer provider")
        self._tracer = CallTracer(otlp, _SERVICE, per_second, device)
        self._close_at_end(self._tracer.close)

    def _end_observing(self) -> None:
        """Close what shows the client to others; the last numbers and spans are sent."""
        for close in self._endings:
            close()

    def _families(self) -> list[Family]:
        raise NotImplementedError

    def _collector(self) -> Callable[[], Iterable[Family]]:
        """Return what collects the metrics and does not keep the client alive."""
        reference = weakref.WeakMethod(self._families)

        def collect() -> Iterable[Family]:
            families = reference()
            return () if families is None else families()

        return collect

    def _close_at_end(self, close: Callable[[], None]) -> None:
        """Have something closed with the client, also where whoever made it forgets to close it."""
        ending = weakref.finalize(self, close)  # which calls it once, whoever is first
        ending.atexit = False
        self._endings.append(ending)
