"""The servers of a system in its run folder.

The only server has the files of version 0.1, ``checkpoints/server.*``, and is described as ``server``; several have
``checkpoints/server-NAME.*`` and are described as ``servers``, by name.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from l2h.classifiers import LITERT, CallableClassifier
from l2h.decision import SERVER as ONLY
from l2h.errors import RunError
from l2h.files import CHECKPOINTS, CONFIG, read_config, write_json
from l2h.fitted import FittedServer, FittedSystem
from l2h.models import Scaled, rebuild
from l2h.remote import RemoteServer
from l2h.system.model_files import FILES, load_onnx, load_weights, save_onnx
from l2h.system.servers import answers_folder, check_name
from l2h.training.checkpoint import save_checkpoint
from l2h.training.job import unit_scale

#: The weights of the only server.
SERVER = "checkpoints/server.safetensors"


def save_servers(fitted: FittedSystem, folder: Path) -> dict[str, Any]:
    """Write every server, remove those of a system that was saved here before, and return their description."""
    now = {Path(_weights_of(server.name)).stem for server in fitted.servers}
    for left in (folder / CHECKPOINTS).glob("server*"):
        if left.suffix in (".safetensors", ".onnx", LITERT) and left.stem not in now:
            left.unlink()
    described = {server.name: _save_server_of(server, fitted, folder) for server in fitted.servers}
    return {"server": described[ONLY.name]} if list(described) == [ONLY.name] else {"servers": described}


def described_servers(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what a run folder says of each server, by name."""
    return {ONLY.name: config["server"]} if "server" in config else dict(config["servers"])


def given_servers(
    config: Mapping[str, Any], server: Any, servers: Mapping[str, Any] | None, folder: Path
) -> dict[str, Any]:
    """Return the servers that the caller of :func:`load` gives, by name."""
    described = described_servers(config)
    for name in described:
        check_name(name)
    if server is not None and list(described) != [ONLY.name]:
        raise RunError(f"{folder} has the servers {', '.join(described)}: l2h.load(folder, servers={{'NAME': ...}})")
    given = dict(servers or {}) | ({} if server is None else {ONLY.name: server})
    unknown = [name for name in given if name not in described]
    if unknown:
        raise RunError(f"{folder} has no server {unknown[0]!r}; it has {', '.join(described)}")
    return given


def load_server(
    folder: Path, config: Mapping[str, Any], name: str, given: Any, server_run: Path | str | None, key: str | None
) -> tuple[Any, nn.Module | None]:
    """Return what stands for a server in a new system, and the trained network; None where there is none."""
    part = described_servers(config)[name]
    if part["kind"] == "remote":
        given = _load_remote(answers_folder(folder, name), part, given, key)
    net = _load_network(folder, config, name, given, server_run)
    if given is None and net is None:
        given = load_onnx(folder / _onnx_of(name), part)
    return getattr(net, "plan", {})["name"] if given is None else given, net


def _load_network(
    folder: Path, config: Mapping[str, Any], name: str, given: Any, server_run: Path | str | None
) -> nn.Module | None:
    """Return the trained network of a server; None where it is of another kind."""
    part, path = described_servers(config)[name], folder / _weights_of(name)
    kind = part["kind"]
    if given is not None:
        if not isinstance(given, nn.Module) or not path.exists():
            return None
        net: nn.Module = Scaled(unit_scale(tuple(config["input_shape"]), config["input_dtype"]), copy.deepcopy(given))
    elif kind in FILES:
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
    return load_weights(net, path)


def _load_other_server(folder: Path, class_names: Sequence[str]) -> nn.Module:
    config = read_config(folder).get("server")
    if config is None:
        raise RunError(f"{folder} holds no server that was trained by itself (l2h train --role server)")
    if list(config["class_names"]) != list(class_names):
        raise RunError(f"the server of {folder} has other classes than the system: {config['class_names'][:5]} ...")
    return load_weights(rebuild(config["plan"]), folder / SERVER)


def save_server(model: nn.Module, folder: Path, class_names: Sequence[str], dataset: str) -> None:
    """Write a server that was trained by itself, for systems that name its folder when they are loaded."""
    save_checkpoint(folder / SERVER, model.state_dict(), {})
    described = {"plan": getattr(model, "plan", None), "class_names": list(class_names), "dataset": dataset}
    write_json(folder / CONFIG, read_config(folder) | {"server": described})


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
        return _save_remote(server.classifier, answers_folder(folder, server.name))
    return {"kind": "fixed"} | save_onnx(server.classifier, folder / _onnx_of(server.name), fitted)


def _weights_of(name: str) -> str:
    """Return the file of a server's weights: one that is called ``server`` has the name of the only server."""
    return SERVER if name == ONLY.name else f"checkpoints/server-{name}.safetensors"


def _onnx_of(name: str) -> str:
    return _weights_of(name).replace(".safetensors", ".onnx")


def _save_remote(server: RemoteServer, usual: Path) -> dict[str, Any]:
    """Return how a server that is asked is found again; its answers go to the usual place where they are in memory."""
    server.cache.keep_in(usual)
    place = server.cache.folder
    assert place is not None
    inside = place.resolve() == usual.resolve()
    return {"kind": "remote", **server.as_dict(), "cache": None if inside else str(place.resolve())}


def _load_remote(usual: Path, config: Mapping[str, Any], given: Any, key: str | None) -> RemoteServer:
    """Return the server that was asked, or the one given in its place, with the answers it gave before."""
    cache = usual if config["cache"] is None else Path(config["cache"])
    if not isinstance(given, RemoteServer):
        target = given.function if isinstance(given, CallableClassifier) else given
        return RemoteServer.from_dict(config, cache, target, key)
    given.cache.keep_in(cache)
    return given
