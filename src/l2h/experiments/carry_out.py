"""A plan carried out: its data and their division, its client, its system, and their training."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.budgets import Budget
from l2h.classifiers import UNIT_RANGE, Classifier, as_client, unit_range
from l2h.columns import EncodedTable, numbers_of
from l2h.data import Dataset, load_dataset, split
from l2h.errors import ClientError, ModelError, SettingsError
from l2h.experiments.plan import STAND_INS, Plan
from l2h.experiments.runs import HISTORY, RunTarget
from l2h.files import CLIENT_TRAINING, note_training
from l2h.models import NAMES, build_scaled, client_view_size, within_budget
from l2h.remote import is_remote
from l2h.rows import Rows, digest, in_memory, take_rows
from l2h.settings import PAPER_SERVER, StageSettings
from l2h.system import HelpSystem
from l2h.training import Context, Progress, Silent, pick_device, train_classifier
from l2h.training.estimators import COPIES
from l2h.training.job import input_scale
from l2h.training.loop import derive, repeatable, seeded
from l2h.training.targets import CROSSFIT_UP_TO, train_server

log = logging.getLogger("l2h")
#: X, an array or an encoded table, and y.
Samples = tuple[Any, npt.NDArray[Any]]
#: A legacy net as somebody would have trained it once: few epochs, nothing fancy.
_LEGACY = StageSettings(epochs=10, batch=64, optimizer="sgd", lr=1e-2, schedule="cosine", patience=None)


@dataclass(frozen=True)
class SampleParts:
    """The training samples by their use."""

    client: Samples  # for a stand-in client
    train: Samples  # for the server and the rejector
    calibration: Samples  # for nothing else
    held_out_rows: npt.NDArray[np.int64] | None  # of ``train``, that the client was not trained on, where that is known


@contextmanager
def working(plan: Plan, progress: Progress | None = None) -> Iterator[Context]:
    """Give the context of a plan's trainings, which come out the same whenever they are run in the block."""
    context = Context(plan.settings, pick_device(plan.settings.device), progress=progress or Silent())
    with repeatable(plan.settings, context.device):
        yield context


def load_data(plan: Plan, stream: bool | None = False, progress: Callable[[int, int], None] | None = None) -> Dataset:
    """Load the plan's data set; ``stream`` and ``progress`` as in :func:`l2h.load_dataset`."""
    return load_dataset(
        plan.data,
        plan.test,
        seed=plan.settings.seed,
        cache=plan.cache or True,
        limit=plan.limit,
        target=plan.target,
        size=plan.size,
        stream=stream,
        on_error=plan.on_error or "stop",
        progress=progress,
    )


def divide(dataset: Dataset, plan: Plan) -> SampleParts:
    """Divide the training samples among the client, the server with the rejector, and calibration.

    A stand-in client is trained on a share of its own where ``client_share`` is below 1; where it is 1 and the rejector
    gets a holdout, the client is kept from that holdout too.
    """
    X, y = dataset.X_train, dataset.y_train
    seed = derive(plan.settings.seed, "parts")
    rest, calibration = split(y, (1 - plan.calibration, plan.calibration), seed)
    client, train, held_out_rows = rest, rest, None
    settings = plan.settings
    holdout = settings.honest == "holdout" or (settings.honest == "auto" and len(rest) > CROSSFIT_UP_TO)
    if plan.client in STAND_INS:
        if plan.client_share < 1:
            first, second = split(y[rest], (plan.client_share, 1 - plan.client_share), seed)
            client, train = rest[first], rest[second]
        elif settings.recipe == "default" and holdout:
            first, held_out_rows = split(y[rest], (1 - settings.holdout, settings.holdout), seed)
            client = rest[first]
    for_client, for_train, kept = ((take_rows(X, rows), y[rows]) for rows in (client, train, calibration))
    return SampleParts(for_client, for_train, kept, held_out_rows)


def make_client(plan: Plan, dataset: Dataset, parts: SampleParts, context: Context) -> Classifier:
    """Return the client of the plan: loaded from its file, or a stand-in trained on its share."""
    X, y = parts.client
    if plan.client == "tree":
        from sklearn.tree import DecisionTreeClassifier

        options = {"max_depth": 6, "random_state": plan.settings.seed, **plan.client_options}
        try:
            tree = DecisionTreeClassifier(**options).fit(in_memory(numbers_of(X), COPIES).reshape(len(X), -1), y)
        except (TypeError, ValueError) as error:
            raise ModelError(f"the tree cannot be fitted with {plan.client_options}: {error}") from error
        return as_client(tree)
    if plan.client in NAMES:
        with seeded(context.device, plan.settings.seed, "client"):
            scale = input_scale(X, plan.settings) if isinstance(X, EncodedTable) else None
            net = build_scaled(plan.client, dataset.input_shape, dataset.num_classes, scale, **plan.client_options)
        settings = replace(PAPER_SERVER, epochs=10) if plan.settings.recipe == "paper" else _LEGACY
        plain = replace(context, settings=replace(context.settings, augment="none"))
        scaled = X.map(unit_range, np.float32) if isinstance(X, Rows) else unit_range(numbers_of(X))
        train_classifier("client", net, scaled, dataset.labels.encode(y), settings, plain)
        return as_client(net, preprocessing=UNIT_RANGE if X.dtype == np.uint8 else None)
    return as_client(
        plan.client, preprocessing=plan.feed_of("client"), output=plan.client_output, accuracy=plan.client_accuracy
    )


def make_system(plan: Plan, dataset: Dataset, client: Classifier) -> HelpSystem:
    """Return the plan's system around its client, not yet fitted."""
    return HelpSystem(
        client=client,
        server=None if plan.servers else plan.make_server(),
        servers={name: plan.make_server(model) for name, model in plan.servers.items()} or None,
        second_opinion=plan.second_opinion,
        rejector=plan.rejector,
        method=plan.learned,
        settings=plan.settings,
        class_names=dataset.labels,
        dataset=dataset.name,
        image_size=plan.size,
        server_options=plan.server_options,
        rejector_options=plan.rejector_options,
        budget=plan.budget,
        client_features=plan.client_features,
    )


def require_models(plan: Plan) -> None:
    """Raise a :class:`ClientError` where a client or server of the plan is a file that is not there."""
    for model in (plan.client, *plan.named_servers.values()):
        if Path(model).suffix and not is_remote(model) and not Path(model).is_file():
            raise ClientError(f"no file at {model}: check the path")


def train_run(plan: Plan, dataset: Dataset, target: RunTarget, progress: Progress) -> HelpSystem:
    """Train the plan's client, server and rejector, calibrate the system, save it and return it."""
    require_models(plan)
    if plan.second_opinion and plan.budget is not None and not Budget.parse(plan.budget).value:
        _refuse_no_budget(plan, dataset)
    target.prepare(plan.as_dict())
    parts = divide(dataset, plan)
    log.info(
        "%s: %d samples for server and rejector, %d for calibration, %d for test, %d classes",
        dataset.name,
        len(parts.train[1]),
        len(parts.calibration[1]),
        len(dataset.y_test),
        dataset.num_classes,
    )
    context = target.context(plan.settings, progress)
    if plan.client in NAMES:
        X, y = parts.client
        used = {"client_data": digest(numbers_of(X), dataset.labels.encode(y))}
        note_training(target.folder, used, resume=target.resume, name=CLIENT_TRAINING)
    with repeatable(plan.settings, context.device):
        client = make_client(plan, dataset, parts, context)
    system = make_system(plan, dataset, client)
    context.history_file = target.folder / HISTORY
    system.fit(
        *parts.train,
        specs=plan.specs,
        held_out_rows=parts.held_out_rows,
        run=target.folder,
        resume=target.resume,
        context=context,
    )
    system.calibrate(*parts.calibration)
    system.save(target.folder)
    context.checkpoints.clear()
    return system


def help_to_train(plan: Plan, dataset: Dataset) -> None:
    """Train the plan's client and server with the first process of a group, and leave everything else to that one."""
    parts = divide(dataset, plan)
    with working(plan) as context:
        system = make_system(plan, dataset, make_client(plan, dataset, parts, context))
        train_server(system.prepare(*parts.train, specs=plan.specs, held_out_rows=parts.held_out_rows), context)


def _refuse_no_budget(plan: Plan, dataset: Dataset) -> None:
    """Refuse a budget of 0 where the student is to answer, and say which has room for one."""
    classes, heads = dataset.num_classes, 1 + len(plan.named_servers)
    view = client_view_size(classes, 0)
    try:
        within_budget(0, "attached", dataset.input_shape, view, classes, heads, need_student=True)
    except ModelError as error:
        more = "and more where the client gives out features"
        raise SettingsError(f"--second-opinion needs a student: {error}, {more}") from error
