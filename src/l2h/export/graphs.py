"""What the ONNX models of a bundle compute, as torch modules."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from l2h.classifiers import FLOOR, TorchClassifier
from l2h.methods import Learned
from l2h.models import client_view

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
        if self.num_classes == 2 and (scores.ndim == 1 or scores.shape[1] == 1):  # the margin of class 1 over class 0
            margin = scores.reshape(-1, 1).float()
            return torch.log_softmax(torch.cat([torch.zeros_like(margin), margin], dim=1), dim=1)
        return torch.log_softmax(scores.float(), dim=1)


class RejectorGraph(nn.Module):
    """R rejectors as one graph, (n, R, 2), on samples and the client's answers to them; without students' scores.

    Args:
        rejectors: on the CPU.
        method: turns their outputs into the scores that decide.
    """

    def __init__(self, rejectors: Sequence[nn.Module], method: Learned) -> None:
        super().__init__()
        self.rejectors = nn.ModuleList(rejectors)
        self.method = method
        self.reads_client = bool(getattr(rejectors[0], "uses_client", False))
        self.has_final = type(method).final is not Learned.final
        self.uses_client = self.reads_client or self.has_final

    def forward(self, x: Tensor, log_probability: Tensor | None = None, embedding: Tensor | None = None) -> Tensor:
        """Return the final scores."""
        inputs: tuple[Tensor, ...] = (x,)
        if self.reads_client:
            assert log_probability is not None
            inputs = (x, client_view(log_probability, embedding))
        scores = [rejector(*inputs)[:, :2] for rejector in self.rejectors]
        if self.has_final:
            assert log_probability is not None
            scores = [self.method.final(each, log_probability).float() for each in scores]
        return torch.stack(scores, dim=1)
