"""Small images, classifiers of them that expect one form of input each, and those classifiers as real model files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import l2h
from l2h import Preprocessing

CLASSES = 10


@cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Digits in three colours, uint8 (n, 3, 8, 8): train and test."""
    data = l2h.load_dataset("digits")
    return (*((np.repeat(X, 3, axis=1) * [[[[1]], [[0.8]], [[0.5]]]]).astype(np.uint8) if X.ndim == 4 else X
              for X in (data.X_train, data.y_train, data.X_test, data.y_test)),)  # fmt: skip


@dataclass(frozen=True)
class Linear:
    """A linear classifier of samples that were prepared in one way: (d, K) and (K,)."""

    inputs: Preprocessing
    shape: tuple[int, ...]  # of one prepared sample
    weights: np.ndarray
    bias: np.ndarray

    def scores(self, X: np.ndarray) -> np.ndarray:
        return self.inputs.apply(X).reshape(len(X), -1) @ self.weights + self.bias


@cache
def linear(inputs: Preprocessing, only: tuple[int, ...] = ()) -> Linear:
    """Fitted to a few of the digits; ``only`` keeps these classes, numbered from 0."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y, *_ = digits()
    X, y = X[:400], y[:400]
    if only:
        kept = np.isin(y, only)
        X, y = X[kept], np.searchsorted(only, y[kept])
    x = inputs.apply(X)
    scaler, fitted = make_pipeline(StandardScaler(), LogisticRegression(C=0.01)).fit(x.reshape(len(x), -1), y)
    weights = (fitted.coef_ / scaler.scale_).T
    bias = fitted.intercept_ - scaler.mean_ @ weights
    return Linear(inputs, x.shape[1:], weights.astype(np.float32), bias.astype(np.float32))


def write_onnx(path: Path, model: Linear, batch: int | str = "n", *, last: str = "", free: bool = False) -> Path:
    """Write a classifier as an ONNX file that declares its batch, and its shape unless that is ``free``."""
    kept = [numpy_helper.from_array(model.weights, "w"), numpy_helper.from_array(model.bias, "b")]
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["rows"], axis=1),
        helper.make_node("Gemm", ["rows", "w", "b"], ["sums" if last else "scores"]),
    ]
    if last:
        nodes.append(helper.make_node(last, ["sums"], ["scores"]))
    shape = [batch, *("chw" if free else model.shape)]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, len(model.bias)])],
        kept,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def rescaled(model: Linear, scale: str) -> Linear:
    """The same weights behind another scale: what a classifier is that is fed wrongly."""
    return replace(model, inputs=Preprocessing(scale=scale))
