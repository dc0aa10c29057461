"""``l2h train --role server`` and ``--role client``: setting IA as two programs on two hosts."""

from __future__ import annotations

import logging
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l2h.data import Dataset
from l2h.errors import L2HError, SettingsError
from l2h.experiments import runs
from l2h.experiments.plan import Parts, Plan, divide, make_client, make_system
from l2h.experiments.runs import RunTarget
from l2h.files import digest
from l2h.models import NAMES
from l2h.settings import PAPER_REJECTOR, PAPER_SERVER
from l2h.system import HelpSystem
from l2h.system.persistence import save_server
from l2h.training import Context, Progress, Trained, pick_device
from l2h.training.building import server_builder
from l2h.training.checkpoint import Checkpoints
from l2h.training.exchange import ExchangeError, PublisherServer, SnapshotFetcher, SnapshotStore
from l2h.training.exchange.identity import check_token
from l2h.training.exchange.peer import check_url
from l2h.training.hosts import AnswersCopy, FollowingStage, PublishingStage, ServerCopy, WeightsCopy
from l2h.training.job import view_tensor
from l2h.training.loop import repeatable, run_stage, seeded
from l2h.training.recipes import make_rejectors
from l2h.training.rejectors import RejectorStep

log = logging.getLogger("l2h")


@dataclass(frozen=True)
class Link:
    """How the two programs reach each other.

    Attributes:
        token: shared by both.
        send: ``weights``, or ``answers`` where both hold the same training samples.
        listen: ``HOST:PORT`` of the server's side.
        url: where the client's side finds it.
        publish_every: steps between two snapshots; None: once an epoch.
        linger: seconds the server's side stays to be fetched from after its training.
        interval: seconds between two looks of the client's side for something newer.
    """

    token: str
    send: str = "weights"
    listen: str = "127.0.0.1:8470"
    url: str = ""
    publish_every: int | None = None
    linger: float = 30.0
    interval: float = 1.0

    def __post_init__(self) -> None:
        if self.send not in ("weights", "answers"):
            raise SettingsError(f"--send {self.send!r} is unknown; known: weights, answers")
        # What cannot serve is told here, before anything is written or trained.
        try:
            _ = self.address
            check_token(self.token)
            if self.url:
                check_url(self.url)
        except ExchangeError as error:
            raise SettingsError(str(error)) from error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise SettingsError(f"--listen {self.listen!r} is no HOST:PORT")
        return host or "127.0.0.1", int(port)


def read_token(path: Path | None) -> str:
    """The shared token, from a file or from ``L2H_TOKEN``.

    Raises:
        SettingsError: there is none.
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


def serve_training(plan: Plan, dataset: Dataset, target: RunTarget, link: Link, progress: Progress) -> None:
    """The server's side: train e, offer snapshots, stay a while to be fetched from."""
    parts, context = _prepare(plan, dataset, target, progress, "server", link)
    folder = target.folder
    X, y = parts.train
    device = context.device
    with repeatable(plan.settings, device):
        model = _first_server(plan, dataset, X, device)
        x, labels = torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)
        settings = plan.settings.server or PAPER_SERVER
        stage = PublishingStage("server", model, x, labels, settings, context, augmentation=plan.settings.augment)
        store = SnapshotStore(folder / runs.SNAPSHOTS)

        def publish(step: int) -> None:
            try:
                store.publish(link.send, stage.weights() if link.send == "weights" else stage.answers(), step, {})
            except L2HError as error:  # a full disk costs freshness, not the training
                log.warning("snapshot of step %d was not published: %s", step, error)

        stage.publish, stage.every = publish, link.publish_every or stage.steps
        identity = {**_identity(plan, dataset, X, y), "kinds": [link.send]}
        with PublisherServer(store, identity, link.token, *link.address) as server:
            log.info("offering %s at %s", link.send, server.url)
            if "server" not in runs.read_config(folder):  # else it was stopped while it stayed: only to be offered
                run_stage(stage, context)
                save_server(model.eval(), folder, dataset.class_names, dataset.name)
            context.checkpoints.clear()
            log.info("trained; staying %.0f s to be fetched from", link.linger)
            time.sleep(link.linger)


def follow_training(
    plan: Plan, dataset: Dataset, target: RunTarget, link: Link, progress: Progress
) -> HelpSystem | None:
    """The client's side: train r against the last snapshot that arrived.

    Returns:
        The system, with the last copy of the server; None where only answers were sent and there is no copy.
    """
    parts, context = _prepare(plan, dataset, target, progress, "client", link)
    folder = target.folder
    X, y = parts.train
    device = context.device
    with repeatable(plan.settings, device):
        system = make_system(plan, dataset, make_client(plan, dataset, parts, context))
        job = system.prepare(X, y, specs=plan.specs)
        view = view_tensor(job.answers, device)
        rejectors = make_rejectors(job, context, view)
        step = RejectorStep(rejectors, plan.specs, plan.settings.rejector or PAPER_REJECTOR, context)
        fetcher = SnapshotFetcher(
            link.url,
            link.token,
            link.send,
            _identity(plan, dataset, X, y),
            folder / runs.ARRIVALS,
            interval=link.interval,
        )
        model = _first_server(plan, dataset, X, device) if link.send == "weights" else None
        copy: ServerCopy = (
            AnswersCopy(fetcher, len(y), device) if model is None else WeightsCopy(fetcher, model, context)
        )
        x, labels = torch.from_numpy(X).to(device), torch.from_numpy(y).to(device)
        client_correct = torch.from_numpy(job.answers.label == y).to(device)
        stage = FollowingStage("rejector", step, copy, x, labels, view, client_correct, context)
        with fetcher:
            run_stage(stage, context)
            copy.refresh()
            status = fetcher.status()
    runs.write_json(folder / runs.LINK, status.to_dict())
    log.info(
        "copy of step %s in use after %d syncs of %.0f bytes each; failures: %s",
        status.step,
        status.syncs,
        status.bytes_per_sync or 0,
        ", ".join(f"{name} {count}" for name, count in status.failures.items()) or "none",
    )
    if copy.used is None:
        why = (
            f"no copy of the server ever arrived ({status.error or status.state})"
            if status.version is None
            else "copies of the server arrived, but none could be used (see the warnings)"
        )
        raise ExchangeError(
            f"{why}: all epochs were trained against a server that knows nothing, so there is no result. Check "
            "--server-url, the token and the settings of both sides, and start anew"
        )
    system.adopt(Trained(model, rejectors, None), context.history)
    if model is not None:
        system.calibrate(*parts.calibration)
    system.save(folder)
    context.checkpoints.clear()
    return None if model is None else system


def _prepare(
    plan: Plan, dataset: Dataset, target: RunTarget, progress: Progress, role: str, link: Link
) -> tuple[Parts, Context]:
    """What both sides do first: the folder and the parts of the data."""
    if plan.settings.recipe != "paper":
        raise SettingsError("--role trains by Algorithm 2: it goes with --recipe paper")
    if plan.sync != ("1",):
        raise SettingsError("--sync imitates a link: with --role the link is real, leave --sync out")
    if plan.server not in NAMES:
        raise SettingsError(f"--role trains a named server ({', '.join(NAMES)}), not {plan.server}")
    folder, training = target.folder, {**plan.as_dict(), "role": role, "send": link.send}
    runs.prepare_run(folder, training, force=target.force, resume=target.resume)
    checkpoints = Checkpoints(folder / runs.CHECKPOINTS, target.resume, target.checkpoint_every)
    device = pick_device(plan.settings.device)
    return divide(dataset, plan), Context(
        plan.settings, device, checkpoints, progress, history_file=folder / runs.HISTORY
    )


def _first_server(plan: Plan, dataset: Dataset, X: Any, device: torch.device) -> nn.Module:
    """The server as both sides initialise it."""
    with seeded(device, plan.settings.seed, "server"):
        make = server_builder(plan.server, X, dataset.num_classes, plan.settings, plan.server_options)
        return make().to(device)


def _identity(plan: Plan, dataset: Dataset, X: Any, y: Any) -> dict[str, Any]:
    return {
        "classes": list(dataset.class_names),
        "input_shape": list(dataset.input_shape),
        "server": [plan.server, plan.server_options],
        "data": digest(X, y),
    }
