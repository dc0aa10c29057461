"""What is accepted from the server: its answers and its metadata, by the Open Inference Protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import protocol
from l2h.bundle import Manifest
from l2h.edge.options import EdgeError, EdgeOptions
from l2h.edge.reasons import bad_answer
from l2h.errors import shown

Array = npt.NDArray[Any]


def read_labels(
    body: bytes, headers: Mapping[str, str], *, rows: int, classes: int, model: str, output: str, id: str
) -> tuple[npt.NDArray[np.int64], str | None]:
    """Return the server's labels, int64 (rows,), and its model's version; raise where the answer cannot be used."""
    try:
        length = protocol.header_length(headers.get(protocol.LENGTH_HEADER.lower()))
        response = protocol.decode_response(body, length)
    except protocol.WireError as error:
        raise bad_answer(str(error)) from error
    if response.model != model:
        raise bad_answer(f"the answer is of the model {_short(response.model)}, not {model!r}")
    if response.id not in (None, id):
        raise bad_answer(f"the answer is to request {_short(response.id)}, not {id!r}")
    scores = next((tensor.data for tensor in response.outputs if tensor.name == output), None)
    if scores is None:
        names = ", ".join(tensor.name for tensor in response.outputs) or "none"
        raise bad_answer(f"the answer has no output {output!r}; it has: {_short(names)}")
    return _labels(scores, rows, classes), response.version


def _labels(scores: Array, rows: int, classes: int) -> npt.NDArray[np.int64]:
    if scores.dtype.kind in "iu" and scores.shape in ((rows,), (rows, 1)):
        label = scores.reshape(-1)
        if (label < 0).any() or (label >= classes).any():
            raise bad_answer(f"a label is not in 0..{classes - 1}")
        return label.astype(np.int64)
    if scores.shape != (rows, classes) or scores.dtype.kind not in "iuf":
        raise bad_answer(f"scores of shape {scores.shape} for {rows} inputs of {classes} classes")
    if not np.isfinite(scores).all():
        raise bad_answer("a score is not finite")
    return np.asarray(scores.argmax(axis=1), dtype=np.int64)


def tensor_names(metadata: Any, options: EdgeOptions, manifest: Manifest) -> tuple[str, str]:
    """Return the names of the model's input and output; raise where the server's metadata does not fit the bundle."""
    model, shape, classes = options.model, manifest.input.shape, manifest.classes
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise EdgeError("it gives no metadata of a model: is it a server of the Open Inference Protocol?")
    if metadata["name"] != model:
        raise EdgeError(f"it gives the model {_short(metadata['name'])}, not {model!r}: give model=, or another server")
    name, entry = _entry(metadata, "inputs", options.input_name, "input_name")
    if entry is not None:
        wanted = protocol.datatype(manifest.input.dtype)
        if entry.get("datatype") != wanted:
            raise EdgeError(f"its input {name!r} takes {_short(entry.get('datatype'))}, the bundle's is {wanted}")
        if not _fits(entry.get("shape"), shape):
            raise EdgeError(
                f"its input {name!r} has shape {_short(entry.get('shape'))}, the bundle's is {[-1, *shape]}"
            )
    out, entry = _entry(metadata, "outputs", options.output_name, "output_name")
    if entry is not None:
        labels = str(entry.get("datatype")).lstrip("U").startswith("INT")
        given = entry.get("shape")
        if not (_fits(given, (len(classes),)) or (labels and (_fits(given, ()) or _fits(given, (1,))))):
            raise EdgeError(f"its output {out!r} has shape {_short(given)}, the bundle has {len(classes)} classes")
    _compare_classes(class_names(metadata), classes)
    return name, out


def class_names(metadata: dict[str, Any]) -> list[str] | None:
    """Return the names of the classes that the metadata gives, as a server of ours does; None where there are none."""
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
    """Return the tensor of that name, or the only one; None where the server does not describe its tensors."""
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
    """Return whether a shape on the wire, with or without the axis of the batch, can be this one; -1 is any size."""
    if not isinstance(given, list) or not all(isinstance(size, int) for size in given):
        return False
    if len(given) == len(shape) + 1:
        return all(g in (-1, s) for g, s in zip(given[1:], shape, strict=True))
    return given == list(shape)


def _short(value: object) -> str:
    return shown(value, 80)
