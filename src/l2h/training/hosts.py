"""Setting IA on two hosts: the two sides of Algorithm 2, which never wait for each other.

:class:`PublishingStage` trains the server by L1 and publishes a snapshot every few steps. :class:`FollowingStage`
trains the rejectors by L2 against the last snapshot that arrived: the server's weights, or only its answers to the
training samples, one bit each.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h.errors import L2HError, SettingsError
from l2h.settings import PAPER_REJECTOR
from l2h.training.exchange import (
    ExchangeError,
    FetchStatus,
    PublisherServer,
    ReceivedSnapshot,
    SnapshotError,
    SnapshotFetcher,
    SnapshotStore,
    pack_answers,
    unpack_answers,
)
from l2h.training.exchange.connection import check_url
from l2h.training.exchange.identity import check_token
from l2h.training.job import Job, view_tensor
from l2h.training.loop import Context, Stage, learning_rate, order, run_stage, set_learning_rate
from l2h.training.recipes import initial_server, make_rejectors
from l2h.training.rejector_stage import RejectorStep
from l2h.training.rejectors import RejectorBatch
from l2h.training.server import ServerStage, log_probabilities
from l2h.training.streaming import pick, steps, take_inputs

log = logging.getLogger("l2h")

#: By how many bytes the header of the same weights may be longer where another version of safetensors wrote it.
_OTHER_HEADER = 64 * 1024
_LONGEST_TOKEN = 4096


@dataclass(frozen=True)
class HostLink:
    """How the two programs reach each other; :class:`SettingsError` where a value cannot be used."""

    token: str  # shared by both
    send: str = "weights"  # ``weights``, or ``answers`` where both hold the same training samples
    listen: str = "127.0.0.1:8470"  # ``HOST:PORT`` of the server's side
    url: str = ""  # where the client's side finds it
    publish_every: int | None = None  # steps between two snapshots; None: once per epoch
    linger: float = 30.0  # seconds for which the server's side goes on offering snapshots after its training
    interval: float = 1.0  # seconds between two checks of the client's side for a newer snapshot

    def __post_init__(self) -> None:
        if self.send not in ("weights", "answers"):
            raise SettingsError(f"--send {self.send!r} is unknown; known: weights, answers")
        try:
            _ = self.address
            check_token(self.token)
            if self.url:
                check_url(self.url)
        except ExchangeError as error:
            raise SettingsError(str(error)) from error

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")  # as [::1]:8470
        host = host[1:-1] if bracketed else host
        if not port.isdecimal() or int(port) > 65535 or (bracketed and not host) or "[" in host or "]" in host:
            raise SettingsError(f"--listen {self.listen!r} is not HOST:PORT")
        return host or "127.0.0.1", int(port)


def read_token(path: Path | None) -> str:
    """Return the shared token from a file or from ``L2H_TOKEN``; :class:`SettingsError` where there is none."""
    if path is None:
        token = os.environ.get("L2H_TOKEN", "").strip()
        if not token:
            raise SettingsError("a role needs the token both sides share: --token-file FILE, or L2H_TOKEN")
        return token
    try:
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning("%s is readable by others: chmod 600 %s", path, path)
        with path.open("rb") as file:  # also a pipe, as a shell gives it
            text = file.read(_LONGEST_TOKEN + 1).decode()
    except OSError as error:
        raise SettingsError(f"cannot read the token from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} holds no text: write a token with `openssl rand -hex 16`") from error
    if len(text) > _LONGEST_TOKEN:
        raise SettingsError(f"{path} holds more than a token: write one with `openssl rand -hex 16`")
    return text.strip()


@contextmanager
def publishing(stage: PublishingStage, link: HostLink, identity: Mapping[str, Any], snapshots: Path) -> Iterator[None]:
    """Offer snapshots of a training server, kept in the folder ``snapshots``, for as long as the context lasts.

    ``identity`` is what both sides must agree on. Inside the context the stage publishes on its way.
    """
    store = SnapshotStore(snapshots)

    def publish(step: int) -> None:
        try:
            store.publish(link.send, stage.weights() if link.send == "weights" else stage.answers(), step, {})
        except (L2HError, OSError) as error:  # a full disk costs freshness, not the training
            log.warning("snapshot of step %d was not published: %s", step, error)

    stage.publish, stage.every = publish, link.publish_every or stage.steps
    with PublisherServer(store, {**identity, "kinds": [link.send]}, link.token, *link.address) as server:
        log.info("offering %s at %s", link.send, server.url)
        yield


@dataclass(frozen=True)
class FollowResult:
    """The result of the client's side."""

    server: nn.Module | None  # the last copy of the server; None where only its answers were sent
    rejectors: RejectorBatch  # as trained
    used: bool  # whether any snapshot was used
    status: FetchStatus  # how the link did


def follow(job: Job, context: Context, link: HostLink, identity: Mapping[str, Any], arrivals: Path) -> FollowResult:
    """Train the job's rejectors against the newest snapshot of the server that has arrived in the folder ``arrivals``.

    ``identity`` is what both sides must agree on.
    """
    device = context.device
    view = view_tensor(job.answers, device)
    rejectors = make_rejectors(job, context, view)
    step = RejectorStep(rejectors, job.specs, context.settings.rejector or PAPER_REJECTOR, context)
    server: nn.Module | None = None
    size = len(pack_answers(np.zeros(len(job.y), np.bool_)))
    if link.send == "weights":
        make_server = job.servers[0].make
        assert make_server is not None
        server = initial_server(make_server, context)
        size = len(pack_weights(server)) + _OTHER_HEADER
    fetcher = SnapshotFetcher(
        link.url, link.token, link.send, identity, arrivals, interval=link.interval, max_bytes=size
    )
    copy: ServerCopy = AnswersCopy(fetcher, len(job.y), device)
    if server is not None:
        copy = WeightsCopy(fetcher, server, context)
    with fetcher:
        run_stage(FollowingStage(step, copy, job, view, context), context)
        copy.refresh()
        return FollowResult(server, rejectors, copy.used is not None, fetcher.status())


class PublishingStage(ServerStage):
    """A server stage that calls ``publish(step)`` every ``every`` steps and after the last one."""

    publish: Callable[[int], None]
    every: int

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        step = epoch * self.steps + self.done

        def tick_and_publish() -> None:
            nonlocal step
            step += 1
            tick()
            if step % self.every == 0 or step == self.all_steps:
                self.publish(step)

        return super().train_epoch(epoch, tick_and_publish)

    def weights(self) -> bytes:
        return pack_weights(self.model)

    def answers(self) -> bytes:
        """Return whether the current server is right on each training sample, one bit each."""
        label = log_probabilities(self.model, self.x, self.context).argmax(-1)
        return pack_answers((label == self.y).cpu().numpy())


def pack_weights(model: nn.Module) -> bytes:
    """Return the weights of a network as safetensors."""
    from safetensors.torch import save

    return save({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()})


class ServerCopy(ABC):
    """The copy of the server that the client's host has at the moment."""

    def __init__(self, fetcher: SnapshotFetcher) -> None:
        self.fetcher = fetcher
        self.used: ReceivedSnapshot | None = None  # what the copy was made from

    def refresh(self) -> None:
        """Use the newest snapshot, if one has arrived, without waiting; skip and log one that cannot be used."""
        arrived = self.fetcher.take()
        if arrived is None:
            return
        try:
            self._use(arrived.read())
        except SnapshotError as error:
            logging.getLogger("l2h.training").warning(
                "version %d of the server is not used: %s", arrived.version, error
            )
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
    """Trains rejectors by L2; every step uses the newest copy of the server that has arrived by then.

    The settings of ``rejector_step`` also give epochs and batch.
    """

    def __init__(self, rejector_step: RejectorStep, copy: ServerCopy, job: Job, view: Tensor, context: Context) -> None:
        super().__init__("rejector", rejector_step.settings, len(job.X))
        self.rejector_step, self.copy, self.context, self.view = rejector_step, copy, context, view
        self.x = take_inputs(job.X, context)
        self.y, self.client_correct = (
            torch.from_numpy(array).to(context.device) for array in (job.y, job.answers.label == job.y)
        )

    def train_epoch(self, epoch: int, tick: Callable[[], None]) -> dict[str, Any]:
        shuffled = order(self.samples, self.context.device, self.context.settings.seed, self.name, epoch)
        total = self.middle.setdefault(
            "total", torch.zeros(self.rejector_step.rejectors.size, device=self.context.device)
        )
        left = shuffled[self.done * self.batch :]
        for step, (chosen, *read) in enumerate(steps(self.x, left, self.batch), start=epoch * self.steps + self.done):
            self.copy.refresh()
            x = pick(self.x, chosen, *read)
            server_correct = self.copy.correct(chosen, x, self.y[chosen])
            set_learning_rate(self.rejector_step.optimizer, learning_rate(self.settings, step, self.all_steps))
            total += self.rejector_step.update(
                x, self.view[chosen], self.client_correct[chosen], server_correct, self.name, step
            )
            tick()
        self.middle = {}
        row = self.rejector_step.row(total, self.samples, epoch)
        return {"train_loss": row["rejector_loss"], "held_out_loss": None, **row, **self.copy.columns()}

    def tensors(self) -> dict[str, Tensor]:
        return self.rejector_step.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.rejector_step.restore(tensors)
