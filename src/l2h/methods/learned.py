"""Methods that train a rejector: same nets, same samples, same steps; they differ in the loss and in the rule.

A rejector gives two numbers a sample. A method that has one score reads it as their difference, so that all methods
with one kind of net have the same number of parameters to train.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from l2h.classifiers import ClassifierAnswers
from l2h.costs import Costs, FloatArray
from l2h.decision import RejectorSpec
from l2h.errors import SettingsError
from l2h.methods.base import Method, Threshold
from l2h.methods.bench import Bench, Inputs
from l2h.models import client_view_size, multiply_adds
from l2h.models.rejectors import client_log_probability
from l2h.training import Pool, RejectorBatch, RejectorStage
from l2h.training.building import rejector_builder
from l2h.training.inference import rejector_scores
from l2h.training.job import stage_settings
from l2h.training.loop import run_stage
from l2h.training.recipes import make_rejectors

#: The trunk's width where the options name none: that of an attached rejector.
WIDTH = 4.0


@dataclass(frozen=True)
class Prices:
    """The costs of R rejectors, each (R, 1), to be broadcast against samples.

    In units in which a right local answer costs 0 and a wrong one 1, which changes no decision and is how the published
    losses are written.

    Attributes:
        local_right: 0.
        local_wrong: 1.
        remote_right: c_e.
        remote_wrong: c_e + c_1.
    """

    local_right: Tensor
    local_wrong: Tensor
    remote_right: Tensor
    remote_wrong: Tensor

    @classmethod
    def of(cls, costs: Sequence[Costs], device: torch.device) -> Prices:
        """On a device."""
        four = np.array([[c.c_cc, c.c_ce, c.c_sc, c.c_se] for c in costs])
        four = (four - four[:, :1]) / (four[:, 1:2] - four[:, :1])
        tensor = torch.tensor(four, dtype=torch.float32, device=device)
        return cls(*(tensor[:, k : k + 1] for k in range(4)))

    def local(self, correct: Tensor) -> Tensor:
        """(R, n), what a local answer costs."""
        return torch.where(correct, self.local_right, self.local_wrong)

    def remote(self, correct: Tensor) -> Tensor:
        """(R, n), what a remote answer costs."""
        return torch.where(correct, self.remote_right, self.remote_wrong)

    @property
    def highest(self) -> Tensor:
        """(R, 1), the highest of the four."""
        return torch.maximum(self.local_wrong, self.remote_wrong)


class Learned(Method):
    """A method with a rejector.

    Attributes:
        net: ``separate`` or ``attached``.
        student: the trunk is taught the server's softmax.
        soft: it learns from the server's softmax and so from samples the server was fitted to as well.
        any_price: one rejector answers for every price.
        options: of its net, over those of the bench.
    """

    family = "learned"
    net: ClassVar[str]
    student: ClassVar[bool] = False
    soft: ClassVar[bool] = False
    any_price: ClassVar[bool] = False
    options: ClassVar[dict[str, Any]] = {}

    @abstractmethod
    def loss(self, scores: Tensor, pool: Pool, prices: Prices) -> Tensor:
        """Of R rejectors on n samples: scores (R, n, 2) to losses (R, n)."""

    def score(self, scores: npt.NDArray[np.float32], client: ClassifierAnswers, costs: Costs) -> FloatArray:
        """What the trained rejector's numbers (n, 2) say for sending, (n,); by the paper's rule REMOTE iff >= 0."""
        return np.asarray(scores[:, 1] - scores[:, 0], dtype=np.float64)

    def prices(self, bench: Bench) -> Prices:
        """Those the rejectors of a bench are trained for."""
        return Prices.of(bench.costs, bench.context.device)

    def fit(self, bench: Bench) -> LearnedRule:
        """Train one rejector a price, all at once, or one for all prices."""
        return LearnedRule(self, self.train(bench), bench)

    def train(self, bench: Bench) -> Trained:
        """The rejectors, each at its best held-out loss."""
        pool = bench.soft if self.soft else bench.honest
        specs = [RejectorSpec()] * (1 if self.any_price else len(bench.costs))
        job, context = bench.job, bench.context
        options = {"width": WIDTH, **bench.system.rejector_options, **self.options}
        if self.net == "separate":
            options = {"width": options["width"]}
        make = rejector_builder(
            self.net,
            job.X,
            input_shape=tuple(job.X.shape[1:]),
            num_classes=bench.num_classes,
            embedding_size=bench.system.embedding_size,
            settings=context.settings,
            options=options,
            student=self.student,
        )
        rejectors = make_rejectors(replace(job, specs=specs, make_rejector=make), context, pool.view)
        prices = self.prices(bench)
        stage = RejectorStage(
            self.name,
            rejectors,
            lambda scores, batch: self.loss(scores, batch, prices),
            pool,
            stage_settings(job, context)[1],
            context,
            bench.pools.held,
            draws="rejector",
        )
        run_stage(stage, context)
        stage.keep_best()
        return Trained(rejectors, stage.epoch * stage.steps)


@dataclass(frozen=True)
class Trained:
    """Rejectors, and for how many steps they were trained."""

    rejectors: RejectorBatch
    steps: int


class LearnedRule(Threshold):
    """Trained rejectors, with a threshold on their score chosen on calibration samples."""

    published = 0.0

    def __init__(self, method: Learned, trained: Trained, bench: Bench) -> None:
        super().__init__(bench)
        self.method, self.trained = method, trained
        self._last: tuple[Inputs, npt.NDArray[np.float32]] | None = None

    def scores(self, inputs: Inputs, costs: Costs) -> npt.NDArray[np.float32]:
        """The numbers (n, 2) of the rejector for these prices."""
        if costs not in self.bench.costs:
            raise SettingsError(
                f"{self.method.name} was fitted for {', '.join(map(str, self.bench.costs))}, not {costs}"
            )
        if self._last is None or self._last[0] is not inputs:
            context = self.bench.context
            self._last = (inputs, rejector_scores(self.trained.rejectors, inputs.X, inputs.client, context))
        return np.asarray(self._last[1][0 if self.method.any_price else self.bench.costs.index(costs)])

    def score(self, inputs: Inputs, costs: Costs) -> FloatArray:
        """The method's."""
        return self.method.score(self.scores(inputs, costs), inputs.client, costs)

    def facts(self, inputs: Inputs, y: npt.NDArray[np.int64]) -> dict[str, float]:
        """Size, work and training of one rejector, and how right its student is where it has one."""
        rejectors, context = self.trained.rejectors, self.bench.context
        module = rejectors.module(0)
        x = torch.from_numpy(inputs.X[:1]).to(context.device)
        view = torch.zeros(1, client_view_size(self.bench.num_classes, self.bench.system.embedding_size))
        args = (x, view.to(context.device)) if getattr(module, "uses_client", False) else (x,)
        out = {
            "parameters": float(sum(p[0].numel() for p in rejectors.params.values())),
            "multiply_adds": float(multiply_adds(module, *args)),
            "steps": float(self.trained.steps),
        }
        if getattr(module, "classes", 0):
            taught = rejector_scores(rejectors, inputs.X, inputs.client, context, student=True)[0]
            out["student"] = float((taught.argmax(axis=1) == y).mean())
        return out


def client_scores(pool: Pool) -> Tensor:
    """The fixed client's log-probabilities (n, K)."""
    return client_log_probability(pool.view, pool.server_probability.shape[1])


def local_score(scores: Tensor) -> Tensor:
    """The one score ``r`` of methods that have one, above 0 for LOCAL: (R, n, 2) to (R, n)."""
    return scores[..., 0] - scores[..., 1]


def bounded_exp(x: Tensor) -> Tensor:
    """exp, straight above 15: nothing overflows and the gradient still points back."""
    top = 15.0
    return torch.where(x > top, float(np.exp(top)) * (1 + x - top), torch.exp(x.clamp(max=top)))
