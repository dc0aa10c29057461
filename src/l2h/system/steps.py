"""The steps behind the verbs of ``HelpSystem``: choose a method, prepare a training, assemble, answer, measure."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from l2h import decision, errors, methods
from l2h.answers import Answers
from l2h.bundle import BundleError
from l2h.classifiers import Classifier, OnnxClassifier, SklearnClassifier, check_accuracy, probe_rows, settle_scale
from l2h.columns import EncodedTable, encode_inputs, numbers_of
from l2h.costs import Costs
from l2h.data.dataset import Array, Labels, check_arrays, split
from l2h.data.objects import take_samples
from l2h.decision import AnyLimit, KeptLimiters, Policy, RejectorSpec, Terms
from l2h.errors import DataError, ExportError, L2HError, SettingsError, UnknownNameError, about, shown, warn
from l2h.export.classifiers import SERVER, columns_needed, largest_difference
from l2h.export.onnx import ExportedClassifier, classifier_to_onnx
from l2h.files import CHECKPOINTS
from l2h.fitted import FittedServer, FittedSystem
from l2h.labels import LabelCodec
from l2h.methods import Learned
from l2h.models import recommended
from l2h.money import Money, plain_costs
from l2h.remote import RemoteServer
from l2h.rows import Rows, digest, in_bytes, take_rows
from l2h.settings import Settings
from l2h.system.client_features import take_features
from l2h.system.servers import GivenServer, check_student
from l2h.system.sizing import size_rejector
from l2h.table import absent_values, as_table, is_table
from l2h.training import Context, Job
from l2h.training.bars import Told, training_progress
from l2h.training.checkpoint import Checkpoints
from l2h.training.estimators import fit_estimator, is_estimator, with_options
from l2h.training.job import RejectorInputs, ServerJob, rejector_builder, server_builder, server_title
from l2h.training.links import parse_link
from l2h.training.loop import derive
from l2h.training.parallel import helps_another

if TYPE_CHECKING:
    from l2h.system.help_system import HelpSystem

log = logging.getLogger("l2h")
PROBE = 64
_FEW = 20  # samples of each class


def choose_method(
    method: str | Learned | None, rejector: str | nn.Module | None, settings: Settings
) -> tuple[Learned, str | nn.Module]:
    """Return the method and the rejector that the user's words stand for; refuse words that contradict each other."""
    if rejector not in (None, "attached", "separate") and not isinstance(rejector, nn.Module):
        raise UnknownNameError(
            f"unknown rejector {rejector!r}; known: attached, separate, or a torch module of your own"
        )
    if method is None:
        net = rejector if isinstance(rejector, str) else "attached"
        return methods.spelled(settings.loss, net), rejector or net
    chosen = methods.find_learned(method) if isinstance(method, str) else method
    if not isinstance(chosen, Learned):
        raise SettingsError(f"method={method!r} trains no rejector: give a name or a l2h.methods.Learned")
    if isinstance(rejector, str) and rejector != chosen.net:
        raise SettingsError(f"method {chosen.name!r} uses a rejector that is {chosen.net}: leave out {rejector!r}")
    if settings.loss not in ("priced", chosen.loss_name()):
        raise SettingsError(f"method {chosen.name!r} has a loss of its own: leave out loss={settings.loss!r}")
    return chosen, rejector or chosen.net


def keep_back(
    system: HelpSystem, X: Any, y: Any, held_out_rows: npt.NDArray[np.int64] | None, share: float
) -> tuple[Any, Any, npt.NDArray[np.int64] | None, tuple[Any, Any]]:
    """Return samples without a share of each class, their held-out rows, and that share."""
    if not 0 < share < 1:
        raise SettingsError(f"calibration={share:g} must lie between 0 and 1: 0.1 keeps a tenth of the samples")
    X, y = take_samples(X, y)
    labels = LabelCodec.find(y, system.given_class_names)
    _, number = check_arrays(encode_inputs(X), y, labels)
    X, y = as_table(X) if is_table(X) else X if isinstance(X, Rows) else np.asarray(X), labels.decode(number)
    rest, kept = split(number, (1 - share, share), derive(system.settings.seed, "calibration"))
    if not len(kept):
        raise DataError(f"calibration={share:g} of {len(number)} samples is none: give more samples, or a larger share")
    if held_out_rows is not None:
        held_out_rows = np.flatnonzero(np.isin(rest, held_out_rows))
    return take_rows(X, rest), y[rest], held_out_rows, (take_rows(X, kept), y[kept])


def prepare_job(
    system: HelpSystem,
    X: Any,
    y: Any,
    costs: Costs | Money | Sequence[Costs] | None,
    specs: Sequence[RejectorSpec] | None,
    held_out_rows: npt.NDArray[np.int64] | None,
) -> Job:
    """Check samples and client, take the client's answers, and return what is to be trained."""
    if specs is None:
        prices = plain_costs(costs)
        if isinstance(prices, Mapping):
            prices = None if system.method.any_price else decision.one_price(prices)
        specs = system.method.specs([prices] if isinstance(prices, Costs) else prices)
    X, y = take_samples(X, y)
    labels = LabelCodec.find(y, system.given_class_names)
    X, y = check_arrays(encode_inputs(X), y, labels)
    num_classes = len(labels)
    if isinstance(X, EncodedTable):
        log.info("columns: %s", X.columns)
    if labels.values is not None:
        log.info("%d classes: %s", num_classes, shown(labels.values))
        for label in labels.decode(np.flatnonzero(np.bincount(y, minlength=num_classes) == 1)[:5]).tolist():
            log.warning("label %r is in one row alone: is it a class?", label)
    system.method.check(num_classes)
    for spec in specs:
        parse_link(spec.sync, spec.seed)
    bind_labels(system, labels)
    settle_scale(system.client, X, y, num_classes, "client")
    system.client.check_repeatable(X[:PROBE], num_classes)
    client, features = take_features(system.client, system.client_features, X, y, num_classes, held_out_rows)
    system.client = client
    if isinstance(X, Rows):
        log.info("the client answers %d inputs (%s)", len(X), in_bytes(X.nbytes))
    answers = client.answers(X, num_classes)
    check_accuracy(client, answers.label, y, "client", images=len(X.shape) == 4)
    for server in system.servers:
        with about(server_title(server.name)):
            _try_server(server, X, y, num_classes)
    if not answers.has_scores:
        log.warning("the client gives labels only: the confidence baseline has nothing to rank by")
    empty = np.setdiff1d(np.arange(num_classes), y)
    if len(empty):
        hint = ": labels count from 0" if labels.values is None else ""
        log.warning("no sample of class %s%s", ", ".join(str(value) for value in labels.decode(empty[:5])), hint)
    servers = []
    for server in system.servers:
        with about(server_title(server.name)):
            servers.append(_plan_server(server, X, y, num_classes, system.settings))
    embedding_size = 0 if answers.embedding is None else answers.embedding.shape[1]
    inputs = RejectorInputs(tuple(X.shape[1:]), str(X.dtype), num_classes, embedding_size)
    with about("second_opinion=True needs a student" if system.second_opinion else None):
        size = size_rejector(
            system.budget,
            system.rejector,
            system.rejector_options,
            system.method,
            system.client,
            inputs,
            student=system.method.student and system.settings.recipe != "paper",
            heads=1 + len(servers),
            second_opinion=system.second_opinion,
        )
    if system.second_opinion:
        check_student(size.options)
    make_rejector = rejector_builder(
        system.rejector,
        X,
        inputs,
        settings=system.settings,
        options=size.options,
        student=system.method.student,
        heads=1 + len(servers),
    )
    return Job(
        X=numbers_of(X),
        y=y,
        client=system.client,
        answers=answers,
        servers=tuple(servers),
        make_rejector=make_rejector,
        specs=tuple(specs),
        held_out_rows=held_out_rows,
        table=X if isinstance(X, EncodedTable) else None,
        labels=labels,
        size=size,
        client_features=features,
    )


def _try_server(server: GivenServer, X: Any, y: Labels, num_classes: int) -> None:
    """Find out before anything is trained how a fixed server is fed, and whether it can be used at all."""
    fixed = server.fixed
    if fixed is None:
        return
    _settle_server(fixed, X, y, num_classes)
    if isinstance(X, EncodedTable):
        _try_fixed(fixed, X, num_classes)
    if server_title(server.name) and not isinstance(fixed, RemoteServer):
        fixed.answers(X[:2], num_classes)  # its classes may differ from those of the others


def _plan_server(server: GivenServer, X: Any, y: Labels, num_classes: int, settings: Settings) -> ServerJob:
    given = server.trainable
    usual = recommended(given if isinstance(given, str) else None)
    if given is None:
        return ServerJob(server.name, usual, fixed=server.fixed)
    if is_estimator(given):
        estimator = with_options(given, server.options)
        _try_estimator(estimator, X, y, num_classes)
        return ServerJob(server.name, usual, estimator=estimator)
    return ServerJob(server.name, usual, server_builder(given, X, num_classes, settings, server.options))


def _settle_server(server: Classifier, X: Array, y: Labels, num_classes: int) -> None:
    """Find out how a server that is a file is fed; somebody's API is not asked more than training needs."""
    settle_scale(server, X, y, num_classes, "server")
    if server.tries_scales:
        rows = probe_rows(len(X))
        check_accuracy(server, server.answers(X[rows], num_classes).label, y[rows], "server")


def _try_estimator(estimator: Any, X: Any, y: Labels, num_classes: int) -> None:
    """Warn before anything is trained where an estimator cannot become a file, by one fitted to a few samples."""
    chosen = [np.flatnonzero(y == k)[:_FEW] for k in range(num_classes)]
    if isinstance(X, EncodedTable):  # what is done to missing values may differ in a file
        chosen += [np.flatnonzero(absent_values(values))[:_FEW] for values in X.table.columns.values()]
    few = np.unique(np.concatenate(chosen))
    try:
        classifier = fit_estimator(estimator, X[few], y[few], seed=0)
        classifier.answers(X[few], num_classes)
        converted = classifier_to_onnx(classifier, X[:2], SERVER, num_classes=num_classes)
        if isinstance(X, EncodedTable):
            largest_difference(converted, classifier, num_classes, [X[few]])
            _warn_of_texts(converted, X)
    except (ExportError, BundleError) as error:
        differs = (
            "" if isinstance(error, errors.ConversionError) else f"fitted to {len(few)} samples it differs as ONNX: "
        )
        text = "the server can be trained and used in this process, but neither saved nor exported"
        warn(f"{text}: {differs}{error}")
    except L2HError:  # of so few samples: training will tell
        return


def _try_fixed(server: Classifier, X: EncodedTable, num_classes: int) -> None:
    """Warn before anything is trained where a server that was fitted to columns of texts cannot be exported."""
    names = {column.name for column in X.columns if column.kind == "text"}
    if isinstance(server, SklearnClassifier):
        names &= set(getattr(server.estimator, "feature_names_in_", ()))
    if names and isinstance(server, OnnxClassifier | SklearnClassifier):
        with contextlib.suppress(L2HError):  # the export will tell
            _warn_of_texts(classifier_to_onnx(server, X[:2], SERVER, num_classes=num_classes), X)


def _warn_of_texts(converted: ExportedClassifier, X: EncodedTable) -> None:
    _, reason = columns_needed(converted, X[:2])
    if reason:
        warn(f"the server will be saved, but not exported: {reason}")


def bind_labels(system: HelpSystem, labels: LabelCodec) -> None:
    """Have the system's fixed classifiers answer for these classes."""
    system.client = system.client.with_labels(labels)
    system.servers = tuple(
        server if server.fixed is None else replace(server, fixed=server.fixed.with_labels(labels))
        for server in system.servers
    )


def assemble(
    system: HelpSystem, labels: LabelCodec, trained: Sequence[nn.Module | Classifier | None], **found: Any
) -> FittedSystem:
    """Return a fitted system: what the user gave, and the other fields as training found or a folder holds them.

    ``trained`` has for each server what was trained into it; None for one that is fixed, or is not here.
    """
    bind_labels(system, labels)
    servers = [
        FittedServer(given.name, model)
        if isinstance(model, nn.Module)
        else FittedServer(given.name, None, model or given.fixed)
        for given, model in zip(system.servers, trained, strict=True)
    ]
    return FittedSystem(
        client=system.client,
        servers=tuple(servers),
        second_opinion=system.second_opinion,
        labels=labels,
        method=system.method,
        rejector=system.rejector if isinstance(system.rejector, str) else "given",
        settings=system.settings,
        device=system.device,
        dataset=system.dataset,
        image_size=system.image_size,
        **found,
    )


@contextlib.contextmanager
def training_context(
    system: HelpSystem, job: Job, run: Path | str | None, resume: bool, told: Told | Sequence[Told]
) -> Iterator[Context]:
    """Give what a training needs beside its job; checkpoints and history go into the folder ``run``, if any."""
    folder = None if run is None else Path(run)
    with training_progress(False if helps_another() else told) as progress:
        models = {"client": repr(system.client), "method": system.method.name, "budget": job.size.budget}
        sizes = {"dataset": system.dataset, "samples": len(job.y), "classes": job.num_classes}
        progress.begin(sizes | models | _planned(system, job))
        yield Context(
            system.settings,
            system.device,
            Checkpoints(None if folder is None else folder / CHECKPOINTS, resume),
            progress,
            history_file=None if folder is None else folder / "history.csv",
        )


def describe(system: HelpSystem, job: Job) -> dict[str, Any]:
    """Return what the checkpoints of a training depend on, to tell two trainings apart."""
    return {
        **_planned(system, job),
        "data": digest(job.X, job.y),
        "client_answers": digest(job.answers.log_probability),
        **({} if job.client_features is None else {"client_features": job.client_features["name"]}),
    }


def _planned(system: HelpSystem, job: Job) -> dict[str, Any]:
    servers = {server.name: _description(server) for server in system.servers}
    return {
        "settings": system.settings.as_dict(),
        "rejectors": [spec.as_dict() for spec in job.specs],
        "rejector": [system.rejector if isinstance(system.rejector, str) else "given", dict(job.size.options)],
        **(
            {"server": servers[decision.SERVER.name]}
            if list(servers) == [decision.SERVER.name]
            else {"servers": servers, "order of servers": list(servers)}  # that of the rejector's heads
        ),
    }


def _description(server: GivenServer) -> list[Any]:
    given, fixed = server.trainable, server.fixed
    if is_estimator(given):
        given = repr(given)
    elif not isinstance(given, str):
        given = f"{fixed.target} {fixed.version}".strip() if isinstance(fixed, RemoteServer) else "given"
    return [given, dict(server.options)]


def make_policy(fitted: FittedSystem, limit: AnyLimit | None, rule: str | None, limiters: KeptLimiters) -> Policy:
    """Return how a fitted system decides under a limit; ``limiters`` keep those that are kept from call to call."""
    every_price = fitted.specs[0].costs is None
    policy = Policy(fitted.select, every_price, fitted.held_out_judgement, limit, rule, fitted.answerers, limiters)
    if policy.guarantees and fitted.calibration is not None and not fitted.calibration.fresh:
        warn(
            "the guarantee may not hold: it is met on samples that the rejector was stopped by. Call "
            "calibrate(X_cal, y_cal) with samples that nothing was trained on, or fit(X, y, calibration=0.1)"
        )
    return policy


def answer(fitted: FittedSystem, X: Array, policy: Policy, terms: Terms, rng: np.random.Generator) -> Answers:
    """Answer every input, asking a server where the policy says so; ``rng`` is for what a rule draws."""
    answers = fitted.client.answers(X, fitted.num_classes)
    scores, student = fitted.opinions(X, answers) if fitted.second_opinion else (fitted.scores(X, answers), None)
    features = None if student is None else student.features[terms.which]
    proposal = policy.propose(fitted.judgement(scores[terms.which], terms.which, features), terms, rng)
    choice, _ = policy.permit(proposal, [len(X)] * len(fitted.servers))
    column = terms.column(proposal, choice)
    label, log_p = answers.label.copy(), answers.log_probability.copy()
    if student is not None:
        taught = column == fitted.answerers.index(decision.STUDENT)
        label[taught] = student.label[terms.which][taught]
        log_p[taught] = student.log_probability[terms.which][taught]
    for number in range(len(fitted.servers)):
        asked = choice == number
        if asked.any():
            log_p[asked] = fitted.server_log_probability(take_rows(X, asked), number)
            label[asked] = log_p[asked].argmax(axis=1)
    probability = replace(answers, log_probability=log_p).probability
    labels = fitted.labels.decode(label)
    return Answers.chosen(labels, column, fitted.answerers, terms.paid, proposal.wanted, probability)
