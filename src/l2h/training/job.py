"""What is to be trained: the samples, the fresh networks behind the scaling that the data asks for, the settings."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from l2h.classifiers import CallableClassifier, Classifier, ClassifierAnswers, Preprocessing, as_client
from l2h.columns import EncodedTable, numbers_of
from l2h.decision import SERVER, RejectorSpec
from l2h.errors import ModelError, SettingsError, UnknownNameError
from l2h.labels import LabelCodec
from l2h.models import NAMES, InputScale, Scaled, build_rejector, build_scaled, client_view, client_view_size
from l2h.models.rejectors import UserRejector
from l2h.remote import SKLEARN, RemoteServer, is_remote
from l2h.settings import DEFAULT_REJECTOR, PAPER_REJECTOR, PAPER_SERVER, SEPARABLE_REJECTOR, Settings, StageSettings
from l2h.training.estimators import find_estimator, is_estimator
from l2h.training.loop import Context

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RejectorInputs:
    """What a rejector reads: an input, and the client's answer to it."""

    shape: tuple[int, ...]  # of one input
    dtype: str  # name of its numpy type
    num_classes: int
    embedding_size: int = 0  # how many features the client exposes; 0 for none

    @property
    def view_size(self) -> int:
        return client_view_size(self.num_classes, self.embedding_size)


@dataclass(frozen=True)
class RejectorSize:
    """How large a rejector is, and why."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of the named rejector
    #: Of a rejector that was sized to a budget: the budget as ``asked``, its ``multiply_adds`` or ``seconds``, and as
    #: ``assumed`` what stood in for the client's work where that cannot be counted; None for one that was not.
    budget: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ServerJob:
    """One server of a job: a network or an estimator that is to be trained, or a classifier that is taken as it is."""

    name: str
    settings: StageSettings
    make: Callable[[], nn.Module] | None = None  # a fresh network, drawn from torch's generator
    estimator: Any = None  # a scikit-learn classifier to be trained
    fixed: Classifier | None = None  # not trained, such as somebody's API

    @property
    def stage(self) -> str:
        """The name of its training in progress, history and checkpoints."""
        return server_title(self.name) or "server"


@dataclass(frozen=True)
class Job:
    """What is to be trained."""

    X: npt.NDArray[Any]  # inputs, uint8 or float32
    y: npt.NDArray[np.int64]
    client: Classifier  # fixed
    answers: ClassifierAnswers  # the client's to X, computed once
    servers: tuple[ServerJob, ...]  # in the order of the rejectors' heads
    make_rejector: Callable[[], nn.Module]
    specs: Sequence[RejectorSpec]  # what each rejector of the batch is for
    held_out_rows: npt.NDArray[np.int64] | None = None  # unseen by the client; the server is to see them neither
    table: EncodedTable | None = None  # the inputs with their columns, where they have names
    labels: LabelCodec | None = None  # what the classes are called; None where that is all the same
    size: RejectorSize = RejectorSize()  # of the rejector
    #: What the user ``asked`` for, the ``name`` of the tensor of the client that the rejector reads (None: none), and
    #: the errors of the ``probe`` that chose it; None where the client gives out what it does by itself.
    client_features: Mapping[str, Any] | None = None

    @property
    def inputs(self) -> Array | EncodedTable:
        """The inputs as a classifier of the user's gets them: with their columns where they have names."""
        return self.X if self.table is None else self.table

    @property
    def embedding_size(self) -> int:
        """How many features the client exposes; 0 for none."""
        return 0 if self.answers.embedding is None else int(self.answers.embedding.shape[1])

    @property
    def rejector_inputs(self) -> RejectorInputs:
        return RejectorInputs(tuple(self.X.shape[1:]), str(self.X.dtype), self.num_classes, self.embedding_size)

    @property
    def num_classes(self) -> int:
        return int(self.answers.log_probability.shape[1])


def server_title(name: str) -> str | None:
    """Return what messages call a server; None for the only one, which needs no name."""
    return None if name == SERVER.name else f"server {name}"


def view_tensor(answers: ClassifierAnswers, device: torch.device) -> Tensor:
    """Return the client's view of its own answers, on the device."""
    embedding = None if answers.embedding is None else torch.from_numpy(answers.embedding).to(device)
    return client_view(torch.from_numpy(answers.log_probability).to(device), embedding)


def stage_settings(job: Job, context: Context, server: ServerJob | None = None) -> tuple[StageSettings, StageSettings]:
    """Return the settings of a server's stage (the first's where None) and the rejector's, with defaults filled in."""
    settings = context.settings
    if settings.recipe == "paper":
        return settings.server or PAPER_SERVER, settings.rejector or PAPER_REJECTOR
    sized = job.size.budget is not None or job.size.options.get("trunk") == "separable"
    usual = SEPARABLE_REJECTOR if sized else DEFAULT_REJECTOR
    return settings.server or (server or job.servers[0]).settings, settings.rejector or usual


def take_server(server: Any, train_server: bool | None) -> tuple[Any, Classifier | None]:
    """Return what is to be trained into a server, or the server that is taken as it is: one of the two is None.

    A model's name, a torch module and a scikit-learn classifier that is not fitted (or ``sklearn:NAME``) are trained,
    the module only if ``train_server`` is not False; anything else that
    :func:`l2h.as_client` or :class:`l2h.RemoteServer` takes is not.
    """
    trainable = isinstance(server, nn.Module) and not isinstance(server, torch.jit.ScriptModule)
    if is_remote(server) and not train_server:
        return None, RemoteServer(server)
    if isinstance(server, str) and server.startswith(SKLEARN):
        return find_estimator(server), None
    if is_estimator(server):
        return server, None
    if isinstance(server, str) and not Path(server).suffix:
        if server not in NAMES:
            raise UnknownNameError(f"unknown model {server!r}; known: {', '.join(NAMES)}")
        return server, None
    if trainable and train_server is not False:
        return server, None
    if train_server:
        raise ModelError(
            f"a {type(server).__name__} cannot be trained: give a model's name, a torch module, or an estimator that "
            "is not fitted"
        )
    fixed = as_client(server)
    if isinstance(fixed, CallableClassifier):
        asked = RemoteServer(fixed.function)
        asked.preprocessing, asked.probabilities = fixed.preprocessing, fixed.probabilities
        fixed = asked
    if isinstance(fixed, RemoteServer) and fixed.preprocessing != Preprocessing():
        raise SettingsError(
            f"{fixed.target} is asked, also by devices, and gets samples as they are: prepare them inside it"
        )
    return None, fixed


def server_builder(
    given: str | nn.Module, X: Array | EncodedTable, num_classes: int, settings: Settings, options: Mapping[str, Any]
) -> Callable[[], nn.Module]:
    """Return a function that makes a fresh server: the named model, or a copy of the user's module."""
    shape = tuple(X.shape[1:])
    scale = cache(partial(input_scale, X, settings))  # of data that is read from a disk once

    def make() -> nn.Module:
        if isinstance(given, str):
            return build_scaled(given, shape, num_classes, copy.deepcopy(scale()), **options)
        net = Scaled(unit_scale(shape, X.dtype), copy.deepcopy(given))
        _check_outputs(net, numbers_of(X[:2]), num_classes)
        return net

    return make


def rejector_builder(
    given: str | nn.Module,
    X: Array | EncodedTable | None,
    inputs: RejectorInputs,
    *,
    settings: Settings,
    options: Mapping[str, Any],
    student: bool,
    heads: int = 2,
) -> Callable[[], nn.Module]:
    """Return a function that makes a fresh rejector: the named kind, or a copy of the user's module.

    ``X`` sets the scaling; it is None where the scaling is to be loaded. ``student``: an attached rejector gets one.
    ``heads``: how many numbers it gives, one for the client and one per server.
    """
    # The paper's recipe has no finished server to learn from, so no student either.
    classes = inputs.num_classes if student and settings.recipe != "paper" else 0
    scale = None if X is None else input_scale(X, settings)

    def make() -> nn.Module:
        if isinstance(given, nn.Module):
            return UserRejector(unit_scale(inputs.shape, inputs.dtype), copy.deepcopy(given), heads)
        return build_rejector(given, inputs.shape, inputs.view_size, classes, copy.deepcopy(scale), heads, **options)

    return make


def input_scale(X: Array | EncodedTable, settings: Settings) -> InputScale:
    """How a named network scales its inputs: to [-1, 1] under the paper's recipe, else standardised on ``X``."""
    if isinstance(X, EncodedTable):
        return InputScale.standardise(X.x, X.columns.unscaled)
    if settings.recipe == "paper" and X.dtype == np.uint8:
        return InputScale.to_unit_range(tuple(X.shape[1:]))
    return InputScale.standardise(X)


def unit_scale(input_shape: tuple[int, ...], dtype: Any) -> InputScale:
    """What a module of the user's gets: uint8 inputs in [-1, 1], floats as they are."""
    return InputScale.to_unit_range(input_shape) if dtype == np.uint8 else InputScale(input_shape)


def _check_outputs(net: nn.Module, X: Array, num_classes: int) -> None:
    net.eval()
    try:
        with torch.no_grad():
            out = net(torch.from_numpy(X))
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"the server failed on inputs of shape {tuple(X.shape)}: {error}") from error
    if out.shape != (len(X), num_classes):
        raise ModelError(
            f"the server gives {tuple(out.shape)} for {len(X)} inputs: expected scores ({len(X)}, {num_classes})"
        )
