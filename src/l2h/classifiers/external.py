"""ONNX models, opened with the files that hold their weights and no other.

onnxruntime would read a file that a model names from the working folder, so that a model from a stranger could read any
file there. The names are found in the bytes of the model, read as protocol buffers: a device has no package ``onnx``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from l2h.errors import shown

#: The messages of ONNX that can hold a tensor: the numbers of their fields, and the message that stands there.
_MESSAGES = {
    "model": {7: "main", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "main": {1: "node", 5: "weight", 15: "sparse"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "weight": {13: "place"},  # a weight of the main graph may lie in another file, no other tensor
    "tensor": {13: "place"},
}


def open_model(model: bytes, options: Any, files: Mapping[str, bytes]) -> Any:
    """Return a session of onnxruntime over a model, with weights from these files alone.

    ``options`` are the session's. A ``ValueError`` says which other file the model names; onnxruntime raises exceptions
    of its own for what is no model.
    """
    import onnxruntime as ort

    names = sorted(external_files(model))
    for name in names:
        if name not in files:
            raise ValueError(f"it keeps weights in {shown(name)}, which is not among the files that belong to it")
    if names:
        contents = [files[name] for name in names]
        options.add_external_initializers_from_files_in_memory(names, contents, [len(data) for data in contents])
    options.add_session_config_entry("session.load_model_format", "ONNX")  # what we have looked into
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def external_files(model: bytes) -> set[str]:
    """Return the names of the files that an ONNX model wants its weights from; none where it holds them itself."""
    names: set[str] = set()
    if b"location" not in model:  # every name stands beside this word
        return names
    todo = [("model", memoryview(model))]
    while todo:
        kind, message = todo.pop()
        for number, content in _fields(message):
            inner = _MESSAGES[kind].get(number)
            if inner == "place":
                if kind != "weight":
                    raise ValueError("a tensor that is no weight of the main graph lies in another file")
                names |= _location(content)
            elif inner is not None:
                todo.append((inner, content))
    return names


def class_labels(model: bytes) -> tuple[str, ...]:
    """Return the text labels of the classifier in an ONNX model, in the order of its scores; none where it has none."""
    graphs = [content for number, content in _fields(memoryview(model)) if number == 7]
    nodes = [content for graph in graphs for number, content in _fields(graph) if number == 1]
    found = set()
    for attribute in (content for node in nodes for number, content in _fields(node) if number == 5):
        fields = [(number, bytes(content)) for number, content in _fields(attribute) if number in (1, 9)]
        if (1, b"classlabels_strings") in fields:
            found.add(tuple(content.decode() for number, content in fields if number == 9))
    return found.pop() if len(found) == 1 else ()


def _location(entry: memoryview) -> set[str]:
    fields = [(number, bytes(content)) for number, content in _fields(entry)]
    keys, values = ([content for number, content in fields if number == wanted] for wanted in (1, 2))
    if len(keys) != 1 or len(values) != 1:
        raise ValueError("an entry about another file has no key, no value or several")
    return {values[0].decode()} if keys[0] == b"location" else set()


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of every field that has a length, and skip the others."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at, 2**32)
        kind = tag & 7
        if kind == 2:
            size, at = _number(message, at, 2**31)
            end = at + size
        elif kind == 0:
            end = _number(message, at, 2**70)[1]
        elif kind in (1, 5):
            end = at + (8 if kind == 1 else 4)
        else:
            raise ValueError("it is no ONNX file")
        if end > len(message):
            raise ValueError("it is no ONNX file, or cut short")
        if kind == 2:
            yield tag >> 3, message[at:end]
        at = end


def _number(message: memoryview, at: int, limit: int) -> tuple[int, int]:
    """Return a number below the limit, 7 bits in each byte, and where it ends."""
    value = 0
    for place, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << (7 * place)
        if byte < 128 and value < limit:
            return value, at + place + 1
    raise ValueError("it is no ONNX file: a number does not end")
