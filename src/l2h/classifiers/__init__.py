"""Classifiers that are given and stay as they are: the client, and a server that is somebody's API.

:func:`as_client` gives torch modules, ONNX files, scikit-learn estimators and callables one small interface,
:class:`Classifier`. Nothing here trains or changes a model, and :meth:`Classifier.fingerprint` proves it.
"""

from l2h.classifiers.base import Classifier, ClassifierAnswers, unit_range
from l2h.classifiers.kinds import CallableClassifier, SklearnClassifier, StochasticClient, as_client
from l2h.classifiers.litert import LITERT, LiteRTClassifier
from l2h.classifiers.networks import OnnxClassifier, TorchClassifier
from l2h.classifiers.preprocessing import UNIT_RANGE, Preprocessing
from l2h.classifiers.settling import check_accuracy, probe_rows, settle_scale

__all__ = [
    "LITERT",
    "UNIT_RANGE",
    "CallableClassifier",
    "Classifier",
    "ClassifierAnswers",
    "LiteRTClassifier",
    "OnnxClassifier",
    "Preprocessing",
    "SklearnClassifier",
    "StochasticClient",
    "TorchClassifier",
    "as_client",
    "check_accuracy",
    "probe_rows",
    "settle_scale",
    "unit_range",
]
