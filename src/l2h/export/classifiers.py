"""A fixed classifier, the client or a server that was not trained here, as a file of a bundle."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from l2h.bundle import BundleError, ClientPart
from l2h.bundle.answering import of_session
from l2h.bundle.sessions import make_session
from l2h.classifiers import Classifier, OnnxClassifier, SklearnClassifier, TorchClassifier
from l2h.errors import L2HWarning
from l2h.export.checking import TOLERANCE, compare, run_model
from l2h.export.errors import ExportError
from l2h.export.graphs import ClientGraph, on_cpu, to_onnx

if TYPE_CHECKING:
    from onnx import ModelProto

Array = npt.NDArray[Any]
CLIENT, SERVER = "client.onnx", "server.onnx"


@dataclass(frozen=True)
class Exported:
    """A classifier's file.

    Attributes:
        part: how it is read.
        data: the file; None where there is none.
        agreement: its largest difference from the original; None likewise.
        graph: of a torch client, to be fused.
    """

    part: ClientPart
    data: bytes | None = None
    agreement: float | None = None
    graph: ModelProto | None = None


def export_client(client: Classifier, classes: int, features: bool, probes: list[Array]) -> Exported:
    """The client as a file, or a note that it must be given, with a warning where it should have been possible.

    Args:
        client: the system's.
        classes: K.
        features: whether the rejector reads its features.
        probes: batches to compare on.

    Raises:
        ExportError: a torch client whose file answers otherwise.
    """
    try:
        if isinstance(client, TorchClassifier):
            return _torch(client, classes, features, probes, CLIENT)
        if isinstance(client, OnnxClassifier):
            return _onnx(client, classes, probes, CLIENT)
        if isinstance(client, SklearnClassifier):
            return _sklearn(client, classes, probes, CLIENT)
    except _NotPossibleError as error:
        warnings.warn(
            f"the client ({client.kind}) is not in the bundle and must be given to it with client=: {error}",
            L2HWarning,
            stacklevel=4,
        )
    gives = {True: "probability", False: "logits", None: "label"}[client.probabilities]
    return Exported(ClientPart(None, "given", None, "as_is", None, gives, "embedding" if features else None))


def export_fixed_server(server: Classifier, classes: int, probes: list[Array]) -> tuple[Exported | None, str]:
    """A server that was taken as it is, where it can be run on raw samples; else None and the reason."""
    try:
        if isinstance(server, TorchClassifier):
            return _torch(server, classes, False, probes, SERVER), ""
        if isinstance(server, OnnxClassifier):
            found = _onnx(server, classes, probes, SERVER)
        elif isinstance(server, SklearnClassifier):
            found = _sklearn(server, classes, probes, SERVER)
        else:
            return None, f"a {server.kind} is no file"
    except _NotPossibleError as error:
        return None, str(error)
    raw = probes[0].dtype == np.float32 and (found.part.feed != "flat" or probes[0].ndim == 2)
    if not raw and found.part.feed != "as_is":
        return None, f"the {server.kind} does not take samples as they are ({found.part.feed})"
    if not _gives_scores(found, classes, probes[1]):
        return None, f"the {server.kind} does not give (n, {classes}) scores"
    return found, ""


def _gives_scores(found: Exported, classes: int, X: Array) -> bool:
    """Whether a file gives float scores (n, K) as they are, which is what a server must."""
    assert found.data is not None
    if found.part.feed == "flat":
        X = X.reshape(len(X), -1)
    (scores,) = make_session(found.data, SERVER, 1).run([found.part.output], {found.part.input: X})
    return getattr(scores, "shape", None) == (len(X), classes) and np.issubdtype(scores.dtype, np.floating)


class _NotPossibleError(Exception):
    """A classifier that cannot be made a file of."""


def _torch(client: TorchClassifier, classes: int, features: bool, probes: list[Array], name: str) -> Exported:
    reference = on_cpu(client)
    graph = ClientGraph(reference, _reads(reference, classes, probes[-1]), classes, features)
    answer = "scores" if name == SERVER else "log_probability"
    outputs = [answer, "embedding"] if features else [answer]
    try:
        model = to_onnx(graph, [torch.from_numpy(probes[1][:2])], ["x"], outputs)
    except ExportError as error:
        raise _NotPossibleError(str(error)) from error
    worst = 0.0
    for X in probes:
        said = reference.answers(X, classes)
        found = run_model(model, name, outputs, {"x": X})
        worst = max(worst, compare(name, found[0], said.log_probability))
        if features:
            assert said.embedding is not None
            worst = max(worst, compare(f"{name} (features)", found[1], said.embedding))
    part = ClientPart(name, client.kind, "x", "as_is", answer, "log_probability", "embedding" if features else None)
    return Exported(part, model.SerializeToString(), worst, model)


def _reads(client: TorchClassifier, classes: int, X: Array) -> str:
    """What a torch client's output is, by the rules of :class:`l2h.classifiers.Classifier`."""
    client.answers(X, classes)  # refuses what is neither, and finds out about probabilities
    scores = client.raw(X)[0]
    if scores.shape in ((len(X),), (len(X), 1)):
        return "margin" if np.issubdtype(scores.dtype, np.floating) else "label"
    return "probability" if client.probabilities else "scores"


def _onnx(client: OnnxClassifier, classes: int, probes: list[Array], name: str) -> Exported:
    feed = "flat" if client.flat else "as_is" if client.input.type == "tensor(uint8)" else "unit_range"
    reference = copy.copy(client)
    said = reference.answers(probes[-1], classes)
    gives = "label" if not said.has_scores else "probability" if reference.probabilities else "logits"
    part = ClientPart(name, client.kind, client.input.name, feed, client.scores, gives, client.features)
    data = client.weights()[0]
    return Exported(part, data, _differs(part, data, reference, classes, probes))


def _sklearn(client: SklearnClassifier, classes: int, probes: list[Array], name: str) -> Exported:
    from skl2onnx import to_onnx as convert

    estimator = client.estimator
    size = int(np.prod(probes[0].shape[1:]))
    kind = type(estimator).__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = convert(
                estimator,
                np.zeros((1, size), dtype=np.float32),
                options={"zipmap": False},
                target_opset={"": 18, "ai.onnx.ml": 3},
            )
    except Exception as error:  # the converter's own errors have no common base
        raise _NotPossibleError(f"{kind} cannot be converted to ONNX: {error}") from error
    scores = model.graph.output[-1].name
    gives = "probability" if hasattr(estimator, "predict_proba") else "logits"
    if len(client.classes) != classes and gives == "probability":
        scores = _spread(model, scores, client.classes, classes)
    data = model.SerializeToString()
    # An estimator without scores a class is read by its labels, as in training.
    for output, meaning in ((scores, gives), (model.graph.output[0].name, "label")):
        part = ClientPart(name, client.kind, model.graph.input[0].name, "flat", output, meaning, None)
        try:
            return Exported(part, data, _differs(part, data, client, classes, probes))
        except (ExportError, BundleError) as error:
            reason = str(error)
    raise _NotPossibleError(f"{kind} as ONNX does not say what the original says: {reason}")


def _spread(model: Any, scores: str, known: Array, classes: int) -> str:
    """Put the columns of the classes that the estimator knows into their places among all; the others get 0."""
    from onnx import TensorProto, helper, numpy_helper

    places = np.zeros((len(known), classes), dtype=np.float32)
    places[np.arange(len(known)), known] = 1.0
    model.graph.initializer.append(numpy_helper.from_array(places, "places"))
    model.graph.node.append(helper.make_node("MatMul", [scores, "places"], ["all_probabilities"]))
    entry = helper.make_tensor_value_info("all_probabilities", TensorProto.FLOAT, [None, classes])
    model.graph.output.append(entry)
    return "all_probabilities"


def _differs(part: ClientPart, data: bytes, client: Classifier, classes: int, probes: list[Array]) -> float:
    """Largest difference in probability of the file, read as a bundle reads it, from the original.

    Raises:
        ExportError: it is too large, or a label differs that is not a tie.
    """
    assert part.file is not None
    name, worst = part.file, 0.0
    answer = of_session(make_session(data, name, 1), part, classes)
    for X in probes:
        said = client.answers(X, classes)
        label, log_p, features = answer(X)
        worst = max(worst, compare(name, np.exp(log_p), np.exp(said.log_probability)))
        if features is not None and said.embedding is not None:
            worst = max(worst, compare(f"{name} (features)", features, said.embedding))
        p = np.sort(np.exp(said.log_probability), axis=1)
        if (label != said.label)[p[:, -1] - p[:, -2] > TOLERANCE].any():
            raise ExportError(f"{name} answers with other labels than the original: it was not written")
    return worst
