"""What L2H tells of itself by common standards: Prometheus's text, traces and metrics of OpenTelemetry, JSON logs."""

from l2h.telemetry.families import SECONDS, Distribution, Family, write_text
from l2h.telemetry.logs import JsonLines, event, log_as_json, stamp
from l2h.telemetry.otlp import MetricsSender, TraceLimit, Tracer, check_otlp

__all__ = [
    "SECONDS",
    "Distribution",
    "Family",
    "JsonLines",
    "MetricsSender",
    "TraceLimit",
    "Tracer",
    "check_otlp",
    "event",
    "log_as_json",
    "stamp",
    "write_text",
]
