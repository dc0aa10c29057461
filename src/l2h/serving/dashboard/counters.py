"""The metrics of all workers as plain numbers, and what is worked out from them: rates, percentiles, batch sizes."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import multiprocess

from l2h.telemetry import SECONDS

#: What is counted: a sample of the metrics, its name here, and the label that divides it.
_SUMS = {
    "l2h_requests_total": ("requests", "status"),
    "l2h_refused_total": ("refused", "reason"),
    "l2h_inputs_total": ("inputs", None),
    "l2h_charged_units_total": ("units", None),
    "l2h_request_seconds_bucket": ("seconds", "le"),
    "l2h_batch_inputs_bucket": ("batch", "le"),
    "l2h_batch_inputs_sum": ("batched", None),
    "l2h_reloads_total": ("reloads", "result"),
    "l2h_log_dropped_total": ("log_dropped", None),
}
#: Percentiles of the latency.
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: What is as it is now.
_SEEN = {
    "l2h_queue_inputs": "queue",
    "l2h_in_flight": "in_flight",
    "l2h_connections": "connections",
    "l2h_ledger_up": "ledger_up",
}


def read_counters(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return what all workers have counted since the server's start, and their gauges.

    A divided count is named with its label: ``requests:200``. Buckets hold what is in them alone.
    """
    sums: dict[str, float] = {}
    seen: dict[str, float] = {}
    files = [str(file) for file in folder.glob("*.db")]
    merge = multiprocess.MultiProcessCollector.merge
    for metric in merge(files, accumulate=False):  # type: ignore[no-untyped-call]
        for sample in metric.samples:
            if sample.name in _SUMS:
                name, label = _SUMS[sample.name]
                sums[name if label is None else f"{name}:{sample.labels[label]}"] = _whole(sample.value)
            elif sample.name in _SEEN:
                seen[_SEEN[sample.name]] = _whole(sample.value)
    return sums, seen


def added(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums of several counts, by name."""
    total: dict[str, float] = {}
    for count in counts:
        for name, value in count.items():
            total[name] = total.get(name, 0) + value
    return total


def divided(sums: Mapping[str, float], name: str) -> dict[str, float]:
    """Return the parts of a divided count by their labels, without those that are 0."""
    return {key.partition(":")[2]: value for key, value in sums.items() if key.startswith(f"{name}:") and value}


def count(sums: Mapping[str, float], name: str) -> float:
    """Return a divided count as a whole."""
    return sum(divided(sums, name).values())


def latency(sums: Mapping[str, float]) -> dict[str, float | None]:
    """Return percentiles of the seconds of requests, as Prometheus's ``histogram_quantile`` does; None without any.

    Within a bucket values are taken to be spread evenly, and beyond the last bound to be at it.

    Example:
        >>> latency({"seconds:0.01": 50, "seconds:0.025": 50})
        {'p50': 0.01, 'p90': 0.022, 'p99': 0.0247}
    """
    buckets = sorted((float(bound), value) for bound, value in divided(sums, "seconds").items())
    found: dict[str, float | None] = dict.fromkeys(_SHARES)
    total, below = sum(value for _, value in buckets), 0.0
    for bound, value in buckets:
        lower = max((other for other in SECONDS if other < bound), default=0.0)
        width = min(bound, SECONDS[-1]) - lower
        for name, share in _SHARES.items():
            if below < share * total <= below + value:
                found[name] = round(lower + width * (share * total - below) / value, 9)
        below += value
    return found


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value
