"""How a classifier is fed, and how its output becomes labels and log-probabilities: in training and on a device."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import ClientError

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]
#: Smallest probability of a class.
FLOOR = 1e-6
#: Up to so many values plain numbers are faster than arrays.
_FEW = 16


def prepare_inputs(X: Array, feed: str) -> Array:
    """Return a batch as a model takes it.

    Args:
        X: (n, ...) samples.
        feed: ``as_is``; ``unit_range``, float32 with uint8 scaled to [-1, 1]; or ``flat``, one unscaled float32 row per
            sample.
    """
    if feed == "flat":
        return X.reshape(len(X), -1).astype(np.float32, copy=False)
    return X if feed == "as_is" else unit_range(X)


def unit_range(X: Array) -> npt.NDArray[np.float32]:
    """Return float32 samples: uint8 scaled to [-1, 1], floats as they are."""
    if X.dtype == np.uint8:
        return X.astype(np.float32) / np.float32(127.5) - np.float32(1)
    return np.ascontiguousarray(X, dtype=np.float32)


def to_array(output: Any) -> Array:
    """Return an output of onnxruntime as an array; skl2onnx may give a list of one dictionary per sample."""
    if isinstance(output, list):
        return np.array([[row[label] for label in sorted(row)] for row in output], dtype=np.float32)
    return np.asarray(output)


def read_output(output: Array, gives: str, n: int, num_classes: int) -> tuple[Labels, npt.NDArray[np.float32]]:
    """Return the labels (n,) and log-probabilities (n, K) that a classifier's output for n samples stands for.

    Args:
        output: what the classifier returned.
        gives: ``log_probability``, ``probability`` or ``logits``, each (n, K); logits of two classes may be the margin
            (n,) of class 1 over class 0; or ``label`` (n,), which is read as one-hot with a floor of 1e-6.
        n: number of samples.
        num_classes: K.

    Raises:
        ClientError: another shape, a value that is not finite, or a label that is none of the K classes.
    """
    if gives == "label":
        return _read_labels(output.reshape(-1), n, num_classes)
    if gives == "logits" and num_classes == 2 and output.size == n:
        output = np.stack([np.zeros(n), output.reshape(n)], axis=1)
    if output.shape != (n, num_classes):
        raise ClientError(f"the client gives {output.shape} for {n} inputs, expected ({n}, {num_classes})")
    require_finite(output)
    if gives == "log_probability":
        return output.argmax(axis=1), output
    scores = output.astype(np.float64, copy=False)
    log_p = np.log(np.maximum(scores, FLOOR)) if gives == "probability" else log_softmax(scores)
    return log_p.argmax(axis=1), log_p.astype(np.float32)


def require_finite(output: Array) -> Array:
    """Return the output as it is.

    Raises:
        ClientError: a value is NaN or infinite.
    """
    if not all_finite(output):
        bad = ~np.isfinite(output).reshape(len(output), -1).all(axis=1)
        raise ClientError(
            f"the client's output for sample {int(np.argmax(bad))} is not finite ({int(bad.sum())} in all)"
        )
    return output


def all_finite(values: Array) -> bool:
    """Return whether no value is NaN or infinite."""
    # One input is the common case on a device, and plain numbers are faster than arrays of a few. What is not finite
    # stays so in a sum.
    if values.size <= _FEW and math.isfinite(sum(values.ravel().tolist())):
        return True
    return bool(np.count_nonzero(np.isfinite(values)) == values.size)


def log_softmax(scores: Array) -> Array:
    """Return the log-probabilities (n, K) of scores."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _read_labels(output: Array, n: int, num_classes: int) -> tuple[Labels, npt.NDArray[np.float32]]:
    labels = output.astype(np.int64)
    if len(labels) != n:
        raise ClientError(f"the client gives {len(labels)} labels for {n} inputs")
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        raise ClientError(
            f"the client answered class {labels[wrong][0]}, the labels have {num_classes} classes (0 to "
            f"{num_classes - 1})"
        )
    log_p = np.full((n, num_classes), np.log(FLOOR), dtype=np.float32)
    log_p[np.arange(n), labels] = 0.0
    return labels, log_p
