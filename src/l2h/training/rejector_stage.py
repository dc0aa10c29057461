"""What trains rejectors: samples, losses, and steps beside a server that still learns or on outcomes that are known."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2h.decision import RejectorSpec
from l2h.errors import ModelError, SettingsError
from l2h.losses import priced_losses, weight_table, weighted_log_loss
from l2h.models.rejectors import AttachedRejector, SeparateRejector, client_log_probability
from l2h.rows import batch_rows
from l2h.settings import StageSettings
from l2h.training.checkpoint import optimizer_tensors, prefixed, restore_optimizer, under
from l2h.training.loop import Context, SingleModelStage, make_optimizer, seeded
from l2h.training.rejectors import RejectorBatch
from l2h.training.streaming import BATCH, Inputs, StreamedInputs, pick

log = logging.getLogger("l2h.training")


@dataclass(frozen=True)
class SamplePool:
    """Samples a rejector trains on, the classifiers' outcomes computed once and resident on the device.

    Of one server, ``server_correct`` and ``server_target`` are (n,); of S of them (n, S), in their order.
    """

    x: Inputs  # on the device as well, or streamed
    view: Tensor  # the client's view, (n, V)
    y: Tensor  # int (n,), the truth
    client_correct: Tensor  # bool (n,)
    server_correct: Tensor  # bool (n,) or (n, S)
    #: float (n, K), the softmax of the server, or of the most accurate one, scaled so that it holds on unseen samples
    server_probability: Tensor
    client_target: Tensor  # float (n,), what the priced head of the client is trained towards
    server_target: Tensor  # float (n,) or (n, S), what the heads of the servers are trained towards
    teacher: Tensor  # float (n, K), the class probabilities a rejector's student is taught

    def __len__(self) -> int:
        return len(self.x)

    def at(self, index: Tensor, x: Tensor | None = None) -> SamplePool:
        """Return the samples at ``index``; ``x`` are their inputs, if they were read already."""
        others = {name: getattr(self, name)[index] for name in self.__dataclass_fields__ if name != "x"}
        return type(self)(x=self.x[index] if x is None else x, **others)

    def only(self, number: int) -> SamplePool:
        """Return the pool of several servers as that of one of them."""
        correct, target = self.server_correct[:, number], self.server_target[:, number]
        return replace(self, server_correct=correct, server_target=target)

    @staticmethod
    def join(pools: Sequence[SamplePool]) -> SamplePool:
        others = [name for name in SamplePool.__dataclass_fields__ if name != "x"]
        joined = {name: torch.cat([getattr(pool, name) for pool in pools]) for name in others}
        streamed = [pool.x for pool in pools if isinstance(pool.x, StreamedInputs)]
        resident = [pool.x for pool in pools if isinstance(pool.x, Tensor)]
        return SamplePool(x=StreamedInputs.join(streamed) if streamed else torch.cat(resident), **joined)


#: Scores (R, n, heads) of R rejectors on a pool of n samples, to losses (R, n).
Objective = Callable[[Tensor, SamplePool], Tensor]


@dataclass(frozen=True)
class UncertainPool(SamplePool):
    """Samples of one server whose truth is known by its probabilities, such as the server's softmax of them."""

    labels: Tensor  # float (n, K), how likely each class is the truth

    def every_label(self) -> SamplePool:
        """Return each sample K times, with each class as its truth in turn, (n * K); without inputs."""
        n, classes = self.labels.shape
        y = torch.arange(classes, device=self.y.device).repeat(n)
        answered = client_log_probability(self.view, classes).argmax(-1), self.server_probability.argmax(-1)
        client, server = (label.repeat_interleave(classes) == y for label in answered)
        view, probability, teacher = (
            tensor.repeat_interleave(classes, dim=0) for tensor in (self.view, self.server_probability, self.teacher)
        )
        return SamplePool(self.view[:0], view, y, client, server, probability, client.float(), server.float(), teacher)


def over_labels(objective: Objective) -> Objective:
    """Return the expected value of a loss over the truth where that is uncertain; elsewhere it is the loss."""

    def expected(scores: Tensor, pool: SamplePool) -> Tensor:
        if not isinstance(pool, UncertainPool):
            return objective(scores, pool)
        classes = pool.labels.shape[1]
        losses = objective(scores.repeat_interleave(classes, dim=1), pool.every_label())
        return torch.sum(losses.unflatten(1, (-1, classes)) * pool.labels, dim=-1)

    return expected


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
        if self.none_priced:
            return self.weighted(scores, pool.client_correct, pool.server_correct)
        priced = priced_losses(scores, pool.client_target, pool.server_target)
        if self.all_priced:
            return priced
        return torch.where(self.priced, priced, self.weighted(scores, pool.client_correct, pool.server_correct))


class RejectorStep:
    """One step of the rejectors by their L2, given who is right on a batch: the second half of Algorithms 1 and 2."""

    def __init__(
        self, rejectors: RejectorBatch, specs: Sequence[RejectorSpec], settings: StageSettings, context: Context
    ) -> None:
        if any(spec.loss == "priced" for spec in specs):
            raise SettingsError("the paper's recipe trains a rejector for a price: 'priced' needs recipe 'default'")
        self.rejectors, self.specs, self.settings, self.context = rejectors, tuple(specs), settings, context
        self.draws = not isinstance(rejectors.template, SeparateRejector | AttachedRejector)
        self.loss = BatchLoss(specs, context.device)
        self.optimizer = make_optimizer(settings, list(rejectors.params.values()))
        self.lost: set[int] = set()

        self.starts = torch.tensor([spec.start for spec in specs], device=context.device)
        self.started: Tensor | None = None  # 1 for each rejector that learns already, else 0; None where all do
        if any(spec.start for spec in specs):
            if settings.optimizer != "sgd" or settings.weight_decay:
                raise SettingsError(
                    "start goes with optimizer 'sgd' without weight decay: others move a net that waits"
                )
            self.started = torch.ones(len(specs), device=context.device)

    def begin_epoch(self, epoch: int) -> None:
        """Let the rejectors learn whose start has come. The gradients of the others are 0, and so they stay."""
        if self.started is not None:
            self.started.copy_(self.starts <= epoch)

    def update(self, x: Tensor, view: Tensor, client_correct: Tensor, server_correct: Tensor, *keys: Any) -> Tensor:
        """Return each rejector's loss summed over the batch, (R,). ``keys`` seed what the rejectors draw."""
        return self.learn(self.scores(x, view, *keys), client_correct, server_correct)

    def scores(self, x: Tensor, view: Tensor, *keys: Any) -> Tensor:
        """Return the scores (R, n, 2) to learn by. ``keys`` seed what the rejectors draw."""
        # What a rejector draws, such as for dropout, must not move anyone else's draws; ours draw nothing.
        seed = self.context.settings.seed
        own = seeded(self.context.device, seed, "rejector", *keys) if self.draws else nullcontext()
        with own, self.context.autocast():
            return self.rejectors(x, view, train=True)[..., :2]

    def learn(self, scores: Tensor, client_correct: Tensor, server_correct: Tensor) -> Tensor:
        """Take a step by L2; return each rejector's loss summed over the batch, (R,)."""
        losses = self.loss.weighted(scores.float(), client_correct, server_correct)
        if self.started is not None:
            losses = losses * self.started[:, None]
        each = losses.sum(1) if self.settings.reduction == "sum" else losses.mean(1)
        self.optimizer.zero_grad(set_to_none=True)
        each.sum().backward()
        self.optimizer.step()
        return losses.detach().sum(1)

    def row(self, total: Tensor, samples: int, epoch: int) -> dict[str, float]:
        """Return the columns of the history: the mean loss and, where there are several rejectors, each one's."""
        losses = (total / samples).tolist()
        for i, (value, spec) in enumerate(zip(losses, self.specs, strict=True)):
            if not math.isfinite(value) and i not in self.lost:
                self.lost.add(i)
                log.warning(
                    "rejector %d (%s, %s) is no longer finite in epoch %d: its loss has no lower bound where "
                    "c_e + c_1 > 1; 'shifted' and 'swapped' have one",
                    i,
                    spec.loss,
                    spec.costs,
                    epoch + 1,
                )
        row = {"rejector_loss": sum(losses) / len(losses)}
        if len(losses) > 1:
            row |= {f"rejector_loss_{i}": value for i, value in enumerate(losses)}
        return row

    def tensors(self) -> dict[str, Tensor]:
        weights = prefixed("rejectors/", self.rejectors.state_dict())
        return weights | prefixed("rejectors-", optimizer_tensors(self.optimizer))

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.rejectors.load_state_dict(under("rejectors/", tensors))
        restore_optimizer(self.optimizer, under("rejectors-", tensors))


class RejectorStage(SingleModelStage):
    """Trains rejectors on a pool by losses (R, n); each keeps its weights of the best loss on ``held_out``."""

    def __init__(
        self,
        name: str,
        rejectors: RejectorBatch,
        loss: Objective,
        pool: SamplePool,
        settings: StageSettings,
        context: Context,
        held_out: SamplePool | None = None,
        draws: str | None = None,
    ) -> None:
        super().__init__(name, rejectors, list(rejectors.params.values()), pool.x, settings, context, draws)
        self.rejectors, self.loss, self.pool, self.held_out = rejectors, loss, pool, held_out
        self.loss_shape = (rejectors.size,)
        self.best_loss = torch.full((rejectors.size,), float("inf"), device=context.device)
        self.best_epoch = torch.zeros(rejectors.size, dtype=torch.long, device=context.device)
        self.best = {name: tensor.detach().clone() for name, tensor in rejectors.state_dict().items()}

    def end_epoch(self, total: Tensor) -> dict[str, Any]:
        held_out = self._held_out_loss()
        if held_out is not None and self.settings.patience is not None:
            self._remember(held_out)
        return {
            "train_loss": float(total.mean()) / self.samples,
            "held_out_loss": None if held_out is None else float(held_out.mean()),
        }

    def train_batch(self, chosen: Tensor, read: Tensor | None = None) -> Tensor:
        losses = self._losses(self.pool.at(chosen, pick(self.x, chosen, read)), train=True)
        each = losses.mean(1) if self.settings.reduction == "mean" else losses.sum(1)
        self.optimizer.zero_grad(set_to_none=True)
        each.sum().backward()
        self.optimizer.step()
        return losses.detach().sum(1)

    def _losses(self, pool: SamplePool, train: bool) -> Tensor:
        with self.context.autocast():
            assert isinstance(pool.x, Tensor)
            out = self.rejectors(pool.x, pool.view, train=train)
        heads = self.rejectors.heads
        losses = self.loss(out[..., :heads].float(), pool)
        if train and out.shape[-1] > heads:
            losses = losses + weighted_log_loss(out[..., heads:].float(), pool.teacher)
        return losses

    def _held_out_loss(self) -> Tensor | None:
        if self.held_out is None:
            return None
        x, everything = self.held_out.x, torch.arange(len(self.held_out), device=self.context.device)
        batch = batch_rows(tuple(x.shape), BATCH)
        with torch.no_grad():
            parts = [
                self._losses(self.held_out.at(chosen, part), train=False)
                for chosen, part in zip(everything.split(batch), x.split(batch), strict=True)
            ]
        return torch.cat(parts, dim=1).mean(1)

    def _remember(self, held_out: Tensor) -> None:
        """Keep each rejector's best; one whose patience ran out keeps what it has, as it would alone."""
        waiting = self.epoch - self.best_epoch <= (self.settings.patience or 0)
        better = waiting & (held_out < self.best_loss)
        self.best_loss = torch.where(better, held_out, self.best_loss)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        for name, tensor in self.rejectors.state_dict().items():
            mask = better.reshape(-1, *(1,) * (tensor.ndim - 1))
            self.best[name] = torch.where(mask, tensor.detach(), self.best[name])

    @property
    def stopped(self) -> bool:
        patience = self.settings.patience
        if patience is None or self.held_out is None or self.epoch == 0:
            return False
        return bool((self.epoch - self.best_epoch >= patience).all())

    def tensors(self) -> dict[str, Tensor]:
        more = {"best_loss": self.best_loss, "best_epoch": self.best_epoch, "epoch": torch.tensor(self.epoch)}
        return {**super().tensors(), **more}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        self.best_loss = tensors["best_loss"].to(self.context.device)
        self.best_epoch = tensors["best_epoch"].to(self.context.device)
        self.epoch = int(tensors["epoch"])

    def keep_best(self) -> None:
        """Put each rejector's best weights in place; ModelError where one's are untrained, its loss never finite."""
        if self.settings.patience is None or self.held_out is None:
            return
        lost = (~torch.isfinite(self.best_loss)).nonzero().flatten().tolist()
        if lost:
            raise ModelError(
                f"{self.name} {', '.join(map(str, lost))}: the held-out loss was never finite: lower lr (it is "
                f"{self.settings.lr:g})"
            )
        super().keep_best()
