"""What Prometheus reads. Each worker writes its own files in a shared folder; the worker that is asked adds them up."""

import fcntl
import json
import os
from collections import Counter as Counting
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from l2h.files import write_atomically
from l2h.serving.accounts.key import Key
from l2h.telemetry import SECONDS

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
#: Where the workers' files lie; read by prometheus_client when it makes its first metric.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: What keys are counted under that have no metrics of their own.
_OTHER = ("other", "other")


class Metrics:
    """The counters of one worker; ``keys`` is how many keys have counters of their own."""

    def __init__(self, keys: int) -> None:
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
        most = partial(gauge, multiprocess_mode="livemax")  # every worker tells the number of the whole server
        self.reserve = most("l2h_reserve_inputs", "Inputs a quota may be exceeded by while the accounts are down.")
        self.reserve_pending = most("l2h_reserve_pending_inputs", "Inputs answered then, and not in the ledger yet.")
        self.reloads = counter("l2h_reloads", "Bundles taken over or refused.", ["result"])
        self.device_reports = counter("l2h_device_reports", "Reports of devices, by what became of them.", ["result"])
        self.log_dropped = counter("l2h_log_dropped", "Lines of the log that nobody read in time.")
        named = ["key", "key_name"]
        self.key_requests = counter("l2h_key_requests", "Requests to infer of a key, by status.", [*named, "status"])
        self.key_inputs = counter("l2h_key_inputs", "Inputs answered to a key.", named)
        self.key_units = counter("l2h_key_units", "Units charged to a key.", named)
        self._labels = KeyLabels(Path(os.environ[FOLDER]), keys)
        self._ok = self.requests.labels("200")
        self._seconds: list[float] = []
        self._used: dict[str, _KeyUse] = {}  # since the last flush, by the key's id

    def answered(self, key: Key, seconds: float, inputs: int, units: int) -> None:
        """Note a request that was answered with scores; :meth:`flush` counts it."""
        self._seconds.append(seconds)
        use = self._used.get(key.id)
        if use is None:
            use = self._used[key.id] = _KeyUse(key)
        use.requests += 1
        use.inputs += inputs
        use.units += units

    def flush(self) -> None:
        """Count the requests answered since the last call."""
        if not self._seconds:
            return
        seconds, self._seconds = self._seconds, []
        for value in seconds:
            self.seconds.observe(value)
        self._ok.inc(len(seconds))
        used, self._used = self._used, {}
        self.inputs.inc(sum(use.inputs for use in used.values()))
        self.units.inc(sum(use.units for use in used.values()))
        for use in used.values():
            labels = self._labels.of(use.key)
            if labels is not None:
                self.key_requests.labels(*labels, "200").inc(use.requests)
                self.key_inputs.labels(*labels).inc(use.inputs)
                self.key_units.labels(*labels).inc(use.units)

    def refuse(self, key: Key | None, status: int, reason: str) -> None:
        """Count a request that was refused; ``key`` is whose it was, where that is known."""
        self.requests.labels(str(status)).inc()
        self.refused.labels(reason).inc()
        labels = None if key is None else self._labels.of(key)
        if labels is not None:
            self.key_requests.labels(*labels, str(status)).inc()

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
        self.flush()
        return generate_latest(open_metrics(Path(os.environ[FOLDER])))


def open_metrics(folder: Path) -> CollectorRegistry:
    """Return what collects the numbers of all workers from their folder."""
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(folder))  # type: ignore[no-untyped-call]
    registry.register(_Models(folder))
    return registry


@dataclass(slots=True)
class _KeyUse:
    """What a key has used."""

    key: Key
    requests: int = 0
    inputs: int = 0
    units: int = 0


class KeyLabels:
    """Which keys have metrics of their own: the first that are used, in all workers the same, and at most ``most``.

    The others are counted together, as "other". No key ever changes sides while the server runs: every number only
    grows, and together they are the whole.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._file, self._most = folder / "labelled-keys", most
        self._known: dict[str, tuple[str, str]] = {}

    def of(self, key: Key) -> tuple[str, str] | None:
        """Return the id and the name that a key is counted under; None where no keys are counted."""
        labels = self._known.get(key.id)
        if labels is None and self._most:
            labels = self._known[key.id] = (key.id, key.name) if self._take(key.id) else _OTHER
        return labels

    def prefer(self, ids: Sequence[str]) -> None:
        """Have keys counted by themselves before any other; to be called before the workers start."""
        self._file.write_text("".join(f"{key_id}\n" for key_id in ids[: self._most]))

    def _take(self, key_id: str) -> bool:
        with self._file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            taken = file.read().split()
            if key_id not in taken and len(taken) < self._most:
                file.write(f"{key_id}\n")
                taken.append(key_id)
        return key_id in taken


class _Models(Collector):
    """Counts the workers that serve each version."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("l2h_model_info", "Workers that serve a version.", labels=["name", "version"])
        for labels, workers in sorted(served_versions(self._folder).items()):
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
