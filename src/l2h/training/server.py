"""The server stage: it trains the server, or any other classifier, by L1 alone."""

import math
from collections.abc import Mapping
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
from l2h.training.loop import Context, SingleModelStage, run_stage


class ServerStage(SingleModelStage):
    """Trains ``model`` on (x, y); where held-out samples are given, it keeps the weights of the best held-out loss."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        settings: StageSettings,
        context: Context,
        held_out: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(name, model, list(model.parameters()), len(x), settings, context)
        self.model, self.x, self.y, self.held_out = model, x, y, held_out
        self.best_loss = math.inf
        self.best_epoch = 0

    def begin_epoch(self) -> None:
        self.model.train()

    def end_epoch(self, total: Tensor) -> dict[str, Any]:
        train_loss = float(total) / self.samples
        if not math.isfinite(train_loss):
            raise ModelError(
                f"{self.name}: the loss is no longer finite in epoch {self.epoch}: lower lr (it is "
                f"{self.settings.lr:g})"
            )
        held_out_loss = None
        if self.held_out is not None:
            x, y = self.held_out
            held_out_loss = float(server_loss(log_probabilities(self.model, x, self.context), y))
        if held_out_loss is not None and self.settings.patience is not None and held_out_loss < self.best_loss:
            self.best_loss, self.best_epoch = held_out_loss, self.epoch
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        return {"train_loss": train_loss, "held_out_loss": held_out_loss}

    def train_batch(self, chosen: Tensor) -> Tensor:
        x, y, settings = augment(self.x[chosen], self.context.settings.augment), self.y[chosen], self.settings
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

    @property
    def stopped(self) -> bool:
        patience = self.settings.patience
        return bool(self.best) and patience is not None and self.epoch - self.best_epoch >= patience

    def tensors(self) -> dict[str, Tensor]:
        progress = torch.tensor([self.epoch, self.best_epoch, self.best_loss], dtype=torch.float64)
        return {**super().tensors(), "progress": progress}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        epoch, best_epoch, self.best_loss = tensors["progress"].tolist()
        self.epoch, self.best_epoch = int(epoch), int(best_epoch)


def classifier_loss(scores: Tensor, y: Tensor, settings: StageSettings) -> Tensor:
    """Return L1 of scores (n, K), with the label smoothing and the reduction of the settings."""
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
    """Train ``model`` in place, with the context's augmentation; return the epoch kept, counted from 1."""
    device = context.device
    model.to(device)
    x, labels, *kept = (torch.from_numpy(a).to(device) for a in (X, y, *(held_out or ())))
    stage = ServerStage(name, model, x, labels, settings, context, (kept[0], kept[1]) if kept else None)
    run_stage(stage, context)
    stage.keep_best()
    model.eval()
    return stage.best_epoch or stage.epoch


def log_probabilities(model: nn.Module, x: Tensor, context: Context, batch: int = 2048) -> Tensor:
    """Return the log-softmax (n, K) of the model in evaluation mode, and put it back into the mode it was in."""
    training = model.training
    model.eval()
    with torch.no_grad(), context.autocast():
        parts = [torch.log_softmax(model(part).float(), dim=-1) for part in x.split(batch)]
    model.train(training)
    return torch.cat(parts)
