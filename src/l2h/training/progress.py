"""Who is told how training goes. Terminal bars live with the commands; here are the plain log and TensorBoard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger("l2h.training")


class Progress(Protocol):
    """What a training tells as it goes."""

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """A stage begins: ``steps`` steps an epoch, ``done`` epochs behind it already."""

    def step(self) -> None:
        """One step has been issued."""

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        """An epoch is over; ``row`` is its line of the history."""

    def finish(self, stage: str) -> None:
        """The stage is over."""


class Silent:
    """Tells nobody."""

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """Nothing."""

    def step(self) -> None:
        """Nothing."""

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        """Nothing."""

    def finish(self, stage: str) -> None:
        """Nothing."""


class LogProgress(Silent):
    """A line an epoch, with loss, rate and time left, at most one every ``seconds``; the last is always written."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self._begun = self._written = time.monotonic()
        self._epochs = self._steps = self._done = 0
        self._line = ""

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """A line that the stage begins, or goes on."""
        self._epochs, self._steps, self._done = epochs, steps, done
        self._begun = self._written = time.monotonic()
        self._line = ""
        log.info("%s: %s%d epochs of %d steps", stage, f"resumed after epoch {done}, " if done else "", epochs, steps)

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        """The epoch's line."""
        now = time.monotonic()
        epoch = int(row["epoch"])
        rate = (epoch - self._done) * self._steps / max(now - self._begun, 1e-9)
        left = (self._epochs - epoch) * self._steps / rate
        held_out = "" if row.get("held_out_loss") is None else f", held-out {row['held_out_loss']:.4f}"
        self._line = (
            f"{stage}: epoch {epoch}/{self._epochs}, loss {row['train_loss']:.4f}{held_out}, {rate:.0f} steps/s, "
            f"{left:.0f} s left"
        )
        if now - self._written >= self.seconds:
            self._write(now)

    def finish(self, stage: str) -> None:
        """The last line, if it was held back."""
        self._write(time.monotonic())

    def _write(self, now: float) -> None:
        if self._line:
            log.info("%s", self._line)
            self._line, self._written = "", now


class TensorBoardProgress(Silent):
    """Loss and rate of every epoch to a TensorBoard log folder, which is made when the first stage starts."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            from l2h.errors import MissingExtraError

            raise MissingExtraError("TensorBoard logs need a package: pip install 'l2h[tensorboard]'") from error
        self._make: Callable[[], Any] = lambda: SummaryWriter(str(folder))
        self._writer: Any = None

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """Open the log, not before: until a training begins its run folder must stay as it is."""
        if self._writer is None:
            self._writer = self._make()

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        """One point a curve."""
        for key in ("train_loss", "held_out_loss", "lr", "seconds"):
            if row.get(key) is not None:
                self._writer.add_scalar(f"{stage}/{key}", row[key], int(row["epoch"]))

    def finish(self, stage: str) -> None:
        """Flush, so that a reader sees the stage."""
        self._writer.flush()


class Tee:
    """Tells several."""

    def __init__(self, *others: Progress) -> None:
        self.others = others

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """Pass on."""
        for other in self.others:
            other.start(stage, epochs, steps, done)

    def step(self) -> None:
        """Pass on."""
        for other in self.others:
            other.step()

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        """Pass on."""
        for other in self.others:
            other.epoch(stage, row)

    def finish(self, stage: str) -> None:
        """Pass on."""
        for other in self.others:
            other.finish(stage)
