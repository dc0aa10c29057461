"""Saving a system and loading it again: JSON, safetensors and ONNX, never a pickle.

A named network is saved as its weights and the plan to build it again. A classifier of another kind is saved as ONNX
where it can be (torch modules, scikit-learn estimators, ONNX files), and a LiteRT file as it is; a callable, and a
server or rejector of the user's own class, must be given again on loading, since their code is not in the folder. Of a
server that is asked (:class:`l2h.RemoteServer`) the folder has the name and the answers.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from torch import nn

from l2h import methods
from l2h.bundle.manifest import read_columns, read_spec
from l2h.bundle.parts import BundleError, InputPart, read_values
from l2h.classifiers import (
    LITERT,
    CallableClassifier,
    Classifier,
    LiteRTClassifier,
    OnnxClassifier,
    Preprocessing,
    SklearnClassifier,
    TorchClassifier,
)
from l2h.columns import Columns
from l2h.costs import as_bool
from l2h.decision import SERVER as ONLY
from l2h.decision import RejectorSpec
from l2h.errors import DataError, ExportError, L2HError, RunError, SettingsError, UnknownNameError, about, warn
from l2h.export.classifiers import largest_difference
from l2h.export.onnx import ConvertibleClassifier, classifier_to_onnx
from l2h.files import CHECKPOINTS, CONFIG, SCHEMA, read_config, write_atomically, write_json
from l2h.fitted import EXAMPLES, Calibration, FittedServer, FittedSystem
from l2h.labels import LabelCodec
from l2h.models import Scaled, rebuild
from l2h.remote import RemoteServer
from l2h.settings import Settings
from l2h.system.help_system import HelpSystem
from l2h.system.steps import assemble
from l2h.training import HeldOut, RejectorBatch
from l2h.training.checkpoint import load_checkpoint, save_checkpoint
from l2h.training.job import rejector_builder, unit_scale

CLIENT, SERVER, REJECTOR, CALIBRATION = (
    f"checkpoints/{name}.safetensors" for name in ("client", "server", "rejector", "calibration")
)
CLIENT_ONNX = "checkpoints/client.onnx"
#: Kinds of classifiers that a run folder holds as a file of their own.
_FILES = ("onnx", "litert")
_T = TypeVar("_T")


def load(
    folder: str | Path,
    *,
    client: Any = None,
    server: Any = None,
    servers: Mapping[str, Any] | None = None,
    rejector: nn.Module | None = None,
    server_run: Path | str | None = None,
    key: str | Mapping[str, str] | None = None,
) -> HelpSystem:
    """Read a system that was saved, or trained by ``l2h train``.

    Args:
        folder: the run folder.
        client: the client, where it could not be saved: a callable, or a module of the user's.
        server: the server, where it could not be saved; of one that is asked, the function, which is not run
            unless it is given. Inputs that were asked before need neither function nor network.
        servers: of several servers, by name, those that could not be saved.
        rejector: the rejector, where it is a module of the user's.
        server_run: the run folder of a server that was trained elsewhere (``l2h train --role server``).
        key: for the address of a server that is asked; of several by name, or one for all.

    Raises:
        RunError: the folder holds no finished run, is damaged, or lacks a part that must be given.
    """
    folder = Path(folder)
    run = read_config(folder)
    if "router" in run:
        raise RunError(f"{folder} holds a router: l2h.Router.load(folder) reads it")
    config = run.get("system")
    if config is None and (folder / SERVER).exists():
        raise RunError(f"{folder} is the server's half of a training: l2h evaluate CLIENT_RUN --server-run {folder}")
    if config is None:
        raise RunError(f"the run in {folder} is not finished: go on with l2h train ... --resume")
    try:
        given = _given_servers(config, server, servers, folder)
        return _load_system(folder, config, client, given, rejector, server_run, key)
    except BundleError as error:  # which names the file
        raise RunError(str(error)) from error
    except (DataError, SettingsError) as error:
        raise RunError(f"{folder / CONFIG} is damaged: {error}") from error
    except L2HError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a value that is missing or of another type
        raise RunError(f"{folder / CONFIG} is damaged: {type(error).__name__}: {error}") from error


def _load_system(
    folder: Path,
    config: Mapping[str, Any],
    client: Any,
    given: Mapping[str, Any],
    rejector: nn.Module | None,
    server_run: Path | str | None,
    key: str | Mapping[str, str] | None,
) -> HelpSystem:
    labels, specs, columns = _read_described(config, f"{folder / CONFIG}, system")
    described = _described_servers(config)
    servers, nets = {}, {}
    for name in described:
        with about(None if "server" in config else f"server {name!r}"):
            own_key = key.get(name) if isinstance(key, Mapping) else key
            servers[name], nets[name] = _load_server(folder, config, name, given.get(name), server_run, own_key)
    kind = config["rejector"]["kind"]
    if kind == "given" and rejector is None:
        raise RunError(f"the rejector of {folder} is not in it: give it with l2h.load(folder, rejector=...)")
    settings = Settings.from_dict(config["settings"])
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        settings = Settings.from_dict({**config["settings"], "device": "auto"})
    options = {name: (part.get("plan") or {}).get("options", {}) for name, part in described.items()}
    try:
        system = HelpSystem(
            client=client if client is not None else _load_client(folder, config["client"]),
            server=servers["server"] if "server" in config else None,
            servers=None if "server" in config else servers,
            rejector=rejector if kind == "given" else kind,
            method=config.get("method"),
            settings=settings,
            class_names=labels,
            dataset=config["dataset"],
            image_size=config.get("image_size"),
            server_options=options["server"] if "server" in config else options,
            rejector_options=config["rejector"]["options"],
            second_opinion=config.get("second_opinion", False),
            train_server={name: False for name, part in described.items() if part["kind"] in ("fixed", *_FILES)},
        )
    except UnknownNameError as error:
        if "method" not in config:
            raise
        raise RunError(
            f"{folder} was trained by a method from outside: {error}; name its file with --method-file or "
            "l2h.methods.load_file(FILE)"
        ) from error
    _restore_inputs(system.client, config["client"])
    for each in system.servers:
        if each.fixed is not None:
            _restore_inputs(each.fixed, described[each.name])
    if client is not None and config["client"].get("fingerprint") not in (None, system.client.fingerprint()):
        text = f"the client given is not the one {folder} was trained around: the rejector knows the other"
        warn(text)
    system.fitted = assemble(
        system,
        trained=[None if net is None else net.to(system.device).eval() for net in nets.values()],
        rejectors=_load_rejectors(system, folder, config, len(specs)),
        specs=specs,
        input_shape=tuple(config["input_shape"]),
        input_dtype=config["input_dtype"],
        labels=labels,
        embedding_size=config["embedding_size"],
        rejector_options=system.rejector_options,
        budget=config.get("budget"),
        calibration=_load_calibration(folder / CALIBRATION),
        columns=columns,
    )
    return system


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
        **({} if fitted.labels.values is None else {"labels": list(fitted.labels.values)}),
        "embedding_size": fitted.embedding_size,
        "client": _save_client(fitted, folder),
        **_save_servers(fitted, folder),
        "rejector": {"kind": fitted.rejector, "options": dict(fitted.rejector_options)},
        "specs": [spec.as_dict() for spec in fitted.specs],
        "settings": fitted.settings.as_dict(),
        "multiply_adds": fitted.multiply_adds(),
    }
    if fitted.image_size is not None:
        system["image_size"] = fitted.image_size
    if fitted.columns is not None:
        system["columns"] = fitted.columns.as_list()
    if fitted.budget is not None:
        system["budget"] = dict(fitted.budget)
    if fitted.second_opinion:
        system["second_opinion"] = True
    net = "attached" if fitted.rejector == "given" else fitted.rejector
    if fitted.method.name != methods.spelled(fitted.settings.loss, net).name:
        system["method"] = fitted.method.name
    write_json(folder / CONFIG, {**config, "system": system})
    return folder


def save_server(model: nn.Module, folder: Path, class_names: Sequence[str], dataset: str) -> None:
    """Write a server that was trained by itself, for systems that name its folder when they are loaded."""
    save_checkpoint(folder / SERVER, model.state_dict(), {})
    described = {"plan": getattr(model, "plan", None), "class_names": list(class_names), "dataset": dataset}
    write_json(folder / CONFIG, read_config(folder) | {"server": described})


def _save_calibration(calibration: Calibration | None, path: Path) -> None:
    if calibration is None:
        path.unlink(missing_ok=True)  # of a system that was saved here before
        return
    arrays = {**vars(calibration.held_out), "platt": calibration.platt, "student": calibration.student}
    tensors = {
        name: torch.from_numpy(array.astype(np.uint8) if array.dtype == np.bool_ else array)
        for name, array in arrays.items()
        if array is not None
    }
    save_checkpoint(path, tensors, {})


def _weights_of(name: str) -> str:
    """Return the file of a server's weights: one that is called ``server`` has the name of the only server."""
    return SERVER if name == ONLY.name else f"checkpoints/server-{name}.safetensors"


def _onnx_of(name: str) -> str:
    return _weights_of(name).replace(".safetensors", ".onnx")


def _save_servers(fitted: FittedSystem, folder: Path) -> dict[str, Any]:
    """Write every server, remove those of a system that was saved here before, and return their description."""
    now = {Path(_weights_of(server.name)).stem for server in fitted.servers}
    for left in (folder / CHECKPOINTS).glob("server*"):
        if left.suffix in (".safetensors", ".onnx", LITERT) and left.stem not in now:
            left.unlink()
    described = {server.name: _save_server_of(server, fitted, folder) for server in fitted.servers}
    return {"server": described[ONLY.name]} if list(described) == [ONLY.name] else {"servers": described}


def _save_server_of(server: FittedServer, fitted: FittedSystem, folder: Path) -> dict[str, Any]:
    path = folder / _weights_of(server.name)
    if server.network is not None:
        plan = getattr(server.network, "plan", None)
        save_checkpoint(path, server.network.state_dict(), {})
        return {"kind": "given" if plan is None else "named", "plan": plan}
    path.unlink(missing_ok=True)  # of a system that was saved here before
    if server.classifier is None:
        return {"kind": "elsewhere"}
    if isinstance(server.classifier, RemoteServer):
        return _save_remote(server.classifier, folder)
    return {"kind": "fixed"} | _save_onnx(server.classifier, folder / _onnx_of(server.name), fitted)


def _save_remote(server: RemoteServer, folder: Path) -> dict[str, Any]:
    """Return how a server that is asked is found again; its answers go into the folder where they are in memory."""
    server.cache.keep_in(folder)
    place = server.cache.folder
    assert place is not None
    inside = place.resolve() == folder.resolve()
    return {"kind": "remote", **server.as_dict(), "cache": None if inside else str(place.resolve())}


def _load_remote(folder: Path, config: Mapping[str, Any], given: Any, key: str | None) -> RemoteServer:
    """Return the server that was asked, or the one given in its place, with the answers it gave before."""
    cache = folder if config["cache"] is None else Path(config["cache"])
    if not isinstance(given, RemoteServer):
        target = given.function if isinstance(given, CallableClassifier) else given
        return RemoteServer.from_dict(config, cache, target, key)
    given.cache.keep_in(cache)
    return given


def _save_client(fitted: FittedSystem, folder: Path) -> dict[str, Any]:
    client = fitted.client
    plan = getattr(getattr(client, "module", None), "plan", None)
    if isinstance(client, TorchClassifier) and plan is not None:
        save_checkpoint(folder / CLIENT, client.module.state_dict(), {})
        return {"kind": "named", "plan": plan, "fingerprint": client.fingerprint()} | _inputs(client)
    return {"kind": "given"} | _save_onnx(client, folder / CLIENT_ONNX, fitted)


def _inputs(classifier: Classifier) -> dict[str, Any]:
    """Return what a classifier is fed, where it is not the usual, and what its scores are."""
    values: dict[str, Any] = {}
    inputs = classifier.preprocessing.as_dict()
    if classifier.scales_tried or inputs not in ({}, {"scale": classifier.usual_scale}):
        values["preprocessing"] = inputs
    if classifier.scales_tried:
        values["scales_tried"] = classifier.scales_tried
    if classifier.probabilities is not None:
        values["probabilities"] = classifier.probabilities
    return values


def _restore_inputs(classifier: Classifier, config: Mapping[str, Any]) -> None:
    """Feed a classifier as in training and read its scores so, where the caller does not say otherwise."""
    if classifier.preprocessing == Preprocessing():
        classifier.preprocessing = Preprocessing.from_dict(config.get("preprocessing", {}))
    if classifier.probabilities is None:
        classifier.probabilities = config.get("probabilities")
    classifier.scales_tried = dict(config.get("scales_tried", {}))
    classifier.asks_meaning = False  # version 0.1 read every single number as a logit


def _save_onnx(classifier: Classifier, path: Path, fitted: FittedSystem) -> dict[str, Any]:
    """Write a fixed classifier as ONNX and return how to read it back: nothing where it must be given again."""
    converted = None
    if _can_be_saved(classifier):
        example: Any = np.zeros((2, *fitted.input_shape), dtype=np.float32)  # which no scale changes
        if fitted.columns is not None:
            example = fitted.examples or fitted.columns.made_rows(EXAMPLES)
        try:
            converted = classifier_to_onnx(classifier, example, path.name, num_classes=fitted.num_classes)
            if fitted.columns is not None:  # what a pipeline does to texts may differ
                largest_difference(converted, classifier, fitted.num_classes, [example])
        except ExportError as error:
            converted = None
            warn(f"{error}; it is not saved and must be given to l2h.load")
    for left in (path, path.with_suffix(LITERT)):  # of a system that was saved here before
        left.unlink(missing_ok=True)
    if converted is None or converted.data is None:
        return _inputs(classifier)
    assert converted.part.file is not None
    write_atomically(path.with_name(converted.part.file), converted.data)
    return {
        "kind": "litert" if isinstance(classifier, LiteRTClassifier) else "onnx",
        "scores": converted.part.output,
        "features": converted.part.features,
        "flat": converted.part.inputs.flat,
        "probabilities": classifier.probabilities,
        "fingerprint": classifier.fingerprint(),
        **_inputs(classifier),
    }


def _can_be_saved(classifier: Classifier) -> TypeGuard[ConvertibleClassifier]:
    if isinstance(classifier, SklearnClassifier):
        return hasattr(classifier.estimator, "predict_proba")  # by other scores the file would answer differently
    if isinstance(classifier, TorchClassifier):
        return classifier.kind == "torch module" and classifier.feature_layer is None
    return isinstance(classifier, LiteRTClassifier | OnnxClassifier)


def _described_servers(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a run folder says of each server, by name."""
    return {ONLY.name: config["server"]} if "server" in config else dict(config["servers"])


def _given_servers(
    config: Mapping[str, Any], server: Any, servers: Mapping[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """Return the servers that the caller of :func:`load` gives, by name."""
    described = _described_servers(config)
    if server is not None and list(described) != [ONLY.name]:
        raise RunError(f"{folder} has the servers {', '.join(described)}: l2h.load(folder, servers={{'NAME': ...}})")
    given = dict(servers or {}) | ({} if server is None else {ONLY.name: server})
    unknown = [name for name in given if name not in described]
    if unknown:
        raise RunError(f"{folder} has no server {unknown[0]!r}; it has {', '.join(described)}")
    return given


def _load_server(
    folder: Path, config: Mapping[str, Any], name: str, given: Any, server_run: Path | str | None, key: str | None
) -> tuple[Any, nn.Module | None]:
    """Return what stands for a server in a new system, and the trained network; None where there is none."""
    part = _described_servers(config)[name]
    if part["kind"] == "remote":
        given = _load_remote(folder, part, given, key)
    net = _load_network(folder, config, name, given, server_run)
    if given is None and net is None:
        given = _load_onnx(folder / _onnx_of(name), part)
    return getattr(net, "plan", {})["name"] if given is None else given, net


def _load_network(
    folder: Path, config: Mapping[str, Any], name: str, given: Any, server_run: Path | str | None
) -> nn.Module | None:
    """Return the trained network of a server; None where it is of another kind."""
    part, path = _described_servers(config)[name], folder / _weights_of(name)
    kind = part["kind"]
    if given is not None:
        if not isinstance(given, nn.Module) or not path.exists():
            return None
        net: nn.Module = Scaled(unit_scale(tuple(config["input_shape"]), config["input_dtype"]), copy.deepcopy(given))
    elif kind in _FILES:
        return None
    elif server_run is not None:
        return _load_other_server(Path(server_run), config["class_names"])
    elif kind == "named":
        net = rebuild(part["plan"])
    elif kind == "elsewhere":
        raise RunError(
            f"the server of {folder} was trained elsewhere: give the folder of its run, --server-run RUN or "
            "l2h.load(folder, server_run=RUN)"
        )
    else:
        how = "server=..." if "server" in config else f"servers={{{name!r}: ...}}"
        raise RunError(f"the server of {folder} is not in it: give it with l2h.load(folder, {how})")
    return _load_weights(net, path)


def _load_other_server(folder: Path, class_names: Sequence[str]) -> nn.Module:
    config = read_config(folder).get("server")
    if config is None:
        raise RunError(f"{folder} holds no server that was trained by itself (l2h train --role server)")
    if list(config["class_names"]) != list(class_names):
        raise RunError(f"the server of {folder} has other classes than the system: {config['class_names'][:5]} ...")
    return _load_weights(rebuild(config["plan"]), folder / SERVER)


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
        heads=1 + len(system.servers),
    )
    rejectors = RejectorBatch([make()] * size, system.device)
    tensors = load_checkpoint(folder / REJECTOR).tensors
    expected = {name: tuple(tensor.shape) for name, tensor in rejectors.state_dict().items()}
    if expected != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise RunError(f"{folder / REJECTOR} does not fit the rejector that {CONFIG} describes")
    rejectors.load_state_dict(tensors)
    return rejectors


@dataclass(frozen=True)
class _Classes:
    class_names: tuple[str, ...]
    labels: tuple[str | int | bool, ...] | None = None


@dataclass(frozen=True)
class _Fed:
    flat: bool | None = None
    probabilities: bool | None = None
    scales_tried: Mapping[str, float] | None = None


def _read_described(
    config: Mapping[str, Any], where: str
) -> tuple[LabelCodec, tuple[RejectorSpec, ...], Columns | None]:
    """Return the classes, the rejectors and the columns; they and what models are fed are checked as in a manifest."""
    labels = LabelCodec(*vars(_read_some(config, _Classes, where)).values())
    specs = tuple(read_spec(spec, f"{where}, specs") for spec in config["specs"])
    columns = read_columns(config["columns"], f"{where}, columns") if "columns" in config else None
    shape = read_values({"shape": config["input_shape"], "dtype": config["input_dtype"]}, InputPart, where).shape
    if columns is not None and shape != (columns.width,):
        raise BundleError(f"{where} is damaged: its columns become {columns.width} numbers, a sample is {shape}")
    for name, part in {"client": config["client"], **_described_servers(config)}.items():
        _read_some(part, _Fed, f"{where}, {name}")
        read_values(part.get("preprocessing", {}), Preprocessing, f"{where}, {name}, preprocessing")
    return labels, specs, columns


def _read_some(values: Mapping[str, Any], kind: type[_T], where: str) -> _T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return read_values({name: value for name, value in values.items() if name in known}, kind, where)


def _load_calibration(path: Path) -> Calibration | None:
    if not path.exists():
        return None
    saved = {name: tensor.numpy() for name, tensor in load_checkpoint(path).tensors.items()}
    saved |= {name: as_bool(name, saved[name]) for name in saved if name.endswith("_correct")}
    held_out = HeldOut(**{name.name: saved[name.name] for name in fields(HeldOut) if name.name in saved})
    return Calibration(held_out, saved["platt"], saved.get("student"))


def _load_client(folder: Path, config: Mapping[str, Any]) -> Classifier:
    if config["kind"] == "named":
        return TorchClassifier(_load_weights(rebuild(config["plan"]), folder / CLIENT).eval())
    if config["kind"] in _FILES:
        return _load_onnx(folder / CLIENT_ONNX, config)
    raise RunError(f"the client of {folder} is not in it: give it with l2h.load(folder, client=...)")


def _load_onnx(path: Path, config: Mapping[str, Any]) -> Classifier:
    if config["kind"] == "litert":
        return LiteRTClassifier(path.with_suffix(LITERT), config["scores"])
    return OnnxClassifier(path, config["scores"], config["features"], config["flat"])


def _load_weights(net: nn.Module, path: Path) -> nn.Module:
    tensors = load_checkpoint(path).tensors
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(f"{path} does not fit the network that {CONFIG} describes: {error}") from error
    return net
