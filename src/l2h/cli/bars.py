"""What a person sees while a training works: bars on a terminal, plain lines elsewhere."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from l2h.cli.output import console, log
from l2h.training.progress import LogProgress, Silent, Tee, TensorBoardProgress
from l2h.training.progress import Progress as Listener


class BarProgress(Silent):
    """One bar per stage: loss, steps per second, time left."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self._task: Any = None
        self._asking: dict[str, Any] = {}

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self._task = self.bars.add_task(stage, total=epochs * steps, completed=done * steps, loss="")

    def step(self) -> None:
        self.bars.advance(self._task)

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        held_out = "" if row.get("held_out_loss") is None else f" held-out {row['held_out_loss']:.4f}"
        self.bars.update(self._task, loss=f"loss {row['train_loss']:.4f}{held_out}")

    def asked(self, done: int, total: int, stage: str = "server") -> None:
        if stage not in self._asking:
            self._asking[stage] = self.bars.add_task(f"{stage} asked", total=total, loss="", unit="inputs")
        self.bars.update(self._asking[stage], completed=done, total=total)

    def finish(self, stage: str) -> None:
        # The bar is full, also where the stage stopped early.
        self.bars.update(self._task, total=self.bars.tasks[self._task].completed)


class _Rate(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Any) -> Text:
        return Text("" if not task.speed else f"{task.speed:.0f} {task.fields.get('unit', 'steps')}/s")


@contextmanager
def training_progress(tensorboard: Path | None = None) -> Iterator[Listener]:
    """Show a training as bars on a terminal and as a plain log elsewhere, and write it for TensorBoard if asked."""
    extra: list[Listener] = [] if tensorboard is None else [TensorBoardProgress(tensorboard)]
    if not console.is_terminal or not log.isEnabledFor(logging.INFO):
        yield Tee(LogProgress(), *extra)
        return
    with make_bars(22, losses=True) as bars:
        yield Tee(BarProgress(bars), *extra)


@contextmanager
def count_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function that is told how many of how many are done: a bar on a terminal, a line per tenth elsewhere."""
    if not console.is_terminal:
        told = -1

        def tell(done: int, total: int) -> None:
            nonlocal told
            tenth = 10 * done // max(1, total)
            if tenth != told:
                log.info("%s %d of %d", title, done, total)
            told = tenth

        yield tell
        return
    with make_bars(22) as bars:
        task = None

        def draw(done: int, total: int) -> None:
            nonlocal task
            task = bars.add_task(title) if task is None else task  # no bar before there is something to show
            bars.update(task, completed=done, total=total)

        yield draw


def make_bars(width: int, *, losses: bool = False) -> Progress:
    """Return bars on stderr, their descriptions so wide; with the speed and the loss of a training where asked."""
    return Progress(
        TextColumn(f"{{task.description:<{width}}}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        *([_Rate()] if losses else []),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *([TextColumn("{task.fields[loss]}")] if losses else []),
        console=console,
    )
