"""Multiply-adds of a fixed classifier for one input, where its work can be counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from l2h.classifiers import Classifier, OnnxClassifier, TorchClassifier
from l2h.models import multiply_adds

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Shapes = dict[str, tuple[int, ...]]


def classifier_multiply_adds(classifier: Classifier, input_shape: tuple[int, ...], input_dtype: str) -> int | None:
    """Return the multiply-adds of one input; None for an estimator, a callable or a model that cannot be counted."""
    if not isinstance(classifier, OnnxClassifier | TorchClassifier):
        return None
    fed = classifier.feed(input_shape).apply(np.zeros((1, *input_shape), dtype=input_dtype))
    if isinstance(classifier, OnnxClassifier):
        return onnx_multiply_adds(classifier.weights()[0], fed.shape, classifier.scores)
    module = classifier.callable_module
    first = next(iter(module.parameters()), None)
    return multiply_adds(module, torch.from_numpy(fed).to("cpu" if first is None else first.device))


def onnx_multiply_adds(data: bytes, input_shape: tuple[int, ...], output: str) -> int | None:
    """Return the multiply-adds of an ONNX model's convolutions and matrix products; None where it has
    none, as trees do, or shapes are unknown.

    Only what ``output`` needs is counted, and operators of other kinds count as nothing.
    """
    import onnx
    from onnx import shape_inference

    model = onnx.load_model_from_string(data)
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    batch = (dimensions[0].dim_value if dimensions else 0) or 1  # which some files fix
    if len(dimensions) == len(input_shape):
        for dimension, size in zip(dimensions, (batch, *input_shape[1:]), strict=True):
            dimension.dim_value = dimension.dim_value or size  # a file with an input per column declares its own
    model = shape_inference.infer_shapes(model, data_prop=True)
    shapes = _shapes(model)
    needed, counts = {output}, []
    for node in reversed(model.graph.node):  # in an order in which each comes after those that it reads
        if needed & set(node.output):
            needed |= set(node.input)
            counts.append(_count(node, shapes))
    total = sum(count or 0 for count in counts) // batch
    return None if None in counts else total or None


def _shapes(model: ModelProto) -> Shapes:
    graph = model.graph
    shapes: Shapes = {entry.name: tuple(entry.dims) for entry in graph.initializer}
    for entry in (*graph.input, *graph.value_info, *graph.output):
        dimensions = entry.type.tensor_type.shape.dim
        if entry.name not in shapes and dimensions and all(d.dim_value > 0 for d in dimensions):
            shapes[entry.name] = tuple(d.dim_value for d in dimensions)
    return shapes


def _count(node: NodeProto, shapes: Shapes) -> int | None:
    """Return the multiply-adds of one operator, or None where it has some and its shapes are unknown."""
    # The inputs that are multiplied: of the quantised operators a scale and a zero point follow each.
    factors = {
        **dict.fromkeys(("Conv", "ConvInteger", "Gemm", "MatMul", "MatMulInteger"), (0, 1)),
        **dict.fromkeys(("QLinearConv", "QLinearMatMul"), (0, 3)),
    }.get(node.op_type)
    if factors is None:
        return 0
    first, second = (shapes.get(node.input[at]) for at in factors)
    out = shapes.get(node.output[0])
    if out is None or first is None or second is None:
        return None
    if "Conv" in node.op_type:
        return math.prod(out) * math.prod(second[1:])  # weights (O, C / groups, h, w)
    transposed = node.op_type == "Gemm" and any(a.name == "transA" and a.i for a in node.attribute)
    return math.prod(out) * first[0 if transposed else -1]
