"""The bench: one seed's samples, client and server, shared by all methods that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.classifiers import ClassifierAnswers
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.system import HelpSystem
from l2h.training import Context, Job, Pool
from l2h.training.honest import Pools, Served, make_pools, more_copies, serve
from l2h.training.inference import server_log_probabilities


@dataclass(frozen=True)
class Inputs:
    """What a device knows of n inputs: themselves, and what its client says of them."""

    X: npt.NDArray[Any]
    client: ClassifierAnswers

    def __len__(self) -> int:
        return len(self.X)


@dataclass(frozen=True)
class Outcomes:
    """What client and server say of n samples, and the truth.

    Attributes:
        X: the samples.
        y: int (n,).
        client: the client's answers.
        server_log_probability: float32 (n, K).
    """

    X: npt.NDArray[Any]
    y: npt.NDArray[np.int64]
    client: ClassifierAnswers
    server_log_probability: npt.NDArray[np.float32]

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
        system: prepared for ``job``; its settings are those of every learned method.
        job: of :meth:`l2h.HelpSystem.prepare`.
        context: shared by all trainings.
        costs: the prices that rules must answer for.
        calibration: samples (X, y) that belong to nobody else.
        served: a server that is there already.

    The server is trained here, once, unless it is there already. Every learned method gets the same number of samples
    and steps: those that learn from the server's softmax also use changed copies of the samples the server was fitted
    to; the others, which need honest outcomes, get as many more copies of the honest samples instead.
    """

    def __init__(
        self,
        system: HelpSystem,
        job: Job,
        context: Context,
        costs: Sequence[Costs],
        calibration: tuple[npt.NDArray[Any], npt.NDArray[np.int64]],
        served: Served | None = None,
    ) -> None:
        self.system, self.job, self.context = system, job, context
        self.costs = tuple(costs)
        self.served: Served = served or serve(job, context)
        self.pools: Pools = make_pools(job, context, self.served)
        self.calibration = self.outcomes(*calibration)

    @property
    def num_classes(self) -> int:
        """K."""
        return self.job.num_classes

    @property
    def seed(self) -> int:
        """Of everything drawn."""
        return self.context.settings.seed

    @cached_property
    def soft(self) -> Pool:
        """For methods that learn from the server's softmax."""
        return self.pools.whole

    @cached_property
    def honest(self) -> Pool:
        """For methods that learn from outcomes: as many samples as :attr:`soft` has."""
        missing = len(self.soft) - len(self.pools.honest)
        more = more_copies(self.job, self.context, self.served, missing)
        return self.pools.honest if more is None else Pool.join([self.pools.honest, more])

    def outcomes(self, X: npt.NDArray[Any], y: npt.NDArray[np.int64]) -> Outcomes:
        """What client and server make of samples."""
        answers = self.job.client.answers(X, self.num_classes)
        if self.served.server is None:
            assert self.job.fixed_server is not None
            log_p = self.job.fixed_server.answers(X, self.num_classes).log_probability
        else:
            log_p = server_log_probabilities(self.served.server, X, self.context)
        return Outcomes(X, y, answers, log_p)
