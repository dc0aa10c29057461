"""What a stack of rejectors is trained by: samples, and the loss of each rejector on each sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from l2h.decision import RejectorSpec
from l2h.losses import priced_losses, weight_table, weighted_log_loss


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


#: Scores (R, n, 2) of R rejectors on a pool of n samples, to losses (R, n).
Objective = Callable[[Tensor, SamplePool], Tensor]


class BatchLoss:
    """Loss of each rejector on each sample, (R, n); every rejector by its own kind and costs."""

    def __init__(self, specs: Sequence[RejectorSpec], device: torch.device) -> None:
        priced = [spec.loss == "priced" for spec in specs]
        self.all_priced, self.none_priced = all(priced), not any(priced)
        self.priced = torch.tensor(priced, device=device)[:, None]
        none = np.zeros((2, 2, 2))
        tables = np.stack(
            [none if s.costs is None or s.loss == "priced" else weight_table(s.costs, s.loss) for s in specs]
        )
        #: By the type of the scores: a GPU trains in single precision, and proofs want double.
        self.tables = {
            kind: torch.as_tensor(tables, dtype=kind, device=device) for kind in (torch.float32, torch.float64)
        }
        self.index = torch.arange(len(specs), device=device)[:, None]

    def weighted(self, scores: Tensor, client_correct: Tensor, server_correct: Tensor) -> Tensor:
        """Return the losses of rejectors without a priced one; who is right is (n,), or (R, n) where they differ."""
        client, server = (right.expand(scores.shape[:2]).long() for right in (client_correct, server_correct))
        return weighted_log_loss(scores, self.tables[scores.dtype][self.index, client, server])

    def on_pool(self, scores: Tensor, pool: SamplePool) -> Tensor:
        """Return the losses on samples of a pool."""
        if self.none_priced:
            return self.weighted(scores, pool.client_correct, pool.server_correct)
        priced = priced_losses(scores, pool.client_target, pool.server_target)
        if self.all_priced:
            return priced
        return torch.where(self.priced, priced, self.weighted(scores, pool.client_correct, pool.server_correct))
