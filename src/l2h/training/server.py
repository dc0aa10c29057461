"""The server stage: L1 alone. The same stage trains any classifier by cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.errors import ModelError
from l2h.losses import server_loss
from l2h.settings import StageSettings
from l2h.training.augment import augment, distort, mix
from l2h.training.capture import RecordedStep
from l2h.training.checkpoint import optimizer_tensors, restore_optimizer, under
from l2h.training.loop import Context, Stage, learning_rate, make_optimizer, order, run_stage, set_learning_rate


class ServerStage(Stage):
    """Trains ``model`` on (x, y); keeps the weights of the best held-out loss where held-out samples are given."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        settings: StageSettings,
        context: Context,
        held_out: tuple[Tensor, Tensor] | None = None,
        augmentation: str = "none",
    ) -> None:
        super().__init__(name, settings, len(x))
        self.model, self.x, self.y = model, x, y
        self.context, self.held_out, self.augmentation = context, held_out, augmentation
        self.optimizer = make_optimizer(settings, list(model.parameters()))
        self.step = RecordedStep(self._work, x.device, settings.batch)
        self.best_loss = float("inf")
        self.best_epoch = 0
        self.best: dict[str, Tensor] = {}
        self.epoch = 0

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        """One pass; nothing in it waits for the host."""
        self.model.train()
        shuffled = order(self.samples, self.x.device, self.context.settings.seed, self.name, epoch)
        total = torch.zeros((), device=self.x.device)
        for step, chosen in enumerate(shuffled.split(self.settings.batch)):
            rate = learning_rate(self.settings, epoch * self.steps + step, self.settings.epochs * self.steps)
            set_learning_rate(self.optimizer, rate)
            total += self.step(chosen)
            tick()
        train_loss = float(total) / self.samples
        if not np.isfinite(train_loss):
            raise ModelError(
                f"{self.name}: the loss is no longer finite in epoch {epoch + 1}: lower lr (it is {self.settings.lr:g})"
            )
        self.epoch = epoch + 1
        held_out_loss = self._held_out()
        if held_out_loss is not None and self.settings.patience is not None and held_out_loss < self.best_loss:
            self.best_loss, self.best_epoch = held_out_loss, self.epoch
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        return {"train_loss": train_loss, "held_out_loss": held_out_loss}

    def _work(self, chosen: Tensor) -> Tensor:
        x, y, settings = augment(self.x[chosen], self.augmentation), self.y[chosen], self.settings
        own = None
        if settings.distort:
            x = distort(x.float(), settings.distort)
        if settings.mix:
            x, own = mix(x.float(), settings.mix)
        with self.context.autocast():
            scores = self.model(x)
        loss = classifier_loss(scores.float(), y, settings)
        if own is not None:
            loss = own * loss + (1 - own) * classifier_loss(scores.float(), y.roll(1), settings)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach() * (len(chosen) if self.settings.reduction == "mean" else 1)

    def _held_out(self) -> float | None:
        if self.held_out is None:
            return None
        x, y = self.held_out
        return float(server_loss(log_probabilities(self.model, x, self.context), y))

    @property
    def stopped(self) -> bool:
        """True when the held-out loss has not fallen for ``patience`` epochs."""
        patience = self.settings.patience
        return bool(self.best) and patience is not None and self.epoch - self.best_epoch >= patience

    def tensors(self) -> dict[str, Tensor]:
        """Weights, optimizer, best weights."""
        return {
            **{f"model/{name}": tensor for name, tensor in self.model.state_dict().items()},
            **{f"best/{name}": tensor for name, tensor in self.best.items()},
            **optimizer_tensors(self.optimizer),
            "progress": torch.tensor([self.epoch, self.best_epoch, self.best_loss], dtype=torch.float64),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave."""
        self.model.load_state_dict(under("model/", tensors))
        self.best = {name: tensor.to(self.x.device) for name, tensor in under("best/", tensors).items()}
        restore_optimizer(self.optimizer, tensors)
        epoch, best_epoch, self.best_loss = tensors["progress"].tolist()
        self.epoch, self.best_epoch = int(epoch), int(best_epoch)

    def keep_best(self) -> None:
        """Put the best weights in place."""
        if self.best:
            self.model.load_state_dict(self.best)


def classifier_loss(scores: Tensor, y: Tensor, settings: StageSettings) -> Tensor:
    """L1, its labels smoothed where the settings say so."""
    return F.cross_entropy(scores, y, reduction=settings.reduction, label_smoothing=settings.smoothing)


def train_classifier(
    name: str,
    model: nn.Module,
    X: npt.NDArray[Any],
    y: npt.NDArray[np.int64],
    settings: StageSettings,
    context: Context,
    held_out: tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | None = None,
) -> int:
    """Train ``model`` in place by cross-entropy, with the context's augmentation.

    Returns:
        The epoch whose weights were kept.
    """
    device = context.device
    model.to(device)
    stage = ServerStage(
        name,
        model,
        torch.from_numpy(X).to(device),
        torch.from_numpy(y).to(device),
        settings,
        context,
        None if held_out is None else tuple(torch.from_numpy(a).to(device) for a in held_out),  # type: ignore[arg-type]
        context.settings.augment,
    )
    run_stage(stage, context)
    stage.keep_best()
    model.eval()
    return stage.best_epoch or stage.epoch


def log_probabilities(model: nn.Module, x: Tensor, context: Context, batch: int = 2048) -> Tensor:
    """Log-softmax (n, K) of the model in evaluation mode; its mode is put back afterwards."""
    training = model.training
    model.eval()
    with torch.no_grad(), context.autocast():
        parts = [torch.log_softmax(model(part).float(), dim=-1) for part in x.split(batch)]
    model.train(training)
    return torch.cat(parts)
