"""The one interface behind which every method of the field stands.

A method is fitted on a *bench*: one seed's samples, client and server, the same for all. Fitting gives a rule, and a
rule turns inputs and prices into decisions. An ordinary rule is handed the inputs and the client's answers and nothing
else, so it cannot look at what a device does not know; a *reference* (the oracle, the label-free bound) is handed the
outcomes as well.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from l2h import decision
from l2h.classifiers import Classifier, ClassifierAnswers
from l2h.columns import numbers_of
from l2h.costs import BoolArray, Costs, FloatArray, generalized_loss
from l2h.decision import Answerer
from l2h.errors import SettingsError
from l2h.training import Context, Job, SamplePool
from l2h.training.recipes import server_log_probabilities
from l2h.training.targets import RejectorPools, ServerOutcome, make_pools, more_copies, train_server

FAMILIES = ("trivial", "confidence", "learned", "reference")


@dataclass(frozen=True)
class Inputs:
    """What a device knows of n inputs: the inputs, and what its client answers."""

    X: npt.NDArray[Any]
    client: ClassifierAnswers

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class Outcomes:
    """What client and server answer to n samples, and the truth; S servers have an axis of their own, the second."""

    X: npt.NDArray[Any]  # the samples
    y: npt.NDArray[np.int64]  # int (n,)
    client: ClassifierAnswers  # the client's answers
    server_log_probability: npt.NDArray[np.float32]  # float32 (n, K) or (n, S, K)

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def inputs(self) -> Inputs:
        return Inputs(self.X, self.client)

    @cached_property
    def client_correct(self) -> BoolArray:
        return np.asarray(self.client.label == self.y)

    @cached_property
    def server_correct(self) -> BoolArray:
        label = self.server_log_probability.argmax(axis=-1)
        return np.asarray(label == (self.y if label.ndim == 1 else self.y[:, None]))

    @cached_property
    def server_probability(self) -> FloatArray:
        """(n, K) or (n, S, K), rows sum to 1."""
        return np.asarray(np.exp(self.server_log_probability.astype(np.float64)))


class Bench:
    """Everything of one seed that methods are fitted on.

    The server of the job is trained here, once, unless its ``outcome`` is given. Every learned method gets the same
    number of samples and steps: those that learn from the server's softmax also use changed copies of the samples that
    the server was fitted to; the others, which need outcomes on unseen samples, get as many more copies of those
    instead. The ``calibration`` samples (X, y) belong to nobody else. Where only outcomes are known, they are given as
    such, and so are the ``pools`` to learn from.
    """

    def __init__(
        self,
        job: Job,
        context: Context,
        costs: Sequence[Costs],
        calibration: tuple[npt.NDArray[Any], npt.NDArray[np.int64]] | Outcomes,
        rejector_options: Mapping[str, Any] | None = None,
        outcome: ServerOutcome | None = None,
        pools: RejectorPools | None = None,
    ) -> None:
        self.job, self.context, self.costs = job, context, tuple(costs)
        self.rejector_options = dict(rejector_options or {})
        self.outcome: ServerOutcome = outcome or train_server(job, context)
        self.pools: RejectorPools = pools or make_pools(job, context, self.outcome)
        self.calibration = calibration if isinstance(calibration, Outcomes) else self.outcomes(*calibration)

    @property
    def num_classes(self) -> int:
        return self.job.num_classes

    @property
    def answerers(self) -> tuple[Answerer, ...]:
        """The client and the servers, in the order of a rejector's heads."""
        return (decision.CLIENT, *(Answerer(server.name, remote=True) for server in self.job.servers))

    @property
    def seed(self) -> int:
        return self.context.settings.seed

    @cached_property
    def soft(self) -> SamplePool:
        """Samples for methods that learn from the server's softmax."""
        return self.pools.whole

    @cached_property
    def unseen(self) -> SamplePool:
        """Samples for methods that learn from outcomes: as many as :attr:`soft` has."""
        missing = len(self.soft) - len(self.pools.unseen)
        more = more_copies(self.job, self.context, self.outcome, missing, self.pools.unseen)
        return self.pools.unseen if more is None else SamplePool.join([self.pools.unseen, more])

    def outcomes(self, X: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> Outcomes:
        answers = self.job.client.answers(X, self.num_classes)
        log_p = [self._server_answers(k, X) for k in range(len(self.job.servers))]
        return Outcomes(numbers_of(X), y, answers, log_p[0] if len(log_p) == 1 else np.stack(log_p, axis=1))

    def _server_answers(self, number: int, X: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        trained = self.outcome.servers[number]
        server = self.job.servers[number].fixed if trained is None else trained
        assert server is not None
        if isinstance(server, Classifier):
            return server.answers(X, self.num_classes).log_probability
        return server_log_probabilities(server, X, self.context)

    def only(self, number: int) -> Bench:
        """Return the bench of several servers as that of one of them: same samples, same teacher of students."""
        one = copy.copy(self)
        one.job = replace(self.job, servers=(self.job.servers[number],))
        one.outcome = replace(self.outcome, servers=[self.outcome.servers[number]])
        stopping = self.pools.stopping.only(number)
        one.pools = replace(self.pools, unseen=self.pools.unseen.only(number), fitted=None, stopping=stopping)
        one.soft, one.unseen = self.soft.only(number), self.unseen.only(number)
        held = self.calibration
        one.calibration = replace(held, server_log_probability=held.server_log_probability[:, number])
        return one


@dataclass(frozen=True)
class Traits:
    """The four columns of the paper's comparison of methods."""

    separate: bool  # the rejector decides from the input alone, before the client runs
    learns_client: bool  # its ranking of inputs depends on what the client does with each of them
    #: Its ranking depends on which inputs the server gets right; how often it is right on the whole may set a
    #: threshold.
    learns_server: bool
    #: Its loss trains the rejector alone, so that server and rejector can be trained in different places; False where
    #: one loss trains a classifier as well; None where there is no server in it.
    asynchronous: bool | None

    def as_dict(self) -> dict[str, bool | None]:
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """Decisions on n inputs."""

    remote: BoolArray  # (n,), true where sent
    score: FloatArray  # (n,), the ranking behind them; larger is sent first
    #: (n,), the decisions by the rule of the method's own paper, where the threshold that ``remote`` uses was chosen on
    #: calibration samples; None where there is no such difference.
    as_published: BoolArray | None = None


class Rule(ABC):
    """A fitted method."""

    @abstractmethod
    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        """Decide at these prices, which are among those of the bench."""

    def facts(self, inputs: Inputs, y: npt.NDArray[np.int64]) -> dict[str, float]:
        """Return figures beside the decisions: how large, how long trained. None for most."""
        return {}


class Method(ABC):
    """One method: what it is, where it comes from, and how it is fitted."""

    name: ClassVar[str]  # in flags, files and tables
    title: ClassVar[str]  # for people
    family: ClassVar[str]  # trivial, confidence, learned or reference
    ours: ClassVar[bool] = False  # True for those of L2H's own
    reference: ClassVar[str] = ""  # the paper it is from
    equation: ClassVar[str]  # its loss or its rule, as there
    change: ClassVar[str] = ""  # what had to change because the client is fixed and the server shared
    traits: ClassVar[Traits | None] = None  # its row of the property table; None for rules without a rejector
    published_traits: ClassVar[Traits | None] = None  # the row that the L2H paper prints for it
    classes: ClassVar[int | None] = None  # the number of classes it is made for; None for any
    #: What it reads beside the input and who was right, such as "the client's scores"; without it, it cannot run.
    reads: ClassVar[str | None] = None

    @abstractmethod
    def fit(self, bench: Bench) -> Rule:
        """Learn or choose whatever the method needs from the bench's training and calibration samples."""

    def check(self, num_classes: int) -> None:
        """Raise ``SettingsError`` for a number of classes that the method is not made for."""
        if self.classes is not None and num_classes != self.classes:
            raise SettingsError(
                f"method {self.name!r} is for {self.classes} classes, the data have {num_classes}: leave it out, or "
                "take two classes with --classes"
            )

    def why_not(self, num_classes: int, outcomes_only: bool = False) -> str | None:
        """Return why the method cannot take such data; None where it can."""
        if outcomes_only and self.reads is not None:
            return f"it reads {self.reads}, and only outcomes are known"
        if self.classes not in (None, num_classes):
            return f"it is for {self.classes} classes"
        return None

    def card(self) -> dict[str, Any]:
        """Return what the method says of itself, as plain values."""
        plain = ("name", "title", "family", "ours", "reference", "equation", "change")
        traits = {"traits": self.traits, "published_traits": self.published_traits}
        return {key: getattr(self, key) for key in plain} | {key: of and of.as_dict() for key, of in traits.items()}


class ThresholdRule(Rule):
    """Send where a score is high enough: the threshold is chosen for each price on the calibration samples.

    It is the one of the lowest risk there. A method whose paper has a threshold of its own keeps that one unless the
    other is better by more than its standard error, so that chance alone seldom moves it.

    Subclasses give the score, and the threshold of their paper if there is one.
    """

    #: Of the method's own paper: REMOTE iff the score is not below it; None where there is none.
    published: float | None = None

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @abstractmethod
    def score(self, inputs: Inputs, costs: Costs) -> FloatArray:
        """Return (n,), larger is sent first."""

    def threshold(self, costs: Costs) -> float:
        """Return the threshold for these prices: REMOTE iff the score is not below it."""
        held = self.bench.calibration
        outcomes = (held.client_correct, held.server_correct)
        score = self.score(held.inputs, costs)
        best = -decision.confidence_threshold(-score, *outcomes, costs)
        if self.published is None:
            return best
        saved = generalized_loss(*outcomes, score >= self.published, costs) - generalized_loss(
            *outcomes, score >= best, costs
        )
        error = float(saved.std()) / max(1, len(saved)) ** 0.5
        return best if float(saved.mean()) > error else self.published

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        score = self.score(inputs, costs)
        own = None if self.published is None else score >= self.published
        return Choice(score >= self.threshold(costs), score, own)
