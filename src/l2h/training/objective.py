"""What a stack of rejectors is trained by: the loss of each rejector on each sample."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2h.decision import RejectorSpec
from l2h.losses import priced_losses, weight_table, weighted_log_loss
from l2h.training.pools import SamplePool

#: Scores (R, n, 2) of R rejectors on a pool of n samples, to losses (R, n).
Objective = Callable[[Tensor, SamplePool], Tensor]


class BatchLoss:
    """Loss of each rejector on each sample, (R, n); every rejector by its own kind and costs."""

    def __init__(self, specs: Sequence[RejectorSpec], device: torch.device) -> None:
        def table(spec: RejectorSpec) -> Any:
            return np.zeros((2, 2, 2)) if spec.costs is None else weight_table(spec.costs, spec.loss)

        priced = [spec.loss == "priced" for spec in specs]
        self.all_priced, self.none_priced = all(priced), not any(priced)
        self.priced = torch.tensor(priced, device=device)[:, None]
        tables = np.stack([np.zeros((2, 2, 2)) if p else table(s) for p, s in zip(priced, specs, strict=True)])
        #: By the type of the scores: a GPU trains in single precision, and proofs want double.
        self.tables = {
            kind: torch.as_tensor(tables, dtype=kind, device=device) for kind in (torch.float32, torch.float64)
        }
        self.index = torch.arange(len(specs), device=device)[:, None]

    def __call__(
        self,
        scores: Tensor,
        client_correct: Tensor,
        server_correct: Tensor,
        client_target: Tensor,
        server_target: Tensor,
    ) -> Tensor:
        """Per-rejector, per-sample losses.

        ``server_correct`` is (n,), or (R, n) where copies of the server differ; ``client_correct`` likewise, where the
        rejectors stand beside different clients.
        """
        if self.all_priced:
            return priced_losses(scores, client_target, server_target)
        server = server_correct.expand(scores.shape[:2]).long()
        weights = self.tables[scores.dtype][self.index, client_correct.expand(scores.shape[:2]).long(), server]
        weighted = weighted_log_loss(scores, weights)
        if self.none_priced:
            return weighted
        return torch.where(self.priced, priced_losses(scores, client_target, server_target), weighted)

    def on_pool(self, scores: Tensor, pool: SamplePool) -> Tensor:
        """The losses on samples of a pool."""
        return self(scores, pool.client_correct, pool.server_correct, pool.client_target, pool.server_target)
