"""The server stage of the default recipe, and samples that speak honestly of client and server.

On the samples that a model was trained on it looks far better than it is. So the rejector learns from samples that the
server has not been fitted to: a held-out part or, by cross-fitting, every sample through a server that has not seen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.data.splits import split
from l2h.errors import DataError
from l2h.settings import Settings
from l2h.training.augment import augment
from l2h.training.job import Job, stage_settings, view_tensor
from l2h.training.loop import Context, derive, seeded
from l2h.training.rejectors import Pool
from l2h.training.server import log_probabilities, train_classifier

CROSSFIT_UP_TO = 20_000
HELD_OUT_OF_POOL = 0.15
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Teacher:
    """A server, or one fold's, and the samples it may speak of because it has not been fitted to them.

    Attributes:
        index: those samples.
        model: the server; None where it is fixed and its answers are given.
        log_probability: its answers to those samples, in the order of ``index``.
        temperature: that makes its softmax honest on them.
    """

    index: Rows
    model: nn.Module | None
    log_probability: Tensor
    temperature: float


@dataclass(frozen=True)
class Served:
    """What the server stage gives.

    Attributes:
        server: trained; None where it is fixed.
        teachers: who may speak of which samples.
        fitted: the samples it was fitted to, where no teacher speaks of them.
    """

    server: nn.Module | None
    teachers: Sequence[Teacher]
    fitted: Rows | None


@dataclass(frozen=True)
class Pools:
    """Samples for the rejector.

    Attributes:
        honest: outcomes of classifiers that were not fitted to them, changed copies among them.
        fitted: changed copies of what the server was fitted to, with soft targets only; None where there are none.
        held: kept from the rejectors as well, to stop them early and to calibrate them.
        held_rows: the rows of X behind ``held``, in its order.
    """

    honest: Pool
    fitted: Pool | None
    held: Pool
    held_rows: Rows

    @property
    def whole(self) -> Pool:
        """All that a rejector with soft targets may learn from."""
        return self.honest if self.fitted is None else Pool.join([self.honest, self.fitted])


def make_pools(job: Job, context: Context, served: Served) -> Pools:
    """What client and server make of the samples, and of changed copies of them.

    Raises:
        DataError: too few samples.
    """
    settings = context.settings
    honest, held = [], []
    for k, (teacher, rows, held_rows) in enumerate(_shares(job, context, served)):
        with seeded(context.device, settings.seed, "pool", k):
            honest.append(outcomes(job, context, teacher, rows, settings.distill))
            honest += _copies(job, context, teacher, rows, settings.copies, settings.distill)
        held.append((outcomes(job, context, teacher, held_rows, distill=0.0), held_rows))
    fitted = []
    if served.fitted is not None:
        # What the server was fitted to says too much good of it, but changed copies still rank: soft targets only.
        with seeded(context.device, settings.seed, "pool", "fitted"):
            fitted = _copies(job, context, served.teachers[0], served.fitted, settings.copies, distill=1.0)
    pools = Pools(
        Pool.join(honest),
        Pool.join(fitted) if fitted else None,
        Pool.join([pool for pool, _ in held]),
        np.concatenate([rows for _, rows in held]),
    )
    if not (len(pools.honest) and len(pools.held)):
        raise DataError(
            f"{len(job.y)} samples are too few: the rejector has {len(pools.honest)} to learn from and "
            f"{len(pools.held)} to stop and calibrate on; give more, or a larger holdout"
        )
    return pools


def more_copies(job: Job, context: Context, served: Served, size: int) -> Pool | None:
    """``size`` further changed copies of the honest samples, or None where nothing can be changed."""
    parts: list[Pool] = []
    for k, (teacher, rows, _) in enumerate(_shares(job, context, served)):
        count = -(-size // max(1, len(rows) * len(served.teachers)))
        with seeded(context.device, context.settings.seed, "pool", "more", k):
            parts += _copies(job, context, teacher, rows, count, distill=0.0)
    if not parts or not size:
        return None
    everything = Pool.join(parts)
    return everything.at(torch.arange(min(size, len(everything)), device=context.device))


def _shares(job: Job, context: Context, served: Served) -> list[tuple[Teacher, Rows, Rows]]:
    """Each teacher's rows to learn from and rows to hold out; the same are held out whoever the teacher."""
    in_training = np.zeros(len(job.y), dtype=bool)
    shares = (1 - HELD_OUT_OF_POOL, HELD_OUT_OF_POOL)
    in_training[split(job.y, shares, derive(context.settings.seed, "pool"))[0]] = True
    return [(t, t.index[in_training[t.index]], t.index[~in_training[t.index]]) for t in served.teachers]


def _copies(job: Job, context: Context, teacher: Teacher, rows: Rows, count: int, distill: float) -> list[Pool]:
    if context.settings.augment == "none" or teacher.model is None:
        return []
    return [outcomes(job, context, teacher, rows, distill, changed=True) for _ in range(count)]


def serve(job: Job, context: Context) -> Served:
    """Train the server, or take the fixed one as it is."""
    settings = context.settings
    everything = np.arange(len(job.y))
    if job.fixed_server is not None:
        answers = job.fixed_server.answers(job.X, job.num_classes)
        log_p = torch.from_numpy(answers.log_probability).to(context.device)
        return Served(None, [teacher_of(job, context, everything, None, log_p, calibrate=answers.has_scores)], None)
    honest = settings.honest
    if honest == "auto":
        small = len(job.y) <= CROSSFIT_UP_TO and job.held_out_rows is None
        honest = "crossfit" if small else "holdout"
    if honest == "none":
        server = _train_server(job, context, "server", everything, None)[0]
        return Served(server, [teacher_of(job, context, everything, server)], None)
    if honest == "holdout":
        fit, held = _enough(_held_out(job, settings), job)
        server = _train_server(job, context, "server", fit, held)[0]
        return Served(server, [teacher_of(job, context, held, server)], fit)
    folds = _enough(split(job.y, (1 / settings.folds,) * settings.folds, derive(settings.seed, "folds")), job)
    teachers, epochs = [], []
    for k, fold in enumerate(folds):
        rest = np.setdiff1d(everything, fold)
        model, epoch = _train_server(job, context, f"server fold {k + 1}", rest, fold)
        teachers.append(teacher_of(job, context, fold, model))
        epochs.append(epoch)
    # All samples, for as long as the folds were at their best after.
    server = _train_server(job, context, "server", everything, None, max(1, round(float(np.mean(epochs)))))[0]
    return Served(server, teachers, None)


def _train_server(
    job: Job,
    context: Context,
    name: str,
    index: Rows,
    held: Rows | None,
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


def teacher_of(
    job: Job,
    context: Context,
    index: Rows,
    model: nn.Module | None,
    log_probability: Tensor | None = None,
    calibrate: bool = True,
) -> Teacher:
    """A server, or its answers, as the one who speaks of the samples at ``index``."""
    if log_probability is None:
        assert model is not None
        log_probability = log_probabilities(model, torch.from_numpy(job.X[index]).to(context.device), context)
    temperature = 1.0
    if calibrate:
        temperature = fit_temperature(log_probability, torch.from_numpy(job.y[index]).to(context.device))
    return Teacher(index, model, log_probability, temperature)


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


def outcomes(
    job: Job,
    context: Context,
    teacher: Teacher,
    index: Rows,
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
        y=y,
        client_correct=client_correct,
        server_correct=server_correct,
        server_probability=server_p,
        client_target=(1 - distill) * client_correct.float() + distill * client_soft,
        server_target=(1 - distill) * server_correct.float() + distill * server_p.amax(-1),
        teacher=(1 - blend) * torch.nn.functional.one_hot(y, job.num_classes) + blend * server_p,
    )


def _held_out(job: Job, settings: Settings) -> list[Rows]:
    """Rows to fit the server to, and rows to hold out: those the caller named, or a share."""
    if job.held_out_rows is not None:
        return [np.setdiff1d(np.arange(len(job.y)), job.held_out_rows), np.unique(job.held_out_rows)]
    return split(job.y, (1 - settings.holdout, settings.holdout), derive(settings.seed, "holdout"))


def _enough(parts: list[Rows], job: Job) -> list[Rows]:
    smallest = min(len(part) for part in parts)
    if smallest < 2 or any(len(np.unique(job.y[part])) < 2 for part in parts):
        raise DataError(
            f"{len(job.y)} samples are too few for {len(parts)} parts (the smallest has {smallest}): give more, "
            "fewer folds, or a larger holdout"
        )
    return parts
