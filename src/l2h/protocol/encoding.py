"""Writing messages of the Open Inference Protocol as JSON, with tensors in it or as bytes behind it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from l2h.protocol.messages import BINARY, JSON, LENGTH_HEADER, Response, Tensor, WireError, datatype, numpy_type


def encode_request(
    inputs: Sequence[Tensor], *, binary: bool, id: str | None = None, outputs: Sequence[str] = ()
) -> tuple[bytes, dict[str, str]]:
    """Return a request's body and headers; ``binary`` sends the tensors as bytes, and asks for the same in the answer.

    Raises:
        WireError: without ``binary``, a value that JSON cannot hold: not a number, or infinite.
    """
    head: dict[str, Any] = {} if id is None else {"id": id}
    if binary:
        head["parameters"] = {"binary_data_output": True}
    if outputs:
        head["outputs"] = [{"name": name} for name in outputs]
    return _encode(head, "inputs", inputs, dict.fromkeys((t.name for t in inputs), binary))


def encode_response(response: Response, binary: Mapping[str, bool] | None = None) -> tuple[bytes, dict[str, str]]:
    """Return an answer's body and headers; ``binary`` says for each output whether it is sent as bytes.

    Raises:
        WireError: a value that JSON cannot hold: not a number, or infinite.
    """
    head: dict[str, Any] = {"model_name": response.model}
    if response.version is not None:
        head["model_version"] = response.version
    if response.id is not None:
        head["id"] = response.id
    return _encode(head, "outputs", response.outputs, binary or {})


def _encode(
    head: dict[str, Any], key: str, tensors: Sequence[Tensor], binary: Mapping[str, bool]
) -> tuple[bytes, dict[str, str]]:
    entries, raw = [], []
    for tensor in tensors:
        kind = datatype(tensor.data.dtype)
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.data.shape), "datatype": kind}
        if binary.get(tensor.name, False):
            data = np.ascontiguousarray(tensor.data, dtype=numpy_type(kind)).tobytes()
            entry["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            entry["data"] = tensor.data.reshape(-1).tolist()
        entries.append(entry)
    try:
        text = json.dumps({**head, key: entries}, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise WireError(f"JSON cannot carry a value that is not finite: {error}") from error
    if not raw:
        return text, {"Content-Type": JSON}
    return b"".join([text, *raw]), {"Content-Type": BINARY, LENGTH_HEADER: str(len(text))}
