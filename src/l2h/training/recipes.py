"""The two recipes: from samples and a fixed client to a trained server and trained rejectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.errors import DataError
from l2h.models.rejectors import AttachedRejector
from l2h.training.alternating import AlternatingStage
from l2h.training.honest import make_pools, serve
from l2h.training.job import Job, stage_settings, view_tensor
from l2h.training.loop import Context, run_stage, seeded
from l2h.training.rejectors import BatchLoss, RejectorBatch, RejectorStage


@dataclass(frozen=True)
class HeldOut:
    """Outcomes on samples that neither the server nor the rejectors were fitted to, for calibration.

    Attributes:
        scores: (R, n, 2), what each rejector says.
        client_confidence: (n,).
        client_correct: bool (n,).
        server_correct: bool (n,).
    """

    scores: npt.NDArray[np.float32]
    client_confidence: npt.NDArray[np.float64]
    client_correct: npt.NDArray[np.bool_]
    server_correct: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Trained:
    """The result of a recipe. ``held_out`` is None where the recipe keeps no samples back."""

    server: nn.Module | None
    rejectors: RejectorBatch
    held_out: HeldOut | None


def train(job: Job, context: Context) -> Trained:
    """Train by the recipe of the settings."""
    return _paper(job, context) if context.settings.recipe == "paper" else _default(job, context)


def _paper(job: Job, context: Context) -> Trained:
    """Algorithm 1, or 2 for the rejectors whose sync interval is above 1."""
    if job.make_server is None:
        raise DataError("recipe 'paper' trains the server: for a fixed one use recipe 'default'")
    device = context.device
    server_settings, rejector_settings = stage_settings(job, context)
    with seeded(device, context.settings.seed, "server"):
        server = job.make_server().to(device)
    view = view_tensor(job.answers, device)
    rejectors = make_rejectors(job, context, view)
    stage = AlternatingStage(
        "server and rejector",
        server,
        rejectors,
        job.specs,
        torch.from_numpy(job.X).to(device),
        torch.from_numpy(job.y).to(device),
        view,
        torch.from_numpy(job.answers.label == job.y).to(device),
        server_settings,
        rejector_settings,
        context,
    )
    run_stage(stage, context)
    server.eval()
    return Trained(server, rejectors, None)


def _default(job: Job, context: Context) -> Trained:
    """Server to convergence; rejectors on samples it has not fitted."""
    served = serve(job, context)
    pools = make_pools(job, context, served)
    priced = all(spec.loss == "priced" for spec in job.specs)
    pool = pools.whole if priced else pools.honest
    rejectors = make_rejectors(job, context, pool.view)
    loss = BatchLoss(job.specs, context.device)
    stage = RejectorStage(
        "rejector", rejectors, loss.on_pool, pool, stage_settings(job, context)[1], context, pools.held
    )
    run_stage(stage, context)
    stage.keep_best()
    held = pools.held
    return Trained(
        served.server,
        rejectors,
        HeldOut(
            scores=rejectors.scores(held.x, held.view, context).cpu().numpy(),
            client_confidence=job.answers.confidence[pools.held_rows],
            client_correct=held.client_correct.cpu().numpy(),
            server_correct=held.server_correct.cpu().numpy(),
        ),
    )


def make_rejectors(job: Job, context: Context, view: Tensor) -> RejectorBatch:
    """The job's rejectors with their first weights, their view standardised by these samples."""
    modules = []
    for spec in job.specs:
        with seeded(context.device, context.settings.seed, "rejector", spec.seed):
            module = job.make_rejector()
        if isinstance(module, AttachedRejector):
            module.to(view.device).fit_view(view)
        modules.append(module)
    return RejectorBatch(modules, context.device)
