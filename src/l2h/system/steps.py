"""The steps behind the verbs of ``HelpSystem``: choose a method, prepare a training, assemble, answer, measure."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from l2h import decision, methods, metrics
from l2h.answers import Answers
from l2h.bundle import BundleError
from l2h.classifiers import (
    Classifier,
    OnnxClassifier,
    SklearnClassifier,
    check_accuracy,
    probe_rows,
    settle_scale,
)
from l2h.columns import EncodedTable, encode_inputs, numbers_of
from l2h.costs import Costs
from l2h.data.dataset import Array, Labels, check_arrays
from l2h.data.objects import take_samples
from l2h.decision import AnyLimit, KeptLimiters, Policy, RejectorSpec, Terms
from l2h.errors import ConversionError, ExportError, L2HError, SettingsError, UnknownNameError, shown, warn
from l2h.export.classifiers import SERVER, columns_needed, largest_difference
from l2h.export.onnx import ExportedClassifier, classifier_to_onnx
from l2h.files import CHECKPOINTS, digest
from l2h.fitted import FittedSystem
from l2h.labels import LabelCodec
from l2h.methods import Learned
from l2h.models import recommended
from l2h.remote import RemoteServer
from l2h.settings import Settings
from l2h.system.sizing import size_rejector
from l2h.table import absent_values
from l2h.training import Context, Job, Progress, Silent
from l2h.training.checkpoint import Checkpoints
from l2h.training.estimators import fit_estimator, is_estimator, with_options
from l2h.training.job import rejector_builder, server_builder
from l2h.training.links import parse_link

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


def prepare_job(
    system: HelpSystem,
    X: Any,
    y: Any,
    costs: Costs | Sequence[Costs] | None,
    specs: Sequence[RejectorSpec] | None,
    held_out_rows: npt.NDArray[np.int64] | None,
) -> Job:
    """Check samples and client, take the client's answers, and return what is to be trained."""
    if specs is None:
        specs = system.method.specs([costs] if isinstance(costs, Costs) else costs)
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
    client = system.client
    settle_scale(client, X, y, num_classes, "client")
    client.check_repeatable(X[:PROBE], num_classes)
    answers = client.answers(X, num_classes)
    check_accuracy(client, answers.label, y, "client", images=len(X.shape) == 4)
    if system.fixed_server is not None:
        _settle_server(system.fixed_server, X, y, num_classes)
        if isinstance(X, EncodedTable):
            _try_fixed(system.fixed_server, X, num_classes)
    if not answers.has_scores:
        log.warning("the client gives labels only: the confidence baseline has nothing to rank by")
    empty = np.setdiff1d(np.arange(num_classes), y)
    if len(empty):
        hint = ": labels count from 0" if labels.values is None else ""
        log.warning("no sample of class %s%s", ", ".join(str(value) for value in labels.decode(empty[:5])), hint)
    given = system.trainable_server
    estimator = None
    if is_estimator(given):
        estimator = with_options(given, system.server_options)
        _try_estimator(estimator, X, y, num_classes)
    shapes: dict[str, Any] = {
        "input_shape": tuple(X.shape[1:]),
        "input_dtype": str(X.dtype),
        "num_classes": num_classes,
        "embedding_size": 0 if answers.embedding is None else answers.embedding.shape[1],
    }
    size = size_rejector(
        system.budget,
        system.rejector,
        system.rejector_options,
        system.method,
        system.client,
        **shapes,
        student=system.method.student and system.settings.recipe != "paper",
    )
    make_rejector = rejector_builder(
        system.rejector, X, **shapes, settings=system.settings, options=size.options, student=system.method.student
    )
    return Job(
        X=numbers_of(X),
        y=y,
        client=system.client,
        answers=answers,
        make_server=None
        if given is None or estimator is not None
        else server_builder(given, X, num_classes, system.settings, system.server_options),
        estimator=estimator,
        fixed_server=system.fixed_server,
        server_settings=recommended(given if isinstance(given, str) else None),
        make_rejector=make_rejector,
        specs=tuple(specs),
        held_out_rows=held_out_rows,
        table=X if isinstance(X, EncodedTable) else None,
        labels=labels,
        size=size,
    )


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
        few_differ = "" if isinstance(error, ConversionError) else f"fitted to {len(few)} samples it differs as ONNX: "
        text = "the server can be trained and used in this process, but neither saved nor exported"
        warn(f"{text}: {few_differ}{error}")
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
    if system.fixed_server is not None:
        system.fixed_server = system.fixed_server.with_labels(labels)


def assemble(system: HelpSystem, labels: LabelCodec, **found: Any) -> FittedSystem:
    """Return a fitted system: what the user gave, and the other fields as training found or a folder holds them."""
    bind_labels(system, labels)
    return FittedSystem(
        client=system.client,
        fixed_server=system.fixed_server,
        labels=labels,
        method=system.method,
        rejector=system.rejector if isinstance(system.rejector, str) else "given",
        settings=system.settings,
        device=system.device,
        dataset=system.dataset,
        image_size=system.image_size,
        **found,
    )


def make_context(system: HelpSystem, run: Path | str | None, resume: bool, progress: Progress | None) -> Context:
    """Return what a training needs beside its job; checkpoints and history go into the folder ``run``, if any."""
    folder = None if run is None else Path(run)
    return Context(
        system.settings,
        system.device,
        Checkpoints(None if folder is None else folder / CHECKPOINTS, resume),
        progress or Silent(),
        history_file=None if folder is None else folder / "history.csv",
    )


def describe(system: HelpSystem, job: Job) -> dict[str, Any]:
    """Return what the checkpoints of a training depend on, to tell two trainings apart."""
    given = repr(system.trainable_server) if is_estimator(system.trainable_server) else system.trainable_server
    return {
        "settings": system.settings.as_dict(),
        "rejectors": [spec.as_dict() for spec in job.specs],
        "rejector": [system.rejector if isinstance(system.rejector, str) else "given", dict(job.size.options)],
        "server": [given if isinstance(given, str) else _name_of_fixed(system), system.server_options],
        "data": digest(job.X, job.y),
        "client_answers": digest(job.answers.log_probability),
    }


def _name_of_fixed(system: HelpSystem) -> str:
    fixed = system.fixed_server
    return f"{fixed.target} {fixed.version}".strip() if isinstance(fixed, RemoteServer) else "given"


def make_policy(fitted: FittedSystem, limit: AnyLimit | None, rule: str | None, limiters: KeptLimiters) -> Policy:
    """Return how a fitted system decides under a limit; ``limiters`` keep those that are kept from call to call."""
    every_price = fitted.specs[0].costs is None
    return Policy(fitted.select, every_price, fitted.held_out_judgement, limit, rule, kept=limiters)


def answer(fitted: FittedSystem, X: Array, policy: Policy, terms: Terms, seed: int) -> Answers:
    """Answer every input, asking the server where the policy says so."""
    answers = fitted.client.answers(X, fitted.num_classes)
    proposal = policy.propose(fitted.judge(X, answers, terms.which), terms, seed)
    choice, _ = policy.permit(proposal, [len(X)])
    remote = choice >= 0
    server_label = np.zeros(len(X), dtype=np.int64)
    if remote.any():
        server_label[remote] = fitted.server_log_probability(X[remote]).argmax(axis=1)
    costs = decision.one_price(terms.costs)
    decided = Answers.of(answers.label, server_label, remote, costs, proposal.wanted)
    return replace(decided, label=fitted.labels.decode(decided.label))


def measure(fitted: FittedSystem, X: Array, y: Labels, policy: Policy, terms: Terms, seed: int) -> metrics.Report:
    """Measure the system's decisions on a test set, beside every trivial baseline."""
    answers = fitted.client.answers(X, fitted.num_classes)
    judgement = fitted.judge(X, answers, terms.which)
    student = fitted.student_labels(X, answers, terms.which)
    costs = decision.one_price(terms.costs)
    confidence_remote = None
    if fitted.calibration is not None:
        held = fitted.calibration.held_out
        threshold = decision.confidence_threshold(
            held.client_confidence, held.client_correct, held.server_correct, costs
        )
        confidence_remote = decision.confidence(answers.confidence, threshold)
    return metrics.evaluate(
        y=y,
        client_label=answers.label,
        client_confidence=answers.confidence,
        server_probability=np.exp(fitted.server_log_probability(X)),
        remote=policy.permit(policy.propose(judgement, terms, seed), [len(X)])[0] >= 0,
        score=judgement.gain,
        head_probability=judgement.stated,
        costs=costs,
        confidence_remote=confidence_remote,
        class_names=fitted.labels,
        dataset=fitted.dataset,
        seed=fitted.settings.seed,
        student_label=student,
        compute=fitted.compute,
    )
