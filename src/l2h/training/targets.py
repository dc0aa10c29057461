"""What the rejector learns from: a trained server, and samples on which client and server are judged fairly.

On the samples that a model was fitted to it looks far better than it is. So the rejector learns from samples that the
server has not seen: a held-out part or, by cross-fitting, every sample through a server that was trained without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.classifiers import Classifier
from l2h.columns import EncodedTable, numbers_of
from l2h.data import split
from l2h.errors import DataError
from l2h.remote import RemoteServer
from l2h.training.augment import augment
from l2h.training.estimators import fit_estimator
from l2h.training.job import Array, Job, stage_settings, view_tensor
from l2h.training.loop import Context, derive, seeded
from l2h.training.rejector_stage import SamplePool
from l2h.training.server import log_probabilities, train_classifier

CROSSFIT_UP_TO = 20_000
STOPPING_SHARE = 0.15
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Teacher:
    """A server, or the server of one fold, and the samples that it was not fitted to."""

    index: Rows  # those samples
    model: nn.Module | Classifier | None  # the server; None where it is fixed and its answers are given
    log_probability: Tensor  # its answers to those samples, in the order of ``index``
    temperature: float  # divides its logits so that its probabilities hold on them


@dataclass(frozen=True)
class ServerOutcome:
    """What the server stage gives."""

    server: nn.Module | Classifier | None  # trained, a network or an estimator; None where it is fixed
    teachers: Sequence[Teacher]  # who speaks of which samples
    fitted: Rows | None  # the samples that the server was fitted to, where no teacher speaks of them


@dataclass(frozen=True)
class RejectorPools:
    """Samples for the rejector."""

    unseen: SamplePool  # samples that the server was not fitted to, and changed copies of them
    fitted: SamplePool | None  # changed copies of what the server was fitted to, with soft targets only
    stopping: SamplePool  # unseen samples kept from the rejectors as well, to stop them early and to calibrate them
    stopping_rows: Rows  # the rows of X behind ``stopping``, in its order

    @property
    def whole(self) -> SamplePool:
        """All that a rejector with soft targets may learn from."""
        return self.unseen if self.fitted is None else SamplePool.join([self.unseen, self.fitted])


def train_server(job: Job, context: Context) -> ServerOutcome:
    """Train the server, or take the fixed one as it is."""
    settings = context.settings
    everything = np.arange(len(job.y))
    if job.fixed_server is not None:
        if isinstance(job.fixed_server, RemoteServer):
            job.fixed_server.progress = context.progress.asked
        # Once and in the order of the rows, before anything is trained.
        answers = job.fixed_server.answers(job.inputs, job.num_classes)
        log_p = torch.from_numpy(answers.log_probability).to(context.device)
        teacher = make_teacher(job, context, everything, None, log_p, calibrate=answers.has_scores)
        return ServerOutcome(None, [teacher], None)
    unseen = settings.honest
    if unseen == "auto":
        small = len(job.y) <= CROSSFIT_UP_TO and job.held_out_rows is None
        unseen = "crossfit" if small else "holdout"
    if unseen == "none":
        server = _train_model(job, context, "server", everything, None)[0]
        return ServerOutcome(server, [make_teacher(job, context, everything, server)], None)
    if unseen == "holdout":
        rows = job.held_out_rows
        if rows is None:
            parts = split(job.y, (1 - settings.holdout, settings.holdout), derive(settings.seed, "holdout"))
        else:
            parts = [np.setdiff1d(everything, rows), np.unique(rows)]
        fit, held_out = _require_samples(parts, job)
        server = _train_model(job, context, "server", fit, held_out)[0]
        return ServerOutcome(server, [make_teacher(job, context, held_out, server)], fit)
    folds = _require_samples(split(job.y, (1 / settings.folds,) * settings.folds, derive(settings.seed, "folds")), job)
    teachers, epochs = [], []
    for k, fold in enumerate(folds):
        rest = np.setdiff1d(everything, fold)
        model, epoch = _train_model(job, context, f"server fold {k + 1}", rest, fold)
        teachers.append(make_teacher(job, context, fold, model))
        epochs.append(epoch)
    # On all samples, for as many epochs as the folds needed to be at their best.
    server = _train_model(job, context, "server", everything, None, max(1, round(float(np.mean(epochs)))))[0]
    return ServerOutcome(server, teachers, None)


def make_pools(job: Job, context: Context, outcome: ServerOutcome) -> RejectorPools:
    """Return what client and server make of the samples and of changed copies; DataError where there are too few."""
    settings = context.settings
    unseen, stopping = [], []
    for k, (teacher, rows, stopping_rows) in enumerate(_shares(job, context, outcome)):
        with seeded(context.device, settings.seed, "pool", k):
            unseen.append(make_pool(job, context, teacher, rows, settings.distill))
            unseen += _copies(job, context, teacher, rows, settings.copies, settings.distill)
        stopping.append((make_pool(job, context, teacher, stopping_rows, distill=0.0), stopping_rows))
    fitted = []
    if outcome.fitted is not None:
        # What the server was fitted to says too much good of it, but changed copies still rank: soft targets only.
        with seeded(context.device, settings.seed, "pool", "fitted"):
            fitted = _copies(job, context, outcome.teachers[0], outcome.fitted, settings.copies, distill=1.0)
    pools = RejectorPools(
        SamplePool.join(unseen),
        SamplePool.join(fitted) if fitted else None,
        SamplePool.join([pool for pool, _ in stopping]),
        np.concatenate([rows for _, rows in stopping]),
    )
    if not (len(pools.unseen) and len(pools.stopping)):
        raise DataError(
            f"{len(job.y)} samples are too few: the rejector has {len(pools.unseen)} to learn from and "
            f"{len(pools.stopping)} to stop and calibrate on; give more, or a larger holdout"
        )
    return pools


def more_copies(job: Job, context: Context, outcome: ServerOutcome, size: int) -> SamplePool | None:
    """Return ``size`` further changed copies of the unseen samples, or None where nothing can be changed."""
    parts: list[SamplePool] = []
    for k, (teacher, rows, _) in enumerate(_shares(job, context, outcome)):
        count = -(-size // max(1, len(rows) * len(outcome.teachers)))
        with seeded(context.device, context.settings.seed, "pool", "more", k):
            parts += _copies(job, context, teacher, rows, count, distill=0.0)
    if not parts or not size:
        return None
    everything = SamplePool.join(parts)
    return everything.at(torch.arange(min(size, len(everything)), device=context.device))


def make_teacher(
    job: Job,
    context: Context,
    index: Rows,
    model: nn.Module | Classifier | None,
    log_probability: Tensor | None = None,
    calibrate: bool = True,
) -> Teacher:
    """Return a server, or its answers, as the teacher for the samples at ``index``."""
    if log_probability is None:
        assert model is not None
        log_probability = _answers(job, context, model, job.inputs[index])
    temperature = 1.0
    if calibrate:
        temperature = fit_temperature(log_probability, torch.from_numpy(job.y[index]).to(context.device))
    return Teacher(index, model, log_probability, temperature)


def fit_temperature(log_probability: Tensor, y: Tensor) -> float:
    """Return the temperature in [1/8, 8] with the lowest log-loss: its one minimum, by golden-section search."""

    def loss(log_temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(log_probability / float(np.exp(log_temperature)), y))

    low, high = -np.log(8.0), np.log(8.0)
    ratio = (np.sqrt(5.0) - 1) / 2
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return float(np.exp((low + high) / 2))


def make_pool(
    job: Job, context: Context, teacher: Teacher, index: Rows, distill: float, changed: bool = False
) -> SamplePool:
    """Return what client and server make of these samples, or of a changed (augmented) copy of each.

    ``distill`` is the weight of the teacher's softmax in the heads' targets; the rest is on the outcomes.
    """
    device = context.device
    x = torch.from_numpy(job.X[index]).to(device)
    y = torch.from_numpy(job.y[index]).to(device)
    if changed:
        assert teacher.model is not None
        x = augment(x, context.settings.augment)
        answers = job.client.answers(x.cpu().numpy(), job.num_classes)
        server_log_p = _answers(job, context, teacher.model, x.cpu().numpy())
    else:
        answers = job.answers.at(index)
        place = {int(sample): at for at, sample in enumerate(teacher.index)}
        server_log_p = teacher.log_probability[[place[int(i)] for i in index]]
    client_label = torch.from_numpy(answers.label).to(device)
    client_correct, server_correct = client_label == y, server_log_p.argmax(-1) == y
    server_p = torch.softmax(server_log_p / teacher.temperature, dim=-1)
    client_soft = server_p.gather(1, client_label[:, None])[:, 0]
    blend = context.settings.distill
    return SamplePool(
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


def _shares(job: Job, context: Context, outcome: ServerOutcome) -> list[tuple[Teacher, Rows, Rows]]:
    """Return each teacher with its rows to learn from and to stop on; a row is on the same side for all teachers."""
    in_training = np.zeros(len(job.y), dtype=bool)
    shares = (1 - STOPPING_SHARE, STOPPING_SHARE)
    in_training[split(job.y, shares, derive(context.settings.seed, "pool"))[0]] = True
    return [(t, t.index[in_training[t.index]], t.index[~in_training[t.index]]) for t in outcome.teachers]


def _copies(job: Job, context: Context, teacher: Teacher, rows: Rows, count: int, distill: float) -> list[SamplePool]:
    if context.settings.augment == "none" or teacher.model is None:
        return []
    return [make_pool(job, context, teacher, rows, distill, changed=True) for _ in range(count)]


def _train_model(
    job: Job, context: Context, name: str, index: Rows, held_out: Rows | None, epochs: int | None = None
) -> tuple[nn.Module | Classifier, int]:
    if job.estimator is not None:
        context.progress.start(name, 1, 1, 0)
        seed = derive(context.settings.seed, name)
        fitted = fit_estimator(job.estimator, job.inputs[index], job.y[index], seed)
        context.progress.step()
        context.progress.finish(name)
        return fitted, 1
    assert job.make_server is not None
    settings = stage_settings(job, context)[0]
    if epochs is not None:
        settings = replace(settings, epochs=epochs, patience=None)
    with seeded(context.device, context.settings.seed, name):
        model = job.make_server()
    stop_on = None if held_out is None else (job.X[held_out], job.y[held_out])
    return model, train_classifier(name, model, job.X[index], job.y[index], settings, context, stop_on)


def _answers(job: Job, context: Context, model: nn.Module | Classifier, X: Array | EncodedTable) -> Tensor:
    if isinstance(model, Classifier):
        return torch.from_numpy(model.answers(X, job.num_classes).log_probability).to(context.device)
    return log_probabilities(model, torch.from_numpy(numbers_of(X)).to(context.device), context)


def _require_samples(parts: list[Rows], job: Job) -> list[Rows]:
    smallest = min(len(part) for part in parts)
    if smallest < 2 or any(len(np.unique(job.y[part])) < 2 for part in parts):
        raise DataError(
            f"{len(job.y)} samples are too few for {len(parts)} parts (the smallest has {smallest}): give more, "
            "fewer folds, or a larger holdout"
        )
    return parts
