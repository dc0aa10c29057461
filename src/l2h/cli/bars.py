"""What a person sees while a training works: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from l2h.cli.console import console, log
from l2h.training.progress import LogProgress, Silent, Tee, TensorBoardProgress
from l2h.training.progress import Progress as Listener


class BarProgress(Silent):
    """One bar a stage: loss, steps a second, time left."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self._task: Any = None
        self._text = ""
        self._steps = 0

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """A new bar."""
        self._steps = steps
        self._task = self.bars.add_task(stage, total=epochs * steps, completed=done * steps, loss="")

    def step(self) -> None:
        """One step on."""
        self.bars.advance(self._task)

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        """The epoch's loss beside the bar."""
        held_out = "" if row.get("held_out_loss") is None else f" held-out {row['held_out_loss']:.4f}"
        self.bars.update(self._task, loss=f"loss {row['train_loss']:.4f}{held_out}")

    def finish(self, stage: str) -> None:
        """The bar is full, also where the stage stopped early."""
        self.bars.update(self._task, total=self.bars.tasks[self._task].completed)


@contextmanager
def telling(quiet: bool = False, tensorboard: Path | None = None) -> Iterator[Listener]:
    """Whoever should be told of a training: bars on a terminal, a plain log elsewhere, and TensorBoard if asked."""
    extra: list[Listener] = [] if tensorboard is None else [TensorBoardProgress(tensorboard)]
    if quiet or not console.is_terminal or not log.isEnabledFor(logging.INFO):
        yield Tee(LogProgress(), *extra)
        return
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as bars:
        yield Tee(BarProgress(bars), *extra)


class _Rate(TextColumn):
    """Steps a second."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Any) -> Any:
        """``123 steps/s``, or nothing before the first."""
        from rich.text import Text

        return Text("" if not task.speed else f"{task.speed:.0f} steps/s")
