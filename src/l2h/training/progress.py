"""Reports of how training goes: to nobody, as plain lines, to several. Bars and logs have modules of their own."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2h.metrics import OutcomeReport

if TYPE_CHECKING:
    from l2h.training.loop import Stage

log = logging.getLogger("l2h.training")


class Progress:
    """Receives the reports of a training; a subclass overrides what it wants to hear of."""

    def begin(self, values: Mapping[str, Any]) -> None:
        """Report what is to be trained: settings, data, models, as plain values that may be nested."""

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        """Report that a stage begins: ``steps`` steps per epoch, ``done`` of its epochs trained earlier."""

    def step(self) -> None:
        """Report that one step has been issued."""

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        """Report that an epoch is over; ``row`` is its row of the history."""

    def look_at(self, stage: "Stage", epoch: int) -> None:
        """Report the stage itself after so many of its epochs: its models are those of this moment."""

    def finish(self, stage: str) -> None:
        """Report that the stage is over."""

    def asked(self, done: int, total: int, stage: str = "server") -> None:
        """Report that a server that is not trained was asked about so many of so many inputs."""

    def evaluated(self, report: OutcomeReport, page: Path | None = None) -> None:
        """Report what a test set measured, and the page of it where there is one; whoever evaluates calls this."""


class Silent(Progress):
    """Ignores all reports."""


class LogProgress(Progress):
    """Writes a line on loss, speed and time left after an epoch, at most every ``seconds``, and after the last one."""

    def __init__(self, seconds: float = 5.0, write: Callable[[str], None] = log.info) -> None:
        self.seconds, self.write = seconds, write
        self._begun = self._written = time.monotonic()
        self._epochs = self._steps = self._done = 0
        self._line = ""

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self._epochs, self._steps, self._done = epochs, steps, done
        self._begun = self._written = time.monotonic()
        self._line = ""
        resumed = f"resumed after epoch {done}, " if done else ""
        self.write(f"{stage}: {resumed}{epochs} epochs of {steps} steps")

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
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
        self._write(time.monotonic())

    def asked(self, done: int, total: int, stage: str = "server") -> None:
        now = time.monotonic()
        if done == total or now - self._written >= self.seconds:
            self.write(f"{stage}: asked about {done} of {total} inputs")
            self._written = now

    def _write(self, now: float) -> None:
        if self._line:
            self.write(self._line)
            self._line, self._written = "", now


def _passed_on(name: str) -> Any:
    def report(self: "Tee", *values: Any, **named: Any) -> None:
        for other in self.others:
            if hasattr(other, name):  # an object that is no Progress may lack some
                getattr(other, name)(*values, **named)

    return report


class Tee(Progress):
    """Passes every report on to several others."""

    def __init__(self, *others: Progress) -> None:
        self.others = others

    begin, start, step, epoch, look_at, finish, asked, evaluated = map(
        _passed_on, ("begin", "start", "step", "epoch", "look_at", "finish", "asked", "evaluated")
    )
