"""Models as ONNX: :func:`classifier_to_onnx` for a fixed classifier of any kind, :func:`to_onnx` for a torch module."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h.bundle import ClientPart
from l2h.classifiers import OnnxClassifier, SklearnClassifier, TorchClassifier
from l2h.classifiers.reading import Array
from l2h.export.errors import ConversionError
from l2h.export.graphs import ClassifierGraph

if TYPE_CHECKING:
    from onnx import ModelProto

#: The kinds of classifiers that can become a file; the others are only functions.
ConvertibleClassifier = OnnxClassifier | SklearnClassifier | TorchClassifier
#: Operator sets of files for devices, whose onnxruntime may be older than the one here.
_DEVICE_OPSETS = {"": 18, "ai.onnx.ml": 3}


@dataclass(frozen=True)
class ExportedClassifier:
    """A classifier as an ONNX file.

    Attributes:
        part: how it is fed and read.
        data: the file; None where the classifier cannot be a file.
        graph: the model of a torch classifier, which can be fused with a rejector; None for other kinds.
        agreement: its largest difference from the original, where they were compared.
    """

    part: ClientPart
    data: bytes | None
    graph: ModelProto | None = None
    agreement: float | None = None


def classifier_to_onnx(
    classifier: ConvertibleClassifier,
    example: Array,
    file: str,
    *,
    output: str = "scores",
    features: str | None = "features",
    gives: str | None = None,
    num_classes: int = 0,
) -> ExportedClassifier:
    """Convert a fixed classifier into an ONNX model.

    Args:
        classifier: any; it is not changed. An ONNX file is taken as it is.
        example: two samples, of the type that the model is to take.
        file: name of the file.
        output: name of a torch model's output.
        features: name of a torch model's output of features, where it has them; None leaves them out.
        gives: None keeps the classifier's output: a torch model takes float32 samples in the unit range and gives its
            own scores. For a device, what the output is (``probability``, ``logits`` or ``label``): a torch model then
            takes raw samples and gives log-probabilities, and an estimator gives probabilities of all classes.
        num_classes: K, where ``gives`` is set.

    Raises:
        ConversionError: the converter failed.
    """
    known = gives or classifier.known_output
    if isinstance(classifier, OnnxClassifier):
        name, data = classifier.input.name, classifier.weights()[0]
        part = ClientPart(file, classifier.kind, name, classifier.feed, classifier.scores, known, classifier.features)
        return ExportedClassifier(part, data)
    if isinstance(classifier, SklearnClassifier):
        model = _convert_estimator(classifier.estimator, int(np.prod(example.shape[1:])), gives is not None)
        scores = model.graph.output[0 if gives == "label" else -1].name
        if gives == "probability" and len(classifier.classes) != num_classes:
            scores = _add_missing_classes(model, scores, classifier.classes, num_classes)
        part = ClientPart(file, classifier.kind, model.graph.input[0].name, "flat", scores, known, None)
        return ExportedClassifier(part, model.SerializeToString())
    if not classifier.has_features:
        features = None
    graph = ClassifierGraph(on_cpu(classifier), gives, num_classes, features is not None)
    outputs = [output] if features is None else [output, features]
    model = to_onnx(graph, {"x": example}, outputs, f"the {classifier.kind}")
    feed, known = ("unit_range", known) if gives is None else ("as_is", "log_probability")
    part = ClientPart(file, classifier.kind, "x", feed, output, known, features)
    return ExportedClassifier(part, model.SerializeToString(), model)


def on_cpu(classifier: TorchClassifier) -> TorchClassifier:
    """Return a copy of the classifier on the CPU, since a GPU rounds differently."""
    with quiet():
        module: Any = copy.deepcopy(classifier.module)
        if classifier.kind != "exported program":
            module = module.cpu()
        elif any(tensor.device.type != "cpu" for tensor in module.state_dict.values()):
            from torch.export.passes import move_to_device_pass

            module = move_to_device_pass(module, "cpu")
        moved = TorchClassifier(module, classifier.feature_layer)
    moved.probabilities = classifier.probabilities
    return moved


def to_onnx(module: nn.Module, example: dict[str, Array], outputs: list[str], what: str) -> ModelProto:
    """Convert a torch module into an ONNX model whose first axis is free.

    Args:
        module: any; put into evaluation mode.
        example: by the name of each input, two samples.
        outputs: names of the outputs.
        what: how the message names the module.

    Raises:
        ConversionError: the exporter failed.
    """
    for part in module.modules():
        part.training = False  # not eval(), which an exported program refuses
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    inputs, tensors = list(example), tuple(torch.from_numpy(values) for values in example.values())
    try:
        with quiet(), torch.no_grad():
            try:
                model = _by_export(module, tensors, inputs, outputs)
            except Exception:  # the exporter's own errors have no common base
                if not scripted:
                    raise
                model = _by_tracing(module, tensors, inputs, outputs)
    except Exception as error:  # as above
        reason = " ".join(str(error).strip().splitlines())
        raise ConversionError(f"{what} cannot be exported to ONNX: {type(error).__name__}: {reason[:500]}") from error
    return _without_notes(model)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's exporter, which warns of operators of packages that are not installed, and of itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _by_export(module: nn.Module, example: tuple[Tensor, ...], inputs: list[str], outputs: list[str]) -> ModelProto:
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        module,
        example,
        input_names=inputs,
        output_names=outputs,
        dynamic_shapes=tuple({0: batch} for _ in example),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _by_tracing(module: nn.Module, example: tuple[Tensor, ...], inputs: list[str], outputs: list[str]) -> ModelProto:
    """Convert TorchScript that was not traced, which ``torch.export`` cannot look into."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traced.onnx"
        torch.onnx.export(
            torch.jit.trace(module, example),
            example,
            path,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes={name: {0: "batch"} for name in (*inputs, *outputs)},
            opset_version=20,
            dynamo=False,
        )
        return onnx.load(path)


def _without_notes(model: ModelProto) -> ModelProto:
    """Remove the notes on where each node came from: they hold paths of this machine."""
    graph = model.graph
    del graph.value_info[:]
    for entry in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        entry.ClearField("doc_string")
        if hasattr(entry, "metadata_props"):
            del entry.metadata_props[:]
    return model


def _convert_estimator(estimator: Any, size: int, for_device: bool) -> ModelProto:
    from skl2onnx import to_onnx as convert

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model: ModelProto = convert(
                estimator,
                np.zeros((1, size), dtype=np.float32),
                options={"zipmap": False},
                target_opset=_DEVICE_OPSETS if for_device else None,
            )
    except Exception as error:  # the converter's own errors have no common base
        raise ConversionError(f"{type(estimator).__name__} cannot be converted to ONNX: {error}") from error
    return model


def _add_missing_classes(model: ModelProto, output: str, known: Array, num_classes: int) -> str:
    """Put the columns of the known classes into their places among all; classes never seen get 0."""
    from onnx import TensorProto, helper, numpy_helper

    places = np.zeros((len(known), num_classes), dtype=np.float32)
    places[np.arange(len(known)), known] = 1.0
    model.graph.initializer.append(numpy_helper.from_array(places, "places"))
    model.graph.node.append(helper.make_node("MatMul", [output, "places"], ["all_probabilities"]))
    entry = helper.make_tensor_value_info("all_probabilities", TensorProto.FLOAT, [None, num_classes])
    model.graph.output.append(entry)
    return "all_probabilities"
