"""``as_client``: one interface over whatever model the user has; and a classifier for each kind of model."""

from __future__ import annotations  # numpy.random is loaded only where it is used

import hashlib
import pickle
import shlex
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.classifiers.base import Array, Classifier, ClassifierAnswers, Inputs, fixed_batch, in_batches, to_array
from l2h.classifiers.external import class_labels, external_files, open_model
from l2h.classifiers.litert import LITERT, LiteRTClassifier
from l2h.classifiers.preprocessing import Preprocessing
from l2h.classifiers.tabular import estimator_inputs, model_feeds
from l2h.columns import EncodedTable
from l2h.errors import ClientError, SettingsError, shown
from l2h.files import read_whole
from l2h.labels import LabelCodec

_FILES = ".onnx, .tflite (LiteRT), .pt (TorchScript) or .pt2 (exported program)"
#: The output that an export adds to a file whose columns were put into the order of the labels.
PLACED = "all_probabilities"
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


class TorchClassifier(Classifier):
    """A torch module, TorchScript program or ``torch.export`` program, fed with float32.

    Args:
        module: called as ``module(x)`` with a float32 batch; scores (n, K) or labels (n,).
        feature_layer: dotted name of the submodule whose output is its last features. Where None, the module's own
            method ``embed(x)`` is used if it has one.
    """

    usual_scale = "-1..1"
    tries_scales = True

    def __init__(self, module: Any, feature_layer: str | None = None) -> None:
        super().__init__()
        import torch

        self.module = module
        self.kind = "torch module"
        if isinstance(module, torch.export.ExportedProgram):
            self.kind = "exported program"
        elif isinstance(module, torch.jit.ScriptModule):
            self.kind = "TorchScript program"
        #: The torch module to call: that of an exported program, else ``module`` itself.
        self.callable_module = module.module() if self.kind == "exported program" else module
        self.feature_layer = feature_layer
        layers = dict(self.callable_module.named_modules())
        if feature_layer is not None and feature_layer not in layers:
            raise ClientError(
                f"the client has no layer {feature_layer!r}; known: {', '.join(name for name in layers if name)}"
            )

    @property
    def has_features(self) -> bool:
        """Whether it exposes its last features."""
        return self.feature_layer is not None or callable(getattr(self.callable_module, "embed", None))

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Return scores and features in evaluation mode; the module's own mode is put back afterwards."""
        import torch

        module = self.callable_module
        first = next(iter(module.parameters()), None)
        x = torch.from_numpy(X).to("cpu" if first is None else first.device)
        modes = [(m, m.training) for m in module.modules()]
        if self.kind != "exported program":
            module.eval()
        try:
            with torch.no_grad():
                scores, features = self.forward(x)
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ClientError(f"the {self.kind} failed on inputs of shape {X.shape}: {error}") from error
        finally:
            for m, training in modes:
                m.training = training
        return scores.detach().cpu().numpy(), None if features is None else features.cpu().numpy()

    def forward(self, x: Any, features: bool = True) -> tuple[Any, Any]:
        """Return the module's output for a batch of tensors, and its features as float32 (n, E) or None."""
        module = self.callable_module
        if not (features and self.has_features):
            return module(x), None
        if self.feature_layer is None:
            scores, kept = module(x), [module.embed(x)]
        else:
            kept = []
            layer = dict(module.named_modules())[self.feature_layer]
            hook = layer.register_forward_hook(lambda _m, _i, out: kept.append(out))
            try:
                scores = module(x)
            finally:
                hook.remove()
        return scores, kept[0].flatten(1).float()

    def weights(self) -> list[bytes]:
        """Return names and bytes of every parameter and buffer."""
        state = self.module.state_dict if self.kind == "exported program" else self.module.state_dict()
        out = []
        for name, tensor in sorted(state.items()):
            out += [name.encode(), tensor.detach().cpu().contiguous().numpy().tobytes()]
        return out


class OnnxClassifier(Classifier):
    """An ONNX file, run by onnxruntime.

    Args:
        path: the file. If it has several inputs, or one of texts, they get the columns of a table by their names.
            Else its first input gets the batch: as it is where it takes uint8, else as float32. A file that takes a
            fixed number of samples at once is run as often as it needs.
        scores: name of the output that holds scores; where None, the first floating output of two axes, or else the
            first output.
        features: name of the output that holds features.
        flat: feed one flat row per sample, unscaled, as models exported from scikit-learn want it; where None,
            decided by the file's own input shape.
    """

    kind = "ONNX model"

    def __init__(
        self, path: str | Path, scores: str | None = None, features: str | None = None, flat: bool | None = None
    ) -> None:
        super().__init__()
        import onnxruntime as ort

        self.path = Path(path)
        if not self.path.is_file():
            raise ClientError(f"no ONNX file at {path}")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        try:
            self._bytes = self.path.read_bytes()
            #: The files beside it that hold its weights, by name; none where it holds them itself.
            self.beside = {name: self._read_beside(name) for name in sorted(external_files(self._bytes))}
            self.session = open_model(self._bytes, options, self.beside)
        except Exception as error:  # onnxruntime raises many types of its own, all plain Exceptions
            raise ClientError(f"cannot load {path}: {error}") from error
        self.inputs = self.session.get_inputs()
        self.input = self.inputs[0]
        outputs = {o.name: o for o in self.session.get_outputs()}
        for name in (scores, features):
            if name is not None and name not in outputs:
                raise ClientError(f"{path} has no output {name!r}; known: {', '.join(outputs)}")
        floats = [o.name for o in outputs.values() if o.type == "tensor(float)" and len(o.shape) == 2]
        # skl2onnx gives one dictionary per sample unless it is told not to.
        maps = [o.name for o in outputs.values() if o.type.startswith("seq(map(")]
        self.scores = scores or (floats or maps or list(outputs))[0]
        named = self.scores in floats and self.scores != PLACED
        #: The labels of the scores' columns, where they are text and the file has them.
        self.classes = (
            class_labels(self._bytes) if named and "tensor(string)" in (o.type for o in outputs.values()) else ()
        )
        self.features = features
        self.flat = len(self.input.shape) == 2 if flat is None else flat
        self.tries_scales = self.input.type != "tensor(uint8)"
        self.usual_scale = "-1..1" if self.tries_scales and not self.flat else None

    @property
    def places(self) -> npt.NDArray[np.int64] | None:
        """The class number of each column of its scores, where the file says it; else None."""
        if self.labels is None or sorted(self.classes) != sorted(map(str, self.labels.values or ())):
            return None
        return self.labels.places(self.classes, self.kind)

    def feed(self, shape: Sequence[int]) -> Preprocessing:
        wanted = replace(self.preprocessing, flat=True) if self.flat else self.preprocessing
        return wanted.completed(shape, self.input.shape[1:], self.usual_scale)

    def from_table(self, X: EncodedTable) -> Any:
        feeds = model_feeds(X, self.inputs)
        first = feeds[self.input.name]
        return feeds if len(feeds) > 1 or first.dtype == object else first

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        feeds = X if isinstance(X, dict) else {self.input.name: X}
        names = [self.scores] + ([self.features] if self.features else [])
        batch = None if isinstance(X, dict) else fixed_batch(self.input.shape)

        def run(x: Array) -> Any:
            return self.session.run(names, {**feeds, self.input.name: x})

        try:
            out = run(feeds[self.input.name]) if batch is None else in_batches(run, X, batch)
        except ClientError:
            raise
        except Exception as error:  # as above
            shapes = ", ".join(f"{name} {values.shape}" for name, values in feeds.items())
            hint = (
                "; layout, size and scale can be given (--client-layout NHWC, ...)"
                if len(X) and np.ndim(X) == 4
                else ""
            )
            raise ClientError(f"{self.path.name} failed on inputs {shapes}: {error}{hint}") from error
        scores, places = to_array(out[0], self.labels), self.places
        if places is not None and scores.shape[1:] == places.shape:
            scores = scores[:, np.argsort(places)]
        return scores, out[1] if self.features else None

    def weights(self) -> list[bytes]:
        """Return the file, as it was loaded, and the files beside it that hold its weights, if any."""
        return [self._bytes, *self.beside.values()]

    def _read_beside(self, name: str) -> bytes:
        path = self.path.parent / name
        if path.name != name:
            raise ClientError(f"it keeps weights in {shown(name)}, which does not lie beside it")
        return read_whole(path, path.stat().st_size)


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

    def answers(self, X: Inputs, num_classes: int, batch: int = 4096) -> ClassifierAnswers:
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
            reason = (str(error).strip().splitlines() or [repr(error)])[0]
            raise ClientError(f"the {self.kind} failed on inputs of shape {rows.shape}: {reason}") from error

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
        code = (
            f"import joblib; from l2h.export import save_onnx; save_onnx(joblib.load({str(path)!r}), {_onnx(path)!r})"
        )
        raise ClientError(
            "Pickled models are not loaded, since a pickle from a stranger runs code. If you trust it, this line "
            f"writes {_onnx(path)}: {shlex.join(['python', '-c', code])}"
        )
    raise ClientError(f"cannot use {path.name} as a client: known are {_FILES}; export yours to ONNX")


def _onnx(path: Path) -> str:
    return str(path.with_suffix(".onnx"))


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
