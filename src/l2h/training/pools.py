"""Samples that a rejector trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplePool:
    """Samples a rejector trains on, resident on the device, the two classifiers' outcomes computed once."""

    x: Tensor  # inputs
    view: Tensor  # the client's view, (n, V)
    y: Tensor  # int (n,), the truth
    client_correct: Tensor  # bool (n,)
    server_correct: Tensor  # bool (n,)
    server_probability: Tensor  # float (n, K), the server's softmax, scaled so that it holds on unseen samples
    client_target: Tensor  # float (n,), what the priced head of the client is trained towards
    server_target: Tensor  # what the head of the server is trained towards
    teacher: Tensor  # float (n, K), the class probabilities a rejector's student is taught

    def __len__(self) -> int:
        return len(self.x)

    def at(self, index: Tensor) -> SamplePool:
        """The samples at ``index``."""
        return SamplePool(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @staticmethod
    def join(pools: Sequence[SamplePool]) -> SamplePool:
        """All samples of several pools."""
        return SamplePool(*(torch.cat([getattr(p, name) for p in pools]) for name in SamplePool.__dataclass_fields__))
