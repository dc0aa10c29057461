"""The ONNX models of a bundle, each compared with its original: the client, the rejectors and the server."""

from __future__ import annotations

import copy
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from l2h.bundle import ServerPart
from l2h.classifiers.reading import Array
from l2h.errors import L2HWarning
from l2h.export.checking import check_module, probes
from l2h.export.classifiers import CLIENT, SERVER, export_client, export_fixed_server
from l2h.export.fusing import can_fuse, check_fused, fuse
from l2h.export.graphs import RejectorGraph
from l2h.export.onnx import ExportedClassifier, quiet, to_onnx

if TYPE_CHECKING:
    from onnx import ModelProto

    from l2h.fitted import FittedSystem

REJECTOR = "rejector.onnx"
log = logging.getLogger("l2h")


@dataclass(frozen=True)
class BundleModels:
    """The models of a bundle."""

    client: ExportedClassifier  # the client's file
    rejector: ModelProto  # the rejectors' model by itself
    uses_client: bool  # whether the rejectors read the client's answers
    fused: bool  # whether the device runs the client and the rejectors as one model
    server: bytes | None  # the server's file; None where there is none
    server_part: ServerPart  # the names of its input and output
    agreement: dict[str, float]  # the largest difference of each file from its original

    def on_device(self, rejector: ModelProto) -> ModelProto:
        """Return what the device runs for a rejector, float or quantised: with the client where they are fused."""
        if not self.fused:
            return rejector
        assert self.client.graph is not None
        return fuse(self.client.graph, rejector)


def export_models(fitted: FittedSystem, chosen: list[int]) -> BundleModels:
    """Convert the models of a system, with the rejectors of these numbers.

    Raises:
        ExportError: the rejector or the server cannot be converted, or a model differs from its original.
    """
    batches = probes(fitted)
    log.info("exporting the client")
    client = export_client(fitted.client, fitted.num_classes, fitted.embedding_size > 0, batches)
    log.info("exporting the rejector")
    rejector, uses_client, difference = _export_rejector(fitted, chosen, batches)
    agreement = {REJECTOR: difference}
    if client.agreement is not None:
        agreement[CLIENT] = client.agreement
    log.info("exporting the server")
    server, server_part, difference = _export_server(fitted, batches)
    if server is not None:
        agreement[SERVER] = difference
    fused = uses_client and client.graph is not None and can_fuse(client.graph, rejector)
    if fused:
        assert client.graph is not None
        check_fused(client.graph, rejector, REJECTOR, batches)
    return BundleModels(client, rejector, uses_client, fused, server, server_part, agreement)


def _export_rejector(fitted: FittedSystem, chosen: list[int], batches: list[Array]) -> tuple[ModelProto, bool, float]:
    """Return the rejectors' model, whether it reads the client, and its largest difference from the originals."""
    with quiet():
        original = RejectorGraph([fitted.rejectors.module(r).cpu() for r in chosen], fitted.method)
    rng = np.random.default_rng(1)
    names = ["x"]
    if original.uses_client:
        names += ["log_probability"] + (["embedding"] if fitted.embedding_size else [])

    def feeds(X: Array) -> dict[str, Array]:
        scores = torch.from_numpy(3 * rng.standard_normal((len(X), fitted.num_classes)).astype(np.float32))
        features = rng.standard_normal((len(X), fitted.embedding_size)).astype(np.float32)
        known = {"x": X, "log_probability": torch.log_softmax(scores, dim=1).numpy(), "embedding": features}
        return {name: known[name] for name in names}

    example = {name: values[:2] for name, values in feeds(batches[1]).items()}
    model = to_onnx(original, example, ["scores"], "the rejector")
    return model, original.uses_client, check_module(original, model, REJECTOR, [feeds(X) for X in batches])


def _export_server(fitted: FittedSystem, batches: list[Array]) -> tuple[bytes | None, ServerPart, float]:
    """Return the server's file, the names of its input and output, and its largest difference from the original."""
    reason = ""
    if fitted.fixed_server is not None:
        exported, reason = export_fixed_server(fitted.fixed_server, fitted.num_classes, batches)
        if exported is not None:
            part = exported.part
            assert part.input is not None
            assert part.output is not None
            return exported.data, ServerPart(SERVER, part.input, part.output), exported.agreement or 0.0
    elif fitted.server is None:
        reason = "it was trained elsewhere: server_run= of l2h.load, or --server-run, adds it"
    if reason:
        warnings.warn(f"the server is not in the bundle: {reason}", L2HWarning, stacklevel=4)
        return None, ServerPart(None, "x", "scores"), 0.0
    assert fitted.server is not None
    original = copy.deepcopy(fitted.server).cpu()
    model = to_onnx(original, {"x": batches[1][:2]}, ["scores"], "the server")
    difference = check_module(original, model, SERVER, [{"x": X} for X in batches])
    return model.SerializeToString(), ServerPart(SERVER, "x", "scores"), difference
