"""The wire: the Open Inference Protocol (V2) over HTTP, JSON and its binary tensor extension."""

from l2h.protocol.codec import decode_request, decode_response, encode_request, encode_response, header_length
from l2h.protocol.messages import (
    BINARY,
    DATATYPES,
    JSON,
    LENGTH_HEADER,
    MessageLimits,
    Request,
    Response,
    Tensor,
    WireError,
    datatype,
    numpy_type,
)

__all__ = [
    "BINARY",
    "DATATYPES",
    "JSON",
    "LENGTH_HEADER",
    "MessageLimits",
    "Request",
    "Response",
    "Tensor",
    "WireError",
    "datatype",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "header_length",
    "numpy_type",
]
