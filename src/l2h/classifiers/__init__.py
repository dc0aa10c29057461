"""Classifiers that are given and stay as they are: the client, and a server that is somebody's API.

:func:`as_client` gives torch modules, ONNX files, scikit-learn estimators and callables one small interface,
:class:`Classifier`. Nothing here trains or changes a model, and :meth:`Classifier.fingerprint` proves it.
"""

from l2h.classifiers.base import Classifier, ClassifierAnswers
from l2h.classifiers.functions import CallableClassifier, StochasticClient
from l2h.classifiers.loading import as_client
from l2h.classifiers.onnx import OnnxClassifier
from l2h.classifiers.reading import FLOOR, all_finite, prepare_inputs, read_output, to_array, unit_range
from l2h.classifiers.sklearn import SklearnClassifier
from l2h.classifiers.torch import TorchClassifier

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
    "prepare_inputs",
    "read_output",
    "to_array",
    "unit_range",
]
