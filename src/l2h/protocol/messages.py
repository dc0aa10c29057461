"""What the Open Inference Protocol (V2) is about: tensors, their datatypes, requests and answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import L2HError, shown

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
    """Raised for bytes that are no message of the protocol, or one beyond the limits."""


@dataclass(frozen=True)
class MessageLimits:
    """The largest message that is read.

    Attributes:
        tensors: how many per message.
        elements: how many per tensor.
        axes: how many per tensor.
        json_bytes: length of the JSON part.
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
        binary_output: by name of the output, whether it is wanted as a binary tensor.
        all_binary: the same for every output that is not named there.
    """

    inputs: list[Tensor]
    id: str | None = None
    wanted: tuple[str, ...] = ()
    binary_output: Mapping[str, bool] = field(default_factory=dict)
    all_binary: bool = False

    def wants_binary(self, name: str) -> bool:
        """Return whether an output is to be a binary tensor."""
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
    """Return the protocol's name of a numpy type.

    Raises:
        WireError: it has none.
    """
    name = _NAMES.get(np.dtype(dtype).newbyteorder("<"))
    if name is None:
        raise WireError(f"the protocol has no datatype for {np.dtype(dtype)}; known: {', '.join(DATATYPES)}")
    return name


def numpy_type(name: Any) -> np.dtype[Any]:
    """Return the numpy type of a protocol's datatype.

    Raises:
        WireError: an unknown one.
    """
    dtype = _TYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise WireError(f"unknown datatype {shown(name)}; known: {', '.join(DATATYPES)}")
    return dtype
