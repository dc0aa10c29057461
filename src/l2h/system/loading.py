"""Loading a system that was saved."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l2h.classifiers import Classifier, OnnxClassifier, TorchClassifier
from l2h.costs import as_bool
from l2h.decision import RejectorSpec
from l2h.errors import L2HWarning, RunError, UnknownNameError
from l2h.fitted import Calibration, FittedSystem
from l2h.models import Scaled, rebuild
from l2h.settings import Settings
from l2h.system.folder import CONFIG, read_config
from l2h.system.help_system import HelpSystem
from l2h.system.saving import CALIBRATION, CLIENT, CLIENT_ONNX, REJECTOR, SERVER, SERVER_ONNX
from l2h.training import HeldOut, RejectorBatch
from l2h.training.checkpoint import Checkpoint, load_checkpoint
from l2h.training.job import rejector_builder, unit_scale


def load(
    folder: str | Path,
    *,
    client: Any = None,
    server: Any = None,
    rejector: nn.Module | None = None,
    server_run: Path | str | None = None,
) -> HelpSystem:
    """Read a system that was saved, or trained by ``l2h train``.

    Args:
        folder: the run folder.
        client: the client, where it could not be saved: a callable, or a module of the user's.
        server: the server, where it could not be saved.
        rejector: the rejector, where it is a module of the user's.
        server_run: the run folder of a server that was trained elsewhere (``l2h train --role server``).

    Raises:
        RunError: the folder holds no finished run, is damaged, or lacks a part that must be given.
    """
    folder = Path(folder)
    config = _system_config(folder)
    shape = tuple(config["input_shape"])
    net = _load_server(folder, config, server, server_run)
    if net is None and server is None:
        server = _load_onnx(folder / SERVER_ONNX, config["server"])
    kind = config["rejector"]["kind"]
    if kind == "given" and rejector is None:
        raise RunError(f"the rejector of {folder} is not in it: give it with l2h.load(folder, rejector=...)")
    settings = Settings.from_dict(config["settings"])
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        settings = Settings.from_dict({**config["settings"], "device": "auto"})
    try:
        system = HelpSystem(
            client=client if client is not None else _load_client(folder, config["client"]),
            server=server if server is not None else getattr(net, "plan", {})["name"],
            rejector=rejector if kind == "given" else kind,
            method=config.get("method"),
            settings=settings,
            class_names=config["class_names"],
            dataset=config["dataset"],
            server_options=(config["server"].get("plan") or {}).get("options"),
            rejector_options=config["rejector"]["options"],
            train_server=False if config["server"]["kind"] in ("fixed", "onnx") else None,
        )
    except UnknownNameError as error:
        if "method" not in config:
            raise
        raise RunError(
            f"{folder} was trained by a method from outside: {error}; name its file with --method-file or "
            "l2h.methods.load_file(FILE)"
        ) from error
    if client is not None:
        _compare_client(system.client, config["client"], folder)
    specs = tuple(RejectorSpec.from_dict(spec) for spec in config["specs"])
    system.fitted = FittedSystem(
        client=system.client,
        server=None if net is None else net.to(system.device).eval(),
        fixed_server=system.fixed_server,
        rejectors=_load_rejectors(system, folder, config, len(specs)),
        specs=specs,
        method=system.method,
        rejector=kind,
        rejector_options=system.rejector_options,
        settings=settings,
        device=system.device,
        input_shape=shape,
        input_dtype=config["input_dtype"],
        class_names=tuple(config["class_names"]),
        embedding_size=config["embedding_size"],
        dataset=config["dataset"],
        calibration=_load_calibration(folder / CALIBRATION),
    )
    return system


def _system_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] | None = read_config(folder).get("system")
    if config is not None:
        return config
    if (folder / SERVER).exists():
        raise RunError(f"{folder} is the server's half of a training: l2h evaluate CLIENT_RUN --server-run {folder}")
    raise RunError(f"the run in {folder} is not finished: go on with l2h train ... --resume")


def _load_server(
    folder: Path, config: Mapping[str, Any], given: Any, server_run: Path | str | None
) -> nn.Module | None:
    """Return the trained server; None where it is fixed."""
    kind = config["server"]["kind"]
    if given is not None:
        if not isinstance(given, nn.Module) or not (folder / SERVER).exists():
            return None
        net: nn.Module = Scaled(unit_scale(tuple(config["input_shape"]), config["input_dtype"]), copy.deepcopy(given))
    elif kind == "onnx":
        return None
    elif server_run is not None:
        return _load_other_server(Path(server_run), config["class_names"])
    elif kind == "named":
        net = rebuild(config["server"]["plan"])
    elif kind == "elsewhere":
        raise RunError(
            f"the server of {folder} was trained elsewhere: give the folder of its run, --server-run RUN or "
            "l2h.load(folder, server_run=RUN)"
        )
    else:
        raise RunError(f"the server of {folder} is not in it: give it with l2h.load(folder, server=...)")
    _load_weights(net, load_checkpoint(folder / SERVER), folder / SERVER)
    return net


def _load_other_server(folder: Path, class_names: Sequence[str]) -> nn.Module:
    config = read_config(folder).get("server")
    if config is None:
        raise RunError(f"{folder} holds no server that was trained by itself (l2h train --role server)")
    if list(config["class_names"]) != list(class_names):
        raise RunError(f"the server of {folder} has other classes than the system: {config['class_names'][:5]} ...")
    net = rebuild(config["plan"])
    _load_weights(net, load_checkpoint(folder / SERVER), folder / SERVER)
    return net


def _load_rejectors(system: HelpSystem, folder: Path, config: Mapping[str, Any], size: int) -> RejectorBatch:
    make = rejector_builder(
        system.rejector,
        None,
        input_shape=tuple(config["input_shape"]),
        input_dtype=config["input_dtype"],
        num_classes=len(config["class_names"]),
        embedding_size=config["embedding_size"],
        settings=system.settings,
        options=system.rejector_options,
        student=system.method.student,
    )
    rejectors = RejectorBatch([make()] * size, system.device)
    tensors = load_checkpoint(folder / REJECTOR).tensors
    expected = {name: tuple(tensor.shape) for name, tensor in rejectors.state_dict().items()}
    if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise RunError(f"{folder / REJECTOR} does not fit the rejector that {CONFIG} describes")
    rejectors.load_state_dict(tensors)
    return rejectors


def _load_calibration(path: Path) -> Calibration | None:
    if not path.exists():
        return None
    saved = {name: tensor.numpy() for name, tensor in load_checkpoint(path).tensors.items()}
    held_out = HeldOut(
        scores=saved["scores"],
        client_confidence=saved["client_confidence"],
        client_correct=as_bool("client_correct", saved["client_correct"]),
        server_correct=as_bool("server_correct", saved["server_correct"]),
    )
    return Calibration(held_out, saved["platt"])


def _load_client(folder: Path, config: Mapping[str, Any]) -> Classifier:
    if config["kind"] == "named":
        net = rebuild(config["plan"])
        _load_weights(net, load_checkpoint(folder / CLIENT), folder / CLIENT)
        return TorchClassifier(net.eval())
    if config["kind"] == "onnx":
        return _load_onnx(folder / CLIENT_ONNX, config)
    raise RunError(f"the client of {folder} is not in it: give it with l2h.load(folder, client=...)")


def _load_onnx(path: Path, config: Mapping[str, Any]) -> OnnxClassifier:
    classifier = OnnxClassifier(path, config["scores"], config["features"], config["flat"])
    classifier.probabilities = config["probabilities"]
    return classifier


def _compare_client(client: Classifier, saved: Mapping[str, Any], folder: Path) -> None:
    if saved.get("fingerprint") not in (None, client.fingerprint()):
        text = f"the client given is not the one {folder} was trained around: the rejector knows the other"
        warnings.warn(text, L2HWarning, stacklevel=3)


def _load_weights(net: nn.Module, checkpoint: Checkpoint, path: Path) -> None:
    try:
        net.load_state_dict(checkpoint.tensors)
    except RuntimeError as error:
        raise RunError(f"{path} does not fit the network that {CONFIG} describes: {error}") from error
