"""Classifiers that are given and stay as they are: the client, and a server that is somebody's API.

:func:`as_client` gives torch modules, ONNX files, scikit-learn estimators and callables one small interface,
:class:`Classifier`. Nothing here trains or changes a model, and :meth:`Classifier.fingerprint` proves it.
"""

from l2h.classifiers.base import (
    FLOOR,
    Classifier,
    ClassifierAnswers,
    all_finite,
    prepare_inputs,
    read_output,
    to_array,
    unit_range,
)
from l2h.classifiers.external import open_model
from l2h.classifiers.kinds import (
    CallableClassifier,
    OnnxClassifier,
    SklearnClassifier,
    StochasticClient,
    TorchClassifier,
    as_client,
)

__all__ = [
    "FLOOR",
    "CallableClassifier",
    "Classifier",
    "ClassifierAnswers",
    "OnnxClassifier",
    "SklearnClassifier",
    "StochasticClient",
    "TorchClassifier",
    "all_finite",
    "as_client",
    "open_model",
    "prepare_inputs",
    "read_output",
    "to_array",
    "unit_range",
]
