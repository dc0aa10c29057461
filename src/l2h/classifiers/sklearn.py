"""Classifiers made with scikit-learn."""

import pickle
from typing import Any

import numpy as np

from l2h.classifiers.base import Classifier, ClassifierAnswers
from l2h.classifiers.reading import Array
from l2h.errors import ClientError


class SklearnClassifier(Classifier):
    """A fitted scikit-learn estimator: ``predict_proba``, else ``decision_function``, else ``predict``.

    It gets one flat row per sample. Its ``classes_`` must be integer labels; a class that it never saw gets
    probability 0.
    """

    kind = "scikit-learn estimator"

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator
        #: K of the inputs answered last; None before.
        self.num_classes: int | None = None
        classes = getattr(estimator, "classes_", None)
        if classes is None:
            raise ClientError("the scikit-learn estimator is not fitted: the client must be ready to answer")
        self.classes = np.asarray(classes)
        if not np.issubdtype(self.classes.dtype, np.integer) or self.classes.min() < 0:
            raise ClientError(f"the estimator's classes must be integers from 0; got {self.classes[:5].tolist()}")

    def answers(self, X: Array, num_classes: int, batch: int = 4096) -> ClassifierAnswers:
        if self.classes.max() >= num_classes:
            raise ClientError(
                f"the estimator knows class {self.classes.max()}, the labels have {num_classes} classes (0 to "
                f"{num_classes - 1}): give a classifier of the same classes, or relabel the data"
            )
        self.num_classes = num_classes
        return super().answers(X, num_classes, batch)

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Return scores over all classes in label order, or labels."""
        rows = X.reshape(len(X), -1)
        width = self.num_classes or int(self.classes.max()) + 1
        for name in ("predict_proba", "decision_function"):
            if not hasattr(self.estimator, name):
                continue
            scores = np.asarray(getattr(self.estimator, name)(rows), dtype=np.float64)
            if scores.ndim == 1:
                scores = np.stack([-scores / 2, scores / 2], axis=1)
            if scores.shape[1] != len(self.classes):
                continue  # one-vs-one scores: not one per class
            fill = 0.0 if name == "predict_proba" else scores.min() - 20.0
            full = np.full((len(X), width), fill)
            full[:, self.classes] = scores
            return full, None
        return np.asarray(self.estimator.predict(rows)).astype(np.int64), None

    def weights(self) -> list[bytes]:
        """Return the estimator's pickle: written to be hashed, never read back."""
        return [pickle.dumps(self.estimator, protocol=4)]
