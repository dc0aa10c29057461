"""The wire: the Open Inference Protocol (V2) over HTTP, JSON and its binary tensor extension.

The device and the server share this module, so that they cannot disagree. Nothing trusts what it reads: whatever is not
a well-formed message within the limits is refused with a :class:`WireError` that says why.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import L2HError, shown
from l2h.files import parse_json
from l2h.json_lists import SHORT, LongList, Source, flat_array, is_long, leaf_values, take_out

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
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
DATATYPES = tuple(_TYPES)
#: Texts: read in answers alone, as an object array.
TEXTS = "BYTES"


class WireError(L2HError, ValueError):
    """Raised for bytes that are no message of the protocol, or one beyond the limits."""


@dataclass(frozen=True)
class MessageLimits:
    """The largest message that is read."""

    tensors: int = 16  # per message
    elements: int = 16_000_000  # per tensor
    axes: int = 8  # per tensor
    json_bytes: int = 64 * 2**20  # length of the JSON part
    seconds: float = 10.0  # to read the numbers of a tensor written as JSON


@dataclass(frozen=True)
class Tensor:
    """A named array."""

    name: str  # of the model's input or output
    data: Array  # its type gives the protocol's datatype


@dataclass(frozen=True)
class Request:
    """A request to infer."""

    inputs: list[Tensor]
    id: str | None = None  # the caller's, echoed in the answer; None without
    wanted: tuple[str, ...] = ()  # names of the outputs asked for; empty for all
    binary_output: Mapping[str, bool] = field(default_factory=dict)  # by output: wanted as a binary tensor?
    all_binary: bool = False  # the same for every output that is not named there

    def wants_binary(self, name: str) -> bool:
        """Return whether an output is to be a binary tensor."""
        return self.binary_output.get(name, self.all_binary)


@dataclass(frozen=True)
class Response:
    """An answer."""

    outputs: list[Tensor]
    model: str  # its name
    version: str | None = None  # the model's; None without
    id: str | None = None  # of the request; None without


def encode_request(
    inputs: Sequence[Tensor], *, binary: bool, id: str | None = None, outputs: Sequence[str] = ()
) -> tuple[bytes, dict[str, str]]:
    """Return a request's body and headers; ``binary`` sends the tensors as bytes, and asks for the same in the answer.

    Without ``binary`` a value that JSON cannot hold (not a number, or infinite) raises a WireError.
    """
    head: dict[str, Any] = {} if id is None else {"id": id}
    if binary:
        head["parameters"] = {"binary_data_output": True}
    if outputs:
        head["outputs"] = [{"name": name} for name in outputs]
    return _encode(head, "inputs", inputs, dict.fromkeys((t.name for t in inputs), binary))


def encode_response(response: Response, binary: Mapping[str, bool] | None = None) -> tuple[bytes, dict[str, str]]:
    """Return an answer's body and headers; ``binary`` says for each output whether it is sent as bytes.

    A value that JSON cannot hold (not a number, or infinite) raises a WireError.
    """
    head: dict[str, Any] = {"model_name": response.model}
    if response.version is not None:
        head["model_version"] = response.version
    if response.id is not None:
        head["id"] = response.id
    return _encode(head, "outputs", response.outputs, binary or {})


def decode_request(
    body: bytes | bytearray, header_length: int | None = None, limits: MessageLimits | None = None
) -> Request:
    """Read a request; raise a WireError where it is none, or beyond the limits.

    ``header_length`` is how many bytes of the body are its JSON part, as :func:`header_length` reads them; None: all.
    """
    head, inputs = _decode(body, header_length, "inputs", limits or MessageLimits())
    if not inputs:
        raise WireError("a request needs at least one tensor in 'inputs'")
    for entry in _list(head, "inputs"):
        _known_parameters(entry, "binary_data_size")
    wanted, binary = [], {}
    for output in _list(head, "outputs"):
        if not isinstance(output, dict) or not isinstance(output.get("name"), str):
            raise WireError("every entry of 'outputs' is an object with a 'name'")
        wanted.append(output["name"])
        flag = _known_parameters(output, "binary_data").get("binary_data")
        if flag is not None:
            binary[output["name"]] = _flag(flag, "binary_data")
    all_binary = _flag(
        _known_parameters(head, "binary_data_output").get("binary_data_output", False), "binary_data_output"
    )
    return Request(inputs, _identity(head), tuple(wanted), binary, all_binary)


def decode_response(body: bytes | bytearray, header_length: int | None = None) -> Response:
    """Read an answer; takes and raises the same as :func:`decode_request`, within the usual limits."""
    head, outputs = _decode(body, header_length, "outputs", MessageLimits())
    name, version = head.get("model_name"), head.get("model_version")
    if not isinstance(name, str) or not isinstance(version, str | None):
        raise WireError(f"an answer names its model as text; got {shown(name)}, version {shown(version)}")
    return Response(outputs, name, version, _identity(head))


def header_length(value: str | bytes | None) -> int | None:
    """Return the value of the length header as a number of bytes; None where there is none."""
    if value is None:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise WireError(f"{LENGTH_HEADER}: {shown(text)} is no number of bytes")
    return int(text)


def datatype(dtype: npt.DTypeLike) -> str:
    """Return the protocol's name of a numpy type; raise a WireError where it has none."""
    name = TEXTS if np.dtype(dtype).kind == "U" else _NAMES.get(np.dtype(dtype).newbyteorder("<"))
    if name is None:
        raise WireError(f"the protocol has no datatype for {np.dtype(dtype)}; known: {', '.join(DATATYPES)}")
    return name


def numpy_type(name: Any) -> np.dtype[Any]:
    """Return the numpy type of a protocol's datatype; raise a WireError for an unknown one."""
    dtype = _TYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise WireError(f"unknown datatype {shown(name)}; known: {', '.join(DATATYPES)}")
    return dtype


def _encode(
    head: dict[str, Any], key: str, tensors: Sequence[Tensor], binary: Mapping[str, bool]
) -> tuple[bytes, dict[str, str]]:
    entries, raw = [], []
    for tensor in tensors:
        kind = datatype(tensor.data.dtype)
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.data.shape), "datatype": kind}
        if binary.get(tensor.name, False):
            if kind == TEXTS:
                texts = [text.encode() for text in tensor.data.reshape(-1).tolist()]
                data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
            else:
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


def _decode(
    body: bytes | bytearray, length: int | None, key: str, limits: MessageLimits
) -> tuple[dict[str, Any], list[Tensor]]:
    view = memoryview(body)
    if length is None:
        length = len(view)
    if length > len(view):
        raise WireError(f"{LENGTH_HEADER} says {length} bytes of JSON, the body has {len(view)}")
    if length > limits.json_bytes:
        raise WireError(f"{length} bytes of JSON; at most {limits.json_bytes} are read")
    try:
        long = is_long(body, length)
        head = _load_long(body, length, key) if long else _loads(view[:length])
    except WireError:
        raise
    except (ValueError, RecursionError) as error:
        raise WireError(f"the body is no JSON: {error}") from error
    if not isinstance(head, dict):
        raise WireError("the body is no JSON object")
    entries = _list(head, key)
    if len(entries) > limits.tensors:
        raise WireError(f"{len(entries)} tensors; at most {limits.tensors} are read")
    tensors: list[Tensor] = []
    at = length
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise WireError("every tensor is an object with a 'name'")
        source = None if long else (body, length)
        texts = key == "outputs" and entry.get("datatype") == TEXTS
        try:
            tensor, at = _read_texts(entry, view, at, limits) if texts else _tensor(entry, view, at, limits, source)
        except ValueError as error:
            raise WireError(f"tensor {shown(entry['name'])}: {error}") from error
        if any(tensor.name == other.name for other in tensors):
            raise WireError(f"tensor {shown(tensor.name)} comes twice")
        tensors.append(tensor)
    if at != len(view):
        raise WireError(f"{len(view) - at} bytes follow the last tensor")
    return head, tensors


def _tensor(
    entry: dict[str, Any], view: memoryview, at: int, limits: MessageLimits, source: Source
) -> tuple[Tensor, int]:
    """Return the tensor that an entry describes, and where the next binary one starts.

    ``source`` is the JSON that its values were read from.
    """
    kind = numpy_type(entry.get("datatype"))
    shape, count = _shape(entry, limits)
    size = _parameters(entry).get("binary_data_size")
    if size is None:
        return Tensor(entry["name"], _from_json(entry.get("data"), kind, tuple(shape), source, limits.seconds)), at
    if "data" in entry:
        raise WireError("it has 'data' and 'binary_data_size': one of them")
    if not _is_size(size) or size != count * kind.itemsize:
        raise WireError(
            f"{shown(size)} bytes for {count} elements of {kind.itemsize}; expected {count * kind.itemsize}"
        )
    if at + size > len(view):
        raise WireError(f"its {size} bytes go beyond the end of the body")
    raw = np.frombuffer(view[at : at + size], dtype=np.uint8 if kind.kind == "b" else kind)
    if kind.kind == "b":
        if raw.size and raw.max() > 1:
            raise WireError("a BOOL is 0 or 1")
        raw = raw.view(np.bool_)
    return Tensor(entry["name"], raw.reshape(shape)), at + size


def _read_texts(entry: dict[str, Any], view: memoryview, at: int, limits: MessageLimits) -> tuple[Tensor, int]:
    """Return a tensor of texts, as :func:`_tensor` returns one of numbers."""
    shape, count = _shape(entry, limits)
    size, texts = _parameters(entry).get("binary_data_size"), entry.get("data")
    if size is not None:
        if not _is_size(size) or at + size > len(view):
            raise WireError(f"its {shown(size)} bytes go beyond the end of the body")
        raw, at, texts = bytes(view[at : at + size]), at + size, []
        place = 0
        try:
            while place < size and len(texts) < count:
                length, place = int.from_bytes(raw[place : place + 4], "little"), place + 4
                texts.append(raw[place : place + length].decode())
                place += length
        except UnicodeDecodeError as error:
            raise WireError("a text is no UTF-8") from error
        if place != size:
            raise WireError(f"{size} bytes do not hold {count} texts with their lengths")
    if not isinstance(texts, list) or len(texts) != count or not all(isinstance(text, str) for text in texts):
        raise WireError(f"'data' must be a list of {count} texts")
    data = np.empty(count, dtype=object)
    data[:] = texts
    return Tensor(entry["name"], data.reshape(shape)), at


def _shape(entry: dict[str, Any], limits: MessageLimits) -> tuple[list[int], int]:
    shape = entry.get("shape")
    if not isinstance(shape, list) or len(shape) > limits.axes or not all(_is_size(edge) for edge in shape):
        raise WireError(f"shape must be at most {limits.axes} whole numbers from 0")
    count = math.prod(shape)
    if count > limits.elements:
        raise WireError(f"{count} elements; at most {limits.elements} are read")
    return shape, count


def _from_json(data: Any, kind: np.dtype[Any], shape: tuple[int, ...], source: Source, seconds: float) -> Array:
    if isinstance(data, LongList):

        def parse(text: bytes) -> Array:
            values = _loads(memoryview(text))
            return _from_json(values, kind, (len(values),), (text, len(text)), seconds)

        return data.read(shape, kind, parse, seconds)
    if not isinstance(data, list):
        raise WireError("'data' must be a list, or 'binary_data_size' say where it lies")
    flat = flat_array(data, kind, source) if len(data) == math.prod(shape) else None
    if flat is not None:
        return flat.reshape(shape)
    leaves = leaf_values(data, shape)
    types = set(map(type, leaves))
    if types - ({bool} if kind.kind == "b" else {int} if kind.kind in "iu" else {int, float}):
        raise WireError(f"its data does not fit the datatype {datatype(kind)}")
    if kind.kind in "iu" and leaves:
        bounds = np.iinfo(kind)
        if min(leaves) < bounds.min or max(leaves) > bounds.max:
            raise WireError(f"a value is beyond {datatype(kind)}")
    try:
        with np.errstate(over="ignore"):
            out: Array = np.array(leaves, dtype=kind).reshape(shape)
    except OverflowError as error:
        raise WireError(f"a value is beyond {datatype(kind)}") from error
    if kind.kind == "f" and not np.isfinite(out).all():
        raise WireError(f"a value is beyond {datatype(kind)}")
    return out


def _list(head: dict[str, Any], key: str) -> list[Any]:
    values = head.get(key, [])
    if not isinstance(values, list):
        raise WireError(f"'{key}' must be a list")
    return values


def _known_parameters(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the parameters; what asks for something that is not done is refused, so that nobody waits for it."""
    parameters = _parameters(entry)
    for other, value in parameters.items():
        if other != name and value not in (None, 0) and (other, value) != ("content_type", "np"):
            hint = "; ask for the scores, and take the largest" if other == "classification" else ""
            raise WireError(f"the parameter {shown(other)} is not known here: leave it out; known: {shown(name)}{hint}")
    return parameters


def _parameters(entry: dict[str, Any]) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise WireError("'parameters' must be an object")
    return parameters


def _identity(head: dict[str, Any]) -> str | None:
    id = head.get("id")
    if id is not None and not isinstance(id, str):
        raise WireError("'id' must be text")
    return id


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"'{name}' must be true or false; got {shown(value)}")
    return value


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**40


def _load_long(body: bytes | bytearray, length: int, key: str) -> Any:
    """Read the JSON of a message, except for the long lists of its tensors, which are left to be read in slices."""
    try:
        text, lists = take_out(body, length)
    except ValueError as error:
        raise WireError(f"{length} bytes of JSON, {error}") from error
    head = _loads(memoryview(text))
    for entry in _list(head, key) if isinstance(head, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("data"), str):
            entry["data"] = lists.pop(entry["data"], entry["data"])
    if lists:
        raise WireError(f"a list of more than {SHORT} bytes that is no tensor's data")
    return head


def _loads(text: memoryview) -> Any:
    if _fast_loads is not None:
        return _fast_loads(text)
    return parse_json(bytes(text))
