"""Traces and metrics by OTLP, read by a collector of our own that knows the published messages."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collector import Collector, attributes
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from serving_process import Client, Server
from waiting import STUCK, free_port, until

from l2h import AsyncEdgeClient, Costs, EdgeClient
from l2h.edge import EdgeSettingsError
from l2h.errors import SettingsError
from l2h.telemetry import TraceLimit, check_otlp

FREE = Costs(c_e=0.0, c_1=0.0)  # the server is always asked
SLOW = "import time\nimport numpy as np\ndef predict(x):\n    time.sleep(0.1)\n    return np.ones((len(x), 3))\n"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits at the end of a client has more than a second to be sent."""
    monkeypatch.setattr("l2h.telemetry.otlp._LAST", STUCK)


def numbers(metric: Any) -> dict[tuple[tuple[str, str], ...], float]:
    """The numbers of a counter or a gauge by their labels."""
    points = getattr(metric, metric.WhichOneof("data")).data_points
    return {tuple(sorted(attributes(p).items())): p.as_int or p.as_double for p in points}


def exported(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Counters and gauges of Prometheus's text, as :func:`numbers` has them."""
    return {
        family.name: {tuple(sorted(s.labels.items())): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
        if family.type != "histogram"
    }


@pytest.mark.usefixtures("unhurried")
def test_one_trace_leads_from_the_answer_on_the_device_to_the_call_of_the_model(
    bundle: Path, inputs: np.ndarray, collector: Collector, tmp_path: Path
) -> None:
    with Server(bundle, tmp_path, otlp=collector.address) as server:
        with EdgeClient(bundle, server.url, deadline=5.0, costs=FREE, otlp=collector.address) as edge:
            edge.predict(inputs[:3])
            told = exported(edge.metrics_text())
        assert server.stop() == 0
        (line,) = server.events("request")
    spans = {span.name: span for span in collector.spans()}
    assert len(spans) == len(list(collector.spans())) == 5
    assert {span.trace_id for span in spans.values()} == {bytes.fromhex(line["trace_id"])}
    for child, parent in (("ask", "predict"), ("infer", "ask"), ("model", "infer"), ("charge", "infer")):
        assert spans[child].parent_span_id == spans[parent].span_id
        assert spans[parent].start_time_unix_nano <= spans[child].start_time_unix_nano
        assert spans[child].end_time_unix_nano <= spans[parent].end_time_unix_nano
    assert attributes(spans["predict"])["l2h.remote"] == attributes(spans["model"])["l2h.batch.inputs"] == 3
    assert attributes(spans["infer"])["l2h.request_id"] == line["request_id"]
    assert attributes(spans["infer"])["http.response.status_code"] == 200
    # The last numbers of both are those of their own metrics.
    sent = collector.metrics("l2h-edge")
    assert {name: numbers(sent[name]) for name, values in told.items() if values} == {
        n: v for n, v in told.items() if v
    }
    assert sent["l2h_edge_predict_seconds"].histogram.data_points[0].count == 1
    server_side = collector.metrics("l2h-server")
    assert numbers(server_side["l2h_inputs"]) == {(): 3.0}
    (point,) = server_side["l2h_request_seconds"].histogram.data_points
    assert point.count == sum(point.bucket_counts) == 1
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1


def test_requests_of_one_batch_are_linked_and_callers_decide(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    described = {
        "function": str(tmp_path / "slow.py:predict"),
        "shape": [4],
        "classes": ["a", "b", "c"],
        "name": "slow",
    }

    def parent(flags: str) -> str:
        return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{flags}"

    recorded = [parent("01") for _ in range(12)]
    others = [parent("00"), "00-" + "0" * 32 + f"-{secrets.token_hex(8)}-01", "ff-nonsense"]
    with Server("", tmp_path, otlp=collector.address, traces=100.0, **described) as server:

        def ask(sent: str) -> int:
            return Client(server, name="slow").ask(np.ones((1, 4), np.float32), traceparent=sent).status

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(ask, recorded + others)) == {200}
        until(lambda: Counter(span.name for span in collector.spans())["infer"] == 14)
        assert server.stop() == 0
    infers = [span for span in collector.spans() if span.name == "infer"]
    parents = {f"00-{span.trace_id.hex()}-{span.parent_span_id.hex()}-01" for span in infers if span.parent_span_id}
    assert parents == set(recorded)
    assert len(infers) == 14, "what is no parent begins a trace; what is not recorded by its caller is not here"
    models = [span for span in collector.spans() if span.name == "model"]
    batches = Counter(attributes(span)["l2h.batch.number"] for span in models)
    assert max(batches.values()) > 1
    for span in models:
        found = attributes(span)
        assert len(span.links) == batches[found["l2h.batch.number"]] - 1
        assert found["l2h.batch.requests"] >= batches[found["l2h.batch.number"]]


@pytest.mark.long
@pytest.mark.alone
def test_a_collector_that_is_down_holds_nothing_up(bundle: Path, inputs: np.ndarray, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with Server(bundle, tmp_path, otlp=nobody) as server:
        with EdgeClient(bundle, server.url, deadline=2.0, costs=FREE, otlp=nobody, traces=1000.0) as edge:
            for x in inputs[:20]:
                assert edge.predict(x)[0].source == "remote"
            begun = time.monotonic()
        assert time.monotonic() - begun < 5.0
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 8.0
        for line in server.log.read_text().splitlines():
            assert {"time", "level", "event", "pid"} <= set(json.loads(line))


@pytest.mark.usefixtures("unhurried")
def test_no_more_is_traced_than_was_allowed(bundle: Path, inputs: np.ndarray, collector: Collector) -> None:
    with EdgeClient(bundle, otlp=collector.address, traces=5.0) as edge:
        begun = time.monotonic()
        for _ in range(200):
            edge.predict(inputs[0])
        seconds = time.monotonic() - begun
    assert 5 <= len(list(collector.spans())) <= 5 + 5 * seconds + 1
    with EdgeClient(bundle, otlp=collector.address, traces=0) as edge:
        before = len(list(collector.spans()))
        edge.predict(inputs[0])
    assert len(list(collector.spans())) == before


def test_callers_cannot_have_more_traced_nor_break_it(served: Path, collector: Collector, tmp_path: Path) -> None:
    x, begun = np.zeros((1, 1, 4, 4), np.uint8), time.monotonic()
    states = ["a=1", "\xff\xfe=\xe9", "=,=,=", "k=v," * 2000]
    with Server(served, tmp_path, otlp=collector.address, traces=3.0) as server:
        client = Client(server)
        for i in range(80):
            parent = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
            assert client.ask(x, traceparent=parent, tracestate=states[i % len(states)]).status == 200
            assert client.ask(x).status == 200
        seconds = time.monotonic() - begun
        assert server.stop() == 0
        assert not [line for line in server.log.read_text().splitlines() if '"level":"error"' in line]
    infers = [span for span in collector.spans() if span.name == "infer"]
    own = [span for span in infers if not span.parent_span_id]
    for found in (own, [span for span in infers if span.parent_span_id]):
        assert 3 <= len(found) <= 3 + 3 * seconds + 1


def test_calls_become_a_part_of_the_programs_own_traces(bundle: Path, inputs: np.ndarray) -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))

    async def both() -> None:
        with (
            EdgeClient(bundle, otlp=provider, traces=0) as edge,
            provider.get_tracer("mine").start_as_current_span("a"),
        ):
            edge.predict(inputs[:2])
            async with AsyncEdgeClient(bundle, otlp=provider, traces=0) as other:
                await other.predict(inputs[0])

    asyncio.run(both())
    *calls, own = kept.get_finished_spans()
    assert [call.name for call in calls] == ["predict", "predict"]
    assert {call.parent.span_id for call in calls} == {own.context.span_id}
    assert calls[0].attributes["l2h.inputs"] == 2


@pytest.mark.usefixtures("unhurried")
def test_a_failed_request_says_why(bundle: Path, inputs: np.ndarray, collector: Collector) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    given = {"deadline": 30.0, "costs": FREE, "key": "l2h_secret"}
    with EdgeClient(bundle, nobody, otlp=collector.address, **given) as edge:
        edge.predict(inputs[0])
    (ask,) = [span for span in collector.spans() if span.name == "ask"]
    assert attributes(ask)["l2h.reason"] == "server_unreachable"
    assert attributes(ask)["http.request.resend_count"] == 1
    assert ask.status.code == ask.status.STATUS_CODE_ERROR
    assert "l2h_secret" not in str(ask)


@pytest.mark.parametrize("address", ["collector:4318", "ftp://collector", "http://", "http://a:99999", "http://a?b=c"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match="no collector's address"):
        check_otlp(address, "--otlp")


@pytest.mark.parametrize("options", [{"otlp": "collector:4318"}, {"otlp": 4318}, {"traces": -1}, {"traces": "many"}])
def test_options_that_make_no_sense_are_refused(bundle: Path, options: dict[str, Any]) -> None:
    with pytest.raises(EdgeSettingsError, match=next(iter(options))):
        EdgeClient(bundle, **options)


def test_room_for_traces_comes_back_with_time() -> None:
    limit = TraceLimit(2.0)
    assert [limit.admits() for _ in range(3)] == [True, True, False]
    limit._last -= 0.6  # as if so much time had passed
    assert limit.admits()
    assert not limit.admits()
