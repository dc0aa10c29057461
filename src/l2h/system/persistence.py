"""Saving and loading a system: JSON, safetensors and ONNX, never a pickle.

A named network is saved as its weights and the plan to build it again. A client of another kind is saved as ONNX where
it can be (torch modules, scikit-learn estimators, ONNX files); a callable, and a server or rejector of the user's own
class, must be given again on loading, since their code is not in the folder.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from l2h.classifiers import Classifier, OnnxClassifier, SklearnClassifier, TorchClassifier
from l2h.costs import as_bool
from l2h.decision import RejectorSpec
from l2h.errors import L2HWarning, RunError
from l2h.export.errors import ConversionError
from l2h.export.onnx import ConvertibleClassifier, classifier_to_onnx
from l2h.files import write_atomically
from l2h.models import Scaled, rebuild
from l2h.models.rejectors import UserRejector
from l2h.settings import Settings
from l2h.system import HelpSystem
from l2h.system import folder as runs
from l2h.training import RejectorBatch
from l2h.training.building import unit_scale
from l2h.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from l2h.training.recipes import HeldOut

CLIENT, SERVER, REJECTOR, CALIBRATION = (
    f"checkpoints/{name}.safetensors" for name in ("client", "server", "rejector", "calibration")
)
CLIENT_ONNX, SERVER_ONNX = "checkpoints/client.onnx", "checkpoints/server.onnx"


def save_system(system: HelpSystem, folder: Path) -> Path:
    """Write a fitted system into a run folder, beside what is there of the training."""
    system._fitted()
    assert system.rejectors is not None
    folder.mkdir(parents=True, exist_ok=True)
    server: dict[str, Any] = {"kind": "elsewhere" if system.fixed_server is None else "fixed"}
    if system.fixed_server is not None:
        server |= _save_onnx(system.fixed_server, folder / SERVER_ONNX, system)
    if system.server is not None:
        plan = getattr(system.server, "plan", None)
        server = {"kind": "given" if plan is None else "named", "plan": plan}
        save_checkpoint(folder / SERVER, system.server.state_dict(), {})
    else:
        (folder / SERVER).unlink(missing_ok=True)  # of a system that was saved here before
    save_checkpoint(folder / REJECTOR, system.rejectors.tensors(), {})
    if system.held_out is not None and system.platt is not None:
        held = system.held_out
        arrays = {
            "scores": held.scores,
            "client_confidence": held.client_confidence,
            "client_correct": held.client_correct.astype(np.uint8),
            "server_correct": held.server_correct.astype(np.uint8),
            "platt": system.platt,
        }
        save_checkpoint(folder / CALIBRATION, {name: torch.from_numpy(a) for name, a in arrays.items()}, {})
    else:
        (folder / CALIBRATION).unlink(missing_ok=True)
    config: dict[str, Any] = {"schema": runs.SCHEMA}
    if (folder / runs.CONFIG).exists():
        config = runs.read_config(folder)
    config["system"] = {
        "dataset": system.dataset,
        "input_shape": list(system.input_shape or ()),
        "input_dtype": system.input_dtype,
        "class_names": list(system.class_names or ()),
        "embedding_size": system.embedding_size,
        "client": _save_client(system.client, folder, system),
        "server": server,
        "rejector": {
            "kind": system.rejector if isinstance(system.rejector, str) else "given",
            "options": system.rejector_options,
        },
        "specs": [spec.as_dict() for spec in system.specs],
        "settings": system.settings.as_dict(),
        "multiply_adds": system.multiply_adds(),
    }
    runs.write_config(folder, config)
    return folder


def save_server(model: nn.Module, folder: Path, class_names: Sequence[str], dataset: str) -> None:
    """Write a server that was trained by itself, for systems that name its folder when they are loaded."""
    save_checkpoint(folder / SERVER, model.state_dict(), {})
    described = {"plan": getattr(model, "plan", None), "class_names": list(class_names), "dataset": dataset}
    runs.write_config(folder, runs.read_config(folder) | {"server": described})


def _load_server(folder: Path, class_names: Sequence[str]) -> nn.Module:
    config = runs.read_config(folder).get("server")
    if config is None:
        raise RunError(f"{folder} holds no server that was trained by itself (l2h train --role server)")
    if list(config["class_names"]) != list(class_names):
        raise RunError(f"the server of {folder} has other classes than the system: {config['class_names'][:5]} ...")
    net = rebuild(config["plan"])
    _load_weights(net, load_checkpoint(folder / SERVER), folder / SERVER)
    return net


def load_system(
    folder: Path, client: Any = None, server: Any = None, rejector: Any = None, server_run: Path | str | None = None
) -> HelpSystem:
    """Read what :func:`save_system` wrote.

    Raises:
        RunError: there is no finished run, a file is damaged, or a part must be given.
    """
    config = _system_config(folder)
    shape, classes = tuple(config["input_shape"]), config["class_names"]
    net: nn.Module | None = None
    if server is None:
        if config["server"]["kind"] == "onnx":
            server = _load_onnx(folder / SERVER_ONNX, config["server"])
        elif server_run is not None:
            net = _load_server(Path(server_run), classes)
        elif config["server"]["kind"] == "named":
            net = rebuild(config["server"]["plan"])
            _load_weights(net, load_checkpoint(folder / SERVER), folder / SERVER)
        elif config["server"]["kind"] == "elsewhere":
            raise RunError(
                f"the server of {folder} was trained elsewhere: give the folder of its run, --server-run RUN or "
                "l2h.load(folder, server_run=RUN)"
            )
        else:
            raise RunError(f"the server of {folder} is not in it: give it with l2h.load(folder, server=...)")
    elif isinstance(server, nn.Module) and (folder / SERVER).exists():
        net = Scaled(unit_scale(shape, config["input_dtype"]), copy.deepcopy(server))
        _load_weights(net, load_checkpoint(folder / SERVER), folder / SERVER)
    kind = config["rejector"]["kind"]
    if kind == "given" and rejector is None:
        raise RunError(f"the rejector of {folder} is not in it: give it with l2h.load(folder, rejector=...)")
    settings = Settings.from_dict(config["settings"])
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        settings = Settings.from_dict({**config["settings"], "device": "auto"})
    system = HelpSystem(
        client=client if client is not None else _load_client(folder, config["client"]),
        server=server if server is not None else getattr(net, "plan", {})["name"],
        rejector=rejector if kind == "given" else kind,
        settings=settings,
        class_names=classes,
        dataset=config["dataset"],
        server_options=(config["server"].get("plan") or {}).get("options"),
        rejector_options=config["rejector"]["options"],
        train_server=False if config["server"]["kind"] in ("fixed", "onnx") else None,
    )
    if client is not None:
        _compare_client(system.client, config["client"], folder)
    system.input_shape, system.input_dtype = shape, config["input_dtype"]
    system.embedding_size = config["embedding_size"]
    system.specs = tuple(RejectorSpec.from_dict(spec) for spec in config["specs"])
    if net is not None:
        system.server = net.to(system.device).eval()
    system.rejectors = _load_rejectors(system, folder, rejector)
    if (folder / CALIBRATION).exists():
        saved = {name: tensor.numpy() for name, tensor in load_checkpoint(folder / CALIBRATION).tensors.items()}
        system.platt = saved.pop("platt")
        system.held_out = HeldOut(
            scores=saved["scores"],
            client_confidence=saved["client_confidence"],
            client_correct=as_bool("client_correct", saved["client_correct"]),
            server_correct=as_bool("server_correct", saved["server_correct"]),
        )
    return system


def _system_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] | None = runs.read_config(folder).get("system")
    if config is not None:
        return config
    if (folder / SERVER).exists():
        raise RunError(f"{folder} is the server's half of a training: l2h evaluate CLIENT_RUN --server-run {folder}")
    raise RunError(f"the run in {folder} is not finished: go on with l2h train ... --resume")


def _compare_client(client: Classifier, saved: dict[str, Any], folder: Path) -> None:
    if saved.get("fingerprint") not in (None, client.fingerprint()):
        text = f"the client given is not the one {folder} was trained around: the rejector knows the other"
        warnings.warn(text, L2HWarning, stacklevel=4)


def _load_rejectors(system: HelpSystem, folder: Path, given: nn.Module | None) -> RejectorBatch:
    assert system.input_shape is not None
    if given is not None:
        module: nn.Module = UserRejector(unit_scale(system.input_shape, system.input_dtype), copy.deepcopy(given))
    else:
        module = system._rejector_builder(None)()
    batch = RejectorBatch([module] * len(system.specs), system.device)
    tensors = load_checkpoint(folder / REJECTOR).tensors
    expected = {name: tuple(tensor.shape) for name, tensor in batch.tensors().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        raise RunError(f"{folder / REJECTOR} does not fit the rejector that {runs.CONFIG} describes")
    batch.load(tensors)
    return batch


def _load_weights(net: nn.Module, checkpoint: Checkpoint, path: Path) -> None:
    try:
        net.load_state_dict(checkpoint.tensors)
    except RuntimeError as error:
        raise RunError(f"{path} does not fit the network that {runs.CONFIG} describes: {error}") from error


def _save_client(client: Classifier, folder: Path, system: HelpSystem) -> dict[str, Any]:
    plan = getattr(getattr(client, "module", None), "plan", None)
    if isinstance(client, TorchClassifier) and plan is not None:
        save_checkpoint(folder / CLIENT, client.module.state_dict(), {})
        return {"kind": "named", "plan": plan, "fingerprint": client.fingerprint()}
    return {"kind": "given"} | _save_onnx(client, folder / CLIENT_ONNX, system)


def _save_onnx(classifier: Classifier, path: Path, system: HelpSystem) -> dict[str, Any]:
    """Write a fixed classifier as ONNX and return how to read it back: nothing where it must be given again."""
    converted = None
    if _can_be_saved(classifier):
        example = np.zeros((2, *(system.input_shape or ())), dtype=np.float32)
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


def _load_client(folder: Path, config: dict[str, Any]) -> Classifier:
    if config["kind"] == "named":
        net = rebuild(config["plan"])
        _load_weights(net, load_checkpoint(folder / CLIENT), folder / CLIENT)
        return TorchClassifier(net.eval())
    if config["kind"] == "onnx":
        return _load_onnx(folder / CLIENT_ONNX, config)
    raise RunError(f"the client of {folder} is not in it: give it with l2h.load(folder, client=...)")


def _load_onnx(path: Path, config: dict[str, Any]) -> OnnxClassifier:
    client = OnnxClassifier(path, config["scores"], config["features"], config["flat"])
    client.probabilities = config["probabilities"]
    return client
