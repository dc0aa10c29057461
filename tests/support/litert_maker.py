"""Real LiteRT (``.tflite``) files of a linear classifier, written with the schema that comes with the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from model_files import Linear

FULLY_CONNECTED, SOFTMAX = schema.BuiltinOperator.FULLY_CONNECTED, schema.BuiltinOperator.SOFTMAX
OPTIONS = {
    FULLY_CONNECTED: (schema.BuiltinOptions.FullyConnectedOptions, schema.FullyConnectedOptionsT),
    SOFTMAX: (schema.BuiltinOptions.SoftmaxOptions, schema.SoftmaxOptionsT),
}
TYPES = {"float32": schema.TensorType.FLOAT32, "int32": schema.TensorType.INT32, "int8": schema.TensorType.INT8}
#: One step of int8 pixels in [0, 1], and of the sums.
PIXEL, SUM = 1 / 255, 0.25


def write_litert(path: Path, model: Linear, batch: int = -1, *, quantised: bool = False) -> Path:
    """Write a fully connected layer and a softmax, or ``quantised`` the layer alone in int8; a batch of -1 is any."""
    writer, rows, classes = Writer(batch), max(batch, 1), len(model.bias)
    weights, bias = np.ascontiguousarray(model.weights.T), model.bias
    if quantised:
        step = float(np.abs(weights).max() / 127)
        x = writer.tensor("pixels", [rows, *model.shape], np.int8, steps=(PIXEL, -128))
        w = writer.constant("w", np.rint(weights / step).astype(np.int8), (step, 0))
        b = writer.constant("b", np.rint(bias / (step * PIXEL)).astype(np.int32), (step * PIXEL, 0))
        sums = writer.tensor("sums", [rows, classes], np.int8, steps=(SUM, 0))
    else:
        x = writer.tensor("pixels", [rows, *model.shape], np.float32)
        w, b = writer.constant("w", weights), writer.constant("b", bias)
        sums = writer.tensor("sums", [rows, classes], np.float32)
    writer.operator(FULLY_CONNECTED, [x, w, b], sums, version=4 if quantised else 1)
    if not quantised:
        scores = writer.tensor("scores", [rows, classes], np.float32)
        writer.operator(SOFTMAX, [sums], scores).beta = 1.0
        sums = scores
    path.write_bytes(writer.finish(x, sums))
    return path


class Writer:
    """Builds the tables of a model."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.graph, self.model = schema.SubGraphT(), schema.ModelT()
        self.graph.tensors, self.graph.operators = [], []
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []

    def tensor(self, name: str, shape: list[int], kind: Any, *, steps: tuple[float, int] | None = None) -> int:
        entry = schema.TensorT()
        entry.name, entry.shape, entry.buffer, entry.type = name, shape, 0, TYPES[np.dtype(kind).name]
        if self.batch == -1:
            entry.shapeSignature = [-1, *shape[1:]]
        if steps is not None:
            entry.quantization = schema.QuantizationParametersT()
            entry.quantization.scale, entry.quantization.zeroPoint = [steps[0]], [steps[1]]
        self.graph.tensors.append(entry)
        return len(self.graph.tensors) - 1

    def constant(self, name: str, values: np.ndarray, steps: tuple[float, int] | None = None) -> int:
        number = self.tensor(name, list(values.shape), values.dtype, steps=steps)
        entry, data = self.graph.tensors[number], schema.BufferT()
        data.data = np.frombuffer(values.tobytes(), np.uint8)
        entry.buffer, entry.shapeSignature = len(self.model.buffers), None
        self.model.buffers.append(data)
        return number

    def operator(self, code: int, inputs: list[int], output: int, version: int = 1) -> Any:
        entry, kind = schema.OperatorT(), schema.OperatorCodeT()
        entry.opcodeIndex, entry.inputs, entry.outputs = len(self.model.operatorCodes), inputs, [output]
        entry.builtinOptionsType, make = OPTIONS[code]
        entry.builtinOptions = make()
        kind.builtinCode = kind.deprecatedBuiltinCode = code
        kind.version = version
        self.model.operatorCodes.append(kind)
        self.graph.operators.append(entry)
        return entry.builtinOptions

    def finish(self, first: int, last: int) -> bytes:
        self.graph.inputs, self.graph.outputs = [first], [last]
        self.model.version, self.model.subgraphs = 3, [self.graph]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
