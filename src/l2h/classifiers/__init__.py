"""Whatever can answer: torch, ONNX, scikit-learn and callable classifiers behind one interface."""

from l2h.classifiers.adapters import (
    FLOOR,
    CallableClient,
    Client,
    ClientAnswers,
    OnnxClient,
    SklearnClient,
    StochasticClient,
    TorchClient,
    as_client,
    log_softmax,
    unit_range,
)

__all__ = [
    "FLOOR",
    "CallableClient",
    "Client",
    "ClientAnswers",
    "OnnxClient",
    "SklearnClient",
    "StochasticClient",
    "TorchClient",
    "as_client",
    "log_softmax",
    "unit_range",
]
