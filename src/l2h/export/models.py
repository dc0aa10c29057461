"""The ONNX models of a bundle, each compared with its original: the client, the rejectors and the server.

The client's model and the rejectors' become one where they can, so that the device runs the client once.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.bundle import ServerPart
from l2h.bundle.manifest import SERVER_NAME
from l2h.bundle.sessions import make_session
from l2h.classifiers.base import Array
from l2h.columns import numbers_of
from l2h.errors import NotFittedError, warn
from l2h.export.classifiers import CLIENT, SERVER, compare, export_client, export_fixed_server
from l2h.export.onnx import ExportedClassifier, quiet, to_onnx
from l2h.fitted import FittedSystem
from l2h.methods import Learned
from l2h.models import AttachedRejector, InputScale, SeparateRejector, client_view, fold_batch_norm
from l2h.models.lean import LeanRejector
from l2h.models.student import student_features, student_logit

if TYPE_CHECKING:
    from onnx import ModelProto

REJECTOR = "rejector.onnx"
#: What a rejector's file gives: the scores of the answerers, and the labels of the student where it may answer.
SCORES, STUDENT = "scores", "student"
_BATCHES = (1, 3, 17)
#: Prefix of the rejector's names in a fused model.
_PREFIX = "rejector/"
#: What the rounding of a fused client can come to: a rejector may scale the client's answers up a thousandfold.
_ROUNDING = 1e-3
log = logging.getLogger("l2h")


@dataclass(frozen=True)
class ExportedServer:
    """A server's file."""

    data: bytes | None  # None where there is none
    part: ServerPart  # the names of its input and output
    agreement: float | None  # its largest difference from the original


@dataclass(frozen=True)
class BundleModels:
    """The models of a bundle."""

    client: ExportedClassifier  # the client's file
    rejector: ModelProto  # the rejectors' model by itself
    uses_client: bool  # whether the rejectors read the client's answers
    fused: bool  # whether the device runs the client and the rejectors as one model
    servers: Mapping[str, ExportedServer]  # by name
    agreement: dict[str, float]  # the largest difference of each file from its original

    def on_device(self, rejector: ModelProto) -> ModelProto:
        """Return what the device runs for a rejector, float or quantised: with the client where they are fused."""
        if not self.fused:
            return rejector
        assert self.client.graph is not None
        return fuse(self.client.graph, rejector)


def export_models(fitted: FittedSystem, chosen: list[int]) -> BundleModels:
    """Convert the models of a system, with the rejectors of these numbers."""
    batches = _probes(fitted)
    arrays = [numbers_of(X) for X in batches]
    log.info("exporting the client")
    client = export_client(fitted.client, fitted.num_classes, fitted.embedding_size > 0, batches)
    log.info("exporting the rejector")
    rejector, uses_client, agreed = _export_rejector(fitted, chosen, arrays)
    servers = {}
    for number, server in enumerate(fitted.servers):
        log.info("exporting the server" if len(fitted.servers) == 1 else f"exporting the server {server.name}")
        servers[server.name] = _export_server(fitted, number, batches)
    agreements = {REJECTOR: agreed, client.part.file or CLIENT: client.agreement}
    agreements |= {each.part.file or "": each.agreement for each in servers.values()}
    agreement = {file: value for file, value in agreements.items() if file and value is not None}
    fused = uses_client and client.graph is not None and can_fuse(client.graph, rejector)
    if fused:
        assert client.graph is not None
        _check_fused(client.graph, rejector, arrays)
    return BundleModels(client, rejector, uses_client, fused, servers, agreement)


def can_fuse(client: ModelProto, rejector: ModelProto) -> bool:
    """Return whether both models are written in the same operator sets."""
    sets: list[dict[str, int]] = [{o.domain: o.version for o in model.opset_import} for model in (client, rejector)]
    return all(sets[1].get(domain, version) == version for domain, version in sets[0].items())


def fuse(client: ModelProto, rejector: ModelProto) -> ModelProto:
    """Return one model of ``x`` that runs the client once: its ``log_probability``, and the rejector's outputs."""
    from onnx import ModelProto, checker, compose

    joined = ModelProto()
    joined.CopyFrom(client)
    other = compose.add_prefix(rejector, _PREFIX)
    # The rejector reads the client's tensors by the client's names, and its own output keeps its plain name.
    plain = {f"{_PREFIX}{entry.name}": entry.name for entry in (*rejector.graph.input, *rejector.graph.output)}
    for node in other.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = plain.get(name, name)
    joined.graph.node.extend(other.graph.node)
    joined.graph.initializer.extend(other.graph.initializer)
    kept = [entry for entry in joined.graph.output if entry.name == "log_probability"]
    del joined.graph.output[:]
    joined.graph.output.extend([*kept, *rejector.graph.output])
    domains = {entry.domain for entry in joined.opset_import}
    joined.opset_import.extend([entry for entry in other.opset_import if entry.domain not in domains])
    joined.functions.extend(other.functions)
    joined.ir_version = max(client.ir_version, rejector.ir_version)
    checker.check_model(joined)
    return joined


def bundle_platt(fitted: FittedSystem, chosen: list[int]) -> npt.NDArray[np.float64]:
    """Return (R, J, 2), scale and shift of the scores that the rejectors' file gives, one per answerer."""
    heads = np.tile([1.0, 0.0], (len(chosen), 1 + len(fitted.servers), 1))
    if fitted.calibration is not None:
        heads = fitted.calibration.platt[chosen]
    return np.insert(heads, 1, (1.0, 0.0), axis=1) if fitted.second_opinion else heads


def _probes(fitted: FittedSystem) -> list[Any]:
    """Return batches of samples of several sizes: rows of the training table, or random ones spread as its samples."""
    if fitted.columns is not None:
        rows = fitted.examples or fitted.columns.made_rows(sum(_BATCHES))
        return [rows[:1], rows[1:4], rows[4:]]
    rng = np.random.default_rng(0)
    scale = getattr(fitted.rejectors.module(0), "input", None)
    shift, spread = np.zeros(1), np.ones(1)
    if isinstance(scale, InputScale):
        shift, spread = scale.shift.cpu().numpy(), 1 / scale.scale.cpu().numpy()
    out = []
    for n in _BATCHES:
        shape = (n, *fitted.input_shape)
        if fitted.input_dtype == "uint8":
            out.append(rng.integers(0, 256, shape).astype(np.uint8))
        else:
            out.append((shift + spread * rng.standard_normal(shape)).astype(np.float32))
    return out


def _check_module(module: nn.Module, model: ModelProto, name: str, batches: Sequence[dict[str, Array]]) -> float:
    """Return the largest difference of an ONNX model's ``scores`` from those of the torch module it was made of.

    Labels of a student, should it give them, must be the same.
    """
    worst = 0.0
    for feeds in batches:
        with torch.no_grad():
            given = module(*(torch.from_numpy(values) for values in feeds.values()))
        scores, *labels = given if isinstance(given, tuple) else (given,)
        found = run_model(model, name, [SCORES, STUDENT][: 1 + len(labels)], feeds)
        worst = max(worst, compare(name, found[0], scores.float().numpy()))
        for ours, theirs in zip(found[1:], labels, strict=True):
            compare(f"{name} ({STUDENT})", ours, theirs.numpy(), 0.0)
    return worst


def run_model(model: ModelProto, name: str, outputs: list[str], feeds: dict[str, Array]) -> list[Array]:
    """Run a model once, fed with those of the inputs that it has."""
    session = make_session(model.SerializeToString(), name, 1)
    inputs = {entry.name for entry in session.get_inputs()}
    values: list[Array] = session.run(outputs, {key: value for key, value in feeds.items() if key in inputs})
    return values


def _check_fused(client: ModelProto, rejector: ModelProto, probes: Sequence[Array]) -> None:
    """Raise an :class:`ExportError` where the fused model differs from its two halves, run one after the other."""
    fused = fuse(client, rejector)
    outputs = [entry.name for entry in client.graph.output]
    for X in probes:
        answers = dict(zip(outputs, run_model(client, "client", outputs, {"x": X}), strict=True))
        own = [entry.name for entry in rejector.graph.output]
        apart = run_model(rejector, REJECTOR, own, {"x": X, **answers})
        log_p, *joined = run_model(fused, REJECTOR, ["log_probability", *own], {"x": X})
        compare(REJECTOR, log_p, answers["log_probability"])
        p = np.sort(np.exp(log_p), axis=1)
        clear = p[:, -1] - p[:, -2] > _ROUNDING  # in a tie the client may name another class, which the rejector sees
        for ours, theirs in zip(joined, apart, strict=True):
            compare(REJECTOR, ours[clear], theirs[clear], _ROUNDING)


@dataclass(frozen=True)
class StudentColumn:
    """What makes the column of the student, where it may answer, of R rejectors."""

    platt: npt.NDArray[np.float64]  # (R, 1 + S, 2), of the heads
    weights: npt.NDArray[np.float64]  # (R, 4 + S), of :func:`l2h.models.student.student_logit`


class _RejectorGraph(nn.Module):
    """R rejectors on the CPU as one graph: their final scores (n, R, 1 + S), without students' scores.

    Where the student may answer, its column comes second, and its labels (n, R) are another output.
    """

    platt: Tensor
    weights: Tensor

    def __init__(self, rejectors: Sequence[nn.Module], method: Learned, student: StudentColumn | None = None) -> None:
        super().__init__()
        self.rejectors = nn.ModuleList(rejectors)
        self.method = method
        self.reads_client = bool(getattr(rejectors[0], "uses_client", False))
        self.has_final = type(method).final is not Learned.final
        self.answers = student is not None
        self.uses_client = self.reads_client or self.has_final or self.answers
        self.heads = int(getattr(rejectors[0], "heads", 2))
        self.outputs = [SCORES, STUDENT] if self.answers else [SCORES]
        if student is not None:
            self.register_buffer("platt", torch.from_numpy(student.platt).float())
            self.register_buffer("weights", torch.from_numpy(student.weights).float())

    def forward(
        self, x: Tensor, log_probability: Tensor | None = None, embedding: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if isinstance(self.rejectors[0], LeanRejector):
            outputs = [rejector(x, log_probability, embedding) for rejector in self.rejectors]
        else:
            inputs: tuple[Tensor, ...] = (x,)
            if self.reads_client:
                assert log_probability is not None
                inputs = (x, client_view(log_probability, embedding))
            outputs = [rejector(*inputs).tensor_split([self.heads], dim=1) for rejector in self.rejectors]
        scores = [each for each, _ in outputs]
        if self.has_final:
            assert log_probability is not None
            scores = [self.method.final(each, log_probability).float() for each in scores]
        if not self.answers:
            return torch.stack(scores, dim=1)
        assert log_probability is not None
        taught, label = [each for _, each in outputs], log_probability.argmax(dim=1)
        columns = [self._with_student(r, scores[r], taught[r], label) for r in range(len(scores))]
        return torch.stack(columns, dim=1), torch.stack([each.argmax(dim=1) for each in taught], dim=1)

    def _with_student(self, r: int, scores: Tensor, taught: Tensor, client_label: Tensor) -> Tensor:
        logits = scores * self.platt[r, :, 0] + self.platt[r, :, 1]
        own = student_logit(student_features(taught, client_label), logits, self.weights[r])
        return torch.cat([scores[:, :1], own[:, None], scores[:, 1:]], dim=1)


def rejector_to_onnx(
    rejectors: Sequence[nn.Module], method: Learned, example: dict[str, Array], student: StudentColumn | None = None
) -> ModelProto:
    """Convert rejectors on the CPU into one model, those of L2H's own with few operators.

    ``example`` has two samples by the name of each input: ``x``, and where the rejectors read the client's answers
    ``log_probability`` and, where it exposes features, ``embedding``. ``student`` is given where it may answer.
    """
    small: list[nn.Module] = []
    for rejector in rejectors:
        if isinstance(rejector, AttachedRejector):
            small.append(LeanRejector(rejector, example["log_probability"].shape[1]))
        else:
            small.append(fold_batch_norm(rejector) if isinstance(rejector, SeparateRejector) else rejector)
    graph = _RejectorGraph(small, method, student)
    return to_onnx(graph, example, graph.outputs, "the rejector")


def _export_rejector(fitted: FittedSystem, chosen: list[int], batches: list[Array]) -> tuple[ModelProto, bool, float]:
    """Return the rejectors' model, whether it reads the client, and its largest difference from the originals."""
    student = None
    if fitted.second_opinion:
        if fitted.calibration is None or fitted.calibration.student is None:
            raise NotFittedError("a second opinion needs calibrate(X_cal, y_cal): the student is not calibrated")
        student = StudentColumn(fitted.calibration.platt[chosen], fitted.calibration.student[chosen])
    with quiet():
        original = _RejectorGraph([fitted.rejectors.module(r).cpu() for r in chosen], fitted.method, student)
    rng = np.random.default_rng(1)
    names = ["x"]
    if original.uses_client:
        names += ["log_probability"] + (["embedding"] if fitted.embedding_size else [])

    def feeds(X: Array) -> dict[str, Array]:
        scores = torch.from_numpy(3 * rng.standard_normal((len(X), fitted.num_classes)).astype(np.float32))
        features = rng.standard_normal((len(X), fitted.embedding_size)).astype(np.float32)
        known = {"x": X, "log_probability": torch.log_softmax(scores, dim=1).numpy(), "embedding": features}
        return {name: known[name] for name in names}

    example = {name: values[:2] for name, values in feeds(batches[1]).items()}
    model = rejector_to_onnx(list(original.rejectors), fitted.method, example, student)
    return model, original.uses_client, _check_module(original, model, REJECTOR, [feeds(X) for X in batches])


def _export_server(fitted: FittedSystem, number: int, batches: list[Any]) -> ExportedServer:
    """Return the file of the server with this number, where there is one."""
    server, named = fitted.servers[number], [each.name for each in fitted.servers] != [SERVER_NAME]
    file = f"server-{server.name}.onnx" if named else SERVER
    reason = ""
    arrays = [numbers_of(X) for X in batches]
    if server.classifier is not None:
        exported, reason = export_fixed_server(server.classifier, fitted.num_classes, batches, file)
        if exported is not None:
            part = exported.part
            assert part.input is not None
            assert part.output is not None
            by_columns = part.feed == "columns"
            # Samples that come out as they went in need nothing done to them.
            raw = by_columns or all(
                batch.dtype == (x := part.inputs.apply(batch)).dtype and np.array_equal(batch, x) for batch in arrays
            )
            inputs, feed = None if raw else part.inputs, "columns" if by_columns else None
            served = ServerPart(part.file, part.input, part.output, inputs, feed=feed)
            return ExportedServer(exported.data, served, exported.agreement or 0.0)
    elif server.network is None:
        reason = "it was trained elsewhere: server_run= of l2h.load, or --server-run, adds it"
    if reason:
        warn(f"the server {server.name + ' ' if named else ''}is not in the bundle: {reason}")
        known = None if server.classifier is None else server.classifier.known_output
        gives = known if fitted.num_classes == 2 and known != "label" else None
        return ExportedServer(None, ServerPart(None, "x", SCORES, gives=gives), None)
    assert server.network is not None
    original = copy.deepcopy(server.network).cpu()
    model = to_onnx(original, {"x": arrays[1][:2]}, [SCORES], "the server")
    difference = _check_module(original, model, file, [{"x": X} for X in arrays])
    return ExportedServer(model.SerializeToString(), ServerPart(file, "x", SCORES), difference)
