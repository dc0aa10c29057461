"""A small OpenTelemetry collector: it takes OTLP over HTTP and reads the messages by the published schema."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
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


class CollectorProcess:
    """A collector as a process of its own, which takes no time from the process that is measured."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._heard()["address"]

    def close(self) -> dict[str, Any]:
        """End it; how many traces it got, the spans of the fullest, and the names of metrics by service."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        found = self._heard()
        self._process.wait()
        return found

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


def main() -> None:
    """Collect until stdin ends; then print what came, and the names of the spans of the fullest trace."""
    collector = Collector()
    say = partial(print, flush=True)
    say(json.dumps({"address": collector.address}))
    sys.stdin.read()
    traces: dict[bytes, set[str]] = {}
    for span in collector.spans():
        traces.setdefault(span.trace_id, set()).add(span.name)
    metrics = {service: sorted(collector.metrics(service)) for service in ("l2h-server", "l2h-edge")}
    fullest = sorted(max(traces.values(), key=len, default=set()))
    say(json.dumps({"traces": len(traces), "fullest": fullest, "metrics": metrics}))


def attributes(thing: Any) -> dict[str, Any]:
    """The attributes of a span or of a number."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes}


if __name__ == "__main__":
    main()
