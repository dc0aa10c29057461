"""A small OpenTelemetry collector: it takes OTLP over HTTP and reads the messages by the published schema."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Collector:
    """What came, by the path it came to."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Any]] = {path: [] for path in KINDS}
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                messages[self.path].append(KINDS[self.path].FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, service: str | None = None) -> Iterator[Any]:
        """The spans that came, of one service or of all."""
        for message in list(self.messages["/v1/traces"]):
            for resource in message.resource_spans:
                names = {each.key: each.value.string_value for each in resource.resource.attributes}
                if service in (None, names["service.name"]):
                    for scope in resource.scope_spans:
                        yield from scope.spans

    def metrics(self, service: str) -> dict[str, Any]:
        """The metrics of the last message of a service, by their names."""
        found: dict[str, Any] = {}
        for message in list(self.messages["/v1/metrics"]):
            for resource in message.resource_metrics:
                names = {each.key: each.value.string_value for each in resource.resource.attributes}
                if names["service.name"] == service:
                    found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
        return found

    def wait(self, happened: Callable[[], bool]) -> None:
        """Wait until something is so."""
        end = time.monotonic() + 10
        while not happened() and time.monotonic() < end:
            time.sleep(0.02)
        assert happened()


def attributes(thing: Any) -> dict[str, Any]:
    """The attributes of a span or of a number."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes}
