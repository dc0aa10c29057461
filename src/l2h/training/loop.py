"""The one loop over epochs that every stage goes through: seeding, history, checkpoints, progress, stopping."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2h.errors import SettingsError
from l2h.files import write_atomically
from l2h.settings import Settings, StageSettings
from l2h.training.checkpoint import Checkpoints
from l2h.training.progress import Progress, Silent

COLUMNS = ("stage", "epoch", "steps", "train_loss", "held_out_loss", "lr", "seconds")


@dataclass
class Context:
    """What all stages of one training share.

    Attributes:
        settings: of the training.
        device: where tensors live.
        checkpoints: where stages are kept.
        progress: who is told.
        history: a row an epoch of every stage.
        history_file: the CSV that is rewritten after each epoch; None: none.
    """

    settings: Settings
    device: torch.device
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(None))
    progress: Progress = field(default_factory=Silent)
    history: list[dict[str, Any]] = field(default_factory=list)
    history_file: Path | None = None

    def autocast(self) -> torch.autocast:
        """bf16 where the settings ask for it, else nothing."""
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.settings.precision == "bf16", cache_enabled=False
        )

    def write_history(self) -> None:
        """Rewrite ``history.csv`` whole, so that a resumed run has no row twice."""
        if self.history_file is None:
            return
        text = io.StringIO()
        columns = list(dict.fromkeys([*COLUMNS, *(key for row in self.history for key in row)]))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in self.history)
        write_atomically(self.history_file, text.getvalue().encode())


class Stage(ABC):
    """Something trained for some epochs.

    Everything an epoch draws depends on the seed, the stage's ``draws`` and the epoch's number alone, so a stage
    restored after any epoch goes on as if it had never stopped. ``draws`` is the stage's name unless it is to draw
    what another stage draws, such as the same order of samples.
    """

    def __init__(self, name: str, settings: StageSettings, samples: int, draws: str | None = None) -> None:
        self.name = name
        self.draws = draws or name
        self.settings = settings
        self.samples = samples

    @property
    def steps(self) -> int:
        """Steps an epoch."""
        return math.ceil(self.samples / self.settings.batch)

    @abstractmethod
    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        """One epoch, counted from 0; returns ``train_loss``, ``held_out_loss`` (or None) and more columns if any."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything needed to go on from here."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave."""

    @property
    def stopped(self) -> bool:
        """True once more epochs would change nothing."""
        return False


def run_stage(stage: Stage, context: Context) -> None:
    """Train a stage to its end, from its checkpoint if there is one to resume."""
    done, rows = 0, []
    saved = context.checkpoints.load(stage.name)
    if saved is not None:
        stage.restore(saved.tensors)
        done, rows = int(saved.meta["epoch"]), list(saved.meta["history"])
    context.history += rows
    context.progress.start(stage.name, stage.settings.epochs, stage.steps, done)
    for epoch in range(done, stage.settings.epochs):
        if stage.stopped:
            break
        begun = time.monotonic()
        with seeded(context.device, context.settings.seed, stage.draws, epoch):
            measured = stage.train_epoch(epoch, context.progress.step)
        row = {
            "stage": stage.name,
            "epoch": epoch + 1,
            "steps": (epoch + 1) * stage.steps,
            **measured,
            "lr": learning_rate(stage.settings, (epoch + 1) * stage.steps - 1, stage.settings.epochs * stage.steps),
            "seconds": round(time.monotonic() - begun, 3),
        }
        rows.append(row)
        context.history.append(row)
        last = epoch + 1 == stage.settings.epochs or stage.stopped
        if last or (epoch + 1) % context.checkpoints.every == 0:
            context.checkpoints.save(stage.name, stage.tensors(), {"epoch": epoch + 1, "history": rows})
        context.write_history()
        context.progress.epoch(stage.name, row)
    context.progress.finish(stage.name)


def derive(*keys: Any) -> int:
    """A seed that depends on all of ``keys``."""
    digest = hashlib.sha256("/".join(str(key) for key in keys).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def seeded(device: torch.device, *keys: Any) -> Iterator[None]:
    """torch's global generators seeded by ``keys`` inside, and as they were afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(*keys))
        yield


@contextmanager
def repeatable(settings: Settings, device: torch.device) -> Iterator[None]:
    """The settings' threads, precision of products and, if asked, repeatable GPU kernels; as it was afterwards."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.deterministic, cudnn.benchmark, products.allow_tf32
    threads = torch.get_num_threads()
    if device.type == "cuda":
        cudnn.deterministic, cudnn.benchmark = settings.deterministic, not settings.deterministic
        products.allow_tf32 = settings.precision == "tf32" or products.allow_tf32
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark, products.allow_tf32 = before
        torch.set_num_threads(threads)


def pick_device(name: str) -> torch.device:
    """``auto``: CUDA where there is one.

    Raises:
        SettingsError: the named device is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device={name!r} cannot be used here: {error}") from error
    return device


def order(samples: int, device: torch.device, *keys: Any) -> Tensor:
    """A shuffled order of the samples, the same on every device."""
    return torch.from_numpy(np.random.default_rng(derive(*keys)).permutation(samples)).to(device, non_blocking=True)


def make_optimizer(settings: StageSettings, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """The stage's optimizer; on CUDA one whose steps can be recorded, its learning rate a tensor on the device."""
    device = parameters[0].device
    if device.type != "cuda":
        if settings.optimizer == "sgd":
            return torch.optim.SGD(
                parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
            )
        return torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
    rate = torch.tensor(settings.lr, dtype=torch.float32, device=device)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=rate, momentum=settings.momentum, weight_decay=settings.weight_decay, fused=True
        )
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=settings.weight_decay, fused=True, capturable=True)


def learning_rate(settings: StageSettings, step: int, total: int) -> float:
    """The learning rate of a step: constant, or a warm-up over 5% and then a half cosine to nothing."""
    if settings.schedule == "constant":
        return settings.lr
    warm = max(1, total // 20)
    if step < warm:
        return settings.lr * (step + 1) / warm
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """For every parameter."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
