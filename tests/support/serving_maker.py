"""Bundles to serve: small ones made by hand, whose scores a test can work out."""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from l2h.bundle import ClientPart, FilePart, InputPart, Manifest, RejectorPart, ServerPart
from l2h.costs import Costs
from l2h.decision import RejectorSpec

SHAPE, CLASSES = (1, 4, 4), 5
_DTYPES = {"uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}


def linear(seed: int = 0, shape=SHAPE, classes: int = CLASSES, dtype: str = "uint8", hidden: int = 0, layers: int = 1):
    """The bytes of a linear model, or of one with so many hidden layers of the same weights, to take its time."""
    rng = np.random.default_rng(seed)
    sizes = [int(np.prod(shape)), *[hidden] * (layers if hidden else 0), classes]
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["f"], ["h0"], axis=1),
    ]
    weights = []
    for i, (rows, columns) in enumerate(pairwise(sizes)):
        name = f"w{rows}-{columns}"
        if all(name != weight.name for weight in weights):
            w = (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
            weights.append(numpy_helper.from_array(w, name))
        out = "scores" if i == len(sizes) - 2 else f"h{i + 1}"
        nodes.append(helper.make_node("MatMul", [f"h{i}", name], [out]))
    graph = helper.make_graph(
        nodes,
        "server",
        [helper.make_tensor_value_info("x", _DTYPES[dtype], ["n", *shape])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", classes])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def endless() -> bytes:
    """The bytes of a model that can be loaded and never answers: a loop without an end."""
    cond = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    step = helper.make_tensor_value_info("step", TensorProto.INT64, [])
    before = helper.make_tensor_value_info("before", TensorProto.FLOAT, None)
    after = helper.make_tensor_value_info("after", TensorProto.FLOAT, None)
    on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["before", "before"], ["after"])],
        "body",
        [step, cond, before],
        [on, after],
    )
    model = onnx.load_from_string(linear())
    model.graph.node[-1].output[0] = "start"
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("Loop", ["", "yes", "start"], ["scores"], body=body))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def failing() -> bytes:
    """The bytes of a model that fails where the first pixel is above 1."""
    model = onnx.load_from_string(linear())
    two = [numpy_helper.from_array(np.zeros((2, CLASSES), np.float32), "two")]
    begin = [
        numpy_helper.from_array(np.array([0], np.int64), "zero"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
    ]
    model.graph.initializer.extend([*two, *begin])
    model.graph.node[-1].output[0] = "plain"
    model.graph.node.extend(
        [
            helper.make_node("Slice", ["h0", "zero", "one", "one"], ["first"]),
            helper.make_node("Cast", ["first"], ["index"], to=TensorProto.INT64),
            helper.make_node("Squeeze", ["index", "one"], ["row"]),
            helper.make_node("Gather", ["two", "row"], ["added"]),
            helper.make_node("Add", ["plain", "added"], ["scores"]),
        ]
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def write_bundle(folder: Path, model: bytes, *, name="digits", shape=SHAPE, classes=CLASSES, dtype="uint8") -> Manifest:
    """The server's half of a bundle around a model; the device's files are listed and absent, as on a server."""
    hashed = sha256(model).hexdigest()
    manifest = Manifest(
        name=name,
        version=hashed[:12],
        created="2026-01-01T00:00:00+00:00",
        l2h="0.1.0",
        input=InputPart(tuple(shape), dtype),
        classes=tuple(str(k) for k in range(classes)),
        preprocessing="inside",
        client=ClientPart(None, "given", None, "as_is", None, "label", None),
        rejector=RejectorPart("rejector.onnx", "given", False, False, False, (RejectorSpec(),), (((1, 0), (1, 0)),)),
        calibration=None,
        prices={"server": Costs(c_e=0.1, c_1=1.0)},
        servers={"server": ServerPart("server.onnx", "x", "scores")},
        files={
            "server.onnx": FilePart(hashed, len(model), "server"),
            "rejector.onnx": FilePart("0" * 64, 1, "device"),
        },
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.onnx.tmp").write_bytes(model)
    (folder / "server.onnx.tmp").rename(folder / "server.onnx")
    manifest.write(folder)
    return manifest
