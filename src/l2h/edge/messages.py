"""What is sent to the server and what is accepted from it, by the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from l2h import protocol
from l2h.edge.errors import EdgeError

Array = npt.NDArray[Any]
#: Bytes of an answer beside its scores, and at most so many for a score: JSON writes a float64 in up to 25.
_HEAD, _SCORE = 1 << 16, 32


class BadAnswerError(Exception):
    """An answer that is none: it says why."""


def ready_path() -> str:
    """Of the question whether the server is ready."""
    return "/v2/health/ready"


def model_path(model: str) -> str:
    """Of a model's metadata."""
    return f"/v2/models/{quote(model, safe='')}"


def infer_path(model: str) -> str:
    """Of inference."""
    return f"{model_path(model)}/infer"


def most_bytes(rows: int, classes: int) -> int:
    """The longest answer that is read."""
    return _HEAD + rows * classes * _SCORE


def labels_of(
    body: bytes, headers: Mapping[str, str], *, rows: int, classes: int, model: str, output: str, id: str
) -> tuple[npt.NDArray[np.int64], str | None]:
    """The server's labels, and the version of its model.

    Args:
        body: of its answer.
        headers: of its answer.
        rows: how many inputs it was asked about.
        classes: how many there are.
        model: its name.
        output: name of the scores.
        id: of the request.

    Raises:
        BadAnswerError: it is no such answer.
    """
    try:
        length = protocol.header_length(headers.get(protocol.LENGTH_HEADER))
        response = protocol.decode_response(body, length)
    except protocol.WireError as error:
        raise BadAnswerError(str(error)) from error
    if response.model != model:
        raise BadAnswerError(f"the answer is of the model {_short(response.model)}, not {model!r}")
    if response.id not in (None, id):
        raise BadAnswerError(f"the answer is to request {_short(response.id)}, not {id!r}")
    found = next((tensor.data for tensor in response.outputs if tensor.name == output), None)
    if found is None:
        names = ", ".join(tensor.name for tensor in response.outputs) or "none"
        raise BadAnswerError(f"the answer has no output {output!r}; it has: {_short(names)}")
    return _labels(found, rows, classes), response.version


def _labels(found: Array, rows: int, classes: int) -> npt.NDArray[np.int64]:
    if found.dtype.kind in "iu" and found.shape in ((rows,), (rows, 1)):
        label = found.reshape(-1)
        if (label < 0).any() or (label >= classes).any():
            raise BadAnswerError(f"a label is not in 0..{classes - 1}")
        return label.astype(np.int64)
    if found.shape != (rows, classes) or found.dtype.kind not in "iuf":
        raise BadAnswerError(f"scores of shape {found.shape} for {rows} inputs of {classes} classes")
    if not np.isfinite(found).all():
        raise BadAnswerError("a score is not finite")
    return np.asarray(found.argmax(axis=1), dtype=np.int64)


def names_of(
    metadata: Any,
    *,
    model: str,
    shape: tuple[int, ...],
    dtype: str,
    classes: Sequence[str],
    input: str | None,
    output: str | None,
) -> tuple[str, str]:
    """Names of the model's input and output, where the metadata fits the bundle.

    Args:
        metadata: what the server says of the model.
        model: its name.
        shape: of one input.
        dtype: of the inputs.
        classes: their names; compared where the server gives them.
        input: the name to use; None: the only one there is.
        output: likewise.

    Raises:
        EdgeError: it does not fit; the message says what differs.
    """
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise EdgeError("it gives no metadata of a model: is it a server of the Open Inference Protocol?")
    if metadata["name"] != model:
        raise EdgeError(f"it gives the model {_short(metadata['name'])}, not {model!r}: give model=, or another server")
    name, entry = _entry(metadata, "inputs", input, "input_name")
    if entry is not None:
        wanted = protocol.datatype(dtype)
        if entry.get("datatype") != wanted:
            raise EdgeError(f"its input {name!r} takes {_short(entry.get('datatype'))}, the bundle's is {wanted}")
        if not _fits(entry.get("shape"), shape):
            raise EdgeError(
                f"its input {name!r} has shape {_short(entry.get('shape'))}, the bundle's is {[-1, *shape]}"
            )
    out, entry = _entry(metadata, "outputs", output, "output_name")
    if entry is not None:
        labels = str(entry.get("datatype")).lstrip("U").startswith("INT")
        given = entry.get("shape")
        if not (_fits(given, (len(classes),)) or (labels and (_fits(given, ()) or _fits(given, (1,))))):
            raise EdgeError(f"its output {out!r} has shape {_short(given)}, the bundle has {len(classes)} classes")
    _compare_classes(class_names_of(metadata), classes)
    return name, out


def class_names_of(metadata: dict[str, Any]) -> list[str] | None:
    """The names of the classes that the metadata gives, as a server of ours does; None where there are none."""
    parameters = metadata.get("parameters")
    names = parameters.get("classes") if isinstance(parameters, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return names


def _compare_classes(theirs: list[str] | None, ours: Sequence[str]) -> None:
    if theirs is None or theirs == list(ours):
        return
    if len(theirs) != len(ours):
        raise EdgeError(f"its model has {len(theirs)} classes, the bundle has {len(ours)}")
    differ = [i for i, (their, our) in enumerate(zip(theirs, ours, strict=True)) if their != our]
    first = differ[0]
    what = "the bundle's in another order" if sorted(theirs) == sorted(ours) else "not the bundle's"
    raise EdgeError(
        f"its classes are {what}: {len(differ)} of {len(ours)} differ, the first is class {first}, "
        f"{_short(theirs[first])} there and {_short(ours[first])} in the bundle"
    )


def _entry(metadata: dict[str, Any], key: str, name: str | None, option: str) -> tuple[str, dict[str, Any] | None]:
    """The tensor of that name, or the only one; None where the server does not describe its tensors."""
    given = metadata.get(key) or []
    if not isinstance(given, list) or not all(isinstance(e, dict) and isinstance(e.get("name"), str) for e in given):
        raise EdgeError(f"the {key} in its metadata of the model are no list of named tensors")
    names = ", ".join(entry["name"] for entry in given)
    if name is None:
        if len(given) != 1:
            raise EdgeError(f"its metadata names {len(given)} {key} ({_short(names)}): say which with {option}=")
        return given[0]["name"], given[0]
    found = next((entry for entry in given if entry["name"] == name), None)
    if found is None and given:
        raise EdgeError(f"its model has no {key[:-1]} {name!r}; it has {_short(names)}: give {option}=")
    return name, found


def _fits(given: Any, shape: tuple[int, ...]) -> bool:
    """Whether a shape on the wire, its first axis the batch's or missing, can be this one; -1 is any size."""
    if not isinstance(given, list) or not all(isinstance(size, int) for size in given):
        return False
    if len(given) == len(shape) + 1:
        return all(g in (-1, s) for g, s in zip(given[1:], shape, strict=True))
    return given == list(shape)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
