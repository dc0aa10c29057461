"""Run one side of Algorithm 2: train the server and offer its snapshots, or train rejectors against those snapshots."""

import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l2h.errors import L2HError, SettingsError
from l2h.settings import PAPER_REJECTOR
from l2h.training.exchange import ExchangeError, FetchStatus, PublisherServer, SnapshotFetcher, SnapshotStore
from l2h.training.exchange.connection import check_url
from l2h.training.exchange.identity import check_token
from l2h.training.hosts import AnswersCopy, FollowingStage, PublishingStage, ServerCopy, WeightsCopy
from l2h.training.job import Job, view_tensor
from l2h.training.loop import Context, run_stage, seeded
from l2h.training.recipes import make_rejectors
from l2h.training.rejector_stage import RejectorStep
from l2h.training.rejectors import RejectorBatch

log = logging.getLogger("l2h")


@dataclass(frozen=True)
class HostLink:
    """How the two programs reach each other.

    Raises:
        SettingsError: a value that cannot be used.
    """

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
        """Return the host and the port to listen on."""
        host, _, port = self.listen.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise SettingsError(f"--listen {self.listen!r} is not HOST:PORT")
        return host or "127.0.0.1", int(port)


def read_token(path: Path | None) -> str:
    """Return the shared token, from a file or from ``L2H_TOKEN``.

    Raises:
        SettingsError: there is none, or the file cannot be read.
    """
    if path is None:
        token = os.environ.get("L2H_TOKEN", "").strip()
        if not token:
            raise SettingsError("a role needs the token both sides share: --token-file FILE, or L2H_TOKEN")
        return token
    try:
        if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            log.warning("%s is readable by others: chmod 600 %s", path, path)
        return path.read_text().strip()
    except OSError as error:
        raise SettingsError(f"cannot read the token from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} holds no text: write a token with `openssl rand -hex 16`") from error


def initial_server(make: Callable[[], nn.Module], context: Context) -> nn.Module:
    """Return the server with the first weights that both sides start from."""
    with seeded(context.device, context.settings.seed, "server"):
        return make().to(context.device)


@contextmanager
def publishing(stage: PublishingStage, link: HostLink, identity: Mapping[str, Any], snapshots: Path) -> Iterator[None]:
    """Offer the snapshots of a server's training over the link, for as long as the context lasts.

    Args:
        stage: the training; inside the context it publishes on its way.
        link: where and what to publish, and how often.
        identity: what both sides must agree on.
        snapshots: the folder that keeps the snapshots.
    """
    store = SnapshotStore(snapshots)

    def publish(step: int) -> None:
        try:
            store.publish(link.send, stage.weights() if link.send == "weights" else stage.answers(), step, {})
        except L2HError as error:  # a full disk costs freshness, not the training
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
    """Train the job's rejectors against the newest snapshot of the server that has arrived.

    Args:
        job: what to train.
        context: shared by the stages.
        link: where the snapshots come from.
        identity: what both sides must agree on.
        arrivals: the folder that keeps what was fetched.
    """
    device = context.device
    view = view_tensor(job.answers, device)
    rejectors = make_rejectors(job, context, view)
    step = RejectorStep(rejectors, job.specs, context.settings.rejector or PAPER_REJECTOR, context)
    fetcher = SnapshotFetcher(link.url, link.token, link.send, identity, arrivals, interval=link.interval)
    server: nn.Module | None = None
    if link.send == "weights":
        assert job.make_server is not None
        server = initial_server(job.make_server, context)
        copy: ServerCopy = WeightsCopy(fetcher, server, context)
    else:
        copy = AnswersCopy(fetcher, len(job.y), device)
    x, labels = torch.from_numpy(job.X).to(device), torch.from_numpy(job.y).to(device)
    client_correct = torch.from_numpy(job.answers.label == job.y).to(device)
    stage = FollowingStage("rejector", step, copy, x, labels, view, client_correct, context)
    with fetcher:
        run_stage(stage, context)
        copy.refresh()
        return FollowResult(server, rejectors, copy.used is not None, fetcher.status())
