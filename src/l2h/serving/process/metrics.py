"""What Prometheus reads. Each worker writes its own files in a shared folder; the worker that is asked adds them up."""

import json
import os
from collections import Counter as Counting
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from l2h.files import write_atomically

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
#: Where the workers' files lie; read by prometheus_client when it makes its first metric.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one worker."""

    def __init__(self) -> None:
        # Registered nowhere: :meth:`text` reads the files of all workers.
        counter = partial(Counter, registry=None)
        histogram = partial(Histogram, registry=None)
        gauge = partial(Gauge, registry=None, multiprocess_mode="livesum")
        self.requests = counter("l2h_requests", "Requests to infer, by status.", ["status"])
        self.refused = counter("l2h_refused", "Requests refused, by reason.", ["reason"])
        self.inputs = counter("l2h_inputs", "Inputs answered.")
        self.units = counter("l2h_charged_units", "Units charged.")
        self.seconds = histogram("l2h_request_seconds", "From headers to answer.", buckets=SECONDS)
        self.batch_inputs = histogram("l2h_batch_inputs", "Inputs of a model call.", buckets=INPUTS)
        self.batch_seconds = histogram("l2h_batch_seconds", "A model call.", buckets=SECONDS)
        self.commit_seconds = histogram("l2h_ledger_seconds", "A transaction.", buckets=SECONDS)
        self.commit_rows = counter("l2h_ledger_charges", "Charges tried in transactions.")
        self.waiting = gauge("l2h_queue_inputs", "Inputs that wait.")
        self.in_flight = gauge("l2h_in_flight", "Requests at hand.")
        self.connections = gauge("l2h_connections", "Open connections.")
        self.ledger_up = gauge("l2h_ledger_up", "1 where the ledger can be written.", multiprocess_mode="livemin")
        self.reloads = counter("l2h_reloads", "Bundles taken over or refused.", ["result"])
        self.log_dropped = counter("l2h_log_dropped", "Lines of the log that nobody read in time.")
        self._ok = self.requests.labels("200")
        self._seconds: list[float] = []
        self._inputs = self._units = 0

    def answered(self, seconds: float, inputs: int, units: int) -> None:
        """Note a request that was answered with scores; :meth:`flush` counts it."""
        self._seconds.append(seconds)
        self._inputs += inputs
        self._units += units

    def flush(self) -> None:
        """Count the requests answered since the last call."""
        if not self._seconds:
            return
        seconds, self._seconds = self._seconds, []
        for value in seconds:
            self.seconds.observe(value)
        self._ok.inc(len(seconds))
        self.inputs.inc(self._inputs)
        self.units.inc(self._units)
        self._inputs = self._units = 0

    def refuse(self, status: int, reason: str) -> None:
        """Count a request that was refused."""
        self.requests.labels(str(status)).inc()
        self.refused.labels(reason).inc()

    def called(self, inputs: int, seconds: float) -> None:
        """Count a call of the model."""
        self.batch_inputs.observe(inputs)
        self.batch_seconds.observe(seconds)

    def committed(self, charges: int, seconds: float) -> None:
        """Count a transaction of the ledger."""
        self.commit_rows.inc(charges)
        self.commit_seconds.observe(seconds)

    def show_model(self, name: str, version: str) -> None:
        """Tell which version this worker serves.

        In a file of its own: the files of prometheus_client keep every version that there ever was.
        """
        write_atomically(_model_file(Path(os.environ[FOLDER]), os.getpid()), json.dumps([name, version]).encode())

    def text(self) -> bytes:
        """Return the numbers of all workers, in Prometheus's format."""
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(_Models())
        return generate_latest(registry)


class _Models(Collector):
    """Counts the workers that serve each version."""

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("l2h_model_info", "Workers that serve a version.", labels=["name", "version"])
        for labels, workers in sorted(served_versions(Path(os.environ[FOLDER])).items()):
            info.add_metric(labels, workers)
        yield info


def served_versions(folder: Path) -> Counting[tuple[str, ...]]:
    """Return how many workers serve each name and version."""
    served: Counting[tuple[str, ...]] = Counting()
    for file in folder.glob("model-*.json"):
        with suppress(OSError):  # the worker has ended
            served[tuple(json.loads(file.read_bytes()))] += 1
    return served


def forget_worker(folder: Path, pid: int) -> None:
    """Drop the gauges of a worker that has ended; its counters stay."""
    multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
    _model_file(folder, pid).unlink(missing_ok=True)


def _model_file(folder: Path, pid: int) -> Path:
    return folder / f"model-{pid}.json"
