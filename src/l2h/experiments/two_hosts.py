"""Train one side of a plan alone, as ``l2h train --role`` does: setting IA as two programs on two hosts."""

import logging
import time
from dataclasses import asdict
from typing import Any

import numpy.typing as npt
import torch

from l2h.columns import numbers_of
from l2h.data import Dataset
from l2h.errors import SettingsError
from l2h.experiments import runs
from l2h.experiments.carry_out import SampleParts, divide, make_client, make_system
from l2h.experiments.plan import Plan
from l2h.experiments.runs import RunTarget
from l2h.models import NAMES
from l2h.rows import digest
from l2h.settings import PAPER_SERVER
from l2h.system import HelpSystem
from l2h.system.server_files import save_server
from l2h.training import Context, Progress, Trained
from l2h.training.exchange import ExchangeError
from l2h.training.hosts import FollowResult, HostLink, PublishingStage, follow, publishing
from l2h.training.job import server_builder
from l2h.training.loop import repeatable, run_stage
from l2h.training.recipes import initial_server
from l2h.training.streaming import take_inputs

log = logging.getLogger("l2h")


def train_server_side(plan: Plan, dataset: Dataset, target: RunTarget, link: HostLink, progress: Progress) -> None:
    """Train the plan's server, offer its snapshots on the way and for ``link.linger`` seconds after, and save it."""
    parts, context = _prepare(plan, dataset, target, link, progress, "server")
    X, y = parts.train[0], dataset.labels.encode(parts.train[1])
    device, settings = context.device, plan.settings
    with repeatable(settings, device):
        make = server_builder(plan.server, X, dataset.num_classes, settings, plan.server_options)
        model = initial_server(make, context)
        x, labels = take_inputs(numbers_of(X), context), torch.from_numpy(y).to(device)
        stage = PublishingStage("server", model, x, labels, settings.server or PAPER_SERVER, context)
        with publishing(stage, link, _identity(plan, dataset, *parts.train), target.folder / runs.SNAPSHOTS):
            if "server" not in runs.read_config(target.folder):  # else it was interrupted after its training
                run_stage(stage, context)
                save_server(model.eval(), target.folder, dataset.class_names, dataset.name)
            context.checkpoints.clear()
            log.info("trained; staying %.0f s to be fetched from", link.linger)
            time.sleep(link.linger)


def train_client_side(
    plan: Plan, dataset: Dataset, target: RunTarget, link: HostLink, progress: Progress
) -> HelpSystem | None:
    """Train the plan's rejectors against the last snapshot that arrived, and save the system.

    The system has the last copy of the server; it is None where only answers were sent, so that there is no copy.
    """
    parts, context = _prepare(plan, dataset, target, link, progress, "client")
    folder = target.folder
    with repeatable(plan.settings, context.device):
        system = make_system(plan, dataset, make_client(plan, dataset, parts, context))
        job = system.prepare(*parts.train, specs=plan.specs)
        followed = follow(job, context, link, _identity(plan, dataset, *parts.train), folder / runs.ARRIVALS)
    runs.write_json(folder / runs.LINK, asdict(followed.status))
    _report_link(followed)
    system.adopt(job, Trained((followed.server,), followed.rejectors, None), context.history)
    if followed.server is not None:
        system.calibrate(*parts.calibration)
    system.save(folder)
    context.checkpoints.clear()
    return None if followed.server is None else system


def _prepare(
    plan: Plan, dataset: Dataset, target: RunTarget, link: HostLink, progress: Progress, role: str
) -> tuple[SampleParts, Context]:
    if plan.settings.recipe != "paper":
        raise SettingsError("--role trains by Algorithm 2: it goes with --recipe paper")
    if plan.sync != ("1",):
        raise SettingsError("--sync imitates a link: with --role the link is real, leave --sync out")
    for name in ("start", "dropout", "joint"):
        if getattr(plan.settings, name):
            raise SettingsError(
                f"--set {name}=... goes with one host: with --role neither side knows the other's steps"
            )
    if plan.servers:
        raise SettingsError("--role trains one server, without a name: --server lenet5")
    if plan.server not in NAMES:
        raise SettingsError(f"--role trains a named server ({', '.join(NAMES)}), not {plan.server}")
    target.prepare({**plan.as_dict(), "role": role, "send": link.send})
    return divide(dataset, plan), target.context(plan.settings, progress, target.folder / runs.HISTORY)


def _identity(plan: Plan, dataset: Dataset, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> dict[str, Any]:
    return {
        "classes": list(dataset.class_names),
        "input_shape": list(dataset.input_shape),
        "server": [plan.server, plan.server_options],
        "data": digest(numbers_of(X), dataset.labels.encode(y)),
    }


def _report_link(followed: FollowResult) -> None:
    """Log how the link did; raise :class:`ExchangeError` where no snapshot was used."""
    status = followed.status
    log.info(
        "copy of step %s in use after %d syncs of %.0f bytes each; failures: %s",
        status.step,
        status.syncs,
        status.bytes_per_sync or 0,
        ", ".join(f"{name} {count}" for name, count in status.failures.items()) or "none",
    )
    if not followed.used:
        why = (
            f"no copy of the server ever arrived ({status.error or status.state})"
            if status.version is None
            else "copies of the server arrived, but none could be used (see the warnings)"
        )
        raise ExchangeError(
            f"{why}: all epochs were trained against a server that knows nothing, so there is no result. Check "
            "--server-url, the token and the settings of both sides, and start anew"
        )
