"""The files that an ONNX model names: what protobuf finds in a model is found, or the model is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fuzzing import at_most
from google.protobuf.message import DecodeError, Message
from onnx import ModelProto, TensorProto

from l2h.classifiers.external import external_files

__all__ = ["check"]


def check(data: bytes) -> None:
    found = None
    with at_most(256 * len(data) + 2**16), suppress(ValueError):
        found = external_files(data)
    with suppress(DecodeError):
        model = ModelProto.FromString(data)
        named = {entry.value for tensor in tensors(model) for entry in tensor.external_data if entry.key == "location"}
        assert found is None or named <= found, f"{named} are named, {found} were found"


def tensors(message: Message) -> Iterator[TensorProto]:
    """Every tensor in a message, wherever it stands."""
    todo = [message]
    while todo:
        message = todo.pop()
        if isinstance(message, TensorProto):
            yield message
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                todo += value if field.is_repeated else [value]
