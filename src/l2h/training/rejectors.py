"""Many rejectors trained at once, as one batch of stacked weights; one rejector is the batch of one.

The rejectors of a batch share architecture and samples and differ in weights (their seeds), costs, loss and, under
Algorithm 2, sync interval. Each gets exactly the update it would get alone: the batch's loss is the sum of theirs,
and the optimizers work element by element.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from l2h.decision import RejectorSpec
from l2h.errors import ModelError, SettingsError
from l2h.losses import priced_losses, weight_table, weighted_log_loss
from l2h.models.rejectors import AttachedRejector, SeparateRejector
from l2h.settings import StageSettings
from l2h.training.capture import RecordedStep
from l2h.training.checkpoint import optimizer_tensors, restore_optimizer, under
from l2h.training.grouped import can_group, grouped_features, without_trunk
from l2h.training.loop import Context, Stage, learning_rate, make_optimizer, order, seeded, set_learning_rate

log = logging.getLogger("l2h.training")


@dataclass(frozen=True)
class Pool:
    """Samples a rejector trains on, resident on the device, the two classifiers' outcomes computed once.

    Attributes:
        x: inputs.
        view: the client's view, (n, V).
        y: int (n,), the truth.
        client_correct: bool (n,).
        server_correct: bool (n,).
        server_probability: float (n, K), the server's softmax at the temperature that makes it honest.
        client_target: float (n,), what the priced head of the client is trained towards.
        server_target: likewise the server's.
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

    def at(self, index: Tensor) -> Pool:
        """The samples at ``index``."""
        return Pool(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @staticmethod
    def join(pools: Sequence[Pool]) -> Pool:
        """All samples of several pools."""
        return Pool(*(torch.cat([getattr(p, name) for p in pools]) for name in Pool.__dataclass_fields__))


class RejectorBatch:
    """R rejectors of one architecture as stacked tensors, called all at once.

    Args:
        modules: one a rejector, initialised by their own seeds; they are copied.
        device: where the stack lives.
    """

    def __init__(self, modules: Sequence[nn.Module], device: torch.device) -> None:
        self.template = copy.deepcopy(modules[0])
        self.template.requires_grad_(False)
        params, buffers = stack_module_state(list(modules))
        self.params: dict[str, Tensor] = {n: p.detach().to(device).requires_grad_() for n, p in params.items()}
        self.buffers: dict[str, Tensor] = {n: b.detach().to(device) for n, b in buffers.items()}
        self.size = len(modules)
        self._can_group = self.size > 1 and can_group(self.template)
        self._rest = without_trunk(self.template) if self._can_group else self.template
        self.common = self._common()

    def __call__(self, x: Tensor, view: Tensor, train: bool = False) -> Tensor:
        """Outputs (R, n, 2), or (R, n, 2 + K) of rejectors with a student."""
        self.template.train(train)
        if self.size == 1:
            # Without vmap, so that a module of the user's may hold layers that vmap cannot batch.
            return self._one({name: t[0] for name, t in self.tensors().items()}, x, view).unsqueeze(0)
        own = {name: t for name, t in self.tensors().items() if name not in self.common}
        common = {name: self.buffers[name][0] for name in self.common}
        if self.grouped:
            return self._grouped(own, common, x, view)

        def one(own: dict[str, Tensor]) -> Tensor:
            return self._one({**own, **common}, x, view)

        try:
            out: Tensor = vmap(one, randomness="different")(own)
        except RuntimeError as error:
            raise ModelError(
                f"this rejector cannot be trained as a batch of {self.size}: {error}. Layers that keep running "
                "statistics, such as BatchNorm, are the usual cause: use GroupNorm, or train one rejector at a time"
            ) from error
        return out

    @property
    def grouped(self) -> bool:
        """Whether the trunks are run as one net of groups: where they are of such layers and see the same inputs."""
        return self._can_group and {"input.shift", "input.scale"} <= self.common

    def _grouped(self, own: dict[str, Tensor], common: dict[str, Tensor], x: Tensor, view: Tensor) -> Tensor:
        scaled = (x.float() - common["input.shift"]) * common["input.scale"]
        features = grouped_features(self.template.get_submodule("trunk"), under("trunk.", own), scaled, self.size)
        heads = {name: t for name, t in own.items() if not name.startswith("trunk.")}
        fixed = {name: t for name, t in common.items() if not name.startswith("input.")}

        def one(heads: dict[str, Tensor], features: Tensor) -> Tensor:
            args = (features, view) if getattr(self.template, "uses_client", False) else (features,)
            out: Tensor = functional_call(self._rest, {**heads, **fixed}, args)
            return out

        return vmap(one, randomness="different")(heads, features)

    def _one(self, state: dict[str, Tensor], x: Tensor, view: Tensor) -> Tensor:
        args = (x, view) if getattr(self.template, "uses_client", False) else (x,)
        out: Tensor = functional_call(self.template, state, args)
        return out

    def scores(self, x: Tensor, view: Tensor, context: Context, batch: int = 2048, *, student: bool = False) -> Tensor:
        """Scores (R, n, 2) in evaluation mode, without gradients; of the student, (R, n, K)."""
        part = slice(2, None) if student else slice(2)
        with torch.no_grad(), context.autocast():
            parts = [self(a, b)[..., part].float() for a, b in zip(x.split(batch), view.split(batch), strict=True)]
        return torch.cat(parts, dim=1)

    def tensors(self) -> dict[str, Tensor]:
        """All weights and buffers, stacked."""
        return {**self.params, **self.buffers}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over stacked weights."""
        with torch.no_grad():
            for name, own in self.tensors().items():
                own.copy_(tensors[name])
        self.common = self._common()

    def _common(self) -> frozenset[str]:
        """Buffers that all rejectors share, the scalings: what needs them alone is computed once.

        Of a module of the user's none is taken for shared, since its training may change them.
        """
        if not isinstance(self.template, AttachedRejector | SeparateRejector):
            return frozenset()
        return frozenset(name for name, buffer in self.buffers.items() if bool((buffer == buffer[:1]).all()))

    def module(self, i: int) -> nn.Module:
        """The i-th rejector as a module of its own."""
        module = copy.deepcopy(self.template)
        module.load_state_dict({name: tensor[i].detach().clone() for name, tensor in self.tensors().items()})
        return module.to(next(iter(self.params.values())).device).eval()


class BatchLoss:
    """Loss of each rejector on each sample, (R, n); every rejector by its own kind and costs."""

    def __init__(self, specs: Sequence[RejectorSpec], device: torch.device) -> None:
        def table(spec: RejectorSpec) -> Any:
            return np.zeros((2, 2, 2)) if spec.costs is None else weight_table(spec.costs, spec.loss)

        priced = [spec.loss == "priced" for spec in specs]
        self.all_priced, self.none_priced = all(priced), not any(priced)
        self.priced = torch.tensor(priced, device=device)[:, None]
        tables = np.stack([np.zeros((2, 2, 2)) if p else table(s) for p, s in zip(priced, specs, strict=True)])
        self.tables = torch.as_tensor(tables, dtype=torch.float32, device=device)
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
        weights = self.tables[self.index, client_correct.expand(scores.shape[:2]).long(), server]
        weighted = weighted_log_loss(scores, weights)
        if self.none_priced:
            return weighted
        return torch.where(self.priced, priced_losses(scores, client_target, server_target), weighted)

    def on_pool(self, scores: Tensor, pool: Pool) -> Tensor:
        """The losses on samples of a pool."""
        return self(scores, pool.client_correct, pool.server_correct, pool.client_target, pool.server_target)


class RejectorStep:
    """One step of the rejectors by their L2, given who is right on a batch: the second half of Algorithms 1 and 2.

    Args:
        rejectors: trained in place.
        specs: one a rejector; none may be priced.
        settings: optimizer, schedule and reduction.
        context: shared.

    Raises:
        SettingsError: a priced spec, whose heads need a finished server.
    """

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

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next updates."""
        set_learning_rate(self.optimizer, rate)

    def update(self, x: Tensor, view: Tensor, client_correct: Tensor, server_correct: Tensor, *keys: Any) -> Tensor:
        """Gives each rejector's loss summed over the batch, (R,). ``keys`` seed what the rejectors draw."""
        # What a rejector draws, such as for dropout, must not move anyone else's draws; ours draw nothing.
        own = (
            seeded(self.context.device, self.context.settings.seed, "rejector", *keys) if self.draws else nullcontext()
        )
        with own, self.context.autocast():
            scores = self.rejectors(x, view, train=True)[..., :2]
        # The targets are those of the priced heads, of which there are none.
        target = client_correct.float()
        losses = self.loss(scores.float(), client_correct, server_correct, target, target)
        each = losses.sum(1) if self.settings.reduction == "sum" else losses.mean(1)
        self.optimizer.zero_grad(set_to_none=True)
        each.sum().backward()
        self.optimizer.step()
        return losses.detach().sum(1)

    def row(self, total: Tensor, samples: int, epoch: int) -> dict[str, float]:
        """The columns of the history: the mean over rejectors and, where there are several, each one's loss."""
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
        """Weights and optimizer."""
        return {
            **{f"rejectors/{name}": tensor for name, tensor in self.rejectors.tensors().items()},
            **{f"rejectors-{name}": tensor for name, tensor in optimizer_tensors(self.optimizer).items()},
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave."""
        self.rejectors.load(under("rejectors/", tensors))
        restore_optimizer(self.optimizer, under("rejectors-", tensors))


class RejectorStage(Stage):
    """Trains a batch of rejectors on a pool; each keeps its weights of the best held-out loss.

    Args:
        name: of the stage.
        rejectors: trained in place.
        loss: of scores (R, n, 2) on samples of a pool, (R, n).
        pool: to train on.
        settings: of the stage.
        context: shared.
        held_out: to stop early on; None: neither.
        draws: the stage whose draws it shares; None: its own.
    """

    def __init__(
        self,
        name: str,
        rejectors: RejectorBatch,
        loss: Callable[[Tensor, Pool], Tensor],
        pool: Pool,
        settings: StageSettings,
        context: Context,
        held_out: Pool | None = None,
        draws: str | None = None,
    ) -> None:
        super().__init__(name, settings, len(pool), draws)
        self.rejectors, self.loss = rejectors, loss
        self.pool, self.held_out, self.context = pool, held_out, context
        self.optimizer = make_optimizer(settings, list(rejectors.params.values()))
        self.step = RecordedStep(self._work, context.device, settings.batch)
        self.best_loss = torch.full((rejectors.size,), float("inf"), device=context.device)
        self.best_epoch = torch.zeros(rejectors.size, dtype=torch.long, device=context.device)
        self.best = {name: tensor.detach().clone() for name, tensor in rejectors.tensors().items()}
        self.epoch = 0

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        """One pass; nothing in it waits for the host."""
        shuffled = order(self.samples, self.context.device, self.context.settings.seed, self.draws, epoch)
        total = torch.zeros(self.rejectors.size, device=self.context.device)
        for step, chosen in enumerate(shuffled.split(self.settings.batch)):
            rate = learning_rate(self.settings, epoch * self.steps + step, self.settings.epochs * self.steps)
            set_learning_rate(self.optimizer, rate)
            total += self.step(chosen)
            tick()
        self.epoch = epoch + 1
        held_out = self._held_out()
        if held_out is not None and self.settings.patience is not None:
            self._remember(held_out)
        return {
            "train_loss": float(total.mean()) / self.samples,
            "held_out_loss": None if held_out is None else float(held_out.mean()),
        }

    def _work(self, chosen: Tensor) -> Tensor:
        losses = self._losses(self.pool.at(chosen), train=True)
        each = losses.mean(1) if self.settings.reduction == "mean" else losses.sum(1)
        self.optimizer.zero_grad(set_to_none=True)
        each.sum().backward()
        self.optimizer.step()
        return losses.detach().sum(1)

    def _losses(self, pool: Pool, train: bool) -> Tensor:
        with self.context.autocast():
            out = self.rejectors(pool.x, pool.view, train=train)
        losses = self.loss(out[..., :2].float(), pool)
        if train and out.shape[-1] > 2:
            losses = losses + weighted_log_loss(out[..., 2:].float(), pool.teacher)
        return losses

    def _held_out(self) -> Tensor | None:
        if self.held_out is None:
            return None
        with torch.no_grad():
            parts = [
                self._losses(self.held_out.at(part), train=False)
                for part in torch.arange(len(self.held_out), device=self.context.device).split(2048)
            ]
        return torch.cat(parts, dim=1).mean(1)

    def _remember(self, held_out: Tensor) -> None:
        """Each rejector keeps its best; one whose patience ran out keeps what it has, as it would alone."""
        waiting = self.epoch - self.best_epoch <= (self.settings.patience or 0)
        better = waiting & (held_out < self.best_loss)
        self.best_loss = torch.where(better, held_out, self.best_loss)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        for name, tensor in self.rejectors.tensors().items():
            mask = better.reshape(-1, *(1,) * (tensor.ndim - 1))
            self.best[name] = torch.where(mask, tensor.detach(), self.best[name])

    @property
    def stopped(self) -> bool:
        """True when no rejector's held-out loss has fallen for ``patience`` epochs."""
        patience = self.settings.patience
        if patience is None or self.held_out is None or self.epoch == 0:
            return False
        return bool((self.epoch - self.best_epoch >= patience).all())

    def tensors(self) -> dict[str, Tensor]:
        """Weights, optimizer, best weights."""
        return {
            **{f"model/{name}": tensor for name, tensor in self.rejectors.tensors().items()},
            **{f"best/{name}": tensor for name, tensor in self.best.items()},
            **optimizer_tensors(self.optimizer),
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "epoch": torch.tensor(self.epoch),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave."""
        self.rejectors.load(under("model/", tensors))
        self.best = {name: tensor.to(self.context.device) for name, tensor in under("best/", tensors).items()}
        restore_optimizer(self.optimizer, tensors)
        self.best_loss = tensors["best_loss"].to(self.context.device)
        self.best_epoch = tensors["best_epoch"].to(self.context.device)
        self.epoch = int(tensors["epoch"])

    def keep_best(self) -> None:
        """Put each rejector's best weights in place.

        Raises:
            ModelError: a rejector never had a finite held-out loss, so that its best weights are untrained ones.
        """
        if self.settings.patience is not None and self.held_out is not None:
            lost = (~torch.isfinite(self.best_loss)).nonzero().flatten().tolist()
            if lost:
                raise ModelError(
                    f"{self.name} {', '.join(map(str, lost))}: the held-out loss was never finite: lower lr (it is "
                    f"{self.settings.lr:g})"
                )
            self.rejectors.load(self.best)
