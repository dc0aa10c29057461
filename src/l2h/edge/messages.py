"""What is accepted from the server: its answers, by the Open Inference Protocol or from a function."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import protocol
from l2h.edge.reasons import bad_answer
from l2h.errors import ClientError, shown
from l2h.labels import LabelCodec

Array = npt.NDArray[Any]


def read_labels(
    body: bytes,
    headers: Mapping[str, str],
    *,
    rows: int,
    classes: LabelCodec,
    gives: str | None,
    model: str,
    output: str,
    id: str,
) -> tuple[npt.NDArray[np.int64], str | None]:
    """Return the class numbers of an answer, int64 (rows,), and its model's version; raise where it is of no use."""
    try:
        length = protocol.header_length(headers.get(protocol.LENGTH_HEADER.lower()))
        response = protocol.decode_response(body, length)
    except protocol.WireError as error:
        raise bad_answer(str(error)) from error
    if response.model != model:
        raise bad_answer(f"the answer is of the model {shown(response.model, 80)}, not {model!r}")
    if response.id not in (None, id):
        raise bad_answer(f"the answer is to request {shown(response.id, 80)}, not {id!r}")
    scores = next((tensor.data for tensor in response.outputs if tensor.name == output), None)
    if scores is None:
        names = ", ".join(tensor.name for tensor in response.outputs) or "none"
        raise bad_answer(f"the answer has no output {output!r}; it has: {shown(names, 80)}")
    return labels_of(scores, rows, classes, gives), response.version


def labels_of(scores: Array, rows: int, classes: LabelCodec, gives: str | None) -> npt.NDArray[np.int64]:
    """Return the class numbers (rows,) of what training takes as well; raise where it cannot be used.

    That is scores (rows, classes), labels, or, of two classes, one number per input: a ``probability`` of class 1 or
    its ``logits``, as ``gives`` says.
    """
    single = scores.shape in ((rows,), (rows, 1))
    if single and scores.dtype.kind == "f" and len(classes) == 2 and gives is not None:
        one = scores.reshape(-1)
        if not np.isfinite(one).all() or (gives == "probability" and ((one < 0) | (one > 1)).any()):
            raise bad_answer("a number is not finite, or is no probability")
        return np.asarray(one > (0.5 if gives == "probability" else 0.0), dtype=np.int64)
    if single and scores.dtype.kind in ("iub" if classes.values is None else "iubUO"):
        try:
            label = classes.numbers(scores.reshape(-1), "server")
        except ClientError as error:
            raise bad_answer(str(error)) from error
        if (label < 0).any() or (label >= len(classes)).any():
            raise bad_answer(f"a label is not in 0..{len(classes) - 1}")
        return label
    if scores.shape != (rows, len(classes)) or scores.dtype.kind not in "iufb":
        raise bad_answer(f"scores of shape {scores.shape} for {rows} inputs of {len(classes)} classes")
    if not np.isfinite(scores).all():
        raise bad_answer("a score is not finite")
    return np.asarray(scores.argmax(axis=1), dtype=np.int64)
