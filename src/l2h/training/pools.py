"""Samples that a rejector trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplePool:
    """Samples a rejector trains on, resident on the device, the two classifiers' outcomes computed once.

    Attributes:
        x: inputs.
        view: the client's view, (n, V).
        y: int (n,), the truth.
        client_correct: bool (n,).
        server_correct: bool (n,).
        server_probability: float (n, K), the server's softmax, scaled so that it holds on unseen samples.
        client_target: float (n,), what the priced head of the client is trained towards.
        server_target: what the head of the server is trained towards.
        teacher: float (n, K), the class probabilities a rejector's student is taught.
    """

    x: Tensor
    view: Tensor
    y: Tensor
    client_correct: Tensor
    server_correct: Tensor
    server_probability: Tensor
    client_target: Tensor
    server_target: Tensor
    teacher: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def at(self, index: Tensor) -> SamplePool:
        """The samples at ``index``."""
        return SamplePool(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @staticmethod
    def join(pools: Sequence[SamplePool]) -> SamplePool:
        """All samples of several pools."""
        return SamplePool(*(torch.cat([getattr(p, name) for p in pools]) for name in SamplePool.__dataclass_fields__))
