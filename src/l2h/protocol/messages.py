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
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
DATATYPES = tuple(_TYPES)


class WireError(L2HError, ValueError):
    """Raised for bytes that are no message of the protocol, or one beyond the limits."""


@dataclass(frozen=True)
class MessageLimits:
    """The largest message that is read."""

    tensors: int = 16  # per message
    elements: int = 16_000_000  # per tensor
    axes: int = 8  # per tensor
    json_bytes: int = 64 * 2**20  # length of the JSON part


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


def datatype(dtype: npt.DTypeLike) -> str:
    """Return the protocol's name of a numpy type; raise a WireError where it has none."""
    name = _NAMES.get(np.dtype(dtype).newbyteorder("<"))
    if name is None:
        raise WireError(f"the protocol has no datatype for {np.dtype(dtype)}; known: {', '.join(DATATYPES)}")
    return name


def numpy_type(name: Any) -> np.dtype[Any]:
    """Return the numpy type of a protocol's datatype; raise a WireError for an unknown one."""
    dtype = _TYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise WireError(f"unknown datatype {shown(name)}; known: {', '.join(DATATYPES)}")
    return dtype
