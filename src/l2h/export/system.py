"""A fitted system as a bundle."""

from __future__ import annotations

import copy
import io
import json
import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import l2h
from l2h.bundle import CalibrationPart, FilePart, InputPart, Manifest, RejectorPart, ServerPart
from l2h.bundle.answering import of_session
from l2h.bundle.manifest import NAME
from l2h.bundle.sessions import CHUNK, make_session
from l2h.classifiers import ClassifierAnswers
from l2h.costs import Costs, FloatArray, generalized_loss
from l2h.errors import L2HWarning, SettingsError
from l2h.export.checking import compare, probes, run_model
from l2h.export.classifiers import CLIENT, SERVER, ExportedClassifier, export_client, export_fixed_server
from l2h.export.folder import check_target, put_in_place
from l2h.export.graphs import RejectorGraph, can_fuse, fuse
from l2h.export.onnx import quiet, to_onnx
from l2h.export.quantising import Measured, quantise

if TYPE_CHECKING:
    from onnx import ModelProto

    from l2h.system import HelpSystem

Array = npt.NDArray[Any]
REJECTOR, CALIBRATION = "rejector.onnx", "calibration.npz"
#: Held-out scores kept for bounds on asking.
HELD_OUT = 2000
#: What the rounding of a fused client can come to: a rejector standardises what the client says, up to a thousandfold.
_ROUNDING = 1e-3
log = logging.getLogger("l2h")


def export_system(
    system: HelpSystem,
    folder: str | Path,
    *,
    name: str | None = None,
    costs: Costs | None = None,
    which: int | None = None,
    int8: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    force: bool = False,
) -> Manifest:
    """Write a fitted system as a bundle: ONNX files for the device and the server, and a manifest.

    Every file is run on random samples and compared with its original before anything is written, and the folder
    appears in one piece.

    Args:
        system: fitted; calibrated, if bounds on asking are to be met on the device.
        folder: where to; it must not be there yet, or be empty.
        name: of the model, on the wire too; the data set's where None.
        costs: the prices it is made for; those of the training where None. With the loss ``priced`` the device may use
            others at any time.
        which: number of the only rejector to export; all of them where None.
        int8: samples and labels on which a quantised rejector is measured, beside what ranges it needs. It is kept only
            where it is faster and the system's risk on them no higher; not from the test set.
        force: replace the bundle that is there.

    Returns:
        The manifest.

    Raises:
        NotFittedError: the system is not fitted.
        SettingsError: a rejector or prices that there are not, or a name that no address can hold.
        ExportError: something cannot be exported or says something else than the original, or the folder is taken.
    """
    system._fitted()
    folder = Path(folder)
    check_target(folder, force)
    name = _name(system, name)
    chosen, costs = _choose(system, costs, which)
    samples = None if int8 is None else system._check(*int8)
    with torch.random.fork_rng(devices=[]):
        parts = _Parts.of(system, chosen)
        rejector, measured = parts.rejector(), None
        if samples is not None:
            rejector, measured = _int8(system, parts, chosen, costs, *samples)
    files: dict[str, tuple[bytes, str]] = {REJECTOR: (rejector.SerializeToString(), "device")}
    if parts.client.data is not None:
        files[CLIENT] = (parts.client.data, "device")
    scores = _held_out(system, chosen)
    if scores is not None:
        out = io.BytesIO()
        np.savez(out, scores=scores)
        files[CALIBRATION] = (out.getvalue(), "device")
    if parts.server is not None:
        files[SERVER] = (parts.server, "server")
    table = {key: FilePart(sha256(data).hexdigest(), len(data), side) for key, (data, side) in sorted(files.items())}
    platt = np.tile([1.0, 0.0], (len(chosen), 2, 1)) if system.platt is None else system.platt[chosen]
    manifest = Manifest(
        name=name,
        version=_version(table, platt),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        l2h=l2h.__version__,
        input=InputPart(system.input_shape or (), system.input_dtype or ""),
        classes=tuple(system.class_names or ()),
        preprocessing="inside",
        client=parts.client.part,
        rejector=RejectorPart(
            file=REJECTOR,
            kind=system.rejector if isinstance(system.rejector, str) else "given",
            fused=parts.fused,
            int8=measured is not None and measured.kept,
            uses_client=parts.uses_client,
            specs=tuple(system.specs[r] for r in chosen),
            platt=tuple(((float(a), float(b)), (float(c), float(d))) for (a, b), (c, d) in platt),
            int8_measured=None if measured is None else measured.as_dict(),
        ),
        calibration=None if scores is None else CalibrationPart(CALIBRATION, scores.shape[1]),
        costs=costs,
        server=ServerPart(None if parts.server is None else SERVER, *parts.server_names),
        files=table,
        agreement=parts.agreement,
    )
    put_in_place({key: data for key, (data, _) in files.items()}, manifest, folder, force)
    return manifest


@dataclass
class _Parts:
    """The graphs of a bundle, each compared with its original."""

    client: ExportedClassifier
    graph: ModelProto
    fused: bool
    uses_client: bool
    server: bytes | None
    server_names: tuple[str, str]
    agreement: dict[str, float]

    @classmethod
    def of(cls, system: HelpSystem, chosen: list[int]) -> _Parts:
        batches = probes(system)
        features = system.embedding_size > 0
        log.info("exporting the client")
        client = export_client(system.client, system.num_classes, features, batches)
        log.info("exporting the rejector")
        graph, uses_client, difference = _rejector(system, chosen, batches)
        agreement = {REJECTOR: difference}
        if client.agreement is not None:
            agreement[CLIENT] = client.agreement
        fused = uses_client and client.graph is not None and can_fuse(client.graph, graph)
        log.info("exporting the server")
        server, names, difference = _server(system, batches)
        if server is not None:
            agreement[SERVER] = difference
        parts = cls(client, graph, fused, uses_client, server, names, agreement)
        if fused:
            parts._check_fused(batches)
        return parts

    def rejector(self, graph: ModelProto | None = None) -> ModelProto:
        """What the device runs: the rejector's graph, or a quantised one, with the client where they are fused."""
        graph = self.graph if graph is None else graph
        if not self.fused:
            return graph
        assert self.client.graph is not None
        return fuse(self.client.graph, graph)

    def _check_fused(self, batches: Sequence[Array]) -> None:
        """The fused graph says what its two halves say, one after the other."""
        assert self.client.graph is not None
        fused = self.rejector()
        for X in batches:
            outputs = [entry.name for entry in self.client.graph.graph.output]
            said = dict(zip(outputs, run_model(self.client.graph, CLIENT, outputs, {"x": X}), strict=True))
            (apart,) = run_model(self.graph, REJECTOR, ["scores"], {"x": X, **said})
            log_p, scores = run_model(fused, REJECTOR, ["log_probability", "scores"], {"x": X})
            compare(REJECTOR, log_p, said["log_probability"])
            p = np.sort(np.exp(log_p), axis=1)
            clear = p[:, -1] - p[:, -2] > _ROUNDING  # in a tie it may name another answer, which the rejector sees
            compare(REJECTOR, scores[clear], apart[clear], _ROUNDING)


def _rejector(system: HelpSystem, chosen: list[int], batches: Sequence[Array]) -> tuple[ModelProto, bool, float]:
    """The rejectors' graph by itself, whether it reads the client, and its largest difference from the originals."""
    assert system.rejectors is not None
    with quiet():
        original = RejectorGraph([system.rejectors.module(r).cpu() for r in chosen])
    rng = np.random.default_rng(1)
    names = ["x"]
    if original.uses_client:
        names += ["log_probability"] + (["embedding"] if system.embedding_size else [])

    def feeds(X: Array) -> dict[str, Array]:
        scores = torch.from_numpy(3 * rng.standard_normal((len(X), system.num_classes)).astype(np.float32))
        features = rng.standard_normal((len(X), system.embedding_size)).astype(np.float32)
        said = {"log_probability": torch.log_softmax(scores, dim=1).numpy(), "embedding": features}
        return {name: X if name == "x" else said[name] for name in names}

    example = [torch.from_numpy(values[:2]) for values in feeds(batches[1]).values()]
    graph = to_onnx(original, example, names, ["scores"], "the rejector")
    worst = 0.0
    for X in batches:
        given = feeds(X)
        with torch.no_grad():
            expected = original(*(torch.from_numpy(values) for values in given.values())).numpy()
        worst = max(worst, compare(REJECTOR, run_model(graph, REJECTOR, ["scores"], given)[0], expected))
    return graph, original.uses_client, worst


def _server(system: HelpSystem, batches: list[Array]) -> tuple[bytes | None, tuple[str, str], float]:
    """The server's file, the names of its input and output, and its largest difference from the original."""
    if system.fixed_server is not None:
        found, reason = export_fixed_server(system.fixed_server, system.num_classes, batches)
        if found is None:
            return _no_server(reason)
        assert found.part.input is not None
        assert found.part.output is not None
        return found.data, (found.part.input, found.part.output), found.agreement or 0.0
    if system.server is None:
        return _no_server("it was trained elsewhere: server_run= of l2h.load, or --server-run, adds it")
    original = copy.deepcopy(system.server).cpu()
    graph = to_onnx(original, [torch.from_numpy(batches[1][:2])], ["x"], ["scores"], "the server")
    worst = 0.0
    for X in batches:
        with torch.no_grad():
            expected = original(torch.from_numpy(X)).float().numpy()
        worst = max(worst, compare(SERVER, run_model(graph, SERVER, ["scores"], {"x": X})[0], expected))
    return graph.SerializeToString(), ("x", "scores"), worst


def _no_server(reason: str) -> tuple[None, tuple[str, str], float]:
    warnings.warn(f"the server is not in the bundle: {reason}", L2HWarning, stacklevel=5)
    return None, ("x", "scores"), 0.0


def _int8(
    system: HelpSystem, parts: _Parts, chosen: list[int], costs: Costs, X: Array, y: npt.NDArray[np.int64]
) -> tuple[ModelProto, Measured]:
    """The rejector to ship, quantised where that was measured to be worth it."""
    answers = _client_answers(system, parts, X)
    client_correct = answers.label == y
    if parts.server is None:
        server_label = system._server_log_probability(X).argmax(axis=1)
    else:
        session = make_session(parts.server, SERVER, 1)
        source, target = parts.server_names
        chunks = [session.run([target], {source: X[i : i + CHUNK]})[0] for i in range(0, len(X), CHUNK)]
        server_label = np.concatenate(chunks).argmax(axis=1)
    at = next(i for i, r in enumerate(chosen) if system.specs[r].costs in (None, costs))

    def loss(scores: Array) -> FloatArray:
        remote = system._judgement(scores[:, at], chosen[at]).remote(costs)
        return generalized_loss(client_correct, server_label == y, remote, costs)

    given = {"x": X, "log_probability": answers.log_probability, "embedding": answers.embedding}
    names = {entry.name for entry in parts.graph.graph.input} | {"x"}
    feeds = {name: values for name, values in given.items() if name in names and values is not None}
    found, measured = quantise(parts.graph, parts.rejector, feeds, loss)
    return parts.rejector() if found is None else found, measured


def _client_answers(system: HelpSystem, parts: _Parts, X: Array) -> ClassifierAnswers:
    """What the client says on the device: by its file where it has one."""
    if parts.client.data is None:
        return system.client.answers(X, system.num_classes)
    answer = of_session(make_session(parts.client.data, CLIENT, 1), parts.client.part, system.num_classes)
    chunks = [answer(X[i : i + CHUNK]) for i in range(0, len(X), CHUNK)]
    label, log_p = (np.concatenate([chunk[k] for chunk in chunks]) for k in (0, 1))
    features = [chunk[2] for chunk in chunks if chunk[2] is not None]
    return ClassifierAnswers(label, log_p, np.concatenate(features) if features else None, True)


def _choose(system: HelpSystem, costs: Costs | None, which: int | None) -> tuple[list[int], Costs]:
    """Numbers of the rejectors to export and the prices that the bundle is made for."""
    if which is None and costs is None:
        costs = system.specs[0].costs
    number, costs = system._rejector_for(costs, which)
    return list(range(len(system.specs))) if which is None else [number], costs


def _held_out(system: HelpSystem, chosen: list[int]) -> npt.NDArray[np.float32] | None:
    """Scores of the last calibration, (R, n, 2), at most :data:`HELD_OUT` samples drawn evenly."""
    if system.held_out is None:
        return None
    scores = system.held_out.scores[chosen]
    rows = np.unique(np.linspace(0, scores.shape[1] - 1, min(scores.shape[1], HELD_OUT)).round().astype(int))
    return np.ascontiguousarray(scores[:, rows], dtype=np.float32)


def _version(table: dict[str, FilePart], platt: Array) -> str:
    content = {"files": {name: part.sha256 for name, part in table.items()}, "platt": platt.tolist()}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _name(system: HelpSystem, name: str | None) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", system.dataset).strip("-._")[:64] or "unnamed"
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"name={name!r} cannot be part of an address: at most 128 letters, digits, '.', '_' and '-', beginning "
            "with a letter or digit"
        )
    return name
