"""Saving a system and loading it again: JSON, safetensors and ONNX, never a pickle.

A named network is saved as its weights and the plan to build it again. A classifier of another kind is saved as ONNX
where it can be (torch modules, scikit-learn estimators, ONNX files), and a LiteRT file as it is; a callable, and a
server or rejector of the user's own class, must be given again on loading, since their code is not in the folder. Of a
server that is asked (:class:`l2h.RemoteServer`) the folder has the name and the answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from l2h import methods
from l2h.bundle.parts import BundleError, InputPart, read_columns, read_spec, read_values
from l2h.classifiers import Classifier, Preprocessing, TorchClassifier, as_client
from l2h.columns import Columns
from l2h.costs import as_bool
from l2h.decision import RejectorSpec
from l2h.errors import DataError, L2HError, RunError, SettingsError, UnknownNameError, about, warn
from l2h.files import CONFIG, NEWER_SCHEMA, SCHEMA, read_config, write_json
from l2h.fitted import Calibration, FittedSystem
from l2h.labels import LabelCodec
from l2h.models import rebuild
from l2h.settings import Settings
from l2h.system.help_system import HelpSystem
from l2h.system.model_files import FILES, describe_inputs, load_onnx, load_weights, restore_inputs, save_onnx
from l2h.system.server_files import SERVER, described_servers, given_servers, load_server, save_servers
from l2h.system.steps import assemble
from l2h.training import HeldOut, RejectorBatch
from l2h.training.checkpoint import load_checkpoint, save_checkpoint
from l2h.training.job import RejectorInputs, rejector_builder, server_title

CLIENT, REJECTOR, CALIBRATION = (f"checkpoints/{name}.safetensors" for name in ("client", "rejector", "calibration"))
CLIENT_ONNX = "checkpoints/client.onnx"
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
        if server_run is not None and "server" not in config:
            raise RunError(f"{folder} has several servers, which are not trained elsewhere: leave out server_run")
        given = given_servers(config, server, servers, folder)
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
    described = described_servers(config)
    servers, nets = {}, {}
    for name in described:
        with about(server_title(name)):
            own_key = key.get(name) if isinstance(key, Mapping) else key
            servers[name], nets[name] = load_server(folder, config, name, given.get(name), server_run, own_key)
    kind = config["rejector"]["kind"]
    if kind == "given" and rejector is None:
        raise RunError(f"the rejector of {folder} is not in it: give it with l2h.load(folder, rejector=...)")
    settings = Settings.from_dict(config["settings"])
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        settings = Settings.from_dict({**config["settings"], "device": "auto"})
    options = {name: (part.get("plan") or {}).get("options", {}) for name, part in described.items()}
    try:
        system = HelpSystem(
            client=_with_features(client, folder, config),
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
            train_server={name: False for name, part in described.items() if part["kind"] in ("fixed", *FILES)},
        )
    except UnknownNameError as error:
        if "method" not in config:
            raise
        raise RunError(
            f"{folder} was trained by a method from outside: {error}; name its file with --method-file or "
            "l2h.methods.load_file(FILE)"
        ) from error
    restore_inputs(system.client, config["client"])
    for each in system.servers:
        if each.fixed is not None:
            restore_inputs(each.fixed, described[each.name])
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
        client_features=config.get("client_features"),
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
        "embedding_size": fitted.embedding_size,
        "client": _save_client(fitted, folder),
        **save_servers(fitted, folder),
        "rejector": {"kind": fitted.rejector, "options": dict(fitted.rejector_options)},
        "specs": [spec.as_dict() for spec in fitted.specs],
        "settings": fitted.settings.as_dict(),
        "multiply_adds": fitted.multiply_adds(),
    }
    usual = methods.spelled(fitted.settings.loss, "attached" if fitted.rejector == "given" else fitted.rejector).name
    newer = {  # what version 0.1 does not know, left out where it is not used
        "labels": fitted.labels.values,
        "image_size": fitted.image_size,
        "columns": fitted.columns and fitted.columns.as_list(),
        "budget": fitted.budget,
        "client_features": fitted.client_features,
        "second_opinion": fitted.second_opinion or None,
        "method": None if fitted.method.name == usual else fitted.method.name,
    }
    system |= {name: value for name, value in newer.items() if value is not None}
    needs = NEWER_SCHEMA if fitted.second_opinion or "servers" in system else SCHEMA
    write_json(folder / CONFIG, {**config, "schema": max(needs, config["schema"]), "system": system})
    return folder


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
    save_checkpoint(path, tensors, {} if calibration.fresh else {"fresh": False})


def _save_client(fitted: FittedSystem, folder: Path) -> dict[str, Any]:
    client = fitted.client
    plan = getattr(getattr(client, "module", None), "plan", None)
    if isinstance(client, TorchClassifier) and plan is not None:
        save_checkpoint(folder / CLIENT, client.module.state_dict(), {})
        return {"kind": "named", "plan": plan, "fingerprint": client.fingerprint()} | describe_inputs(client)
    return {"kind": "given"} | save_onnx(client, folder / CLIENT_ONNX, fitted)


def _load_rejectors(system: HelpSystem, folder: Path, config: Mapping[str, Any], size: int) -> RejectorBatch:
    make = rejector_builder(
        system.rejector,
        None,
        RejectorInputs(
            tuple(config["input_shape"]), config["input_dtype"], len(config["class_names"]), config["embedding_size"]
        ),
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
    for name, part in {"client": config["client"], **described_servers(config)}.items():
        _read_some(part, _Fed, f"{where}, {name}")
        read_values(part.get("preprocessing", {}), Preprocessing, f"{where}, {name}, preprocessing")
    return labels, specs, columns


def _read_some(values: Mapping[str, Any], kind: type[_T], where: str) -> _T:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return read_values({name: value for name, value in values.items() if name in known}, kind, where)


def _load_calibration(path: Path) -> Calibration | None:
    if not path.exists():
        return None
    checkpoint = load_checkpoint(path)
    saved = {name: tensor.numpy() for name, tensor in checkpoint.tensors.items()}
    saved |= {name: as_bool(name, saved[name]) for name in saved if name.endswith("_correct")}
    held_out = HeldOut(**{name.name: saved[name.name] for name in fields(HeldOut) if name.name in saved})
    return Calibration(held_out, saved["platt"], saved.get("student"), checkpoint.meta.get("fresh", True))


def _with_features(given: Any, folder: Path, config: Mapping[str, Any]) -> Classifier:
    """Return the client, given or from the folder, with the features that were chosen; a file has them already."""
    client = _load_client(folder, config["client"]) if given is None else as_client(given)
    chosen = config.get("client_features")
    if chosen is None or (given is None and config["client"]["kind"] in FILES):
        return client
    return client.with_features(chosen["name"])


def _load_client(folder: Path, config: Mapping[str, Any]) -> Classifier:
    if config["kind"] == "named":
        return TorchClassifier(load_weights(rebuild(config["plan"]), folder / CLIENT).eval())
    if config["kind"] in FILES:
        return load_onnx(folder / CLIENT_ONNX, config)
    raise RunError(f"the client of {folder} is not in it: give it with l2h.load(folder, client=...)")
