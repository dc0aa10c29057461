"""Models as ONNX: :func:`classifier_to_onnx` for a fixed classifier of any kind, :func:`to_onnx` for a torch module."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h.bundle import ClientPart
from l2h.bundle.parts import feed_of
from l2h.classifiers import LITERT, LiteRTClassifier, OnnxClassifier, Preprocessing, SklearnClassifier, TorchClassifier
from l2h.classifiers.base import FLOOR, Array, Inputs
from l2h.classifiers.networks import PLACED
from l2h.classifiers.preprocessing import RANGES, by_channel, resize_matrices
from l2h.columns import EncodedTable, numbers_of
from l2h.errors import ConversionError, reason
from l2h.export.boosting import register_boosting
from l2h.export.tabular import estimator_to_onnx

if TYPE_CHECKING:
    from onnx import ModelProto

#: The kinds of classifiers that can become a file; the others are only functions.
ConvertibleClassifier = LiteRTClassifier | OnnxClassifier | SklearnClassifier | TorchClassifier
#: Operator sets of files for devices, whose onnxruntime may be older than the one here.
_DEVICE_OPSETS = {"": 18, "ai.onnx.ml": 3}
_COLUMNS: dict[str, Any] = {"feed": "columns"}
_LOWEST = float(np.log(FLOOR))


@dataclass(frozen=True)
class ExportedClassifier:
    """A classifier as an ONNX or LiteRT file."""

    part: ClientPart  # how it is fed and read
    data: bytes | None  # the file; None where the classifier cannot be one
    graph: ModelProto | None = None  # of a torch classifier, which can be fused with a rejector
    agreement: float | None = None  # its largest difference from the original, where they were compared


def classifier_to_onnx(
    classifier: ConvertibleClassifier,
    example: Inputs,
    file: str,
    *,
    output: str = "scores",
    features: str | None = "features",
    gives: str | None = None,
    num_classes: int = 0,
) -> ExportedClassifier:
    """Convert a fixed classifier, which is not changed, into an ONNX model; an ONNX or LiteRT file is taken as it is.

    ``example`` are two samples of the type that the model is to take, or rows of a table. ``output`` and ``features``
    name the outputs of a torch model (None leaves its features out). ``gives`` None keeps the classifier's output: a
    torch model takes prepared samples and gives its own scores. For a device it is what the output is
    (``probability``, ``logits`` or ``label``): a torch model then takes raw samples and gives log-probabilities, and an
    estimator gives probabilities of all ``num_classes``.
    """
    table = example if isinstance(example, EncodedTable) else None
    example = numbers_of(example)
    known, inputs = gives or classifier.known_output, classifier.feed(example.shape[1:])
    graph: ModelProto | None = None
    if isinstance(classifier, LiteRTClassifier):
        file, (data,) = str(Path(file).with_suffix(LITERT)), classifier.weights()
        taken, given, features, feed = classifier.model.input, classifier.model.output, None, feed_of(inputs)
    elif isinstance(classifier, OnnxClassifier):
        data, given = _file_of(classifier)
        taken, features = classifier.input.name, classifier.features
        feed = _COLUMNS if len(classifier.inputs) > 1 else feed_of(inputs)
    elif isinstance(classifier, SklearnClassifier):
        rows = replace(inputs, flat=True)
        model = _convert_estimator(classifier, rows.apply(example), table, gives is not None)
        given, features = model.graph.output[0 if gives == "label" else -1].name, None
        if num_classes and known == "probability":
            places = classifier.places(num_classes)
            if not np.array_equal(places, np.arange(num_classes)):
                given = _place_classes(model, given, places, num_classes)
        data, taken = model.SerializeToString(), model.graph.input[0].name
        feed = _COLUMNS if len(model.graph.input) > 1 else feed_of(rows)
    else:
        taken, given, features = "x", output, features if classifier.has_features else None
        outside, inside = (inputs, Preprocessing()) if gives is None else (Preprocessing(), inputs)
        example, feed = outside.apply(example) if gives is None else example, feed_of(outside)
        known = known if gives is None else "log_probability"
        prepare = _PreprocessingGraph(inside, example.shape[1:])
        module = _ClassifierGraph(on_cpu(classifier), prepare, gives, num_classes, features is not None)
        outputs = [output] if features is None else [output, features]
        graph = to_onnx(module, {"x": example}, outputs, f"the {classifier.kind}")
        data = graph.SerializeToString()
    part = ClientPart(file, classifier.kind, taken, output=given, gives=known, features=features, **feed)
    return ExportedClassifier(part, data, graph)


def _file_of(classifier: OnnxClassifier) -> tuple[bytes, str]:
    """Return an ONNX file with its weights inside and all classes in their places, and the name of its scores."""
    import onnx

    data, scores = classifier.weights()[0], classifier.scores
    if classifier.beside:
        data = _with_weights(data, classifier.beside, classifier.path.name)
    places = classifier.places
    if places is None or np.array_equal(places, np.arange(len(places))):
        return data, scores
    model = onnx.load_model_from_string(data)
    scores = _place_classes(model, scores, places, len(places))
    return model.SerializeToString(), scores


def on_cpu(classifier: TorchClassifier) -> TorchClassifier:
    """Return a copy of the classifier on the CPU, since a GPU rounds differently."""
    with quiet():
        module: Any = copy.deepcopy(classifier.module)
        if classifier.kind != "exported program":
            module = module.cpu()
        elif any(tensor.device.type != "cpu" for tensor in module.state_dict.values()):
            from torch.export.passes import move_to_device_pass

            module = move_to_device_pass(module, "cpu")
        moved = TorchClassifier(module, classifier.feature_layer, classifier.pooled)
    moved.probabilities, moved.preprocessing = classifier.probabilities, classifier.preprocessing
    moved.labels, moved.shows_features = classifier.labels, classifier.shows_features
    return moved


def to_onnx(module: nn.Module, example: dict[str, Array], outputs: list[str], what: str) -> ModelProto:
    """Convert a torch module, put into evaluation mode, into an ONNX model whose first axis is free.

    ``example`` has two samples by the name of each input; ``what`` is how a :class:`ConversionError` names the module.
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
        why = f"{type(error).__name__}: {reason(error, 500)}"
        raise ConversionError(f"{what} cannot be exported to ONNX: {why}") from error
    return _without_notes(model)


@contextmanager
def quiet(name: str | None = "torch.onnx") -> Iterator[None]:
    """Silence torch's exporter, which warns of operators of packages that are not installed, and of itself.

    ``name`` is another logger's, None for the root.
    """
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


class _PreprocessingGraph(nn.Module):
    """:meth:`Preprocessing.apply` for samples of one shape, as a part of a graph."""

    rows: Tensor
    columns: Tensor
    mean: Tensor | None
    std: Tensor | None

    def __init__(self, inputs: Preprocessing, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.inputs, self.scale = inputs, inputs.pixel_scale
        self.resizes = inputs.size is not None and len(shape) == 3
        if self.resizes:
            assert isinstance(inputs.size, tuple)
            rows, columns = resize_matrices(shape[1], shape[2], inputs.size)
            self.register_buffer("rows", torch.from_numpy(rows))
            self.register_buffer("columns", torch.from_numpy(columns))
        example = np.empty((1, *shape), dtype=np.float32)
        for name, values in zip(("mean", "std"), inputs.statistics, strict=True):
            self.register_buffer(name, None if values is None else torch.from_numpy(by_channel(values, example)))

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.dtype == torch.uint8
        if self.resizes:
            x = self.rows @ x.float() @ self.columns
        if pixels and self.scale is not None:
            divisor, subtracted = RANGES[self.scale]
            x = x.float() / divisor - subtracted
        if self.mean is not None:
            x = x - self.mean
        if self.std is not None:
            x = x / self.std
        if self.inputs.layout == "NHWC" and x.ndim == 4:
            x = x.permute(0, 2, 3, 1)
        return x.flatten(1).float() if self.inputs.flat else x


class _ClassifierGraph(nn.Module):
    """A torch classifier on the CPU: its log-probabilities (n, K) of raw samples, and its features if wanted.

    ``gives`` says what its output is: ``logits``, ``probability`` or ``label``; None gives the output as it is.
    """

    def __init__(
        self,
        classifier: TorchClassifier,
        prepare: _PreprocessingGraph,
        gives: str | None,
        num_classes: int,
        features: bool,
    ) -> None:
        super().__init__()
        self.module, self.prepare = classifier.callable_module, prepare
        self.classifier, self.gives, self.num_classes, self.features = classifier, gives, num_classes, features
        values = None if classifier.labels is None else classifier.labels.values
        #: What each class is where the output is labels: text stands for its number.
        self.values = (
            torch.arange(num_classes) if values is None or isinstance(values[0], str) else torch.tensor(values)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores, features = self.classifier.forward(self.prepare(x), self.features)
        if self.gives is not None:
            scores = self._log_probability(scores)
        return (scores, features) if self.features else (scores,)

    def _log_probability(self, scores: Tensor) -> Tensor:
        """Apply the rules of :func:`l2h.classifiers.base.read_output`."""
        if self.gives == "label":
            label = scores.reshape(-1, 1).long()
            one_hot = label == self.values
            return torch.where(one_hot, 0.0, _LOWEST)
        scores = scores.float()
        if self.num_classes == 2 and (scores.ndim == 1 or scores.shape[1] == 1):  # of class 1 alone
            one = scores.reshape(-1, 1)
            scores = torch.cat([1 - one if self.gives == "probability" else torch.zeros_like(one), one], dim=1)
        return scores.clamp(min=FLOOR).log() if self.gives == "probability" else torch.log_softmax(scores, dim=1)


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


def _convert_estimator(
    classifier: SklearnClassifier, rows: Array, table: EncodedTable | None, for_device: bool
) -> ModelProto:
    from skl2onnx import to_onnx as convert

    estimator, opsets = classifier.estimator, _DEVICE_OPSETS if for_device else None
    register_boosting()
    try:
        with quiet():
            if table is not None and getattr(estimator, "feature_names_in_", None) is not None:
                return estimator_to_onnx(estimator, table.columns, opsets)
            size = (rows if table is None else classifier.from_table(table)).shape[1]
            zeros = np.zeros((1, size), dtype=np.float32)
            model: ModelProto = convert(estimator, zeros, options={"zipmap": False}, target_opset=opsets)
    except Exception as error:  # the converter's own errors have no common base
        raise ConversionError(f"{type(estimator).__name__} cannot be converted to ONNX: {reason(error)}") from error
    return model


def _with_weights(data: bytes, beside: Mapping[str, bytes], name: str) -> bytes:
    """Put the weights that lie in files beside a model into it, as torch's exporter writes them by default."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    model = onnx.load_model_from_string(data)
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            place = ExternalDataInfo(tensor)
            start = place.offset or 0
            held = beside[place.location]
            tensor.raw_data = held[start : start + (len(held) - start if place.length is None else place.length)]
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    try:
        return bytes(model.SerializeToString())
    except ValueError as error:
        raise ConversionError(f"{name} and its weights are too large for one file: {error}") from error


def _place_classes(model: ModelProto, output: str, known: Array, num_classes: int) -> str:
    """Put the columns of the known classes into their places among all; classes never seen get 0."""
    from onnx import TensorProto, helper, numpy_helper

    places = np.zeros((len(known), num_classes), dtype=np.float32)
    places[np.arange(len(known)), known] = 1.0
    model.graph.initializer.append(numpy_helper.from_array(places, "places"))
    model.graph.node.append(helper.make_node("MatMul", [output, "places"], [PLACED]))
    entry = helper.make_tensor_value_info(PLACED, TensorProto.FLOAT, [None, num_classes])
    model.graph.output.append(entry)
    return PLACED
