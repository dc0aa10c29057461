"""``as_client``: one interface over whatever model the user has; and a classifier for each kind of model."""

from __future__ import annotations  # numpy.random is loaded only where it is used

import hashlib
import pickle
import shlex
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.classifiers.base import Array, Classifier, ClassifierAnswers, Inputs
from l2h.classifiers.litert import LITERT, LiteRTClassifier
from l2h.classifiers.networks import OnnxClassifier, TorchClassifier
from l2h.classifiers.preprocessing import Preprocessing
from l2h.classifiers.tabular import estimator_inputs
from l2h.columns import EncodedTable
from l2h.errors import ClientError, SettingsError, first_line, shown
from l2h.labels import LabelCodec
from l2h.rows import Rows

_FILES = ".onnx, .tflite (LiteRT), .pt (TorchScript) or .pt2 (exported program)"
_PICKLES = (".joblib", ".pkl", ".pickle")


def as_client(
    model: Any,
    *,
    preprocessing: Preprocessing | None = None,
    output: str | None = None,
    accuracy: float | None = None,
    **options: Any,
) -> Classifier:
    """Return a classifier over a model, which is never trained or changed.

    Args:
        model: a :class:`Classifier`; a torch module, TorchScript or exported program; a path to an ``.onnx``,
            ``.tflite`` (LiteRT), ``.pt`` (TorchScript) or ``.pt2`` (exported program) file; a fitted scikit-learn
            estimator; a callable.
        preprocessing: what is done to samples before the model gets them.
        output: what its scores are, ``probability`` or ``logit``; where None, the values tell. A model of two classes
            that gives one number per sample, all in [0, 1], needs it.
        accuracy: its share of right answers, where it is known: ``fit`` warns where the answers are far from it.
        options: those of the classifier, such as ``feature_layer="fc2"`` for a torch module.

    Raises:
        ClientError: it is none of these, or the file cannot be read.
        SettingsError: an ``output`` or an ``accuracy`` that is none.

    Example:
        >>> as_client(lambda X: X.sum(axis=1) > 0).kind
        'callable'
    """
    classifier = _wrap(model, options)
    if preprocessing is not None:
        classifier.preprocessing = preprocessing
    if output is not None:
        if output not in ("probability", "logit"):
            raise SettingsError(f"output={shown(output)} is neither 'probability' nor 'logit'")
        classifier.probabilities = output == "probability"
    if accuracy is not None:
        if not 0 < accuracy <= 1:
            raise SettingsError(f"accuracy={accuracy} must be a share above 0 and at most 1")
        classifier.expected_accuracy = accuracy
    return classifier


def _wrap(model: Any, options: dict[str, Any]) -> Classifier:
    if isinstance(model, Classifier):
        return model
    if isinstance(model, str | Path):
        return _from_file(Path(model), options)
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        return SklearnClassifier(model)
    if _is_torch(model):
        return TorchClassifier(model, **options)
    if callable(model):
        return CallableClassifier(model)
    raise ClientError(
        f"a {type(model).__name__} cannot be a client: give a torch module, a TorchScript or exported program, an ONNX "
        "file, a scikit-learn estimator, or a callable that returns scores or labels"
    )


class SklearnClassifier(Classifier):
    """A fitted scikit-learn estimator: ``predict_proba``, else ``decision_function``, else ``predict``.

    It gets one flat row per sample; of a table the columns that it was fitted to, as a data frame. Its ``classes_`` are
    matched with the labels by value; a class that it never saw gets probability 0.
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
        if isinstance(classes, list) or np.ndim(classes) != 1:
            raise ClientError("the scikit-learn estimator answers several questions at once: give one with one answer")
        self.classes = np.asarray(classes)

    def places(self, num_classes: int) -> npt.NDArray[np.int64]:
        """Return the class number of each of its classes."""
        return (self.labels or LabelCodec.numbered(num_classes)).places(self.classes, "estimator")

    def from_table(self, X: EncodedTable) -> Any:
        return estimator_inputs(self.estimator, X)

    def answers(self, X: Inputs | Rows, num_classes: int, batch: int = 4096) -> ClassifierAnswers:
        self.places(num_classes)  # refuses a class that is none
        self.num_classes = num_classes
        return super().answers(X, num_classes, batch)

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Return scores over all classes in label order, or labels."""
        rows = X.reshape(len(X), -1) if isinstance(X, np.ndarray) else X  # or a data frame
        labels = self.labels or LabelCodec.numbered(self.num_classes or int(self.classes.max()) + 1)
        for name in ("predict_proba", "decision_function"):
            if not hasattr(self.estimator, name):
                continue
            scores = np.asarray(self._call(name, rows), dtype=np.float64)
            if scores.ndim == 1:
                scores = np.stack([-scores / 2, scores / 2], axis=1)
            if scores.shape[1] != len(self.classes):
                continue  # one-vs-one scores: not one per class
            fill = 0.0 if name == "predict_proba" else scores.min() - 20.0
            return labels.spread(scores, labels.places(self.classes, "estimator"), fill), None
        return labels.numbers(np.asarray(self._call("predict", rows)), "estimator"), None

    def _call(self, method: str, rows: Any) -> Any:
        try:
            return getattr(self.estimator, method)(rows)
        except (ValueError, TypeError, KeyError) as error:
            raise ClientError(f"the {self.kind} failed on inputs of shape {rows.shape}: {first_line(error)}") from error

    def weights(self) -> list[bytes]:
        """Return the estimator's pickle: written to be hashed, never read back."""
        return [pickle.dumps(self.estimator, protocol=4)]


class CallableClassifier(Classifier):
    """Any function of a batch that returns scores (n, K) or integer labels (n,).

    It gets the array just as it was given to ``fit`` or ``predict``, and a table as a pandas DataFrame with the columns
    of the training. What it holds cannot be seen from outside.
    """

    kind = "callable"

    def __init__(self, function: Callable[[Array], Any]) -> None:
        super().__init__()
        self.function = function

    def from_table(self, X: EncodedTable) -> Any:
        return X.table.to_frame()

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        return _to_numpy(self.function(X)), None

    def weights(self) -> list[bytes]:
        return []


class StochasticClient(Classifier):
    """A classifier whose answer to an input is a random variable.

    One answer per input is drawn, by a generator seeded with ``(seed, the input's bytes)``, and is the client's answer
    to that input from then on: in training, in evaluation, in whatever batch it comes. The rejector sees the very draw
    that the user would get, so ``q_m`` is the chance that *this* answer is right. Another ``seed`` is another draw for
    every input.

    Args:
        sample: called as ``sample(x, rng)`` with a batch of one and a ``numpy.random.Generator``; returns scores
            (1, K) or labels (1,).
        seed: of the draws.

    Example:
        >>> def noisy(x, rng):
        ...     return x.reshape(1, -1) + rng.normal(size=(1, x.size))
        >>> client = StochasticClient(noisy, seed=1)
        >>> X = np.zeros((3, 4), dtype=np.float32)
        >>> bool((client.answers(X, 4).label == client.answers(X[::-1], 4).label[::-1]).all())
        True
    """

    kind = "stochastic client"

    def __init__(self, sample: Callable[[Array, np.random.Generator], Any], seed: int = 0) -> None:
        super().__init__()
        self.sample = sample
        self.seed = seed

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        return np.concatenate([_to_numpy(self.sample(X[i : i + 1], self._rng(X[i]))) for i in range(len(X))]), None

    def weights(self) -> list[bytes]:
        """Return the seed: what the function holds cannot be seen."""
        return [str(self.seed).encode()]

    def _rng(self, x: Array) -> np.random.Generator:
        key = hashlib.sha256(str(self.seed).encode() + np.ascontiguousarray(x).tobytes()).digest()
        return np.random.default_rng(np.frombuffer(key, dtype=np.uint32))


def _from_file(path: Path, options: dict[str, Any]) -> Classifier:
    if path.suffix == ".onnx":
        return OnnxClassifier(path, **options)
    if path.suffix == LITERT:
        return LiteRTClassifier(path, **options)
    if not path.is_file():
        raise ClientError(f"no client at {path}: give an {_FILES} file")
    if path.suffix in (".pt", ".ts", ".pt2"):
        import torch

        try:
            loaded = torch.export.load(path) if path.suffix == ".pt2" else torch.jit.load(str(path), map_location="cpu")
        except (RuntimeError, ValueError, OSError) as error:
            # What torch says of a file that `torch.save` wrote is that it may be corrupted.
            hint = "a .pt file is read as TorchScript: write it with torch.jit.trace(model, x).save(path)"
            reason = hint if path.suffix != ".pt2" and zipfile.is_zipfile(path) else error
            raise ClientError(f"cannot load {path}: {reason}") from error
        return TorchClassifier(loaded, **options)
    if path.suffix in _PICKLES:
        onnx = str(path.with_suffix(".onnx"))
        code = f"import joblib; from l2h.export import save_onnx; save_onnx(joblib.load({str(path)!r}), {onnx!r})"
        raise ClientError(
            "Pickled models are not loaded, since a pickle from a stranger runs code. If you trust it, this line "
            f"writes {onnx}: {shlex.join(['python', '-c', code])}"
        )
    raise ClientError(f"cannot use {path.name} as a client: known are {_FILES}; export yours to ONNX")


def _is_torch(model: Any) -> bool:
    # Not by isinstance: a machine without torch has no torch models either, and must not need the import.
    return any(base.__module__.split(".")[0] == "torch" for base in type(model).__mro__)


def _to_numpy(value: Any) -> Array:
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    # Numbers alone, or texts alone, may come as objects, as in a column of pandas.
    if array.dtype == object and len({isinstance(value, str) for value in array.flat}) == 1:
        with suppress(ValueError):  # of lists of several lengths
            plain = np.array(array.tolist())
            return plain if plain.dtype.kind in "fiubU" and plain.shape == array.shape else array
    return array
