"""The stages of setting IA on two hosts: the two sides of Algorithm 2, which never wait for each other.

:class:`PublishingStage` trains the server by L1 and publishes a snapshot every few steps. :class:`FollowingStage`
trains the rejectors by L2 against the last snapshot that arrived: the server's weights, or only its answers to the
training samples, one bit each.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h.training.exchange import ReceivedSnapshot, SnapshotError, SnapshotFetcher, pack_answers, unpack_answers
from l2h.training.loop import Context, Stage, learning_rate, order
from l2h.training.rejector_stage import RejectorStep
from l2h.training.server import ServerStage, log_probabilities

log = logging.getLogger("l2h.training")


class PublishingStage(ServerStage):
    """A server stage that calls ``publish(step)`` every ``every`` steps and after the last one."""

    publish: Callable[[int], None]
    every: int

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        step = epoch * self.steps

        def tick_and_publish() -> None:
            nonlocal step
            step += 1
            tick()
            if step % self.every == 0 or step == self.all_steps:
                self.publish(step)

        return super().train_epoch(epoch, tick_and_publish)

    def weights(self) -> bytes:
        """Return the current weights of the server as safetensors."""
        from safetensors.torch import save

        return save({name: t.detach().cpu().contiguous() for name, t in self.model.state_dict().items()})

    def answers(self) -> bytes:
        """Return whether the current server is right on each training sample, one bit each."""
        label = log_probabilities(self.model, self.x, self.context).argmax(-1)
        return pack_answers((label == self.y).cpu().numpy())


class ServerCopy(ABC):
    """The copy of the server that the client's host has at the moment.

    Attributes:
        fetcher: fetches the snapshots.
        used: the snapshot that the copy was made from; None before the first one.
    """

    def __init__(self, fetcher: SnapshotFetcher) -> None:
        self.fetcher = fetcher
        self.used: ReceivedSnapshot | None = None

    def refresh(self) -> None:
        """Use the newest snapshot that has arrived, if there is a new one, without waiting.

        A snapshot that cannot be used is logged and skipped: the training continues with the copy it has.
        """
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
    def correct(self, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return whether the copy is right on the samples numbered ``chosen``, bool (n,)."""

    @abstractmethod
    def _use(self, data: bytes) -> None:
        """Replace the copy, or raise :class:`SnapshotError` and leave it as it is."""

    def columns(self) -> dict[str, Any]:
        """Return the columns of the history: version, step and age of the copy (None before the first), link state."""
        status = self.fetcher.status()
        columns = dict.fromkeys(("copy_version", "copy_step", "copy_age_steps", "copy_age_seconds"))
        if self.used is not None:
            newest = (status.step or 0) + (status.age_steps or 0)  # the newest step the publisher has told of
            columns = {
                "copy_version": self.used.version,
                "copy_step": self.used.step,
                "copy_age_steps": max(0, newest - self.used.step),
                "copy_age_seconds": round(max(0.0, time.time() - self.used.arrived), 3),
            }
        return {**columns, "link": status.state}


class WeightsCopy(ServerCopy):
    """A copy of the server's weights; before the first snapshot, the server as both hosts initialise it."""

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
        # Compared before anything is copied: torch would load what fits before it complains of the rest.
        ours, theirs = ({name: t.shape for name, t in each.items()} for each in (self.model.state_dict(), tensors))
        if ours != theirs:
            raise SnapshotError("the weights of another network: update l2h on both sides")
        self.model.load_state_dict(tensors)

    def correct(self, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad(), self.context.autocast():
            return self.model(x).argmax(-1) == y  # type: ignore[no-any-return]


class AnswersCopy(ServerCopy):
    """The server's answers to the training samples; before the first snapshot it counts as wrong on all of them."""

    def __init__(self, fetcher: SnapshotFetcher, samples: int, device: torch.device) -> None:
        super().__init__(fetcher)
        self.right = torch.zeros(samples, dtype=torch.bool, device=device)

    def _use(self, data: bytes) -> None:
        right = unpack_answers(data, len(self.right))
        self.right.copy_(torch.from_numpy(np.ascontiguousarray(right)))

    def correct(self, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.right[chosen]


class FollowingStage(Stage):
    """Trains rejectors by L2 against the newest copy of the server that has arrived.

    Args:
        name: the name of the stage.
        rejector_step: the rejectors and their optimizer; its settings also give epochs and batch.
        copy: the copy of the server; every step uses the newest one that has arrived by then.
        x: inputs on the device.
        y: labels.
        view: the client's view of each sample.
        client_correct: bool (n,).
        context: shared by all stages.
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
        super().__init__(name, rejector_step.settings, len(x))
        self.rejector_step, self.copy, self.context = rejector_step, copy, context
        self.x, self.y, self.view, self.client_correct = x, y, view, client_correct

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        shuffled = order(self.samples, self.context.device, self.context.settings.seed, self.name, epoch)
        total = torch.zeros(self.rejector_step.rejectors.size, device=self.context.device)
        for step, chosen in enumerate(shuffled.split(self.settings.batch), start=epoch * self.steps):
            self.copy.refresh()
            x = self.x[chosen]
            server_correct = self.copy.correct(chosen, x, self.y[chosen])
            self.rejector_step.set_rate(learning_rate(self.settings, step, self.all_steps))
            total += self.rejector_step.update(
                x, self.view[chosen], self.client_correct[chosen], server_correct, self.name, step
            )
            tick()
        row = self.rejector_step.row(total, self.samples, epoch)
        return {"train_loss": row["rejector_loss"], "held_out_loss": None, **row, **self.copy.columns()}

    def tensors(self) -> dict[str, Tensor]:
        return self.rejector_step.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.rejector_step.restore(tensors)
