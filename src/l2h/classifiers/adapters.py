"""Classifiers that are given and stay as they are: the client, and a server that is somebody's API.

:func:`as_client` takes a torch module, a TorchScript or exported program, an ONNX file, a scikit-learn estimator, or
any callable that returns scores or only labels, and gives one small interface over them. Nothing here trains or
changes a model; :meth:`Client.fingerprint` proves it: a hash over every weight, equal before and after.

What a classifier is fed: torch and ONNX get float32, uint8 inputs scaled to [-1, 1]; scikit-learn gets one flat row a
sample; a callable gets the array just as it was given to ``fit`` or ``predict``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import FloatArray
from l2h.errors import ClientError

Array = npt.NDArray[Any]
FLOOR = 1e-6


@dataclass(frozen=True)
class ClientAnswers:
    """What a classifier said of n inputs, computed once and kept.

    Attributes:
        label: int (n,).
        log_probability: float32 (n, K); of a classifier that gives only labels, one-hot with a floor of 1e-6.
        embedding: float32 (n, E), its last features where it exposes them.
        has_scores: False where only labels were given.
    """

    label: npt.NDArray[np.int64]
    log_probability: npt.NDArray[np.float32]
    embedding: npt.NDArray[np.float32] | None
    has_scores: bool

    def at(self, index: Any) -> ClientAnswers:
        """The answers to the inputs at ``index``: a slice, a mask or numbers."""
        return ClientAnswers(
            label=self.label[index],
            log_probability=self.log_probability[index],
            embedding=None if self.embedding is None else self.embedding[index],
            has_scores=self.has_scores,
        )

    @property
    def confidence(self) -> FloatArray:
        """Largest probability, (n,); 1 for all where only labels were given: they rank nothing."""
        if not self.has_scores:
            return np.ones(len(self.label))
        return np.asarray(np.exp(self.log_probability.astype(np.float64)).max(axis=1))

    @property
    def probability(self) -> FloatArray:
        """(n, K), rows sum to 1."""
        p = np.exp(self.log_probability.astype(np.float64))
        return np.asarray(p / p.sum(axis=1, keepdims=True))


class Client(ABC):
    """A fixed classifier. Subclasses give scores or labels, and the bytes that must not change."""

    kind: str

    def __init__(self) -> None:
        self.num_classes: int | None = None
        #: Whether the scores are probabilities; found out from the first inputs it answers, and kept to.
        self.probabilities: bool | None = None

    @abstractmethod
    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Scores (n, K) or labels (n,), and features (n, E) or None."""

    @abstractmethod
    def weights(self) -> list[bytes]:
        """Everything the answers depend on, as bytes; empty where the classifier is opaque."""

    def fingerprint(self) -> str:
        """SHA-256 over :meth:`weights`: equal before and after training."""
        digest = hashlib.sha256(self.kind.encode())
        for blob in self.weights():
            digest.update(len(blob).to_bytes(8, "little"))
            digest.update(blob)
        return digest.hexdigest()

    def answers(self, X: Array, num_classes: int, batch: int = 4096) -> ClientAnswers:
        """Run the classifier on every input, a batch at a time.

        Raises:
            ClientError: the output is no (n, K) array of scores nor (n,) array of labels, K is not ``num_classes``, or
                an output is not finite.
        """
        parts = [self._answers(X[i : i + batch], num_classes) for i in range(0, len(X), batch)]
        embedding = None
        if parts and parts[0].embedding is not None:
            embedding = np.concatenate([p.embedding for p in parts if p.embedding is not None])
        return ClientAnswers(
            label=np.concatenate([p.label for p in parts]),
            log_probability=np.concatenate([p.log_probability for p in parts]),
            embedding=embedding,
            has_scores=parts[0].has_scores,
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
                "draws one answer an input and keeps to it"
            )

    def _answers(self, X: Array, num_classes: int) -> ClientAnswers:
        output, features = self.raw(X)
        scores = np.asarray(output)
        if scores.ndim == 2 and scores.shape == (len(X), 1):
            scores = scores[:, 0]
        if scores.dtype == np.bool_:
            scores = scores.astype(np.int64)
        if scores.ndim == 1 and scores.shape == (len(X),) and np.issubdtype(scores.dtype, np.integer):
            log_p = _one_hot(scores, num_classes)
            has_scores = False
        elif scores.ndim == 1 and scores.shape == (len(X),) and num_classes == 2:
            margin = _finite(scores)
            log_p = log_softmax(np.stack([np.zeros_like(margin), margin], axis=1))
            has_scores = True
        elif scores.ndim == 2 and scores.shape[0] == len(X):
            if scores.shape[1] != num_classes:
                raise ClientError(
                    f"the {self.kind} gives {scores.shape[1]} scores a sample, the labels have {num_classes} classes: "
                    "give a classifier of the same classes, or relabel the data"
                )
            log_p = self._log_probability(_finite(scores))
            has_scores = True
        else:
            raise ClientError(
                f"the {self.kind} returned {scores.dtype} of shape {scores.shape} for {len(X)} inputs: "
                f"expected scores ({len(X)}, {num_classes}) or integer labels ({len(X)},)"
            )
        label = scores.astype(np.int64) if not has_scores else log_p.argmax(axis=1).astype(np.int64)
        embedding = None if features is None else _finite(np.asarray(features)).reshape(len(X), -1)
        return ClientAnswers(
            label=label,
            log_probability=np.maximum(log_p, np.log(FLOOR)).astype(np.float32)
            if not has_scores
            else log_p.astype(np.float32),
            embedding=None if embedding is None else embedding.astype(np.float32),
            has_scores=has_scores,
        )

    def _log_probability(self, scores: Array) -> Array:
        """Scores that are probabilities already are taken as such; anything else is taken as logits."""
        if self.probabilities is None:
            self.probabilities = bool((scores >= 0).all() and np.allclose(scores.sum(axis=1), 1.0, atol=1e-3))
        return np.log(np.maximum(scores, FLOOR)) if self.probabilities else log_softmax(scores)


class TorchClient(Client):
    """A torch module, TorchScript program or ``torch.export`` program.

    Args:
        module: called as ``module(x)`` with a float32 batch; scores (n, K) or labels (n,).
        feature_layer: dotted name of the submodule whose output is its last features. Where None, the module's own
            method ``embed(x)`` is used if it has one.
    """

    def __init__(self, module: Any, feature_layer: str | None = None) -> None:
        super().__init__()
        import torch

        self.module = module
        self.kind = "torch module"
        if isinstance(module, torch.export.ExportedProgram):
            self.kind = "exported program"
        elif isinstance(module, torch.jit.ScriptModule):
            self.kind = "TorchScript program"
        self._call = module.module() if self.kind == "exported program" else module
        self.feature_layer = feature_layer
        if feature_layer is not None and feature_layer not in dict(self._call.named_modules()):
            known = ", ".join(name for name in dict(self._call.named_modules()) if name)
            raise ClientError(f"the client has no layer {feature_layer!r}; known: {known}")

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Scores and features, in evaluation mode; the module's mode is put back afterwards."""
        import torch

        module = self._call
        first = next(iter(module.parameters()), None)
        x = torch.from_numpy(unit_range(X)).to("cpu" if first is None else first.device)
        modes = [(m, m.training) for m in module.modules()]
        if self.kind != "exported program":
            module.eval()
        kept: list[torch.Tensor] = []
        hook = None
        try:
            if self.feature_layer is not None:
                layer = dict(module.named_modules())[self.feature_layer]
                hook = layer.register_forward_hook(lambda _m, _i, out: kept.append(out))
            with torch.no_grad():
                scores = module(x)
                if self.feature_layer is None and callable(getattr(module, "embed", None)):
                    kept.append(module.embed(x))
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ClientError(f"the {self.kind} failed on inputs of shape {X.shape}: {error}") from error
        finally:
            if hook is not None:
                hook.remove()
            for m, training in modes:
                m.training = training
        features = kept[0].flatten(1).float().cpu().numpy() if kept else None
        return scores.detach().cpu().numpy(), features

    def weights(self) -> list[bytes]:
        """Names and bytes of every parameter and buffer."""
        out = []
        for name, tensor in sorted(
            self.module.state_dict.items() if self.kind == "exported program" else self.module.state_dict().items()
        ):
            out += [name.encode(), tensor.detach().cpu().contiguous().numpy().tobytes()]
        return out


class OnnxClient(Client):
    """An ONNX file, run by onnxruntime.

    Args:
        path: the file. Its first input gets the batch.
        scores: name of the output that holds scores; where None, the first floating output of two axes, or else the
            first output.
        features: name of the output that holds features.
        flat: feed one flat row a sample, unscaled, as models exported from scikit-learn want it; where None,
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
        self._bytes = self.path.read_bytes()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        try:
            self.session = ort.InferenceSession(self._bytes, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises many types of its own, all plain Exceptions
            raise ClientError(f"cannot load {path}: {error}") from error
        self.input = self.session.get_inputs()[0]
        outputs = {o.name: o for o in self.session.get_outputs()}
        for name in (scores, features):
            if name is not None and name not in outputs:
                raise ClientError(f"{path} has no output {name!r}; known: {', '.join(outputs)}")
        floats = [o.name for o in outputs.values() if o.type == "tensor(float)" and len(o.shape) == 2]
        # skl2onnx gives a dictionary a sample unless it is told not to.
        maps = [o.name for o in outputs.values() if o.type.startswith("seq(map(int64")]
        self.scores = scores or (floats or maps or list(outputs))[0]
        self.features = features
        self.flat = len(self.input.shape) == 2 if flat is None else flat

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Scores and features."""
        if self.flat:
            x = X.reshape(len(X), -1).astype(np.float32)
        elif self.input.type == "tensor(uint8)":
            x = X
        else:
            x = unit_range(X)
        names = [self.scores] + ([self.features] if self.features else [])
        try:
            out = self.session.run(names, {self.input.name: x})
        except Exception as error:  # as above
            raise ClientError(f"{self.path.name} failed on inputs of shape {x.shape}: {error}") from error
        found = out[0]
        if isinstance(found, list):
            found = np.array([[row[label] for label in sorted(row)] for row in found], dtype=np.float32)
        return found, out[1] if self.features else None

    def weights(self) -> list[bytes]:
        """The file, as it was loaded."""
        return [self._bytes]


class SklearnClient(Client):
    """A fitted scikit-learn estimator: ``predict_proba``, else ``decision_function``, else ``predict``.

    Its ``classes_`` must be integer labels; one that never saw some class gives it probability 0.
    """

    kind = "scikit-learn estimator"

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator
        classes = getattr(estimator, "classes_", None)
        if classes is None:
            raise ClientError("the scikit-learn estimator is not fitted: the client must be ready to answer")
        self.classes = np.asarray(classes)
        if not np.issubdtype(self.classes.dtype, np.integer) or self.classes.min() < 0:
            raise ClientError(f"the estimator's classes must be integers from 0; got {self.classes[:5].tolist()}")

    def _answers(self, X: Array, num_classes: int) -> ClientAnswers:
        if self.classes.max() >= num_classes:
            raise ClientError(
                f"the estimator knows class {self.classes.max()}, the labels have {num_classes} classes (0 to "
                f"{num_classes - 1}): give a classifier of the same classes, or relabel the data"
            )
        self.num_classes = num_classes
        return super()._answers(X, num_classes)

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """Scores over all classes, in label order."""
        rows = X.reshape(len(X), -1)
        width = self.num_classes or int(self.classes.max()) + 1
        for name in ("predict_proba", "decision_function"):
            if not hasattr(self.estimator, name):
                continue
            scores = np.asarray(getattr(self.estimator, name)(rows), dtype=np.float64)
            if scores.ndim == 1:
                scores = np.stack([-scores / 2, scores / 2], axis=1)
            if scores.shape[1] != len(self.classes):
                continue  # one-vs-one scores: no score a class
            fill = 0.0 if name == "predict_proba" else scores.min() - 20.0
            full = np.full((len(X), width), fill)
            full[:, self.classes] = scores
            return full, None
        return np.asarray(self.estimator.predict(rows)).astype(np.int64), None

    def weights(self) -> list[bytes]:
        """The estimator's pickle: written to be hashed, never read back."""
        import pickle

        return [pickle.dumps(self.estimator, protocol=4)]


class CallableClient(Client):
    """Any function of a batch that returns scores (n, K) or integer labels (n,). Its insides are opaque."""

    kind = "callable"

    def __init__(self, function: Callable[[Array], Any]) -> None:
        super().__init__()
        self.function = function

    def raw(self, X: Array) -> tuple[Array, Array | None]:
        """What the function returns; tensors are brought to numpy."""
        return _to_numpy(self.function(X)), None

    def weights(self) -> list[bytes]:
        """Nothing: what a function holds cannot be seen from outside."""
        return []


class StochasticClient(Client):
    """A classifier whose answer to an input is a random variable.

    One answer is drawn an input, by a generator seeded with ``(seed, the input's bytes)``, and is the client's answer
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
        """One draw an input."""
        return np.concatenate([_to_numpy(self.sample(X[i : i + 1], self._rng(X[i]))) for i in range(len(X))]), None

    def weights(self) -> list[bytes]:
        """The seed: the function's insides are opaque."""
        return [str(self.seed).encode()]

    def _rng(self, x: Array) -> np.random.Generator:
        key = hashlib.sha256(str(self.seed).encode() + np.ascontiguousarray(x).tobytes()).digest()
        return np.random.default_rng(np.frombuffer(key, dtype=np.uint32))


def as_client(model: Any, **options: Any) -> Client:
    """One interface over whatever the user has.

    Args:
        model: a :class:`Client`; a torch module, TorchScript or exported program; a path to an ``.onnx``, ``.pt``
            (TorchScript) or ``.pt2`` (exported program) file; a fitted scikit-learn estimator; a callable.
        options: those of the adapter, such as ``feature_layer="fc2"`` for a torch module.

    Raises:
        ClientError: it is none of these, or the file cannot be read.

    Example:
        >>> as_client(lambda X: X.sum(axis=1) > 0).kind
        'callable'
    """
    if isinstance(model, Client):
        return model
    if isinstance(model, str | Path):
        return _from_file(Path(model), options)
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        return SklearnClient(model)
    if _is_torch(model):
        return TorchClient(model, **options)
    if callable(model):
        return CallableClient(model)
    raise ClientError(
        f"a {type(model).__name__} cannot be a client: give a torch module, a TorchScript or exported program, an ONNX "
        "file, a scikit-learn estimator, or a callable that returns scores or labels"
    )


def unit_range(X: Array) -> npt.NDArray[np.float32]:
    """uint8 to [-1, 1]; floats as they are."""
    if X.dtype == np.uint8:
        return X.astype(np.float32) / np.float32(127.5) - np.float32(1)
    return np.ascontiguousarray(X, dtype=np.float32)


def _from_file(path: Path, options: dict[str, Any]) -> Client:
    if path.suffix == ".onnx":
        return OnnxClient(path, **options)
    if not path.is_file():
        raise ClientError(f"no client at {path}: give an .onnx, .pt (TorchScript) or .pt2 (exported program) file")
    if path.suffix in (".pt", ".ts", ".pt2"):
        import torch

        try:
            loaded = torch.export.load(path) if path.suffix == ".pt2" else torch.jit.load(str(path), map_location="cpu")
        except (RuntimeError, ValueError, OSError) as error:
            raise ClientError(f"cannot load {path}: {error}") from error
        return TorchClient(loaded, **options)
    raise ClientError(
        f"cannot use {path.name} as a client: known are .onnx, .pt (TorchScript) and .pt2 (exported program). "
        "Pickled models are not loaded, since a pickle from a stranger runs code; export yours to ONNX"
    )


def _is_torch(model: Any) -> bool:
    # Not by isinstance: a machine without torch has no torch models either, and must not need the import.
    return any(base.__module__.split(".")[0] == "torch" for base in type(model).__mro__)


def _to_numpy(value: Any) -> Array:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _finite(scores: Array) -> Array:
    scores = scores.astype(np.float64)
    bad = ~np.isfinite(scores).reshape(len(scores), -1).all(axis=1)
    if bad.any():
        raise ClientError(
            f"the client's output for sample {int(np.argmax(bad))} is not finite ({int(bad.sum())} in all)"
        )
    return scores


def _one_hot(labels: Array, num_classes: int) -> Array:
    if labels.size and (labels.min() < 0 or labels.max() >= num_classes):
        wrong = labels[(labels < 0) | (labels >= num_classes)][0]
        raise ClientError(
            f"the client answered class {wrong}, the labels have {num_classes} classes (0 to {num_classes - 1})"
        )
    out = np.full((len(labels), num_classes), np.log(FLOOR))
    out[np.arange(len(labels)), labels] = 0.0
    return out


def log_softmax(scores: Array) -> Array:
    """Log-probabilities (n, K) of scores."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
