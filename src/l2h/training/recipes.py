"""From samples and a fixed client to a trained server and rejectors, by our recipe or the paper's; their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.classifiers import Classifier, ClassifierAnswers
from l2h.errors import DataError, SettingsError
from l2h.models.rejectors import AttachedRejector
from l2h.models.student import student_features
from l2h.rows import Array, Rows, batch_rows
from l2h.training.alternating import AlternatingStage
from l2h.training.job import Job, stage_settings, view_tensor
from l2h.training.loop import Context, run_stage, seeded
from l2h.training.rejector_stage import Objective, RejectorStage, SamplePool
from l2h.training.rejectors import RejectorBatch
from l2h.training.server import log_probabilities
from l2h.training.streaming import stream, take_inputs
from l2h.training.targets import make_pools, train_server
from l2h.training.together import run_together

CHUNK = 8192  # samples that are on the device at once, at most


@dataclass(frozen=True)
class StudentAnswers:
    """What the students of R rejectors answer to n inputs."""

    label: npt.NDArray[np.int64]  # (R, n)
    #: (R, n, 2), from which it follows how likely they are right (:mod:`l2h.models.student`).
    features: npt.NDArray[np.float32]
    log_probability: npt.NDArray[np.float32]  # (R, n, K)

    @classmethod
    def of(cls, scores: Tensor, client_label: npt.NDArray[np.int64]) -> StudentAnswers:
        """Read the scores (R, n, K) of the students beside the client's labels (n,)."""
        scores = scores.cpu()
        features = student_features(scores, torch.from_numpy(client_label))
        return cls(scores.argmax(-1).numpy(), features.numpy(), torch.log_softmax(scores, dim=-1).numpy())


@dataclass(frozen=True)
class HeldOut:
    """Outcomes on samples that neither the servers nor the rejectors were fitted to, for calibration."""

    scores: npt.NDArray[np.floating]  # (R, n, 1 + S), what each rejector says of the client and of S servers
    client_confidence: npt.NDArray[np.float64]  # (n,)
    client_correct: npt.NDArray[np.bool_]  # bool (n,)
    server_correct: npt.NDArray[np.bool_]  # bool (n,); of several servers (n, S)
    student_features: npt.NDArray[np.float32] | None = None  # (R, n, 2), of :class:`StudentAnswers`; None without one
    student_correct: npt.NDArray[np.bool_] | None = None  # bool (R, n)

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Who is right, bool (n, 1 + S): the client, then each server."""
        return np.column_stack([self.client_correct, self.server_correct])


@dataclass(frozen=True)
class Trained:
    """What a recipe gives."""

    servers: Sequence[nn.Module | Classifier | None]  # trained; None for one that is fixed
    rejectors: RejectorBatch  # one per spec
    held_out: HeldOut | None  # None where the recipe keeps no samples back


def train_paper(job: Job, context: Context, client_correct: npt.NDArray[np.bool_] | None = None) -> Trained:
    """Train by Algorithm 1, or by Algorithm 2 the rejectors whose sync interval is above 1.

    ``client_correct`` (R, n) says where each rejector's client is right, if they have others than the job's.
    """
    make_server = job.servers[0].make
    if make_server is None:
        raise DataError("recipe 'paper' trains a network as the server: for any other use recipe 'default'")
    if context.group is not None:
        raise SettingsError("recipe 'paper' trains server and rejector in turn, in one process: start one")
    device = context.device
    server = initial_server(make_server, context)
    view = view_tensor(job.answers, device)
    rejectors = make_rejectors(job, context, view)
    right = job.answers.label == job.y if client_correct is None else client_correct
    x, (y, known) = take_inputs(job.X, context), (torch.from_numpy(a).to(device) for a in (job.y, right))
    for_server, for_rejector = stage_settings(job, context)
    settings = context.settings
    if settings.joint:
        for_server = replace(for_server, lr=for_rejector.lr, reduction=for_rejector.reduction)
    specs = [
        replace(spec, start=spec.start or settings.start, dropout=spec.dropout or settings.dropout)
        for spec in job.specs
    ]
    stage = AlternatingStage(
        "server and rejector", server, rejectors, specs, x, y, view, known, for_server, for_rejector, context
    )
    run_stage(stage, context)
    server.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return Trained((server,), rejectors, None)


def initial_server(make: Callable[[], nn.Module], context: Context) -> nn.Module:
    """Return the server with its first weights, the same on every host."""
    with seeded(context.device, context.settings.seed, "server"):
        return make().to(context.device)


def train_default(
    job: Job,
    context: Context,
    objective: Callable[[float], Objective],
    soft: bool,
    final: Callable[[Tensor, Tensor], Tensor],
) -> Trained:
    """Train the servers to convergence, then the rejectors on samples that they have not seen.

    ``objective`` gives the rejectors' loss, from how often the best server is right on the samples they are stopped by.
    With ``soft`` targets they may also learn from changed copies of what the servers were fitted to. ``final`` turns
    their outputs (R, n, 1 + S) and the client's log-probabilities (n, K) into scores (R, n, 1 + S).
    """
    outcome = train_server(job, context)
    pools = make_pools(job, context, outcome)
    right = float(pools.stopping.server_correct.double().mean(0).max())
    answers, stopping = job.answers.at(pools.stopping_rows), pools.stopping
    pool = pools.whole if soft else pools.unseen
    stage = make_rejector_stage("rejector", job, context, pool, stopping, objective(right))
    run_together([stage], context)
    rejectors = stage.rejectors
    outputs = rejectors.scores(stopping.x, stopping.view, context, student=True).cpu()
    scores, student = outputs[..., : rejectors.heads], None
    if rejectors.has_student:
        student = StudentAnswers.of(outputs[..., rejectors.heads :], answers.label)
    held_out = HeldOut(
        scores=final(scores, torch.from_numpy(answers.log_probability)).numpy(),
        client_confidence=answers.confidence,
        client_correct=stopping.client_correct.cpu().numpy(),
        server_correct=stopping.server_correct.cpu().numpy(),
        student_features=None if student is None else student.features,
        student_correct=None if student is None else student.label == stopping.y.cpu().numpy(),
    )
    return Trained(outcome.servers, rejectors, held_out)


def make_rejector_stage(
    name: str, job: Job, context: Context, pool: SamplePool, stopping: SamplePool, objective: Objective
) -> RejectorStage:
    """Return the training of a job's rejectors, not begun.

    What is drawn does not depend on ``name``, so that methods that are compared see the same samples in the same order.
    """
    rejectors = make_rejectors(job, context, pool.view)
    settings = stage_settings(job, context)[1]
    return RejectorStage(name, rejectors, objective, pool, settings, context, stopping, draws="rejector")


def make_rejectors(job: Job, context: Context, view: Tensor) -> RejectorBatch:
    """Return the job's rejectors with their first weights, their view of the client standardised by these samples."""
    modules = []
    for spec in job.specs:
        with seeded(context.device, context.settings.seed, "rejector", spec.seed):
            module = job.make_rejector()
        if isinstance(module, AttachedRejector):
            module.to(view.device).fit_view(view)
        modules.append(module)
    return RejectorBatch(modules, context.device)


def rejector_scores(
    rejectors: RejectorBatch, X: Array | Rows, answers: ClassifierAnswers, context: Context, *, student: bool = False
) -> npt.NDArray[np.float32]:
    """What each rejector says of each input, (R, n, 1 + S); with ``student``, its K scores after that."""
    parts, first = [], 0
    for x in _on_device(X, context):
        view = view_tensor(answers.at(slice(first, first + len(x))), context.device)
        parts.append(rejectors.scores(x, view, context, student=student).cpu().numpy())
        first += len(x)
    return np.concatenate(parts, axis=1)


def server_log_probabilities(server: nn.Module, X: Array | Rows, context: Context) -> npt.NDArray[np.float32]:
    """The server's log-softmax, (n, K)."""
    return np.concatenate([log_probabilities(server, x, context).cpu().numpy() for x in _on_device(X, context)])


def _on_device(X: Array | Rows, context: Context) -> Iterator[Tensor]:
    """Give the inputs in parts, so that a large array need not fit on the device."""
    batch = batch_rows(tuple(X.shape), CHUNK)
    if isinstance(X, Rows):
        return stream(X, context).split(batch)
    parts = (np.ascontiguousarray(X[start : start + batch]) for start in range(0, len(X), batch))
    return (torch.from_numpy(part).to(context.device) for part in parts)
