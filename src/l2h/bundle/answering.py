"""What the client of a bundle says: its file's outputs, or a given classifier's, as labels and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.bundle.errors import BundleError
from l2h.bundle.manifest import ClientPart, Manifest
from l2h.bundle.sessions import all_finite, run
from l2h.classifiers import FLOOR, Client, as_client, log_softmax, unit_range

Array = npt.NDArray[Any]
#: Labels (n,), log-probabilities (n, K), and features (n, E) or None.
Said = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32] | None]
_LOWEST = float(np.log(FLOOR))


def of_session(session: Any, part: ClientPart, classes: int) -> Callable[[Array], Said]:
    """How the client's file answers a batch."""
    assert part.input is not None
    assert part.output is not None
    assert part.file is not None
    file, name, features, feed, gives = part.file, part.input, part.features, part.feed, part.gives
    outputs = [part.output] if features is None else [part.output, features]

    def answer(X: Array) -> Said:
        if feed == "flat":
            x = X.reshape(len(X), -1).astype(np.float32, copy=False)
        else:
            x = X if feed == "as_is" else unit_range(X)
        found = run(session, outputs, {name: x}, file)
        label, log_p = _read(found[0], gives, len(X), classes)
        if features is None:
            return label, log_p, None
        return label, log_p, np.asarray(found[1], dtype=np.float32).reshape(len(X), -1)

    return answer


def feed(part: ClientPart, X: Array) -> Array:
    """A batch as the client's file takes it."""
    if part.feed == "flat":
        return X.reshape(len(X), -1).astype(np.float32, copy=False)
    return X if part.feed == "as_is" else unit_range(X)


def of_given(client: Any, manifest: Manifest) -> Callable[[Array], Said]:
    """How a classifier given by the user answers a batch; read as the one of the training was."""
    part, given = manifest.client, as_client(client)
    if given.probabilities is None and part.gives in ("probability", "logits"):
        given.probabilities = part.gives == "probability"
    return lambda X: _given(given, part, X, len(manifest.classes))


def _given(client: Client, part: ClientPart, X: Array, classes: int) -> Said:
    answers = client.answers(X, classes)
    if part.features is None:
        return answers.label, answers.log_probability, None
    if answers.embedding is None:
        raise BundleError("the rejector reads the client's last features, and the client given has none")
    return answers.label, answers.log_probability, answers.embedding


def _read(output: Any, gives: str, n: int, classes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Labels and log-probabilities, by the same rules as in training (:class:`l2h.classifiers.adapters.Client`)."""
    if isinstance(output, list):  # skl2onnx's dictionary a sample
        output = np.array([[row[label] for label in sorted(row)] for row in output], dtype=np.float32)
    out: Array = output
    if gives == "label":
        return _labels(out.reshape(-1), n, classes)
    if gives == "logits" and classes == 2 and out.size == n:
        out = np.stack([np.zeros(n), out.reshape(n)], axis=1)
    if out.shape != (n, classes):
        raise BundleError(f"the client gives {out.shape} for {n} inputs, expected ({n}, {classes})")
    if not all_finite(out):
        raise BundleError("the client's output is not finite: its file does not fit the inputs")
    if gives == "log_probability":
        return out.argmax(axis=1), out
    scores = out.astype(np.float64)
    log_p = np.log(np.maximum(scores, FLOOR)) if gives == "probability" else log_softmax(scores)
    return log_p.argmax(axis=1), log_p.astype(np.float32)


def _labels(label: Array, n: int, classes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    label = label.astype(np.int64)
    if len(label) != n or label.min() < 0 or label.max() >= classes:
        raise BundleError(f"the client answers outside its {classes} classes, or not every input")
    log_p = np.full((n, classes), _LOWEST, dtype=np.float32)
    log_p[np.arange(n), label] = 0.0
    return label, log_p
