"""``as_client``: one interface over whatever model the user has."""

from pathlib import Path
from typing import Any

from l2h.classifiers.base import Classifier
from l2h.classifiers.functions import CallableClassifier
from l2h.classifiers.onnx import OnnxClassifier
from l2h.classifiers.sklearn import SklearnClassifier
from l2h.classifiers.torch import TorchClassifier
from l2h.errors import ClientError


def as_client(model: Any, **options: Any) -> Classifier:
    """Return a classifier over a model, which is never trained or changed.

    Args:
        model: a :class:`Classifier`; a torch module, TorchScript or exported program; a path to an ``.onnx``, ``.pt``
            (TorchScript) or ``.pt2`` (exported program) file; a fitted scikit-learn estimator; a callable.
        options: those of the classifier, such as ``feature_layer="fc2"`` for a torch module.

    Raises:
        ClientError: it is none of these, or the file cannot be read.

    Example:
        >>> as_client(lambda X: X.sum(axis=1) > 0).kind
        'callable'
    """
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


def _from_file(path: Path, options: dict[str, Any]) -> Classifier:
    if path.suffix == ".onnx":
        return OnnxClassifier(path, **options)
    if not path.is_file():
        raise ClientError(f"no client at {path}: give an .onnx, .pt (TorchScript) or .pt2 (exported program) file")
    if path.suffix in (".pt", ".ts", ".pt2"):
        import torch

        try:
            loaded = torch.export.load(path) if path.suffix == ".pt2" else torch.jit.load(str(path), map_location="cpu")
        except (RuntimeError, ValueError, OSError) as error:
            raise ClientError(f"cannot load {path}: {error}") from error
        return TorchClassifier(loaded, **options)
    raise ClientError(
        f"cannot use {path.name} as a client: known are .onnx, .pt (TorchScript) and .pt2 (exported program). "
        "Pickled models are not loaded, since a pickle from a stranger runs code; export yours to ONNX"
    )


def _is_torch(model: Any) -> bool:
    # Not by isinstance: a machine without torch has no torch models either, and must not need the import.
    return any(base.__module__.split(".")[0] == "torch" for base in type(model).__mro__)
