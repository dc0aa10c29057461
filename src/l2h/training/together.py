"""Several small trainings at once: the same samples in the same order, each with a model and an optimizer of its own.

A small net's step is a row of small kernels, each waiting for the one before, and most of a GPU idles. Here the steps
of all nets run on streams of their own, which a recording turns into branches of one CUDA graph.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from l2h.training.checkpoint import prefixed, under
from l2h.training.loop import Context, RecordedStep, SingleModelStage, Stage, order, run_stage


class StagesTogether(Stage):
    """Trains stages that agree in samples, batch, epochs and draws; each gets the steps that it would get alone."""

    def __init__(self, stages: Sequence[SingleModelStage], context: Context) -> None:
        first = stages[0]
        names = dict.fromkeys(stage.name for stage in stages)
        super().__init__(f"{len(stages)} nets, {', '.join(names)}", first.settings, first.samples, first.draws)
        self.stages, self.context = tuple(stages), context
        cuda = context.device.type == "cuda"
        self.streams = [torch.cuda.Stream(context.device) for _ in stages] if cuda else []
        self.step = RecordedStep(self._steps, context.device, first.batch)
        #: Streamed inputs, each once, though several stages may read them.
        self._streamed = list({id(stage.x): stage.x for stage in stages if not isinstance(stage.x, Tensor)}.values())

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        context, sizes = self.context, [torch.Size(stage.loss_shape).numel() for stage in self.stages]
        total = self.middle.setdefault("total", torch.zeros(sum(sizes), device=context.device))
        for stage in self.stages:
            stage.begin_epoch()
        shuffled = order(self.samples, context.device, context.settings.seed, self.draws, epoch)
        left, batch = shuffled[self.done * self.batch :], self.batch
        reads = zip(*(x.batches(left.cpu().numpy(), batch) for x in self._streamed), strict=True)
        for step, chosen in enumerate(left.split(batch), start=epoch * self.steps + self.done):
            for stage in self.stages:
                stage.set_rate(step)
            total += self.step(chosen, *next(reads, ()))
            tick()
        self.middle = {}
        rows = []
        for stage, own in zip(self.stages, total.split(sizes), strict=True):
            stage.epoch = epoch + 1
            rows.append(stage.end_epoch(own.reshape(stage.loss_shape)))
        return {key: _mean([row[key] for row in rows]) for key in rows[0]}

    def _steps(self, chosen: Tensor, *reads: Tensor) -> Tensor:
        read = {id(x): part for x, part in zip(self._streamed, reads, strict=True)}
        if not self.streams:
            losses = [stage.train_batch(chosen, read.get(id(stage.x))).reshape(-1) for stage in self.stages]
            return torch.cat(losses)
        here, losses = torch.cuda.current_stream(self.context.device), []
        for stage, stream in zip(self.stages, self.streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                losses.append(stage.train_batch(chosen, read.get(id(stage.x))).reshape(-1))
        for stream in self.streams:
            here.wait_stream(stream)
        return torch.cat(losses)

    @property
    def stopped(self) -> bool:
        return all(stage.stopped for stage in self.stages)

    def tensors(self) -> dict[str, Tensor]:
        parts = [prefixed(f"{k}/", stage.tensors()) for k, stage in enumerate(self.stages)]
        return {name: tensor for part in parts for name, tensor in part.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for k, stage in enumerate(self.stages):
            stage.restore(under(f"{k}/", tensors))


def run_together(stages: Sequence[SingleModelStage], context: Context) -> None:
    """Train all stages to their ends, those together that can be, and put each one's best weights in place."""

    def key(stage: SingleModelStage) -> tuple[Any, ...]:
        return stage.samples, stage.batch, stage.settings.epochs, stage.draws

    for _, same in groupby(sorted(stages, key=key), key):
        group = list(same)
        run_stage(group[0] if len(group) == 1 else StagesTogether(group, context), context)
    for stage in stages:
        stage.keep_best()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
