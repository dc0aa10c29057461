"""From what the user gave to what is to be trained: the method, the checked samples, the job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from l2h import methods
from l2h.data.validate import check_arrays
from l2h.decision import RejectorSpec
from l2h.errors import SettingsError, UnknownNameError
from l2h.files import digest
from l2h.methods import Learned
from l2h.models import recommended
from l2h.settings import Settings
from l2h.training import Job
from l2h.training.job import rejector_builder, server_builder
from l2h.training.links import parse_link

if TYPE_CHECKING:
    from l2h.system.help_system import HelpSystem

log = logging.getLogger("l2h")
PROBE = 64


def choose_method(
    method: str | Learned | None, rejector: str | nn.Module | None, settings: Settings
) -> tuple[Learned, str | nn.Module]:
    """Return the method and the rejector that the user's words stand for.

    Raises:
        UnknownNameError: a method or rejector that does not exist.
        SettingsError: words that contradict each other.
    """
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
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    specs: tuple[RejectorSpec, ...],
    held_out_rows: npt.NDArray[np.int64] | None,
) -> Job:
    """Check samples and client, take the client's answers, and return what is to be trained."""
    known = None if system.given_class_names is None else len(system.given_class_names)
    X, y = check_arrays(X, y, num_classes=known)
    num_classes = known or int(y.max()) + 1
    system.method.check(num_classes)
    for spec in specs:
        parse_link(spec.sync, spec.seed)
    system.client.check_repeatable(X[:PROBE], num_classes)
    answers = system.client.answers(X, num_classes)
    if not answers.has_scores:
        log.warning("the client gives labels only: the confidence baseline has nothing to rank by")
    empty = np.setdiff1d(np.arange(num_classes), y)
    if len(empty):
        log.warning("no sample of class %s: labels count from 0", ", ".join(str(k) for k in empty[:5]))
    given = system.trainable_server
    make_rejector = rejector_builder(
        system.rejector,
        X,
        input_shape=tuple(X.shape[1:]),
        input_dtype=str(X.dtype),
        num_classes=num_classes,
        embedding_size=0 if answers.embedding is None else answers.embedding.shape[1],
        settings=system.settings,
        options=system.rejector_options,
        student=system.method.student,
    )
    return Job(
        X=X,
        y=y,
        client=system.client,
        answers=answers,
        make_server=None
        if given is None
        else server_builder(given, X, num_classes, system.settings, system.server_options),
        fixed_server=system.fixed_server,
        server_settings=recommended(given if isinstance(given, str) else None),
        make_rejector=make_rejector,
        specs=specs,
        held_out_rows=held_out_rows,
    )


def describe(system: HelpSystem, job: Job) -> dict[str, Any]:
    """Return what the checkpoints of a training depend on, to tell two trainings apart."""
    given = system.trainable_server
    return {
        "settings": system.settings.as_dict(),
        "rejectors": [spec.as_dict() for spec in job.specs],
        "rejector": [system.rejector if isinstance(system.rejector, str) else "given", system.rejector_options],
        "server": [given if isinstance(given, str) else "given", system.server_options],
        "data": digest(job.X, job.y),
        "client_answers": digest(job.answers.log_probability),
    }
