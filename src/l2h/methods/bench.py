"""The bench: one seed's samples, client and server, shared by all methods that are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.classifiers import ClassifierAnswers
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.training import Context, Job, SamplePool
from l2h.training.recipes import server_log_probabilities
from l2h.training.targets import RejectorPools, ServerOutcome, make_pools, more_copies, train_server


@dataclass(frozen=True)
class Inputs:
    """What a device knows of n inputs: the inputs, and what its client answers."""

    X: npt.NDArray[Any]
    client: ClassifierAnswers

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class Outcomes:
    """What client and server answer to n samples, and the truth."""

    X: npt.NDArray[Any]  # the samples
    y: npt.NDArray[np.int64]  # int (n,)
    client: ClassifierAnswers  # the client's answers
    server_log_probability: npt.NDArray[np.float32]  # float32 (n, K)

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def inputs(self) -> Inputs:
        """The part of it that a device knows."""
        return Inputs(self.X, self.client)

    @cached_property
    def client_correct(self) -> BoolArray:
        """bool (n,)."""
        return np.asarray(self.client.label == self.y)

    @cached_property
    def server_correct(self) -> BoolArray:
        """bool (n,)."""
        return np.asarray(self.server_log_probability.argmax(axis=1) == self.y)

    @cached_property
    def server_probability(self) -> FloatArray:
        """(n, K), rows sum to 1."""
        return np.asarray(np.exp(self.server_log_probability.astype(np.float64)))


class Bench:
    """Everything of one seed that methods are fitted on.

    Args:
        job: samples, client and server; its rejectors are of no account.
        context: shared by all trainings; its settings are those of every learned method.
        costs: the prices that rules must answer for.
        calibration: samples (X, y) that belong to nobody else.
        rejector_options: of every method's net.
        outcome: a server that is trained already.

    The server is trained here, once, unless it is given. Every learned method gets the same number of samples and
    steps: those that learn from the server's softmax also use changed copies of the samples that the server was fitted
    to; the others, which need outcomes on unseen samples, get as many more copies of those instead.
    """

    def __init__(
        self,
        job: Job,
        context: Context,
        costs: Sequence[Costs],
        calibration: tuple[npt.NDArray[Any], npt.NDArray[np.int64]],
        rejector_options: Mapping[str, Any] | None = None,
        outcome: ServerOutcome | None = None,
    ) -> None:
        self.job, self.context, self.costs = job, context, tuple(costs)
        self.rejector_options = dict(rejector_options or {})
        self.outcome: ServerOutcome = outcome or train_server(job, context)
        self.pools: RejectorPools = make_pools(job, context, self.outcome)
        self.calibration = self.outcomes(*calibration)

    @property
    def num_classes(self) -> int:
        """K."""
        return self.job.num_classes

    @property
    def seed(self) -> int:
        """Seed of everything drawn."""
        return self.context.settings.seed

    @cached_property
    def soft(self) -> SamplePool:
        """Samples for methods that learn from the server's softmax."""
        return self.pools.whole

    @cached_property
    def unseen(self) -> SamplePool:
        """Samples for methods that learn from outcomes: as many as :attr:`soft` has."""
        missing = len(self.soft) - len(self.pools.unseen)
        more = more_copies(self.job, self.context, self.outcome, missing)
        return self.pools.unseen if more is None else SamplePool.join([self.pools.unseen, more])

    def outcomes(self, X: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> Outcomes:
        """Return what client and server answer to samples."""
        answers = self.job.client.answers(X, self.num_classes)
        if self.outcome.server is None:
            assert self.job.fixed_server is not None
            log_p = self.job.fixed_server.answers(X, self.num_classes).log_probability
        else:
            log_p = server_log_probabilities(self.outcome.server, X, self.context)
        return Outcomes(X, y, answers, log_p)
