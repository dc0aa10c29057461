"""The client's model and the rejector's as one, so that the device runs the client once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from l2h.classifiers.reading import Array
from l2h.export.checking import compare, run_model

if TYPE_CHECKING:
    from onnx import ModelProto

#: Prefix of the rejector's names in a fused model.
_PREFIX = "rejector/"
#: What the rounding of a fused client can come to: a rejector may scale the client's answers up a thousandfold.
_ROUNDING = 1e-3


def can_fuse(client: ModelProto, rejector: ModelProto) -> bool:
    """Return whether both models are written in the same operator sets."""
    sets: list[dict[str, int]] = [{o.domain: o.version for o in model.opset_import} for model in (client, rejector)]
    return all(sets[1].get(domain, version) == version for domain, version in sets[0].items())


def fuse(client: ModelProto, rejector: ModelProto) -> ModelProto:
    """Return one model of ``x`` that runs the client once: its ``log_probability``, and the rejector's ``scores``."""
    from onnx import ModelProto, checker, compose

    joined = ModelProto()
    joined.CopyFrom(client)
    other = compose.add_prefix(rejector, _PREFIX)
    # The rejector reads the client's tensors by the client's names, and its own output keeps its plain name.
    plain = {f"{_PREFIX}{entry.name}": entry.name for entry in (*rejector.graph.input, *rejector.graph.output)}
    for node in other.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = plain.get(name, name)
    joined.graph.node.extend(other.graph.node)
    joined.graph.initializer.extend(other.graph.initializer)
    kept = [entry for entry in joined.graph.output if entry.name == "log_probability"]
    del joined.graph.output[:]
    joined.graph.output.extend([*kept, *rejector.graph.output])
    domains = {entry.domain for entry in joined.opset_import}
    joined.opset_import.extend([entry for entry in other.opset_import if entry.domain not in domains])
    joined.functions.extend(other.functions)
    joined.ir_version = max(client.ir_version, rejector.ir_version)
    checker.check_model(joined)
    return joined


def check_fused(client: ModelProto, rejector: ModelProto, file: str, probes: Sequence[Array]) -> None:
    """Compare the fused model with its two halves, run one after the other.

    Raises:
        ExportError: it differs.
    """
    fused = fuse(client, rejector)
    outputs = [entry.name for entry in client.graph.output]
    for X in probes:
        answers = dict(zip(outputs, run_model(client, "client", outputs, {"x": X}), strict=True))
        (apart,) = run_model(rejector, file, ["scores"], {"x": X, **answers})
        log_p, scores = run_model(fused, file, ["log_probability", "scores"], {"x": X})
        compare(file, log_p, answers["log_probability"])
        p = np.sort(np.exp(log_p), axis=1)
        clear = p[:, -1] - p[:, -2] > _ROUNDING  # in a tie the client may name another class, which the rejector sees
        compare(file, scores[clear], apart[clear], _ROUNDING)
