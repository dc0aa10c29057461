"""What a device tells a server of itself: counters in one line of JSON, the value of the header ``L2H-Device``.

It holds no inputs, no labels and no answers. A report is known by its device's name, the client's ``start`` and a
``count`` that rises with every report of that start, so that an older one never replaces a newer one.
"""

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct

from l2h.errors import L2HError

#: The header on requests that are made anyway, and where the same header is sent when none are.
HEADER, PATH = "L2H-Device", "/v2/l2h/devices"
#: Bytes of a report.
LONGEST = 512
#: A device's name.
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
#: Characters of names of bundles and of answerers that are told.
_NAME, _ANSWERER = 64, 32
_OTHER = "other"

_Device = Annotated[str, Meta(pattern=rf"^{DEVICE.pattern}\Z")]
_Name = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9._-]{{1,{_NAME}}}\Z")]
_Word = Annotated[str, Meta(pattern=r"^[a-z-]{1,16}\Z")]
_Whole = Annotated[int, Meta(ge=0, le=2**53)]
_Counts = dict[_Name, _Whole]
_Seconds = Annotated[float, Meta(ge=0, le=1e10)]
_Pair = tuple[_Seconds, _Seconds]


class ReportError(L2HError, ValueError):
    """A header that is no report of a device."""


class DeviceReport(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={
        "device": "d", "start": "s", "count": "c", "every": "e", "model": "m", "version": "v", "created": "t",
        "uptime": "u", "inputs": "n", "asked": "a", "answerers": "by", "reasons": "why", "expected_saving": "x",
        "drift": "f", "breaker": "o", "latency": "l", "round_trip": "r",
    },
):  # fmt: skip
    """What a device tells of itself; counters are since its client was made.

    Example:
        >>> report = DeviceReport(device="cam-7", start=1, count=1, every=900, model="digits", version="0a1b", inputs=5)
        >>> DeviceReport.decode(report.encode().encode()) == report
        True
    """

    device: _Device
    start: _Whole  # when its client was made, in milliseconds since 1970, or later where a report came later
    count: _Whole  # of reports since then
    every: Annotated[float, Meta(gt=0, le=1e7)]  # seconds after which it reports, even if it asks nothing
    model: _Name  # the bundle's name
    version: _Name  # the bundle's
    created: Annotated[int, Meta(ge=0, le=2**37)] = 0  # when the bundle was made, in seconds since 1970; 0: unknown
    uptime: _Seconds = 0.0
    inputs: _Whole = 0  # answered
    asked: _Whole = 0  # inputs that were sent to servers
    answerers: _Counts = {}  # inputs by who answered
    reasons: _Counts = {}  # inputs by the reason
    expected_saving: Annotated[float, Meta(ge=-1e15, le=1e15)] | None = None  # by asking; None where it is not known
    drift: _Word | None = None  # the alarm
    breaker: _Word = "closed"  # of the circuit to this server
    latency: _Pair | None = None  # seconds of calls of ``predict``: p50 and p95
    round_trip: _Pair | None = None  # seconds of requests to this server

    def encode(self) -> str:
        """Return the header's value; where it would be too long, the rarest answerers and reasons are one."""
        values, data = self, msgspec.json.encode(self)
        while len(data) > LONGEST:
            field, counts = max(
                ("answerers", values.answerers), ("reasons", values.reasons), key=lambda pair: len(pair[1])
            )
            if len(counts) < 2:
                raise ReportError(f"the report of {self.device} has {len(data)} bytes; at most {LONGEST} are sent")
            (_, rarest), (_, rare), *others = sorted(counts.items(), key=lambda pair: pair[1])
            merged = dict(others)
            merged[_OTHER] = merged.get(_OTHER, 0) + rarest + rare
            values = msgspec.structs.replace(values, **{field: merged})
            data = msgspec.json.encode(values)
        return data.decode("ascii")

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Return the report of a header's value; raise a :class:`ReportError` where it is none."""
        if len(value) > LONGEST:
            raise ReportError(f"a device's report has at most {LONGEST} bytes; got {len(value)}")
        try:
            return msgspec.json.decode(value, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ReportError(f"the header {HEADER} is no report of a device: {error}") from error


def told_name(name: str) -> str:
    """Return the name of a bundle as a report tells it."""
    return name[:_NAME]


def told_counts(counts: dict[str, int], known: set[str] | None = None) -> dict[str, int]:
    """Return counts by name as a report tells them; names that are not ``known`` to who gets it are one."""
    told: Counter[str] = Counter()
    for name, count in counts.items():
        told[name[:_ANSWERER] if known is None or name in known else _OTHER] += count
    return dict(told)


def made_at(created: str) -> int:
    """Return the seconds since 1970 of when a bundle was made, by its manifest; 0 where that says no time."""
    try:
        at = datetime.fromisoformat(created)
        return max(0, int(at.replace(tzinfo=at.tzinfo or UTC).timestamp()))
    except (ValueError, OverflowError):
        return 0
