"""The interface of every fixed classifier, and its answers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.classifiers.reading import Array, Labels, read_output, require_finite
from l2h.costs import FloatArray
from l2h.errors import ClientError


@dataclass(frozen=True)
class ClassifierAnswers:
    """The answers of a classifier to n inputs, computed once and kept.

    Attributes:
        label: int (n,).
        log_probability: float32 (n, K); one-hot with a floor of 1e-6 for a classifier that gives only labels.
        embedding: float32 (n, E), its last features where it exposes them.
        has_scores: False where only labels were given.
    """

    label: Labels
    log_probability: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32] | None
    has_scores: bool

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

    def __init__(self) -> None:
        #: Whether the scores are probabilities; None until the first inputs are answered, which decide it for good.
        self.probabilities: bool | None = None

    @property
    def known_output(self) -> str:
        """What its output is, as far as its answers have shown: ``probability``, ``logits``, or else ``label``."""
        return {True: "probability", False: "logits", None: "label"}[self.probabilities]

    @abstractmethod
    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Return scores (n, K) or labels (n,), and features (n, E) or None."""

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

    def answers(self, X: Array, num_classes: int, batch: int = 4096) -> ClassifierAnswers:
        """Run the classifier on every input, a batch at a time.

        Raises:
            ClientError: the output is neither scores (n, K) nor labels (n,), K is not ``num_classes``, or an output is
                not finite.
        """
        return ClassifierAnswers.join(
            [self._answer_batch(X[i : i + batch], num_classes) for i in range(0, len(X), batch)]
        )

    def check_repeatable(self, X: Array, num_classes: int) -> None:
        """Refuse a classifier that answers the same inputs differently.

        Raises:
            ClientError: it does; the message says how to wrap it.
        """
        first, second = self.answers(X, num_classes), self.answers(X, num_classes)
        # 1e-3: threads may add up in another order, which no classifier with a fixed answer exceeds.
        same = np.allclose(np.exp(first.log_probability), np.exp(second.log_probability), atol=1e-3)
        if not same:
            raise ClientError(
                "the client gave two answers to the same inputs: wrap it in l2h.StochasticClient(sample, seed), which "
                "draws one answer per input and keeps it"
            )

    def _answer_batch(self, X: Array, num_classes: int) -> ClassifierAnswers:
        output, features = self.raw(X)
        scores = np.asarray(output)
        if scores.shape == (len(X), 1):
            scores = scores[:, 0]
        if scores.dtype == np.bool_:
            scores = scores.astype(np.int64)
        gives = self._meaning(scores, len(X), num_classes)
        if gives != "label":
            scores = scores.astype(np.float64)
        label, log_probability = read_output(scores, gives, len(X), num_classes)
        embedding = None
        if features is not None:
            embedding = require_finite(np.asarray(features, dtype=np.float32)).reshape(len(X), -1)
        return ClassifierAnswers(label, log_probability, embedding, gives != "label")

    def _meaning(self, scores: Array, n: int, num_classes: int) -> str:
        """Return ``label``, ``probability`` or ``logits``: scores that are not probabilities are taken as logits."""
        if scores.shape == (n,) and np.issubdtype(scores.dtype, np.integer):
            return "label"
        if scores.shape == (n,) and num_classes == 2:
            return "logits"
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
