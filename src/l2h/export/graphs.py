"""What the ONNX models of a bundle compute, as torch modules; and the client's model and the rejector's as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from l2h.classifiers import FLOOR, TorchClassifier
from l2h.models import client_view

if TYPE_CHECKING:
    from onnx import ModelProto

#: Prefix of the rejector's names in a fused model.
PREFIX = "rejector/"
_LOWEST = float(np.log(FLOOR))


class ClassifierGraph(nn.Module):
    """A torch classifier: its log-probabilities (n, K) of raw samples, or its own scores, and its features if wanted.

    Args:
        classifier: on the CPU.
        gives: what its output is: ``logits``, ``probability`` or ``label``; None gives the output as it is.
        num_classes: K.
        features: whether its features are wanted.
    """

    def __init__(self, classifier: TorchClassifier, gives: str | None, num_classes: int, features: bool) -> None:
        super().__init__()
        self.module = classifier.callable_module
        self.classifier, self.gives, self.num_classes, self.features = classifier, gives, num_classes, features

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if x.dtype == torch.uint8:
            x = x.float() / 127.5 - 1
        scores, features = self.classifier.forward(x, self.features)
        if self.gives is not None:
            scores = self._log_probability(scores)
        return (scores, features) if self.features else (scores,)

    def _log_probability(self, scores: Tensor) -> Tensor:
        """Apply the rules of :func:`l2h.classifiers.read_output`."""
        if self.gives == "label":
            label = scores.reshape(-1, 1).long()
            one_hot = label == torch.arange(self.num_classes)
            return torch.where(one_hot, 0.0, _LOWEST)
        if self.gives == "probability":
            return scores.float().clamp(min=FLOOR).log()
        if scores.ndim == 1 or scores.shape[1] == 1:  # the margin of two classes
            margin = scores.reshape(-1, 1).float()
            return torch.log_softmax(torch.cat([torch.zeros_like(margin), margin], dim=1), dim=1)
        return torch.log_softmax(scores.float(), dim=1)


class RejectorGraph(nn.Module):
    """R rejectors as one: scores (n, R, 2) from samples and the client's answers, without the students' scores."""

    def __init__(self, rejectors: Sequence[nn.Module]) -> None:
        super().__init__()
        self.rejectors = nn.ModuleList(rejectors)
        self.uses_client = bool(getattr(rejectors[0], "uses_client", False))

    def forward(self, x: Tensor, log_probability: Tensor | None = None, embedding: Tensor | None = None) -> Tensor:
        if not self.uses_client:
            return torch.stack([rejector(x)[:, :2] for rejector in self.rejectors], dim=1)
        assert log_probability is not None
        view = client_view(log_probability, embedding)
        return torch.stack([rejector(x, view)[:, :2] for rejector in self.rejectors], dim=1)


def can_fuse(client: ModelProto, rejector: ModelProto) -> bool:
    """Return whether both models are written in the same operator sets."""
    sets: list[dict[str, int]] = [{o.domain: o.version for o in model.opset_import} for model in (client, rejector)]
    return all(sets[1].get(domain, version) == version for domain, version in sets[0].items())


def fuse(client: ModelProto, rejector: ModelProto) -> ModelProto:
    """Return one model of ``x`` that runs the client once: its ``log_probability``, and the rejector's ``scores``."""
    from onnx import ModelProto, checker, compose

    joined = ModelProto()
    joined.CopyFrom(client)
    other = compose.add_prefix(rejector, PREFIX)
    # The rejector reads the client's tensors by the client's names, and its own output keeps its plain name.
    plain = {f"{PREFIX}{entry.name}": entry.name for entry in (*rejector.graph.input, *rejector.graph.output)}
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
