"""Single models in a run folder: as ONNX or LiteRT files, or as the weights of a network that is built again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from torch import nn

from l2h.classifiers import LITERT, LiteRTClassifier, OnnxClassifier, Preprocessing, SklearnClassifier, TorchClassifier
from l2h.classifiers.base import Classifier
from l2h.errors import ExportError, RunError, warn
from l2h.export.classifiers import largest_difference
from l2h.export.onnx import ConvertibleClassifier, classifier_to_onnx
from l2h.files import CONFIG, write_atomically
from l2h.fitted import EXAMPLES, FittedSystem
from l2h.training.checkpoint import load_checkpoint

#: Kinds of classifiers that a run folder holds as a file of their own.
FILES = ("onnx", "litert")


def save_onnx(classifier: Classifier, path: Path, fitted: FittedSystem) -> dict[str, Any]:
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
        return describe_inputs(classifier)
    assert converted.part.file is not None
    write_atomically(path.with_name(converted.part.file), converted.data)
    return {
        "kind": "litert" if isinstance(classifier, LiteRTClassifier) else "onnx",
        "scores": converted.part.output,
        "features": converted.part.features,
        "flat": converted.part.inputs.flat,
        "probabilities": classifier.probabilities,
        "fingerprint": classifier.fingerprint(),
        **describe_inputs(classifier),
    }


def _can_be_saved(classifier: Classifier) -> TypeGuard[ConvertibleClassifier]:
    if isinstance(classifier, SklearnClassifier):
        return hasattr(classifier.estimator, "predict_proba")  # by other scores the file would answer differently
    if isinstance(classifier, TorchClassifier):
        return classifier.kind == "torch module" and (classifier.feature_layer is None or classifier.pooled)
    return isinstance(classifier, LiteRTClassifier | OnnxClassifier)


def load_onnx(path: Path, config: Mapping[str, Any]) -> Classifier:
    """Return the classifier that :func:`save_onnx` wrote, from its description."""
    if config["kind"] == "litert":
        return LiteRTClassifier(path.with_suffix(LITERT), config["scores"])
    return OnnxClassifier(path, config["scores"], config["features"], config["flat"])


def load_weights(net: nn.Module, path: Path) -> nn.Module:
    """Return the network with the weights of a file."""
    tensors = load_checkpoint(path).tensors
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(f"{path} does not fit the network that {CONFIG} describes: {error}") from error
    return net


def describe_inputs(classifier: Classifier) -> dict[str, Any]:
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


def restore_inputs(classifier: Classifier, config: Mapping[str, Any]) -> None:
    """Feed a classifier as in training and read its scores so, where the caller does not say otherwise."""
    if classifier.preprocessing == Preprocessing():
        classifier.preprocessing = Preprocessing.from_dict(config.get("preprocessing", {}))
    if classifier.probabilities is None:
        classifier.probabilities = config.get("probabilities")
    classifier.scales_tried = dict(config.get("scales_tried", {}))
    classifier.asks_meaning = False  # version 0.1 read every single number as a logit
