"""What the rejector learns from: a trained server, and samples on which client and server are judged fairly.

On the samples that a model was fitted to it looks far better than it is. So the rejector learns from samples that the
server has not seen: a held-out part or, by cross-fitting, every sample through a server that was trained without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from l2h.classifiers import Classifier, ClassifierAnswers
from l2h.columns import EncodedTable, numbers_of
from l2h.data import split
from l2h.decision import SERVER
from l2h.errors import DataError, SettingsError, about
from l2h.remote import RemoteServer
from l2h.rows import RowNumbers, Rows, batch_rows, digest, take_rows
from l2h.training.augment import Changes, augment
from l2h.training.estimators import fit_estimator
from l2h.training.job import Array, Job, ServerJob, server_title, stage_settings, view_tensor
from l2h.training.loop import Context, derive, seeded
from l2h.training.rejector_stage import SamplePool
from l2h.training.server import log_probabilities, train_classifier
from l2h.training.streaming import Inputs, stream, take_inputs

CROSSFIT_UP_TO = 20_000
CLIENT_BATCH = 4096  # samples that client and servers answer at a time, at most
STOPPING_SHARE = 0.15


@dataclass(frozen=True)
class Teacher:
    """A server, or the server of one fold, and the samples that it was not fitted to."""

    index: RowNumbers  # those samples
    model: nn.Module | Classifier | None  # the server; None where it is fixed and its answers are given
    log_probability: Tensor  # its answers to those samples, in the order of ``index``
    temperature: float  # divides its logits so that its probabilities hold on them


@dataclass(frozen=True)
class ServerOutcome:
    """What the server stage gives: S servers, and who speaks of which samples."""

    servers: Sequence[nn.Module | Classifier | None]  # trained, networks or estimators; None for one that is fixed
    teachers: Sequence[Sequence[Teacher]]  # for each part of the samples one teacher per server
    fitted: RowNumbers | None  # the samples that the trained servers were fitted to, where no teacher speaks of them
    best: int = 0  # number of the server that is most often right on unseen samples: the student is taught by it


@dataclass(frozen=True)
class RejectorPools:
    """Samples for the rejector."""

    unseen: SamplePool  # samples that the server was not fitted to, and changed copies of them
    fitted: SamplePool | None  # changed copies of what the server was fitted to, with soft targets only
    stopping: SamplePool  # unseen samples kept from the rejectors as well, to stop them early and to calibrate them
    stopping_rows: RowNumbers  # the rows of X behind ``stopping``, in its order

    @property
    def whole(self) -> SamplePool:
        """All that a rejector with soft targets may learn from."""
        return self.unseen if self.fitted is None else SamplePool.join([self.unseen, self.fitted])


def train_server(job: Job, context: Context) -> ServerOutcome:
    """Train every server of the job that is to be trained, and take the fixed ones as they are.

    The same rows are held out from all of them, so that what is unseen by one is unseen by all.
    """
    if context.group is not None and any(server.make is None for server in job.servers):
        raise SettingsError(
            f"{context.group.size} processes train one network together, and a server here is none: start one process"
        )
    if context.group is not None:
        context.group.require_same(context.device, samples=digest(job.X, job.y))
    parts, fitted = divide_samples(job, context)
    found: dict[str, tuple[nn.Module | Classifier | None, list[Teacher]]] = {}
    # A fixed server answers before anything is trained.
    for server in sorted(job.servers, key=lambda server: server.fixed is None):
        with about(server_title(server.name)):
            if server.fixed is not None:
                found[server.name] = None, _ask_fixed(job, context, server.fixed, parts, server.stage)
            else:
                found[server.name] = _train_server(job, context, server, parts, fitted)
    models, teachers = zip(*(found[server.name] for server in job.servers), strict=True)
    right = [
        sum(int((t.log_probability.argmax(-1).cpu().numpy() == job.y[t.index]).sum()) for t in own) for own in teachers
    ]
    return ServerOutcome(models, list(zip(*teachers, strict=True)), fitted, int(np.argmax(right)))


def divide_samples(job: Job, context: Context) -> tuple[list[RowNumbers], RowNumbers | None]:
    """Return the parts of the samples that teachers speak of, and what trained servers are fitted to beside them.

    The second is None where they are fitted to everything: to all other parts before they speak of one (the folds), or,
    with ``honest="none"``, to that one part.
    """
    settings = context.settings
    everything = np.arange(len(job.y))
    unseen = settings.honest
    if unseen == "auto":
        small = len(job.y) <= CROSSFIT_UP_TO and job.held_out_rows is None
        unseen = "crossfit" if small else "holdout"
    if unseen == "none" or all(server.fixed is not None for server in job.servers):
        return [everything], None
    if unseen == "holdout":
        rows = job.held_out_rows
        if rows is None:
            parts = split(job.y, (1 - settings.holdout, settings.holdout), derive(settings.seed, "holdout"))
        else:
            parts = [np.setdiff1d(everything, rows), np.unique(rows)]
        fit, held_out = _require_samples(parts, job)
        return [held_out], fit
    folds = split(job.y, (1 / settings.folds,) * settings.folds, derive(settings.seed, "folds"))
    return _require_samples(folds, job), None


def _ask_fixed(job: Job, context: Context, server: Classifier, parts: list[RowNumbers], stage: str) -> list[Teacher]:
    """Return a teacher per part from a server's answers, which it is asked for once and in the order of the rows."""
    if isinstance(server, RemoteServer):
        server.progress = partial(context.progress.asked, stage=stage)
    rows = np.sort(np.concatenate(parts))
    inputs = job.inputs if len(rows) == len(job.y) else take_rows(job.inputs, rows)
    answers = server.answers(inputs, job.num_classes)
    log_p = torch.from_numpy(answers.log_probability).to(context.device)
    return [
        make_teacher(job, context, part, None, log_p[np.searchsorted(rows, part)], calibrate=answers.has_scores)
        for part in parts
    ]


def _train_server(
    job: Job, context: Context, server: ServerJob, parts: list[RowNumbers], fitted: RowNumbers | None
) -> tuple[nn.Module | Classifier, list[Teacher]]:
    everything = np.arange(len(job.y))
    if len(parts) == 1:
        (part,) = parts
        index, stop_on = (everything, None) if fitted is None else (fitted, part)
        model = _train_model(job, context, server, server.stage, index, stop_on)[0]
        return model, [make_teacher(job, context, part, model)]
    teachers, epochs = [], []
    for k, fold in enumerate(parts):
        rest = np.setdiff1d(everything, fold)
        # No server's name has a comma: its stages cannot have those of another.
        name = f"{server.stage}{'' if server.name == SERVER.name else ','} fold {k + 1}"
        model, epoch = _train_model(job, context, server, name, rest, fold)
        teachers.append(make_teacher(job, context, fold, model))
        epochs.append(epoch)
    # On all samples, for as many epochs as the folds needed to be at their best.
    last = max(1, round(float(np.mean(epochs))))
    return _train_model(job, context, server, server.stage, everything, None, last)[0], teachers


def make_pools(job: Job, context: Context, outcome: ServerOutcome) -> RejectorPools:
    """Return what client and server make of the samples and of changed copies; DataError where there are too few."""
    settings = context.settings
    unseen, stopping = [], []
    best = outcome.best
    x = take_inputs(job.X, context, times=2 * (1 + settings.copies))  # each once more while they are joined
    for k, (teachers, rows, stopping_rows) in enumerate(_shares(job, context, outcome)):
        with seeded(context.device, settings.seed, "pool", k):
            unseen.append(make_pool(job, context, x, teachers, rows, settings.distill, best))
            unseen += _copies(job, context, x, teachers, rows, settings.copies, settings.distill, best)
        stopping.append((make_pool(job, context, x, teachers, stopping_rows, 0.0, best), stopping_rows))
    fitted = []
    if outcome.fitted is not None:
        # What the server was fitted to says too much good of it, but changed copies still rank: soft targets only.
        with seeded(context.device, settings.seed, "pool", "fitted"):
            fitted = _copies(job, context, x, outcome.teachers[0], outcome.fitted, settings.copies, 1.0, best)
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


def more_copies(job: Job, context: Context, outcome: ServerOutcome, size: int, like: SamplePool) -> SamplePool | None:
    """Return ``size`` further changed copies of the unseen samples, or None where nothing can be changed.

    They are streamed where those of ``like`` are.
    """
    parts: list[SamplePool] = []
    x = take_inputs(job.X, context) if isinstance(like.x, Tensor) else stream(job.X, context)
    for k, (teachers, rows, _) in enumerate(_shares(job, context, outcome)):
        count = -(-size // max(1, len(rows) * len(outcome.teachers)))
        with seeded(context.device, context.settings.seed, "pool", "more", k):
            parts += _copies(job, context, x, teachers, rows, count, 0.0, outcome.best)
    if not parts or not size:
        return None
    everything = SamplePool.join(parts)
    return everything.at(torch.arange(min(size, len(everything)), device=context.device))


def make_teacher(
    job: Job,
    context: Context,
    index: RowNumbers,
    model: nn.Module | Classifier | None,
    log_probability: Tensor | None = None,
    calibrate: bool = True,
) -> Teacher:
    """Return a server, or its answers, as the teacher for the samples at ``index``."""
    if log_probability is None:
        assert model is not None
        log_probability = _answers(job, context, model, take_rows(job.inputs, index))
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
    job: Job,
    context: Context,
    samples: Inputs,
    teachers: Sequence[Teacher],
    index: RowNumbers,
    distill: float,
    best: int = 0,
    changed: bool = False,
) -> SamplePool:
    """Return what client and servers make of these samples, or of a changed (augmented) copy of each.

    ``samples`` are the inputs of the job. ``distill`` is the weight of the teachers' softmax in the heads' targets; the
    rest is on the outcomes. The teacher numbered ``best`` says how likely the client is right, and teaches the student.
    """
    device = context.device
    x = samples[torch.from_numpy(index).to(device)]
    y = torch.from_numpy(job.y[index]).to(device)
    if changed:
        x = _changed(x, context.settings.augment, device)
        answers, log_p = _ask_about(job, context, x, [t.model for t in teachers if t.model is not None])
    else:
        answers = job.answers.at(index)
        place = {int(sample): at for at, sample in enumerate(teachers[0].index)}
        places = [place[int(i)] for i in index]
        log_p = [teacher.log_probability[places] for teacher in teachers]
    client_label = torch.from_numpy(answers.label).to(device)
    client_correct, server_correct = client_label == y, _by_server([each.argmax(-1) == y for each in log_p])
    softmax = [torch.softmax(p / teacher.temperature, dim=-1) for p, teacher in zip(log_p, teachers, strict=True)]
    server_p, server_soft = softmax[best], _by_server([p.amax(-1) for p in softmax])
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
        server_target=(1 - distill) * server_correct.float() + distill * server_soft,
        teacher=(1 - blend) * torch.nn.functional.one_hot(y, job.num_classes) + blend * server_p,
    )


def _changed(x: Inputs, kind: str, device: torch.device) -> Inputs:
    """Return the inputs, each changed as it is drawn now: at once or, where they are streamed, whenever it is read."""
    if isinstance(x, Tensor):
        return augment(x, kind)
    return x.changed_as(Changes.draw(len(x), x.shape[2:], kind, device) if len(x.shape) == 4 else None)


def _ask_about(
    job: Job, context: Context, x: Inputs, models: Sequence[nn.Module | Classifier]
) -> tuple[ClassifierAnswers, list[Tensor]]:
    """Return what the client and the models answer to changed inputs, which are read once."""
    client, servers = [], []
    for part in x.split(batch_rows(tuple(x.shape), CLIENT_BATCH)):
        rows = part.cpu().numpy()
        client.append(job.client.answers(rows, job.num_classes))
        servers.append([_answers(job, context, model, rows) for model in models])
    return ClassifierAnswers.join(client), [torch.cat(own) for own in zip(*servers, strict=True)]


def _by_server(values: list[Tensor]) -> Tensor:
    """Return (n,) of one server, (n, S) of several."""
    return values[0] if len(values) == 1 else torch.stack(values, dim=-1)


def _shares(
    job: Job, context: Context, outcome: ServerOutcome
) -> list[tuple[Sequence[Teacher], RowNumbers, RowNumbers]]:
    """Return the teachers of each part with its rows to learn from and to stop on; a row's side is always the same."""
    in_training = np.zeros(len(job.y), dtype=bool)
    shares = (1 - STOPPING_SHARE, STOPPING_SHARE)
    in_training[split(job.y, shares, derive(context.settings.seed, "pool"))[0]] = True
    rows = [(teachers, teachers[0].index) for teachers in outcome.teachers]
    return [(teachers, index[in_training[index]], index[~in_training[index]]) for teachers, index in rows]


def _copies(
    job: Job,
    context: Context,
    x: Inputs,
    teachers: Sequence[Teacher],
    rows: RowNumbers,
    count: int,
    distill: float,
    best: int,
) -> list[SamplePool]:
    """Return changed copies; none where a server cannot answer them."""
    if context.settings.augment == "none" or not len(rows) or any(teacher.model is None for teacher in teachers):
        return []
    return [make_pool(job, context, x, teachers, rows, distill, best, changed=True) for _ in range(count)]


def _train_model(
    job: Job,
    context: Context,
    server: ServerJob,
    name: str,
    index: RowNumbers,
    held_out: RowNumbers | None,
    epochs: int | None = None,
) -> tuple[nn.Module | Classifier, int]:
    if server.estimator is not None:
        context.progress.start(name, 1, 1, 0)
        seed = derive(context.settings.seed, name)
        inputs = np.asarray(take_rows(job.X, index)) if job.table is None else job.table[index]
        fitted = fit_estimator(server.estimator, inputs, job.y[index], seed)
        context.progress.step()
        context.progress.finish(name)
        return fitted, 1
    assert server.make is not None
    settings = stage_settings(job, context, server)[0]
    if epochs is not None:
        settings = replace(settings, epochs=epochs, patience=None)
    with seeded(context.device, context.settings.seed, name):
        model = server.make()
    stop_on = None if held_out is None else (take_rows(job.X, held_out), job.y[held_out])
    return model, train_classifier(name, model, take_rows(job.X, index), job.y[index], settings, context, stop_on)


def _answers(job: Job, context: Context, model: nn.Module | Classifier, X: Array | Rows | EncodedTable) -> Tensor:
    if isinstance(model, Classifier):
        return torch.from_numpy(model.answers(X, job.num_classes).log_probability).to(context.device)
    inputs = stream(X, context) if isinstance(X, Rows) else torch.from_numpy(numbers_of(X)).to(context.device)
    return log_probabilities(model, inputs, context)


def _require_samples(parts: list[RowNumbers], job: Job) -> list[RowNumbers]:
    smallest = min(len(part) for part in parts)
    if smallest < 2 or any(len(np.unique(job.y[part])) < 2 for part in parts):
        raise DataError(
            f"{len(job.y)} samples are too few for {len(parts)} parts (the smallest has {smallest}): give more, "
            "fewer folds, or a larger holdout"
        )
    return parts
