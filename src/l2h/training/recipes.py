"""The two recipes: from samples and a fixed client to a trained server and trained rejectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.clients import Client, ClientAnswers
from l2h.data.splits import split
from l2h.errors import DataError
from l2h.models.rejectors import AttachedRejector, client_view
from l2h.settings import DEFAULT_REJECTOR, PAPER_REJECTOR, PAPER_SERVER, Settings, StageSettings
from l2h.training.alternating import AlternatingStage
from l2h.training.augment import augment
from l2h.training.loop import Context, derive, run_stage, seeded
from l2h.training.rejectors import Pool, RejectorBatch, RejectorSpec, RejectorStage
from l2h.training.server import log_probabilities, train_classifier

CROSSFIT_UP_TO = 20_000
HELD_OUT_OF_POOL = 0.15


@dataclass(frozen=True)
class Job:
    """What is to be trained.

    Attributes:
        X: inputs, uint8 or float32.
        y: labels.
        client: the fixed client.
        answers: its answers to X, computed once.
        make_server: gives a fresh server, its weights drawn from torch's generator; None where the server is fixed.
        fixed_server: the server that is somebody's API.
        server_settings: of the server stage.
        make_rejector: gives a fresh rejector.
        specs: what each rejector of the batch is for.
        held_out_rows: samples that the client has not been fitted to, to be held out from the server as well.
    """

    X: npt.NDArray[Any]
    y: npt.NDArray[np.int64]
    client: Client
    answers: ClientAnswers
    make_server: Callable[[], nn.Module] | None
    fixed_server: Client | None
    server_settings: StageSettings
    make_rejector: Callable[[], nn.Module]
    specs: Sequence[RejectorSpec]
    held_out_rows: npt.NDArray[np.int64] | None = None

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.answers.log_probability.shape[1])


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


def view_tensor(answers: ClientAnswers, device: torch.device) -> Tensor:
    """The client's view of its own answers, on the device."""
    embedding = None if answers.embedding is None else torch.from_numpy(answers.embedding).to(device)
    return client_view(torch.from_numpy(answers.log_probability).to(device), embedding)


def stage_settings(job: Job, context: Context) -> tuple[StageSettings, StageSettings]:
    """Settings of the server's and the rejector's stage, defaults filled in."""
    settings = context.settings
    if settings.recipe == "paper":
        return settings.server or PAPER_SERVER, settings.rejector or PAPER_REJECTOR
    return settings.server or job.server_settings, settings.rejector or DEFAULT_REJECTOR


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
    settings, device = context.settings, context.device
    server, teachers, fitted = _server_stage(job, context)
    # The same samples are held out of every teacher's share: to stop the rejectors early and to calibrate them.
    in_training = np.zeros(len(job.y), dtype=bool)
    in_training[split(job.y, (1 - HELD_OUT_OF_POOL, HELD_OUT_OF_POOL), derive(settings.seed, "pool"))[0]] = True
    pools, held_pools, held_order = [], [], []
    for k, teacher in enumerate(teachers):
        kept, held = teacher.index[in_training[teacher.index]], teacher.index[~in_training[teacher.index]]
        copies = settings.copies if settings.augment != "none" and teacher.model is not None else 0
        with seeded(device, settings.seed, "pool", k):
            pools.append(_outcomes(job, context, teacher, kept, settings.distill))
            pools += [_outcomes(job, context, teacher, kept, settings.distill, changed=True) for _ in range(copies)]
        held_pools.append(_outcomes(job, context, teacher, held, distill=0.0))
        held_order.append(held)
    if fitted is not None and settings.augment != "none" and all(spec.loss == "priced" for spec in job.specs):
        # What the server was fitted to says too much good of it, but changed copies still rank: soft targets only.
        with seeded(device, settings.seed, "pool", "fitted"):
            pools += [_outcomes(job, context, teachers[0], fitted, 1.0, changed=True) for _ in range(settings.copies)]
    pool, held_pool = Pool.join(pools), Pool.join(held_pools)
    if not (len(pool) and len(held_pool)):
        raise DataError(
            f"{len(job.y)} samples are too few: the rejector has {len(pool)} to learn from and {len(held_pool)} to "
            "stop and calibrate on; give more, or a larger holdout"
        )
    rejectors = make_rejectors(job, context, pool.view)
    stage = RejectorStage("rejector", rejectors, job.specs, pool, stage_settings(job, context)[1], context, held_pool)
    run_stage(stage, context)
    stage.keep_best()
    return Trained(
        server,
        rejectors,
        HeldOut(
            scores=rejectors.scores(held_pool.x, held_pool.view, context).cpu().numpy(),
            client_confidence=job.answers.confidence[np.concatenate(held_order)],
            client_correct=held_pool.client_correct.cpu().numpy(),
            server_correct=held_pool.server_correct.cpu().numpy(),
        ),
    )


@dataclass(frozen=True)
class _Teacher:
    """A server, or one fold's, and the samples it may speak of because it has not been fitted to them.

    Attributes:
        index: those samples.
        model: the server; None where it is fixed and its answers are given.
        log_probability: its answers to those samples, in the order of ``index``.
        temperature: that makes its softmax honest on them.
    """

    index: npt.NDArray[np.int64]
    model: nn.Module | None
    log_probability: Tensor
    temperature: float


def _server_stage(job: Job, context: Context) -> tuple[nn.Module | None, list[_Teacher], npt.NDArray[np.int64] | None]:
    """The server, who may speak of which samples, and the samples it was fitted to where they are not spoken of."""
    settings = context.settings
    everything = np.arange(len(job.y))
    if job.fixed_server is not None:
        answers = job.fixed_server.answers(job.X, job.num_classes)
        log_p = torch.from_numpy(answers.log_probability).to(context.device)
        return None, [_teacher(job, context, everything, None, log_p, calibrate=answers.has_scores)], None
    honest = settings.honest
    if honest == "auto":
        small = len(job.y) <= CROSSFIT_UP_TO and job.held_out_rows is None
        honest = "crossfit" if small else "holdout"
    if honest == "none":
        server = _train_server(job, context, "server", everything, None)[0]
        return server, [_teacher(job, context, everything, server)], None
    if honest == "holdout":
        fit, held = _enough(_held_out(job, settings), job)
        server = _train_server(job, context, "server", fit, held)[0]
        return server, [_teacher(job, context, held, server)], fit
    folds = _enough(split(job.y, (1 / settings.folds,) * settings.folds, derive(settings.seed, "folds")), job)
    teachers, epochs = [], []
    for k, fold in enumerate(folds):
        rest = np.setdiff1d(everything, fold)
        model, epoch = _train_server(job, context, f"server fold {k + 1}", rest, fold)
        teachers.append(_teacher(job, context, fold, model))
        epochs.append(epoch)
    # All samples, for as long as the folds were at their best after.
    server = _train_server(job, context, "server", everything, None, max(1, round(float(np.mean(epochs)))))[0]
    return server, teachers, None


def _train_server(
    job: Job,
    context: Context,
    name: str,
    index: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64] | None,
    epochs: int | None = None,
) -> tuple[nn.Module, int]:
    assert job.make_server is not None
    settings = stage_settings(job, context)[0]
    if epochs is not None:
        settings = replace(settings, epochs=epochs, patience=None)
    with seeded(context.device, context.settings.seed, name):
        model = job.make_server()
    held_out = None if held is None else (job.X[held], job.y[held])
    return model, train_classifier(name, model, job.X[index], job.y[index], settings, context, held_out)


def _teacher(
    job: Job,
    context: Context,
    index: npt.NDArray[np.int64],
    model: nn.Module | None,
    log_probability: Tensor | None = None,
    calibrate: bool = True,
) -> _Teacher:
    if log_probability is None:
        assert model is not None
        log_probability = log_probabilities(model, torch.from_numpy(job.X[index]).to(context.device), context)
    temperature = 1.0
    if calibrate:
        temperature = fit_temperature(log_probability, torch.from_numpy(job.y[index]).to(context.device))
    return _Teacher(index, model, log_probability, temperature)


def fit_temperature(log_probability: Tensor, y: Tensor) -> float:
    """The temperature with the lowest log-loss, by golden-section search over [1/8, 8]: the loss has one minimum."""

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(log_probability / float(np.exp(log_temperature)), y))

    low, high = -np.log(8.0), np.log(8.0)
    ratio = (np.sqrt(5.0) - 1) / 2
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return float(np.exp((low + high) / 2))


def _outcomes(
    job: Job,
    context: Context,
    teacher: _Teacher,
    index: npt.NDArray[np.int64],
    distill: float,
    changed: bool = False,
) -> Pool:
    """What client and server make of these samples, or of a changed copy of each."""
    device = context.device
    x = torch.from_numpy(job.X[index]).to(device)
    y = torch.from_numpy(job.y[index]).to(device)
    if changed:
        assert teacher.model is not None
        x = augment(x, context.settings.augment)
        answers = job.client.answers(x.cpu().numpy(), job.num_classes)
        server_log_p = log_probabilities(teacher.model, x, context)
    else:
        answers = job.answers.at(index)
        place = {int(sample): at for at, sample in enumerate(teacher.index)}
        server_log_p = teacher.log_probability[[place[int(i)] for i in index]]
    client_label = torch.from_numpy(answers.label).to(device)
    client_correct, server_correct = client_label == y, server_log_p.argmax(-1) == y
    server_p = torch.softmax(server_log_p / teacher.temperature, dim=-1)
    client_soft = server_p.gather(1, client_label[:, None])[:, 0]
    blend = context.settings.distill
    return Pool(
        x=x,
        view=view_tensor(answers, device),
        client_correct=client_correct,
        server_correct=server_correct,
        client_target=(1 - distill) * client_correct.float() + distill * client_soft,
        server_target=(1 - distill) * server_correct.float() + distill * server_p.amax(-1),
        teacher=(1 - blend) * torch.nn.functional.one_hot(y, job.num_classes) + blend * server_p,
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


def _held_out(job: Job, settings: Settings) -> list[npt.NDArray[np.int64]]:
    """Rows to fit the server to, and rows to hold out: those the caller named, or a share."""
    if job.held_out_rows is not None:
        return [np.setdiff1d(np.arange(len(job.y)), job.held_out_rows), np.unique(job.held_out_rows)]
    return split(job.y, (1 - settings.holdout, settings.holdout), derive(settings.seed, "holdout"))


def _enough(parts: list[npt.NDArray[np.int64]], job: Job) -> list[npt.NDArray[np.int64]]:
    smallest = min(len(part) for part in parts)
    if smallest < 2 or any(len(np.unique(job.y[part])) < 2 for part in parts):
        raise DataError(
            f"{len(job.y)} samples are too few for {len(parts)} parts (the smallest has {smallest}): give more, "
            "fewer folds, or a larger holdout"
        )
    return parts
