"""The counters of an edge client for Prometheus: as text, over HTTP, and as what OpenTelemetry is told."""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from l2h.bundle import Manifest
from l2h.edge.options import EdgeSettingsError
from l2h.edge.servers import AskedServer
from l2h.edge.stats import AnswerCounter, EdgeStats
from l2h.telemetry import Family, write_text

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Seconds that a reader of the metrics has for its request.
_PATIENCE = 2.0
#: Counters of a server: the field of its statistics, the metric and what it says.
_TRAFFIC = (
    ("requests", "l2h_edge_requests", "Requests sent, repeats included."),
    ("retries", "l2h_edge_retries", "Repeats among the requests."),
    ("charged", "l2h_edge_charged", "Requests that the server says it charged for."),
    ("repeats", "l2h_edge_repeats", "Requests that the server says were charged before."),
    ("bytes_sent", "l2h_edge_sent_bytes", "Bytes of the bodies of requests."),
    ("bytes_received", "l2h_edge_received_bytes", "Bytes of the bodies of answers."),
    ("breaker_opened", "l2h_edge_circuit_opened", "Times that the server was given a rest."),
)


def edge_families(
    stats: EdgeStats, counter: AnswerCounter, servers: Iterable[AskedServer], manifest: Manifest
) -> list[Family]:
    """Return what an edge client has counted as metrics."""
    info = Family("l2h_edge_info", "gauge", "The bundle that answers.")
    info.add(1, bundle=manifest.name, version=manifest.version)
    reloads = Family("l2h_edge_reloads", "counter", "Bundles taken over while running.")
    reloads.add(stats.reloads)
    answers = Family("l2h_edge_answers", "counter", "Inputs answered, by reason.")
    answerers = Family("l2h_edge_answered_by", "counter", "Inputs answered, by whom.")
    for reason, count in stats.reasons.items():
        answers.add(count, reason=reason)
    for name, count in stats.answerers.items():
        answerers.add(count, by=name)
    audited = Family("l2h_edge_audited", "counter", "Inputs to ask about by chance, by what came of it.")
    if stats.audit is not None:
        for result, count in {"answered": stats.audit["answered"], **stats.audit["unanswered"]}.items():
            audited.add(count, result=result)
    drift = Family("l2h_edge_drift", "gauge", "1 or -1 while more or less is worth asking than was calibrated, else 0.")
    drift.add({"above": 1, "below": -1}.get(stats.drift or "", 0))
    latency = Family("l2h_edge_predict_seconds", "histogram", "A call of predict.")
    counter.add_latencies(latency)
    faults = Family("l2h_edge_faults", "counter", "Inputs that a server was chosen for and did not answer, by reason.")
    circuit = Family("l2h_edge_circuit_open", "gauge", "1 while the server is given a rest, 0.5 while it is tried.")
    trips = Family("l2h_edge_round_trip_seconds", "histogram", "A request that was answered.")
    traffic = {field: Family(name, "counter", text) for field, name, text in _TRAFFIC}
    for server in servers:
        own = stats.servers[server.name]
        for reason, count in own.faults.items():
            faults.add(count, server=server.name, reason=reason)
        circuit.add({"open": 1, "half-open": 0.5}.get(own.breaker, 0), server=server.name)
        server.recorder.add_round_trips(trips, server.name)
        for field, family in traffic.items():
            family.add(getattr(own, field), server=server.name)
    first = [info, reloads, answers, answerers, audited, drift, latency, faults, circuit, trips]
    return [*first, *traffic.values(), *_limits(stats.limit)]


def _limits(status: Mapping[str, Any] | None) -> list[Family]:
    """Return what the limiters say; ``limit`` is the name of what is limited, ``all`` for all servers together."""
    used = Family("l2h_edge_limit_used", "gauge", "Permits given in the window that ends now.")
    cap = Family("l2h_edge_limit_cap", "gauge", "Permits that the window may have.")
    if status is not None:
        for name, own in ({"all": status} if "cap" in status else status).items():
            used.add(own["used"], limit=name)
            cap.add(own["cap"], limit=name)
    return [used, cap]


class MetricsServer(AbstractContextManager["MetricsServer"]):
    """Answers ``GET /metrics`` in a thread, one request at a time, until it is closed; ``port`` says where."""

    def __init__(self, collect: Callable[[], Iterable[Family]], port: int, host: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "the metrics are at /metrics")
                    return
                body = write_text(collect()).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: a scrape is no event."""

        try:
            self._server = HTTPServer((host, port), Handler)
        except (OSError, OverflowError, TypeError) as error:
            raise EdgeSettingsError(f"the metrics cannot be served at {host} port {port}: {error}") from error
        self.port: int = self._server.server_address[1]
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._server.serve_forever, name="l2h-edge-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; closing twice does no harm."""
        if self._closing.acquire(blocking=False):
            self._server.shutdown()
            self._server.server_close()

    def __exit__(self, *error: object) -> None:
        self.close()
