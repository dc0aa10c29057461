"""Random samples, and the comparison of an exported model with its original on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from l2h.bundle.sessions import make_session
from l2h.classifiers.reading import Array
from l2h.export.errors import ExportError
from l2h.models import InputScale

if TYPE_CHECKING:
    from onnx import ModelProto

    from l2h.fitted import FittedSystem

BATCHES = (1, 3, 17)
#: Largest difference of an output, in units of the largest output where that is above 1.
TOLERANCE = 1e-5


def probes(fitted: FittedSystem) -> list[Array]:
    """Return batches of random samples of several sizes, spread as the training samples were."""
    rng = np.random.default_rng(0)
    scale = getattr(fitted.rejectors.module(0), "input", None)
    shift, spread = np.zeros(1), np.ones(1)
    if isinstance(scale, InputScale):
        shift, spread = scale.shift.cpu().numpy(), 1 / scale.scale.cpu().numpy()
    out = []
    for n in BATCHES:
        shape = (n, *fitted.input_shape)
        if fitted.input_dtype == "uint8":
            out.append(rng.integers(0, 256, shape).astype(np.uint8))
        else:
            out.append((shift + spread * rng.standard_normal(shape)).astype(np.float32))
    return out


def check_module(module: nn.Module, model: ModelProto, name: str, batches: Sequence[dict[str, Array]]) -> float:
    """Return the largest difference of an ONNX model's ``scores`` from those of the torch module it was made of.

    Raises:
        ExportError: it is above the tolerance, or the shapes differ.
    """
    worst = 0.0
    for feeds in batches:
        with torch.no_grad():
            expected = module(*(torch.from_numpy(values) for values in feeds.values())).float().numpy()
        worst = max(worst, compare(name, run_model(model, name, ["scores"], feeds)[0], expected))
    return worst


def run_model(model: ModelProto, name: str, outputs: list[str], feeds: dict[str, Array]) -> list[Array]:
    """Run a model once, fed with those of the inputs that it has."""
    session = make_session(model.SerializeToString(), name, 1)
    inputs = {entry.name for entry in session.get_inputs()}
    values: list[Array] = session.run(outputs, {key: value for key, value in feeds.items() if key in inputs})
    return values


def compare(name: str, exported: Array, original: Array, tolerance: float = TOLERANCE) -> float:
    """Return the largest difference, in units of the largest output of the original where that is above 1.

    Raises:
        ExportError: it is above the tolerance, or the shapes differ.
    """
    if exported.shape != original.shape:
        raise ExportError(
            f"{name} gives {exported.shape} where the original gives {original.shape}: it was not written"
        )
    largest = max(1.0, float(np.abs(original).max(initial=0.0)))
    difference = float(np.abs(exported.astype(np.float64) - original).max(initial=0.0)) / largest
    if not difference <= tolerance:
        raise ExportError(
            f"{name} differs from the original by {difference:.2g} of its largest output; {tolerance:g} is allowed, "
            "so it was not written"
        )
    return difference
