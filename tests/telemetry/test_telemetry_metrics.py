"""The device's metrics for Prometheus, and its logs in the style of the server's."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from waiting import STUCK

from l2h import Costs, EdgeClient
from l2h.edge import EdgeSettingsError
from l2h.telemetry import Distribution, Family, write_text


def families(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The numbers of Prometheus's text, by the names of their samples and the values of their labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_the_text_says_what_the_counters_say(bundle: Path, inputs: np.ndarray) -> None:
    with EdgeClient(bundle, lambda x: np.eye(10)[x.sum(axis=(1, 2, 3)) % 10], deadline=5.0, limit="10/1h") as edge:
        for i in range(30):
            edge.predict(inputs[i])
        edge.predict(inputs)
        stats, found = edge.stats(), families(edge.metrics_text())
    assert found["l2h_edge_answers_total"] == {(reason,): n for reason, n in stats.reasons.items()}
    assert found["l2h_edge_answered_by_total"] == {(name,): n for name, n in stats.answerers.items()}
    assert found["l2h_edge_predict_seconds_count"] == {(): stats.calls}
    assert found["l2h_edge_requests_total"] == {("server",): stats.requests}
    assert found["l2h_edge_round_trip_seconds_count"] == {("server",): stats.requests}
    assert found["l2h_edge_limit_used"] == {("all",): stats.limit["used"]}
    assert found["l2h_edge_limit_cap"] == {("all",): 10}
    assert found["l2h_edge_info"] == {(edge.bundle.manifest.name, edge.bundle.manifest.version): 1}


def test_a_distribution_counts_as_numpy_does() -> None:
    values = np.random.default_rng(0).exponential(0.1, 1000)
    distribution, family = Distribution((0.01, 0.1, 1.0)), Family("d", "histogram", "A line\nand \\ more.")
    for value in (*values, 0.1):
        distribution.observe(value)
    distribution.add_to(family, name='quo"te\n')
    found = families(write_text([family]))
    expected = [int((np.append(values, 0.1) <= bound).sum()) for bound in (0.01, 0.1, 1.0, np.inf)]
    assert list(found["d_bucket"].values()) == expected
    assert found["d_sum"] == {('quo"te\n',): pytest.approx(values.sum() + 0.1)}


def test_the_exporter_serves_until_the_client_is_closed(bundle: Path, inputs: np.ndarray) -> None:
    with EdgeClient(bundle) as edge:
        served = edge.serve_metrics(port=0)
        edge.predict(inputs[0])
        url = f"http://127.0.0.1:{served.port}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert families(answer.read().decode())["l2h_edge_predict_seconds_count"] == {(): 1}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=5)
        with pytest.raises(EdgeSettingsError, match=f"port {served.port}"):
            edge.serve_metrics(served.port)
        with pytest.raises(EdgeSettingsError, match="port x"):
            edge.serve_metrics("x")  # type: ignore[arg-type]
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/metrics", timeout=5)
    served.close()


def test_a_client_that_is_forgotten_leaves_no_thread(bundle: Path) -> None:
    edge = EdgeClient(bundle)
    edge.serve_metrics(port=0)
    named = [thread for thread in threading.enumerate() if thread.name == "l2h-edge-metrics"]
    assert named
    del edge
    gc.collect()
    for thread in named:
        thread.join(STUCK)
        assert not thread.is_alive()


SCRIPT = """
import sys, numpy as np
from l2h import Costs, EdgeClient
from l2h.edge import log_as_json
log_as_json()
free = Costs(c_e=0, c_1=0)
with EdgeClient(sys.argv[1], "http://127.0.0.1:9", deadline=30.0, costs=free, failures=2, retries=0) as edge:
    for _ in range(3):
        edge.predict(np.zeros(edge.bundle.input_shape, edge.bundle.input_dtype))
"""


def test_the_device_logs_in_the_style_of_the_server(bundle: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(bundle)], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["server_trouble", "circuit_opened"]
    for line in lines:
        assert list(line)[:4] == ["time", "level", "event", "pid"]
    assert lines[0]["reason"] == "server_unreachable"
    assert lines[0]["server"] == "http://127.0.0.1:9"


def test_all_metrics_are_there_from_the_start(bundle: Path) -> None:
    """A client that has answered nothing yet has all its families, so that alarms on them work from the start."""
    with EdgeClient(bundle, costs=Costs(c_e=0.1)) as edge:
        text = edge.metrics_text()
    assert families(text)["l2h_edge_predict_seconds_count"] == {(): 0}
    assert "# TYPE l2h_edge_answers_total counter" in text
