"""Saving a system: JSON, safetensors and ONNX, never a pickle.

A named network is saved as its weights and the plan to build it again. A classifier of another kind is saved as ONNX
where it can be (torch modules, scikit-learn estimators, ONNX files); a callable, and a server or rejector of the user's
own class, must be given again on loading, since their code is not in the folder.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from l2h import methods
from l2h.classifiers import Classifier, OnnxClassifier, SklearnClassifier, TorchClassifier
from l2h.errors import L2HWarning
from l2h.export.errors import ConversionError
from l2h.export.onnx import ConvertibleClassifier, classifier_to_onnx
from l2h.files import write_atomically
from l2h.fitted import Calibration, FittedSystem
from l2h.system.folder import CONFIG, SCHEMA, read_config, write_config
from l2h.training.checkpoint import save_checkpoint

CLIENT, SERVER, REJECTOR, CALIBRATION = (
    f"checkpoints/{name}.safetensors" for name in ("client", "server", "rejector", "calibration")
)
CLIENT_ONNX, SERVER_ONNX = "checkpoints/client.onnx", "checkpoints/server.onnx"


def save_system(fitted: FittedSystem, folder: Path) -> Path:
    """Write a fitted system into a run folder, beside what is there of the training."""
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder / REJECTOR, fitted.rejectors.state_dict(), {})
    _save_calibration(fitted.calibration, folder / CALIBRATION)
    config = read_config(folder) if (folder / CONFIG).exists() else {"schema": SCHEMA}
    system = {
        "dataset": fitted.dataset,
        "input_shape": list(fitted.input_shape),
        "input_dtype": fitted.input_dtype,
        "class_names": list(fitted.class_names),
        "embedding_size": fitted.embedding_size,
        "client": _save_client(fitted, folder),
        "server": _save_server_of(fitted, folder),
        "rejector": {"kind": fitted.rejector, "options": dict(fitted.rejector_options)},
        "specs": [spec.as_dict() for spec in fitted.specs],
        "settings": fitted.settings.as_dict(),
        "multiply_adds": fitted.multiply_adds(),
    }
    net = "attached" if fitted.rejector == "given" else fitted.rejector
    if fitted.method.name != methods.spelled(fitted.settings.loss, net).name:
        system["method"] = fitted.method.name
    write_config(folder, {**config, "system": system})
    return folder


def save_server(model: nn.Module, folder: Path, class_names: Sequence[str], dataset: str) -> None:
    """Write a server that was trained by itself, for systems that name its folder when they are loaded."""
    save_checkpoint(folder / SERVER, model.state_dict(), {})
    described = {"plan": getattr(model, "plan", None), "class_names": list(class_names), "dataset": dataset}
    write_config(folder, read_config(folder) | {"server": described})


def _save_calibration(calibration: Calibration | None, path: Path) -> None:
    if calibration is None:
        path.unlink(missing_ok=True)  # of a system that was saved here before
        return
    held = calibration.held_out
    arrays = {
        "scores": held.scores,
        "client_confidence": held.client_confidence,
        "client_correct": held.client_correct.astype(np.uint8),
        "server_correct": held.server_correct.astype(np.uint8),
        "platt": calibration.platt,
    }
    save_checkpoint(path, {name: torch.from_numpy(array) for name, array in arrays.items()}, {})


def _save_server_of(fitted: FittedSystem, folder: Path) -> dict[str, Any]:
    if fitted.server is not None:
        plan = getattr(fitted.server, "plan", None)
        save_checkpoint(folder / SERVER, fitted.server.state_dict(), {})
        return {"kind": "given" if plan is None else "named", "plan": plan}
    (folder / SERVER).unlink(missing_ok=True)  # of a system that was saved here before
    if fitted.fixed_server is None:
        return {"kind": "elsewhere"}
    return {"kind": "fixed"} | _save_onnx(fitted.fixed_server, folder / SERVER_ONNX, fitted.input_shape)


def _save_client(fitted: FittedSystem, folder: Path) -> dict[str, Any]:
    client = fitted.client
    plan = getattr(getattr(client, "module", None), "plan", None)
    if isinstance(client, TorchClassifier) and plan is not None:
        save_checkpoint(folder / CLIENT, client.module.state_dict(), {})
        return {"kind": "named", "plan": plan, "fingerprint": client.fingerprint()}
    return {"kind": "given"} | _save_onnx(client, folder / CLIENT_ONNX, fitted.input_shape)


def _save_onnx(classifier: Classifier, path: Path, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """Write a fixed classifier as ONNX and return how to read it back: nothing where it must be given again."""
    converted = None
    if _can_be_saved(classifier):
        example = np.zeros((2, *input_shape), dtype=np.float32)
        try:
            converted = classifier_to_onnx(classifier, example, path.name)
        except ConversionError as error:
            warnings.warn(f"{error}; it is not saved and must be given to l2h.load", L2HWarning, stacklevel=2)
    if converted is None or converted.data is None:
        path.unlink(missing_ok=True)
        return {}
    write_atomically(path, converted.data)
    return {
        "kind": "onnx",
        "scores": converted.part.output,
        "features": converted.part.features,
        "flat": converted.part.feed == "flat",
        "probabilities": classifier.probabilities,
        "fingerprint": classifier.fingerprint(),
    }


def _can_be_saved(classifier: Classifier) -> TypeGuard[ConvertibleClassifier]:
    if isinstance(classifier, SklearnClassifier):
        # A probability for each class, in label order: otherwise the file would answer differently.
        known = len(classifier.classes)
        complete = np.array_equal(classifier.classes, np.arange(known)) and classifier.num_classes in (None, known)
        return complete and hasattr(classifier.estimator, "predict_proba")
    if isinstance(classifier, TorchClassifier):
        return classifier.kind == "torch module" and classifier.feature_layer is None
    return isinstance(classifier, OnnxClassifier)
