"""The server stage: it trains the server, or any other classifier, by L1 alone."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2h.errors import ModelError
from l2h.losses import server_loss
from l2h.rows import Array, Rows, batch_rows, digest
from l2h.settings import StageSettings
from l2h.training.augment import augment, distort, mix
from l2h.training.loop import Context, SingleModelStage, run_stage
from l2h.training.parallel import Group, SharedModel
from l2h.training.streaming import BATCH, Inputs, pick, take_inputs


class ServerStage(SingleModelStage):
    """Trains ``model`` on (x, y); where held-out samples are given, it keeps the weights of the best held-out loss."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        x: Inputs,
        y: Tensor,
        settings: StageSettings,
        context: Context,
        held_out: tuple[Inputs, Tensor] | None = None,
    ) -> None:
        super().__init__(name, model, list(model.parameters()), x, settings, context)
        self.model, self.y, self.held_out = model, y, held_out
        self.peers = context.group
        self.shared = None if self.peers is None else self._share(self.peers)
        self.step.records &= self.shared is None
        self.best_loss = math.inf
        self.best_epoch = 0

    def _share(self, peers: Group) -> SharedModel:
        # Where they differ, processes would wait for each other without end, or train something else.
        own = replace(self.context.settings, device="auto", workers=None, threads=None)
        network = [(name, tensor.shape, tensor.dtype) for name, tensor in self.model.state_dict().items()]
        peers.require_same(
            self.context.device,
            settings=(own, self.settings),
            labels=digest(self.y.cpu().numpy()),
            network=network,
        )
        return SharedModel(self.model, peers)

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
            held_out_loss = self._held_out_loss(*self.held_out)
        if held_out_loss is not None and self.settings.patience is not None and held_out_loss < self.best_loss:
            self.best_loss, self.best_epoch = held_out_loss, self.epoch
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        return {"train_loss": train_loss, "held_out_loss": held_out_loss}

    def train_batch(self, chosen: Tensor, read: Tensor | None = None) -> Tensor:
        y, settings = self.y[chosen], self.settings
        x = augment(pick(self.x, chosen, read), self.context.settings.augment)
        own = None
        if settings.distort:
            x = distort(x.float(), settings.distort)
        if settings.mix:
            x, own = mix(x.float(), settings.mix)

        def loss_of(scores: Tensor, rows: slice) -> Tensor:
            loss = classifier_loss(scores, y[rows], settings)
            if own is not None:
                loss = own * loss + (1 - own) * classifier_loss(scores, y.roll(1)[rows], settings)
            return loss

        self.optimizer.zero_grad(set_to_none=True)
        if self.shared is not None:
            loss = self.shared.learn(x, loss_of, settings.reduction, self.context.autocast())
        else:
            with self.context.autocast():
                scores = self.model(x)
            loss = loss_of(scores.float(), slice(None))
            loss.backward()
        self.optimizer.step()
        return loss.detach() * (len(chosen) if self.settings.reduction == "mean" else 1)

    def _held_out_loss(self, x: Inputs, y: Tensor) -> float:
        if self.peers is None:
            return float(server_loss(log_probabilities(self.model, x, self.context), y))
        own = torch.arange(len(y), device=self.context.device)[self.peers.rows(len(y))]
        total = torch.zeros((), dtype=torch.float64, device=self.context.device)
        if len(own):
            total += server_loss(log_probabilities(self.model, x[own], self.context), y[own], reduction="sum")
        return float(self.peers.sum(total)) / len(y)

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
    X: Array | Rows,
    y: npt.NDArray[np.int64],
    settings: StageSettings,
    context: Context,
    held_out: tuple[Array | Rows, npt.NDArray[np.int64]] | None = None,
) -> int:
    """Train ``model`` in place, with the context's augmentation; return the epoch kept, counted from 1."""
    model.to(context.device)

    def samples(X: Array | Rows, y: npt.NDArray[np.int64]) -> tuple[Inputs, Tensor]:
        return take_inputs(X, context), torch.from_numpy(y).to(context.device)

    kept = None if held_out is None else samples(*held_out)
    stage = ServerStage(name, model, *samples(X, y), settings, context, kept)
    run_stage(stage, context)
    stage.keep_best()
    model.eval()
    return stage.best_epoch or stage.epoch


def log_probabilities(model: nn.Module, x: Inputs, context: Context) -> Tensor:
    """Return the log-softmax (n, K) of the model in evaluation mode, and put it back into the mode it was in."""
    training = model.training
    model.eval()
    with torch.no_grad(), context.autocast():
        parts = [torch.log_softmax(model(part).float(), dim=-1) for part in x.split(batch_rows(tuple(x.shape), BATCH))]
    model.train(training)
    return torch.cat(parts)
