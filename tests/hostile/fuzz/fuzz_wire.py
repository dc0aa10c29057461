"""The wire: any bytes are a message or a :class:`WireError`, and a message holds what its JSON says.

An input is a body; where it holds a zero byte, that stands between the JSON part and the binary tensors. The JSON part
is also read as the report of a device.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
from fuzzing import at_most
from fuzzing import mutate_json as mutate

from l2h import protocol
from l2h.fleet import DEVICE, LONGEST, DeviceReport, ReportError
from l2h.protocol import WireError

__all__ = ["check", "mutate"]


def check(data: bytes) -> None:
    head, zero, tail = data.partition(b"\0")
    body, length = head + tail, len(head) if zero else None
    with at_most(64 * len(data) + 2**18):
        for read in (protocol.decode_request, protocol.decode_response):
            with suppress(WireError):
                read(body, length)
            with suppress(WireError):
                read(body, len(head) // 2)
        with suppress(WireError):
            protocol.header_length(head)
        with suppress(ReportError):
            report = DeviceReport.decode(head)
            assert DEVICE.fullmatch(report.device)
            sent = report.encode().encode()
            assert len(sent) <= LONGEST
            assert DeviceReport.decode(sent).inputs == report.inputs
    with suppress(WireError):
        request = protocol.decode_request(body, length)
        as_its_json_says(json.loads(head)["inputs"], request.inputs)
        again, headers = protocol.encode_request(request.inputs, binary=True, id=request.id)
        found = protocol.decode_request(again, protocol.header_length(headers.get(protocol.LENGTH_HEADER)))
        for one, other in zip(found.inputs, request.inputs, strict=True):
            assert one.data.dtype == other.data.dtype
            assert one.data.tobytes() == other.data.tobytes()


def as_its_json_says(entries: list[dict[str, Any]], tensors: list[protocol.Tensor]) -> None:
    """Every number of a tensor in JSON stands in the tensor, and only true and false are booleans."""
    for entry, tensor in zip(entries, tensors, strict=True):
        assert list(tensor.data.shape) == entry["shape"]
        if "data" not in entry or entry["data"] is None:
            continue
        values: list[Any] = entry["data"]
        while values and isinstance(values[0], list):
            values = [value for row in values for value in row]
        kind = tensor.data.dtype.kind
        allowed = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}[kind]
        assert set(map(type, values)) <= allowed, f"{values} among {tensor.data.dtype}"
        with np.errstate(over="ignore"):
            assert tensor.data.reshape(-1).tolist() == np.array(values, tensor.data.dtype).tolist()
