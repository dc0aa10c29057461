"""The Open Inference Protocol (V2) as bytes: JSON, and its binary tensor extension.

The device and the server share this module, so that they cannot disagree. Nothing here trusts what it reads: whatever
is not a well-formed message within the limits is refused with a :class:`WireError` that says why.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import L2HError

_fast_loads: Callable[[memoryview], Any] | None
try:  # ten times as fast on numbers; a server has it, a device need not
    from orjson import loads as _fast_loads
except ImportError:
    _fast_loads = None

#: How many bytes of a body with binary tensors are its JSON part.
LENGTH_HEADER = "Inference-Header-Content-Length"
BINARY, JSON = "application/octet-stream", "application/json"
Array = npt.NDArray[Any]

_TYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
DATATYPES = tuple(_TYPES)


class WireError(L2HError, ValueError):
    """Bytes that are no message of the protocol, or one beyond the limits."""


@dataclass(frozen=True)
class Limits:
    """What a reader puts up with.

    Attributes:
        tensors: of one message.
        elements: of one tensor.
        axes: of one tensor.
        json_bytes: of the JSON part.
    """

    tensors: int = 16
    elements: int = 16_000_000
    axes: int = 8
    json_bytes: int = 64 * 2**20


@dataclass(frozen=True)
class Tensor:
    """A named array.

    Attributes:
        name: of the model's input or output.
        data: its values; their type gives the protocol's datatype.
    """

    name: str
    data: Array


@dataclass(frozen=True)
class Request:
    """A request to infer.

    Attributes:
        inputs: the tensors.
        id: the caller's, echoed in the answer; None without.
        wanted: names of the outputs asked for; empty for all.
        binary_output: names of the outputs wanted as binary tensors; None where the message does not say.
        all_binary: whether every output not named is wanted so.
    """

    inputs: list[Tensor]
    id: str | None = None
    wanted: tuple[str, ...] = ()
    binary_output: Mapping[str, bool] = field(default_factory=dict)
    all_binary: bool = False

    def wants_binary(self, name: str) -> bool:
        """Whether an output is to be a binary tensor."""
        return self.binary_output.get(name, self.all_binary)


@dataclass(frozen=True)
class Response:
    """An answer.

    Attributes:
        outputs: the tensors.
        model: its name.
        version: the model's version; None without.
        id: of the request; None without.
    """

    outputs: list[Tensor]
    model: str
    version: str | None = None
    id: str | None = None


def datatype(dtype: npt.DTypeLike) -> str:
    """The protocol's name of a numpy type.

    Raises:
        WireError: it has none.
    """
    found = _NAMES.get(np.dtype(dtype).newbyteorder("<"))
    if found is None:
        raise WireError(f"the protocol has no datatype for {np.dtype(dtype)}; known: {', '.join(_TYPES)}")
    return found


def numpy_type(name: Any) -> np.dtype[Any]:
    """The numpy type of a protocol's datatype.

    Raises:
        WireError: an unknown one.
    """
    found = _TYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise WireError(f"unknown datatype {_shown(name)}; known: {', '.join(_TYPES)}")
    return found


def encode_request(
    inputs: Sequence[Tensor], *, binary: bool, id: str | None = None, outputs: Sequence[str] = ()
) -> tuple[bytes, dict[str, str]]:
    """A request's body and headers; ``binary`` sends the tensors so, and asks for the answer so."""
    head: dict[str, Any] = {} if id is None else {"id": id}
    if binary:
        head["parameters"] = {"binary_data_output": True}
    if outputs:
        head["outputs"] = [{"name": name} for name in outputs]
    return _encode(head, "inputs", inputs, dict.fromkeys((t.name for t in inputs), binary))


def encode_response(response: Response, binary: Mapping[str, bool] | None = None) -> tuple[bytes, dict[str, str]]:
    """An answer's body and headers; ``binary`` says of each output whether it goes as a binary tensor.

    Raises:
        WireError: a value that JSON cannot say: not a number, or infinite.
    """
    head: dict[str, Any] = {"model_name": response.model}
    if response.version is not None:
        head["model_version"] = response.version
    if response.id is not None:
        head["id"] = response.id
    return _encode(head, "outputs", response.outputs, binary or {})


def decode_request(body: bytes | memoryview, header_length: int | None = None, limits: Limits | None = None) -> Request:
    """Read a request.

    Args:
        body: the whole body.
        header_length: bytes of its JSON part, from the header of that name; None: all of it.
        limits: what to put up with.

    Raises:
        WireError: it is none, or beyond the limits.
    """
    head, inputs = _decode(body, header_length, "inputs", limits or Limits())
    if not inputs:
        raise WireError("a request needs at least one tensor in 'inputs'")
    wanted, binary = [], {}
    for output in _list(head, "outputs"):
        if not isinstance(output, dict) or not isinstance(output.get("name"), str):
            raise WireError("every entry of 'outputs' is an object with a 'name'")
        wanted.append(output["name"])
        said = _parameters(output).get("binary_data")
        if said is not None:
            binary[output["name"]] = _flag(said, "binary_data")
    all_binary = _flag(_parameters(head).get("binary_data_output", False), "binary_data_output")
    return Request(inputs, _identity(head), tuple(wanted), binary, all_binary)


def decode_response(
    body: bytes | memoryview, header_length: int | None = None, limits: Limits | None = None
) -> Response:
    """Read an answer; raises as :func:`decode_request`."""
    head, outputs = _decode(body, header_length, "outputs", limits or Limits())
    name, version = head.get("model_name"), head.get("model_version")
    if not isinstance(name, str) or not isinstance(version, str | None):
        raise WireError(f"an answer names its model as text; got {_shown(name)}, version {_shown(version)}")
    return Response(outputs, name, version, _identity(head))


def header_length(value: str | bytes | None) -> int | None:
    """The length header's value as a number; None where there is none.

    Raises:
        WireError: it is no number of bytes.
    """
    if value is None:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise WireError(f"{LENGTH_HEADER}: {_shown(text)} is no number of bytes")
    return int(text)


def _encode(
    head: dict[str, Any], key: str, tensors: Sequence[Tensor], binary: Mapping[str, bool]
) -> tuple[bytes, dict[str, str]]:
    described, raw = [], []
    for tensor in tensors:
        kind = datatype(tensor.data.dtype)
        one: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.data.shape), "datatype": kind}
        if binary.get(tensor.name, False):
            data = np.ascontiguousarray(tensor.data, dtype=_TYPES[kind]).tobytes()
            one["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            one["data"] = tensor.data.reshape(-1).tolist()
        described.append(one)
    try:
        text = json.dumps({**head, key: described}, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise WireError(f"JSON cannot carry a value that is not finite: {error}") from error
    if not raw:
        return text, {"Content-Type": JSON}
    return b"".join([text, *raw]), {"Content-Type": BINARY, LENGTH_HEADER: str(len(text))}


def _decode(
    body: bytes | memoryview, length: int | None, key: str, limits: Limits
) -> tuple[dict[str, Any], list[Tensor]]:
    view = memoryview(body)
    if length is None:
        length = len(view)
    if length > len(view):
        raise WireError(f"{LENGTH_HEADER} says {length} bytes of JSON, the body has {len(view)}")
    if length > limits.json_bytes:
        raise WireError(f"{length} bytes of JSON; at most {limits.json_bytes} are read")
    try:
        head = _loads(view[:length])
    except (ValueError, RecursionError) as error:
        raise WireError(f"the body is no JSON: {error}") from error
    if not isinstance(head, dict):
        raise WireError("the body is no JSON object")
    described = _list(head, key)
    if len(described) > limits.tensors:
        raise WireError(f"{len(described)} tensors; at most {limits.tensors} are read")
    tensors: list[Tensor] = []
    at = length
    for one in described:
        tensor, at = _tensor(one, view, at, limits)
        if any(tensor.name == other.name for other in tensors):
            raise WireError(f"tensor {_shown(tensor.name)} comes twice")
        tensors.append(tensor)
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes follow the last tensor")
    return head, tensors


def _tensor(one: Any, view: memoryview, at: int, limits: Limits) -> tuple[Tensor, int]:
    """The tensor that an entry describes, and where the next binary one starts."""
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        raise WireError("every tensor is an object with a 'name'")
    name, kind = one["name"], numpy_type(one.get("datatype"))
    shape = one.get("shape")
    if not isinstance(shape, list) or len(shape) > limits.axes or not all(_is_size(edge) for edge in shape):
        raise WireError(f"tensor {_shown(name)}: shape must be at most {limits.axes} whole numbers from 0")
    count = math.prod(shape)
    if count > limits.elements:
        raise WireError(f"tensor {_shown(name)}: {count} elements; at most {limits.elements} are read")
    size = _parameters(one).get("binary_data_size")
    if size is None:
        return Tensor(name, _from_json(name, one.get("data"), kind, tuple(shape))), at
    if "data" in one:
        raise WireError(f"tensor {_shown(name)} has 'data' and 'binary_data_size': one of them")
    if not _is_size(size) or size != count * kind.itemsize:
        raise WireError(
            f"tensor {_shown(name)}: {_shown(size)} bytes for {count} elements of {kind.itemsize}; expected "
            f"{count * kind.itemsize}"
        )
    if at + size > len(view):
        raise WireError(f"tensor {_shown(name)}: its {size} bytes go beyond the end of the body")
    raw = np.frombuffer(view[at : at + size], dtype=np.uint8 if kind.kind == "b" else kind)
    if kind.kind == "b":
        if raw.size and raw.max() > 1:
            raise WireError(f"tensor {_shown(name)}: a BOOL is 0 or 1")
        raw = raw.view(np.bool_)
    return Tensor(name, raw.reshape(shape)), at + size


def _from_json(name: str, data: Any, kind: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if not isinstance(data, list):
        raise WireError(f"tensor {_shown(name)}: 'data' must be a list, or 'binary_data_size' say where it lies")
    flat = _flat(data, kind) if len(data) == math.prod(shape) else None
    if flat is not None:
        return flat.reshape(shape)
    leaves = _leaves(name, data, shape)
    types = set(map(type, leaves))
    if types - ({bool} if kind.kind == "b" else {int} if kind.kind in "iu" else {int, float}):
        raise WireError(f"tensor {_shown(name)}: its data does not fit the datatype {_NAMES[kind]}")
    if kind.kind in "iu" and leaves:
        bounds = np.iinfo(kind)
        if min(leaves) < bounds.min or max(leaves) > bounds.max:
            raise WireError(f"tensor {_shown(name)}: a value is beyond {_NAMES[kind]}")
    try:
        with np.errstate(over="ignore"):
            out: Array = np.array(leaves, dtype=kind).reshape(shape)
    except OverflowError as error:
        raise WireError(f"tensor {_shown(name)}: a value is beyond {_NAMES[kind]}") from error
    if kind.kind == "f" and not np.isfinite(out).all():
        raise WireError(f"tensor {_shown(name)}: a value is beyond {_NAMES[kind]}")
    return out


def _leaves(name: str, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """The entries of a list that is flat, or nested as the shape says; no more is built than the shape has."""
    level = data
    if data and isinstance(data[0], list):
        lists = [data]
        for size in shape:
            if any(type(one) is not list or len(one) != size for one in lists):
                raise WireError(f"tensor {_shown(name)}: its data is not nested as its shape {list(shape)} says")
            level = lists = [entry for one in lists for entry in one]
    if len(level) != math.prod(shape):
        raise WireError(f"tensor {_shown(name)}: {len(level)} values for a shape of {list(shape)}")
    return level


def _flat(data: list[Any], kind: np.dtype[Any]) -> Array | None:
    """A flat list of numbers that all fit, read several times as fast as numpy does; None for any other."""
    of = (int, float) if kind.kind == "f" else (int,)
    if not data or type(data[0]) not in of or kind.char in "?e" or sys.byteorder != "little":
        return None
    try:
        out: Array = np.frombuffer(bytes(data) if kind.char == "B" else array(kind.char, data), dtype=kind)
    except (TypeError, ValueError, OverflowError):
        return None
    return out if kind.kind != "f" or np.isfinite(out).all() else None


def _list(head: dict[str, Any], key: str) -> list[Any]:
    found = head.get(key, [])
    if not isinstance(found, list):
        raise WireError(f"'{key}' must be a list")
    return found


def _parameters(one: dict[str, Any]) -> dict[str, Any]:
    found = one.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise WireError("'parameters' must be an object")
    return found


def _identity(head: dict[str, Any]) -> str | None:
    found = head.get("id")
    if found is not None and not isinstance(found, str):
        raise WireError("'id' must be text")
    return found


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"'{name}' must be true or false; got {_shown(value)}")
    return value


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**40


def _loads(text: memoryview) -> Any:
    if _fast_loads is not None:
        return _fast_loads(text)
    return json.loads(bytes(text), parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
