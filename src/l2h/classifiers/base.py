"""The interface of every fixed classifier, how it is fed, and how its output becomes answers, also on a device."""

from __future__ import annotations

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from l2h.classifiers.preprocessing import UNIT_RANGE, Preprocessing
from l2h.columns import EncodedTable
from l2h.costs import FloatArray
from l2h.errors import ClientError
from l2h.functions import function_name
from l2h.labels import LabelCodec
from l2h.rows import Rows, batch_rows

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]
#: A batch of samples (n, ...), or rows of a table.
Inputs: TypeAlias = "Array | EncodedTable"
#: Smallest probability of a class.
FLOOR = 1e-6
#: Where the classifiers hold what answers: a file, an address, or an object.
_MODELS = ("path", "target", "estimator", "function", "sample", "module")
#: Up to so many values plain numbers are faster than arrays.
_FEW = 16


@dataclass(frozen=True)
class ClassifierAnswers:
    """The answers of a classifier to n inputs, computed once and kept."""

    label: Labels  # (n,)
    log_probability: npt.NDArray[np.float32]  # (n, K); one-hot with a floor of 1e-6 where only labels were given
    embedding: npt.NDArray[np.float32] | None  # (n, E), its last features where it exposes them
    has_scores: bool  # False where only labels were given

    @classmethod
    def join(cls, parts: Sequence[ClassifierAnswers]) -> ClassifierAnswers:
        """Return the answers to consecutive batches of inputs as one."""
        embeddings = [part.embedding for part in parts if part.embedding is not None]
        return cls(
            label=np.concatenate([part.label for part in parts]),
            log_probability=np.concatenate([part.log_probability for part in parts]),
            embedding=np.concatenate(embeddings) if embeddings else None,
            has_scores=parts[0].has_scores,
        )

    def at(self, index: Any) -> ClassifierAnswers:
        """Return the answers to the inputs at ``index``: a slice, a mask or row numbers."""
        return ClassifierAnswers(
            label=self.label[index],
            log_probability=self.log_probability[index],
            embedding=None if self.embedding is None else self.embedding[index],
            has_scores=self.has_scores,
        )

    @property
    def confidence(self) -> FloatArray:
        """The largest probability, (n,); 1 everywhere where only labels were given, since they rank nothing."""
        if not self.has_scores:
            return np.ones(len(self.label))
        return np.asarray(np.exp(self.log_probability.astype(np.float64)).max(axis=1))

    @property
    def probability(self) -> FloatArray:
        """(n, K), rows sum to 1."""
        p = np.exp(self.log_probability.astype(np.float64))
        return np.asarray(p / p.sum(axis=1, keepdims=True))


class Classifier(ABC):
    """A fixed classifier. Subclasses give scores or labels, and the bytes that must not change."""

    kind: str
    #: What errors about its answers call it.
    who = "client"
    #: What uint8 images are scaled to where nobody says; None leaves them as they are.
    usual_scale: str | None = None
    #: Whether other scales are tried on labelled samples where nobody says.
    tries_scales = False
    #: The classes it answers for, where their labels are not 0 .. K - 1.
    labels: LabelCodec | None = None

    def __init__(self) -> None:
        #: Whether the scores are probabilities; None until the first inputs are answered, which decide it for good.
        self.probabilities: bool | None = None
        #: Whether one number per sample that may be a probability or a logit is refused until somebody says which.
        self.asks_meaning = True
        #: What is done to samples before the model gets them, as far as somebody said or samples have shown.
        self.preprocessing = Preprocessing()
        #: The share of right answers that the user expects of it; None where it is not known.
        self.expected_accuracy: float | None = None
        #: The share of right answers by the scales that were tried, the chosen one first.
        self.scales_tried: dict[str, float] = {}

    def __repr__(self) -> str:
        model = next((getattr(self, name) for name in _MODELS if hasattr(self, name)), None)
        plain = repr(str(model)) if isinstance(model, str | Path) else function_name(model).rpartition(":")[2]
        return f"{type(self).__name__}({plain})"

    @property
    def known_output(self) -> str:
        """What its output is, as far as its answers have shown: ``probability``, ``logits``, or else ``label``."""
        return {True: "probability", False: "logits", None: "label"}[self.probabilities]

    def with_labels(self, labels: LabelCodec) -> Classifier:
        """Return a copy that answers for these classes: labels that it gives are matched by their values."""
        known = None if labels.values is None else labels
        if known == self.labels:
            return self
        bound = copy.copy(self)
        bound.labels = known
        return bound

    @abstractmethod
    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Return scores (n, K) or labels (n,) of prepared samples, and features (n, E) or None."""

    def feed(self, shape: Sequence[int]) -> Preprocessing:
        """Return what is done to samples of this shape before the model gets them."""
        return self.preprocessing.completed(shape, usual=self.usual_scale)

    @abstractmethod
    def weights(self) -> list[bytes]:
        """Return everything the answers depend on, as bytes; nothing where the classifier is opaque."""

    def fingerprint(self) -> str:
        """Return the SHA-256 over :meth:`weights`: equal before and after training."""
        digest = hashlib.sha256(self.kind.encode())
        for blob in self.weights():
            digest.update(len(blob).to_bytes(8, "little"))
            digest.update(blob)
        return digest.hexdigest()

    def from_table(self, X: EncodedTable) -> Any:
        """Return what :meth:`raw` gets of rows of a table: here the numbers that they became."""
        return X.x

    def answers(self, X: Inputs | Rows, num_classes: int, batch: int = 4096) -> ClassifierAnswers:
        """Run the classifier on every input, a batch at a time; refuse output that is not finite scores or labels."""
        batch = batch_rows(X.shape, batch)
        return ClassifierAnswers.join(
            [self._answer_batch(X[i : i + batch], num_classes) for i in range(0, len(X), batch)]
        )

    def check_repeatable(self, X: Inputs, num_classes: int) -> None:
        """Refuse a classifier that answers the same inputs differently; the message says how to wrap it."""
        first, second = self.answers(X, num_classes), self.answers(X, num_classes)
        # 1e-3: threads may add up in another order, which no classifier with a fixed answer exceeds.
        if not np.allclose(np.exp(first.log_probability), np.exp(second.log_probability), atol=1e-3):
            raise ClientError(
                "the client gave two answers to the same inputs: wrap it in l2h.StochasticClient(sample, seed), which "
                "draws one answer per input and keeps it"
            )

    def with_features(self, name: str | None) -> Classifier:
        """Return a copy that gives out the tensor of this name as its features, or none where it is None."""
        if name is None:
            return self
        raise ClientError(f"a {self.kind} has no tensors that can be read by a name: give a torch module or ONNX file")

    def inner_features(self, X: Inputs) -> dict[str, Array]:
        """Return the features (n, E) that each tensor inside would give; nothing where none can be read."""
        return {}

    def prepared(self, X: Inputs | Rows) -> Any:
        """Return what :meth:`raw` gets of a batch."""
        given = self.from_table(X) if isinstance(X, EncodedTable) else X
        return self.feed(given.shape[1:]).apply(given) if isinstance(given, np.ndarray) else given

    def _answer_batch(self, X: Inputs, num_classes: int) -> ClassifierAnswers:
        output, features = self.raw(self.prepared(X))
        answers = self.read(np.asarray(output), len(X), num_classes)
        if features is None:
            return answers
        embedding = require_finite(np.asarray(features, dtype=np.float32)).reshape(len(X), -1)
        return replace(answers, embedding=embedding)

    def read(self, scores: Array, n: int, num_classes: int) -> ClassifierAnswers:
        """Return what the output for n inputs says; raise a :class:`ClientError` where it cannot be used."""
        if scores.shape == (n, 1):
            scores = scores[:, 0]
        if self.labels is not None and scores.shape == (n,) and scores.dtype.kind in "OUiub":
            scores = self.labels.numbers(scores, self.kind)
        elif scores.dtype == np.bool_:
            scores = scores.astype(np.int64)
        gives = self._meaning(scores, n, num_classes)
        if gives != "label":
            scores = scores.astype(np.float64)
        label, log_probability = read_output(scores, gives, n, num_classes, self.who)
        return ClassifierAnswers(label, log_probability, None, gives != "label")

    def _meaning(self, scores: Array, n: int, num_classes: int) -> str:
        """Return ``label``, ``probability`` or ``logits``: scores that are not probabilities are taken as logits."""
        if scores.shape == (n,) and np.issubdtype(scores.dtype, np.integer):
            return "label"
        if scores.shape == (n,) and num_classes == 2 and scores.dtype.kind == "f":
            return self._meaning_of_one_number(require_finite(scores.astype(np.float64)))
        if scores.ndim != 2 or len(scores) != n:
            raise ClientError(
                f"the {self.kind} returned {scores.dtype} of shape {scores.shape} for {n} inputs: "
                f"expected scores ({n}, {num_classes}) or integer labels ({n},)"
            )
        if scores.shape[1] != num_classes:
            raise ClientError(
                f"the {self.kind} gives {scores.shape[1]} scores per sample, the labels have {num_classes} classes: "
                "give a classifier of the same classes, or relabel the data"
            )
        if self.probabilities is None:
            values = require_finite(scores.astype(np.float64))
            self.probabilities = bool((values >= 0).all() and np.allclose(values.sum(axis=1), 1.0, atol=1e-3))
        return "probability" if self.probabilities else "logits"

    def _meaning_of_one_number(self, values: Array) -> str:
        """Return what one number per sample of two classes is: nobody can tell logits from probabilities in [0, 1]."""
        outside = (values < 0) | (values > 1)
        if self.probabilities is None:
            if self.asks_meaning and not outside.any():
                raise ClientError(
                    f"the {self.kind} returned one number per sample, all between 0 and 1: say what they are, with "
                    "output='probability' (of class 1) or output='logit' of l2h.as_client, or with --client-output "
                    "(--server-output)"
                )
            known = {} if self.labels is None else {label: k for k, label in enumerate(self.labels.values or ())}
            if known.keys() >= (found := set(values.tolist())) and any(known[one] != (one > 0) for one in found):
                raise ClientError(
                    f"the {self.kind} returned one number per sample, {min(found):g} and the like: labels must be "
                    "integers, such as output.astype(int); of a logit, output='logit' of l2h.as_client says so"
                )
            self.probabilities = False
        if self.probabilities and outside.any():
            row = int(np.argmax(outside))
            raise ClientError(
                f"the {self.kind} gave {values[row]:g} for sample {row}, which is no probability: "
                "output='logit' of l2h.as_client, or --client-output logit, reads it as a logit"
            )
        return "probability" if self.probabilities else "logits"


def unit_range(X: Array) -> npt.NDArray[np.float32]:
    """Return float32 samples: uint8 scaled to [-1, 1], floats as they are."""
    return UNIT_RANGE.apply(X)


def fixed_batch(shape: Sequence[Any]) -> int | None:
    """Return how many samples a model takes at once by the shape of its input; None where it takes any number."""
    return shape[0] if shape and isinstance(shape[0], int) and shape[0] > 0 else None


def in_batches(run: Callable[[Array], Sequence[Any]], x: Array, batch: int) -> list[Array]:
    """Return the outputs of a model that takes ``batch`` samples at once; the last batch is filled up with copies."""
    parts = []
    for start in range(0, len(x), batch):
        rows = x[start : start + batch]
        n = len(rows)
        if n < batch:
            rows = np.concatenate([rows, np.repeat(rows[-1:], batch - n, axis=0)])
        outputs = [to_array(output) for output in run(rows)]
        # A model of single samples may give them without a first axis.
        outputs = [output[None] if batch == 1 and output.shape[:1] != (1,) else output for output in outputs]
        wrong = [output.shape for output in outputs if output.shape[0] != batch]
        if wrong:
            raise ClientError(
                f"a model that takes {batch} samples at once gives {wrong[0]}: one row per sample is needed"
            )
        parts.append([output[:n] for output in outputs])
    return [np.concatenate(output) for output in zip(*parts, strict=True)]


def to_array(output: Any, labels: LabelCodec | None = None) -> Array:
    """Return an output of onnxruntime as an array; skl2onnx may give a list of one dictionary per sample."""
    if not isinstance(output, list):
        return np.asarray(output)
    classes = sorted(output[0])
    scores = np.array([[row[label] for label in classes] for row in output], dtype=np.float32)
    return scores if labels is None else labels.spread(scores, labels.places(classes, "client"), 0.0)


def read_output(
    output: Array, gives: str, n: int, num_classes: int, who: str = "client"
) -> tuple[Labels, npt.NDArray[np.float32]]:
    """Return the labels (n,) and log-probabilities (n, K) that a classifier's output for n samples stands for.

    The output is, as ``gives`` says: ``log_probability``, ``probability`` or ``logits``, each (n, K); of two classes it
    may be (n,), the probability of class 1 or its margin over class 0; or ``label`` (n,), read as one-hot with a floor
    of 1e-6. ``who`` is how an error calls the classifier.
    """
    if gives == "label":
        return _read_labels(output.reshape(-1), n, num_classes, who)
    if gives != "log_probability" and num_classes == 2 and output.size == n:
        one = output.reshape(n)
        output = np.stack([1 - one if gives == "probability" else np.zeros(n), one], axis=1)
    if output.shape != (n, num_classes):
        raise ClientError(f"the {who} gives {output.shape} for {n} inputs, expected ({n}, {num_classes})")
    require_finite(output)
    if gives == "log_probability":
        return output.argmax(axis=1), output
    scores = output.astype(np.float64, copy=False)
    log_p = np.log(np.maximum(scores, FLOOR)) if gives == "probability" else log_softmax(scores)
    return log_p.argmax(axis=1), log_p.astype(np.float32)


def require_finite(output: Array) -> Array:
    """Return the output as it is, or raise a :class:`ClientError` where a value is NaN or infinite."""
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


def _read_labels(output: Array, n: int, num_classes: int, who: str) -> tuple[Labels, npt.NDArray[np.float32]]:
    labels = output.astype(np.int64)
    if len(labels) != n:
        raise ClientError(f"the {who} gives {len(labels)} labels for {n} inputs")
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        raise ClientError(
            f"the {who} answered class {labels[wrong][0]}, the labels have {num_classes} classes (0 to "
            f"{num_classes - 1})"
        )
    log_p = np.full((n, num_classes), np.log(FLOOR), dtype=np.float32)
    log_p[np.arange(n), labels] = 0.0
    return labels, log_p
