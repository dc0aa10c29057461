"""What a device tells of itself fits into one short header, and nothing else is taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from l2h.edge import REASONS
from l2h.fleet import LONGEST, DeviceReport, ReportError, made_at

PLAIN: dict[str, Any] = {
    "device": "cam-7",
    "start": 5,
    "count": 1,
    "every": 900.0,
    "model": "digits",
    "version": "0a1b",
}


def test_the_longest_report_fits_and_loses_no_count() -> None:
    counts = {reason: 10**9 + i for i, reason in enumerate(REASONS)}
    named = {f"server-{i}".ljust(32, "x"): 10**12 + i for i in range(9)}
    report = DeviceReport(
        **PLAIN | {"device": "d" * 64, "model": "m" * 64, "version": "v" * 64, "start": 2**53, "count": 2**53},
        answerers=named,
        reasons=counts,
        expected_saving=-1.234e-05,
        latency=(1.234e-05, 1.234e-05),
        round_trip=(1.234e-05, 1.234e-05),
        drift="above",
        breaker="half-open",
        inputs=2**53,
        asked=2**53,
        uptime=1e9,
        created=2**37,
    )
    text = report.encode()
    assert len(text) <= LONGEST
    assert text.isprintable()
    read = DeviceReport.decode(text.encode())
    assert sum(read.reasons.values()) == sum(counts.values())
    assert sum(read.answerers.values()) == sum(named.values())
    assert (read.device, read.start, read.inputs) == ("d" * 64, 2**53, 2**53)


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"d": name}
            for name in ("", "a" * 65, "a" * 10_000, "cam\n7", "cam\x00", "cam\u202e7", "cäm", "-x", "a b", 7)
        ),
        *({"s": start} for start in (-1, 2**53 + 1, 1.5, "1", None)),
        *({"n": -1}, {"n": 1e400}, {"e": 0}, {"e": "x"}, {"by": {"a b": 1}}, {"why": {"": 1}}, {"why": {"a": -1}}),
        *({"f": "ABOVE"}, {"x": "much"}, {"l": [1.0]}, {"l": [-1.0, 1.0]}, {"m": "../x"}, {"o": "\x1b[31m"}),
    ],
)
def test_what_is_no_report_is_refused(change: dict[str, Any]) -> None:
    values = json.loads(DeviceReport(**PLAIN).encode()) | change
    with pytest.raises(ReportError):
        DeviceReport.decode(json.dumps(values).encode())


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"7", b"\xff", b'{"d": "cam-7"}', b"[" * 500, b"{}, {}"])
def test_what_is_no_object_is_refused(value: bytes) -> None:
    with pytest.raises(ReportError):
        DeviceReport.decode(value)


def test_values_of_a_later_version_are_ignored() -> None:
    text = json.dumps(json.loads(DeviceReport(**PLAIN).encode()) | {"new": [1]})
    assert DeviceReport.decode(text.encode()) == DeviceReport(**PLAIN)


def test_a_bundle_without_a_time_has_none() -> None:
    assert [made_at(text) for text in ("1970-01-02T00:00:00+00:00", "1970-01-02", "now", "")] == [86400, 86400, 0, 0]
