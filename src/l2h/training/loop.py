"""The loop over epochs that trains every stage: seeding, history, checkpoints, progress and early stopping."""

import csv
import hashlib
import io
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from l2h.errors import ModelError, ResumeError, SettingsError
from l2h.files import write_atomically
from l2h.settings import Settings, StageSettings, usual_batch
from l2h.training.checkpoint import Checkpoints, optimizer_tensors, prefixed, restore_optimizer, under
from l2h.training.parallel import Group, current_group
from l2h.training.progress import Progress, Silent
from l2h.training.streaming import Inputs, RowReader, steps

COLUMNS = ("stage", "epoch", "steps", "train_loss", "held_out_loss", "lr", "seconds")
WARM = 3  # steps before the recording, in which libraries pick their kernels and allocate their workspaces


@dataclass
class Context:
    """Holds what all stages of one training share."""

    settings: Settings
    device: torch.device
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(None))
    progress: Progress = field(default_factory=Silent)
    history: list[dict[str, Any]] = field(default_factory=list)  # one row per epoch of every stage
    history_file: Path | None = None  # the CSV that is rewritten after each epoch
    readers: dict[int, RowReader] = field(default_factory=dict)  # of streamed inputs, by the id of their source
    group: Group | None = field(default_factory=current_group)  # the processes that train servers; None: this one alone

    def autocast(self) -> torch.autocast:
        """Return a context manager that computes in bf16 where the settings ask for it, and else changes nothing."""
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.settings.precision == "bf16", cache_enabled=False
        )

    def write_history(self) -> None:
        """Write the whole ``history.csv`` again, so that a resumed run has no row twice."""
        if self.history_file is None:
            return
        text = io.StringIO()
        columns = list(dict.fromkeys([*COLUMNS, *(key for row in self.history for key in row)]))
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in self.history)
        write_atomically(self.history_file, text.getvalue().encode())


class Stage(ABC):
    """Trains something for a number of epochs.

    What an epoch draws at random depends only on the seed, on the stage's ``draws`` and on the number of the epoch, so
    a stage that is restored after any epoch continues as if it had never stopped. ``draws`` is the name of the stage,
    or the name of another stage whose draws, such as the order of the samples, it repeats. A stage that is restored in
    the middle of an epoch also has the state of torch's generators there, ``done`` steps and what they summed up.
    """

    peers: Group | None = None  # the processes that train it together, from one checkpoint; None: this one alone

    def __init__(self, name: str, settings: StageSettings, samples: int, draws: str | None = None) -> None:
        self.name = name
        self.draws = draws or name
        self.settings = settings
        self.samples = samples
        self.batch = settings.batch or usual_batch(samples)
        self.steps = math.ceil(samples / self.batch)  # per epoch
        self.all_steps = settings.epochs * self.steps
        self.done = 0  # steps of the current epoch; ``run_stage`` counts them
        self.middle: dict[str, Tensor] = {}  # what these steps summed up, beside :meth:`tensors`; by name

    @abstractmethod
    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        """Train the steps of an epoch, counted from 0, that are not ``done``, and call ``tick`` after each.

        Return the epoch's columns of the history, and leave ``middle`` empty.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return everything that is needed to continue from here."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Return to the state in which :meth:`tensors` gave these tensors."""

    @property
    def stopped(self) -> bool:
        """Whether training should end before its last epoch."""
        return False


class RecordedStep:
    """Calls ``work`` or, where it can, replays its recording as a CUDA graph: to launch a small step's kernels is slow.

    On CUDA the first full batches run as they are, which also creates the optimizer's state. The next one is
    recorded, and every full batch after it is one replay: no Python, no launches, no waiting for the host. A last batch
    that is not full runs as it is, and so does everything on other devices. Random draws go on in a replay.

    ``work`` takes one step on the samples that its first argument, ``chosen``, selects, and returns one tensor. All it
    needs must be on the device already. It must not read a value back, and apart from its arguments, which are tensors,
    it must not depend on anything of the host that changes from step to step.
    """

    def __init__(self, work: Callable[..., Tensor], device: torch.device, batch: int, record: bool = True) -> None:
        self.work, self.device, self.batch = work, device, batch
        self.records = record and device.type == "cuda"
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._out: Tensor | None = None

    def __call__(self, chosen: Tensor, *others: Tensor) -> Tensor:
        """Take one step; the next step overwrites the tensor that is returned."""
        if not self.records or len(chosen) != self.batch:
            return self.work(chosen, *others)
        if self._graph is None:
            if self._done < WARM:
                self._done += 1
                return self._run_on_side_stream(chosen, *others)
            self._inputs = tuple(tensor.clone() for tensor in (chosen, *others))
            self._graph = torch.cuda.CUDAGraph()
            # Of this thread alone: another one may pin the memory of the next batches meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._out = self.work(*self._inputs)
        assert self._out is not None
        for static, given in zip(self._inputs, (chosen, *others), strict=True):
            static.copy_(given)
        self._graph.replay()
        return self._out

    def _run_on_side_stream(self, *given: Tensor) -> Tensor:
        """Take a real step on a stream of its own, as torch asks for before a recording."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            out = self.work(*given)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        return out


class Weights(Protocol):
    """What a :class:`SingleModelStage` needs of its model: any torch module has it."""

    def state_dict(self) -> Mapping[str, Tensor]: ...
    def load_state_dict(self, tensors: Mapping[str, Tensor], /) -> Any: ...


class SingleModelStage(Stage):
    """Trains one model with one optimizer, one step per batch of a shuffled pass over the samples.

    A subclass gives the step and decides which weights are the best so far.
    """

    loss_shape: tuple[int, ...] = ()  # of what :meth:`train_batch` returns

    def __init__(
        self,
        name: str,
        model: Weights,
        parameters: list[Tensor],
        x: Inputs,
        settings: StageSettings,
        context: Context,
        draws: str | None = None,
    ) -> None:
        super().__init__(name, settings, len(x), draws)
        self.x, self.context = x, context
        self.optimizer = make_optimizer(settings, parameters)
        self.step = RecordedStep(self.train_batch, context.device, self.batch)
        self.epoch = 0  # how many were trained
        self.best: dict[str, Tensor] = {}  # the best weights so far by name, where any are kept
        self._weights = model

    @abstractmethod
    def train_batch(self, chosen: Tensor, read: Tensor | None = None) -> Tensor:
        """Take one step on the samples ``chosen`` and return their summed loss, as :class:`RecordedStep` needs it.

        ``read`` is what was read of them, where the inputs are streamed.
        """

    @abstractmethod
    def end_epoch(self, total: Tensor) -> dict[str, Any]:
        """Return an epoch's columns of the history from its summed loss, and keep the weights if they are the best."""

    def begin_epoch(self) -> None:
        """Make the model ready to be trained."""

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        self.begin_epoch()
        total = self.middle.setdefault("total", torch.zeros(self.loss_shape, device=self.context.device))
        shuffled = order(self.samples, self.context.device, self.context.settings.seed, self.draws, epoch)
        left = shuffled[self.done * self.batch :]
        for step, given in enumerate(steps(self.x, left, self.batch), start=epoch * self.steps + self.done):
            self.set_rate(step)
            total += self.step(*given)  # nothing in a pass waits for the host
            tick()
        self.epoch, self.middle = epoch + 1, {}
        return self.end_epoch(total)

    def set_rate(self, step: int) -> None:
        """Set the learning rate of a step of the whole training."""
        set_learning_rate(self.optimizer, learning_rate(self.settings, step, self.all_steps))

    def tensors(self) -> dict[str, Tensor]:
        return {
            **prefixed("model/", self._weights.state_dict()),
            **prefixed("best/", self.best),
            **optimizer_tensors(self.optimizer),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._weights.load_state_dict(under("model/", tensors))
        self.best = {name: tensor.to(self.context.device) for name, tensor in under("best/", tensors).items()}
        restore_optimizer(self.optimizer, tensors)

    def keep_best(self) -> None:
        if self.best:
            self._weights.load_state_dict(self.best)


def run_stage(stage: Stage, context: Context) -> None:
    """Train a stage to its end, from its checkpoint if there is one to resume from."""
    begun, rows = 0, []
    saved, generators = context.checkpoints.load(stage.name), None
    if stage.peers is not None:
        saved = stage.peers.share(saved, context.device)
    if saved is not None:
        stage.restore(saved.tensors)
        begun, rows = int(saved.meta["epoch"]), list(saved.meta["history"])
        if rows and rows[-1]["steps"] != begun * stage.steps:  # another version may choose another batch
            raise ResumeError(
                f"{stage.name}: begun with {rows[-1]['steps'] // begun} steps per epoch, and here it has "
                f"{stage.steps}: set the batch that it had, or begin anew"
            )
        stage.done = int(saved.meta.get("step", 0))
        stage.middle = {name: t.to(context.device) for name, t in under("middle/", saved.tensors).items()}
        generators = under("generators/", saved.tensors)
    context.history += rows
    context.progress.start(stage.name, stage.settings.epochs, stage.steps, begun)
    if saved is not None:
        context.progress.look_at(stage, begun)
    for _ in range(stage.done):
        context.progress.step()
    for epoch in range(begun, stage.settings.epochs):
        if stage.stopped:
            break
        started = time.monotonic()
        with seeded(context.device, context.settings.seed, stage.draws, epoch):
            restore_generators(generators or {}, context.device)
            try:
                measured = stage.train_epoch(epoch, partial(_after_step, stage, context, epoch, rows))
            except ValueError as error:
                if "more than 1 value per channel" not in str(error):
                    raise
                raise ModelError(
                    f"{stage.name}: batch norm needs more than one sample, and of {stage.samples} in batches of "
                    f"{stage.batch} a batch has one: set another batch"
                ) from error
        stage.done, generators = 0, None
        row = {
            "stage": stage.name,
            "epoch": epoch + 1,
            "steps": (epoch + 1) * stage.steps,
            **measured,
            "lr": learning_rate(stage.settings, (epoch + 1) * stage.steps - 1, stage.all_steps),
            "seconds": round(time.monotonic() - started, 3),
        }
        rows.append(row)
        context.history.append(row)
        last = epoch + 1 == stage.settings.epochs or stage.stopped
        if last or (epoch + 1) % context.checkpoints.every == 0:
            context.checkpoints.save(stage.name, stage.tensors(), {"epoch": epoch + 1, "history": rows})
        context.write_history()
        context.progress.epoch(stage.name, row)
        context.progress.look_at(stage, epoch + 1)
    context.progress.finish(stage.name)


def _after_step(stage: Stage, context: Context, epoch: int, rows: list[dict[str, Any]]) -> None:
    """Count a step and, when it is time and the epoch is not over, save everything that the next one needs."""
    stage.done += 1
    context.progress.step()
    if stage.done < stage.steps and context.checkpoints.due():
        now = prefixed("middle/", stage.middle) | prefixed("generators/", generator_states(context.device))
        meta = {"epoch": epoch, "step": stage.done, "history": rows}
        context.checkpoints.save(stage.name, stage.tensors() | now, meta)


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's global generators that a training on the device draws from."""
    own = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **own}


def restore_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Put back what :func:`generator_states` returned; generators whose state is not there stay as they are."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def derive(*keys: Any) -> int:
    """Return a seed that depends on all of ``keys``."""
    digest = hashlib.sha256("/".join(str(key) for key in keys).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def seeded(device: torch.device, *keys: Any) -> Iterator[None]:
    """Seed torch's global generators by ``keys`` within the block, and restore their state after it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(*keys))
        yield


@contextmanager
def repeatable(settings: Settings, device: torch.device) -> Iterator[None]:
    """Set torch's threads, precision and repeatable GPU kernels by the settings, and restore them after the block."""
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
    """Return the named device; ``auto`` is CUDA where there is one, else the CPU. SettingsError: it is not here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device={name!r} cannot be used here: {error}") from error
    return device


def order(samples: int, device: torch.device, *keys: Any) -> Tensor:
    """Return a shuffled order of the samples that depends on ``keys`` alone: it is the same on every device."""
    return torch.from_numpy(np.random.default_rng(derive(*keys)).permutation(samples)).to(device, non_blocking=True)


def make_optimizer(settings: StageSettings, parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer of a stage; on CUDA its steps can be recorded, and its learning rate is a tensor there."""
    device = parameters[0].device
    cuda = device.type == "cuda"
    rate = torch.tensor(settings.lr, dtype=torch.float32, device=device) if cuda else settings.lr
    options: dict[str, Any] = {"lr": rate, "weight_decay": settings.weight_decay, "fused": cuda or None}
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=settings.momentum, **options)
    return torch.optim.AdamW(parameters, capturable=cuda, **options)


def learning_rate(settings: StageSettings, step: int, total: int) -> float:
    """Return the learning rate of a step: constant, or a warm-up over 5% of the steps and a half cosine to zero."""
    if settings.schedule == "constant":
        return settings.lr
    warm = max(1, total // 20)
    if step < warm:
        return settings.lr * (step + 1) / warm
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
