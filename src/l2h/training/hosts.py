"""Setting IA for real: the two sides of Algorithm 2 as two programs that never wait for each other.

:class:`PublishingStage` is the server's side: L1, and a snapshot every so many steps. :class:`FollowingStage` is the
client's: L2 against the last snapshot that arrived, be it the server's weights or only its answers to the training
samples, one bit each.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from l2h.settings import StageSettings
from l2h.training.exchange import Arrived, SnapshotError, SnapshotFetcher, pack_answers, unpack_answers
from l2h.training.loop import Context, Stage, learning_rate, order
from l2h.training.rejectors import RejectorStep
from l2h.training.server import ServerStage, log_probabilities

log = logging.getLogger("l2h.training")


class PublishingStage(ServerStage):
    """The server stage, with ``publish(step)`` called every ``every`` steps and after the last."""

    publish: Callable[[int], None]
    every: int

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        """One pass, publishing on the way."""
        step, last = epoch * self.steps, self.settings.epochs * self.steps

        def published() -> None:
            nonlocal step
            step += 1
            tick()
            if step % self.every == 0 or step == last:
                self.publish(step)

        return super().train_epoch(epoch, published)

    def weights(self) -> bytes:
        """The server as it stands, as safetensors."""
        from safetensors.torch import save

        return save({name: t.detach().cpu().contiguous() for name, t in self.model.state_dict().items()})

    def answers(self) -> bytes:
        """Whether the server, as it stands, is right on each training sample: one bit each."""
        label = log_probabilities(self.model, self.x, self.context).argmax(-1)
        return pack_answers((label == self.y).cpu().numpy())


class ServerCopy(Protocol):
    """The server as the client knows it; ``used`` is the snapshot it is of, None before the first."""

    used: Arrived | None

    def refresh(self) -> None:
        """Take what has arrived since, if anything; never waits."""

    def correct(self, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Whether this copy is right on the samples numbered ``chosen``, (n,)."""

    def columns(self) -> dict[str, Any]:
        """What the history says of the copy in use: version, the server's step, age."""


class _Arriving(ABC):
    """What both kinds of copy share: the fetcher and what is told of it."""

    def __init__(self, fetcher: SnapshotFetcher) -> None:
        self.fetcher = fetcher
        self.used: Arrived | None = None

    def refresh(self) -> None:
        """Take over what has arrived since. What cannot be used costs freshness, never the training."""
        arrived = self.fetcher.take()
        if arrived is None:
            return
        try:
            self._use(arrived.read())
        except SnapshotError as error:
            log.warning("version %d of the server is not used: %s", arrived.version, error)
        else:
            self.used = arrived

    @abstractmethod
    def _use(self, data: bytes) -> None:
        """Replace the copy, or raise :class:`SnapshotError` and leave it as it is."""

    def columns(self) -> dict[str, Any]:
        """Version and step of the copy in use, and its age; empty before the first."""
        used, status = self.used, self.fetcher.status()
        newest = (status.step or 0) + (status.age_steps or 0)  # the newest step heard of
        return {
            "copy_version": None if used is None else used.version,
            "copy_step": None if used is None else used.step,
            "copy_age_steps": None if used is None else max(0, newest - used.step),
            "copy_age_seconds": None if used is None else round(max(0.0, time.time() - used.arrived), 3),
            "link": status.state,
        }


class WeightsCopy(_Arriving):
    """A copy of the server's weights; before the first arrives, the server as both sides initialise it."""

    def __init__(self, fetcher: SnapshotFetcher, model: nn.Module, context: Context) -> None:
        super().__init__(fetcher)
        self.model, self.context = model.eval(), context

    def _use(self, data: bytes) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(data)
        except SafetensorError as error:
            raise SnapshotError(f"not weights: {error}") from error
        # Compared before anything is copied: torch would load what fits and then complain of the rest.
        ours, theirs = ({name: t.shape for name, t in each.items()} for each in (self.model.state_dict(), tensors))
        if ours != theirs:
            raise SnapshotError("the weights of another network: update l2h on both sides")
        self.model.load_state_dict(tensors)

    def correct(self, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Run the copy."""
        with torch.no_grad(), self.context.autocast():
            return self.model(x).argmax(-1) == y  # type: ignore[no-any-return]


class AnswersCopy(_Arriving):
    """The server's answers to the training samples; before the first arrive it counts as wrong on all."""

    def __init__(self, fetcher: SnapshotFetcher, samples: int, device: torch.device) -> None:
        super().__init__(fetcher)
        self.right = torch.zeros(samples, dtype=torch.bool, device=device)

    def _use(self, data: bytes) -> None:
        right = unpack_answers(data, len(self.right))
        self.right.copy_(torch.from_numpy(np.ascontiguousarray(right)))

    def correct(self, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Look them up."""
        return self.right[chosen]


class FollowingStage(Stage):
    """Rejectors trained by L2 against whatever copy of the server is at hand.

    Args:
        name: of the stage.
        rejector_step: the rejectors and their optimizer; epochs and batch are its settings'.
        copy: the server as the client knows it.
        x: inputs on the device.
        y: labels.
        view: the client's view of each sample.
        client_correct: bool (n,).
        context: shared.
    """

    def __init__(
        self,
        name: str,
        rejector_step: RejectorStep,
        copy: ServerCopy,
        x: Tensor,
        y: Tensor,
        view: Tensor,
        client_correct: Tensor,
        context: Context,
    ) -> None:
        settings: StageSettings = rejector_step.settings
        super().__init__(name, settings, len(x))
        self.rejector_step, self.copy, self.context = rejector_step, copy, context
        self.x, self.y, self.view, self.client_correct = x, y, view, client_correct

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        """One pass; every step uses the newest copy that has arrived by then."""
        shuffled = order(self.samples, self.context.device, self.context.settings.seed, self.name, epoch)
        total = torch.zeros(self.rejector_step.rejectors.size, device=self.context.device)
        for i, chosen in enumerate(shuffled.split(self.settings.batch)):
            step = epoch * self.steps + i
            self.copy.refresh()
            x, y = self.x[chosen], self.y[chosen]
            right = self.copy.correct(chosen, x, y)
            self.rejector_step.set_rate(learning_rate(self.settings, step, self.settings.epochs * self.steps))
            total += self.rejector_step.update(
                x, self.view[chosen], self.client_correct[chosen], right, self.name, step
            )
            tick()
        row = self.rejector_step.row(total, self.samples, epoch)
        return {"train_loss": row["rejector_loss"], "held_out_loss": None, **row, **self.copy.columns()}

    def tensors(self) -> dict[str, Tensor]:
        """The rejectors and their optimizer; the copy is kept by whoever fetches it."""
        return self.rejector_step.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what :meth:`tensors` gave."""
        self.rejector_step.restore(tensors)
