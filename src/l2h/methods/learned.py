"""Methods that train a rejector: same nets, same samples, same steps; they differ in the loss and in the rule.

A rejector gives two numbers per sample. A method that has one score reads it as their difference, so that all methods
with one kind of net have the same number of parameters to train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from l2h import metrics
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import FREE, TWO, Answerer, Judgement, RejectorSpec
from l2h.errors import SettingsError
from l2h.methods.base import Bench, Inputs, Method, ThresholdRule
from l2h.models import multiply_adds
from l2h.models.rejectors import client_log_probability
from l2h.training import Context, Job, Objective, RejectorStage, SamplePool, Trained
from l2h.training.job import RejectorSize, rejector_builder
from l2h.training.recipes import make_rejector_stage, rejector_scores, train_default
from l2h.training.together import run_together

#: The trunk's width in a comparison where the options name none: that of an attached rejector.
WIDTH = 4.0


@dataclass(frozen=True)
class Prices:
    """The costs of R rejectors, each (R, 1), to be broadcast against samples; of S servers the remote ones (R, 1, S).

    In units in which a right local answer costs 0 and a wrong one 1, which changes no decision and is how the published
    losses are written.
    """

    local_right: Tensor  # 0
    local_wrong: Tensor  # 1
    remote_right: Tensor  # c_e
    remote_wrong: Tensor  # c_e + c_1

    @classmethod
    def of(cls, costs: Sequence[Costs], device: torch.device) -> Prices:
        four = np.array([[c.c_cc, c.c_ce, c.c_sc, c.c_se] for c in costs])
        four = (four - four[:, :1]) / (four[:, 1:2] - four[:, :1])
        tensor = torch.tensor(four, dtype=torch.float32, device=device)
        return cls(*(tensor[:, k : k + 1] for k in range(4)))

    @classmethod
    def of_several(cls, costs: Sequence[Sequence[Costs]], device: torch.device) -> Prices:
        """Return the prices of R rejectors, of S servers each, on a device."""
        each = [cls.of(own, device) for own in zip(*costs, strict=True)]
        right, wrong = (
            torch.stack([getattr(one, f"remote_{end}") for one in each], dim=-1) for end in ("right", "wrong")
        )
        return cls(each[0].local_right, each[0].local_wrong, right, wrong)

    def remote(self, correct: Tensor) -> Tensor:
        """Return what a remote answer costs: (R, n) from (n,), of S servers (R, n, S) from (n, S)."""
        return torch.where(correct, self.remote_right, self.remote_wrong)

    @property
    def highest(self) -> Tensor:
        """Return (R, 1), the highest of all."""
        return torch.maximum(self.local_wrong, self.remote_wrong.flatten(1).amax(1, keepdim=True))


class LearnedRule(ThresholdRule):
    """Trained rejectors, with a threshold on their score chosen on calibration samples."""

    published: float | None = 0.0

    def __init__(self, method: Learned, bench: Bench, stage: RejectorStage, first: int = 0) -> None:
        """Take the method's rejectors from a finished stage, which begin with its ``first``."""
        super().__init__(bench)
        self.method, self.specs = method, method.specs(bench.costs)
        whole = stage.rejectors
        self.rejectors = whole if len(self.specs) == whole.size else whole.part(first, first + len(self.specs))
        self.steps = stage.epoch * stage.steps
        self._known: list[tuple[Inputs, npt.NDArray[np.float32]]] = []

    def which(self, costs: Costs) -> int:
        """Return the number of the rejector for these prices."""
        if costs not in self.bench.costs:
            raise SettingsError(
                f"{self.method.name} was fitted for {', '.join(map(str, self.bench.costs))}, not {costs}"
            )
        return 0 if self.method.any_price else self.bench.costs.index(costs)

    def scores(self, inputs: Inputs, which: int) -> npt.NDArray[np.float32]:
        found = next((scores for known, scores in self._known if known is inputs), None)
        if found is None:
            found = rejector_scores(self.rejectors, inputs.X, inputs.client, self.bench.context)
            self.remember(inputs, found)
        return np.asarray(found[which])

    def remember(self, inputs: Inputs, scores: npt.NDArray[np.float32]) -> None:
        """Keep the scores (R, n, heads) of inputs, beside those of the inputs before: tests and calibration samples."""
        self._known = [*self._known[-1:], (inputs, scores)]

    def judgement(self, inputs: Inputs, costs: Costs) -> Judgement:
        """Return what the rejector for these prices makes of the inputs."""
        which = self.which(costs)
        scores, log_p = self.scores(inputs, which), inputs.client.log_probability
        return self.method.judgement(self.specs[which], scores, log_p, answerers=self.bench.answerers)

    def score(self, inputs: Inputs, costs: Costs) -> FloatArray:
        return self.judgement(inputs, costs).saving(costs)

    def facts(self, inputs: Inputs, y: npt.NDArray[np.int64]) -> dict[str, float]:
        """Return size, work and training of one rejector, and how right its student is where it has one."""
        rejectors, context, job = self.rejectors, self.bench.context, self.bench.job
        module = rejectors.module(0)
        x = torch.from_numpy(inputs.X[:1]).to(context.device)
        view = torch.zeros(1, job.rejector_inputs.view_size)
        args = (x, view.to(context.device)) if getattr(module, "uses_client", False) else (x,)
        out = {
            "parameters": float(sum(p[0].numel() for p in rejectors.params.values())),
            "multiply_adds": float(multiply_adds(module, *args)),
            "steps": float(self.steps),
        }
        if getattr(module, "classes", 0):
            both = rejector_scores(rejectors, inputs.X, inputs.client, context, student=True)
            student = both[0, :, rejectors.heads :]
            out["student"] = float((student.argmax(axis=1) == y).mean())
        return out


class Learned(Method):
    """A method with a rejector. It can be compared, and trained, saved, exported and run on a device."""

    family = "learned"
    net: str  # separate or attached
    student: bool = False  # the trunk is taught the server's softmax
    #: It learns from the server's softmax, and so from samples that the server was fitted to as well.
    soft: ClassVar[bool] = False
    #: One rejector answers for every price; its two numbers are logits of "the client is right", "the server is right".
    any_price: ClassVar[bool] = False
    calibrated: ClassVar[bool] = False  # those logits get a scale and a shift on held-out samples
    #: Its loss trains a head per server, whatever their number: scores (R, n, 1 + S), and (n, S) for (n,) in the pool.
    several_servers: ClassVar[bool] = False
    options: Mapping[str, Any] = {}  # of its net, over those of a comparison
    budget: Mapping[str, Any] | None = None  # what its net was sized to (:class:`l2h.training.job.RejectorSize`)
    rule: ClassVar[type[LearnedRule]] = LearnedRule  # how it decides in a comparison

    def why_not(self, num_classes: int, outcomes_only: bool = False) -> str | None:
        if outcomes_only and self.net != "separate":
            return "it reads the client's scores, and only outcomes are known"
        return super().why_not(num_classes, outcomes_only)

    def loss(self, scores: Tensor, pool: SamplePool, prices: Prices) -> Tensor:
        """Return the losses (R, n) of R rejectors on n samples, from their scores (R, n, 2)."""
        raise NotImplementedError(f"{type(self).__name__} has no loss: define it, or objective() as a whole")

    def final(self, scores: Tensor, log_probability: Tensor) -> Tensor:
        """Return the scores (..., n, 2) that decide: REMOTE iff the second is not below the first.

        They come from the rejector's scores (..., n, 2) and the client's log-probabilities (n, K).
        """
        return scores

    def prices(self, costs: Sequence[Costs], device: torch.device, server_accuracy: float) -> Prices:
        """Return the prices that the loss is given; ``server_accuracy`` is measured on held-out samples."""
        return Prices.of(costs, device)

    def loss_name(self) -> str:
        """Return what a :class:`RejectorSpec` calls the loss."""
        return self.name

    def specs(self, costs: Sequence[Costs] | None) -> tuple[RejectorSpec, ...]:
        """Return one rejector per price, or one for all."""
        if self.any_price:
            return (RejectorSpec(self.loss_name()),)
        if not costs:
            raise SettingsError(
                f"method {self.name!r} trains for a price: fit(X, y, costs=l2h.Costs(...)), or use loss 'priced'"
            )
        return tuple(RejectorSpec(self.loss_name(), c) for c in costs)

    def objective(self, specs: Sequence[RejectorSpec], device: torch.device, server_accuracy: float) -> Objective:
        """Return the loss of the rejectors of these specs on a pool."""
        prices = self.prices([spec.costs or FREE for spec in specs], device, server_accuracy)
        return lambda scores, pool: self.loss(scores, pool, prices)

    def learns_softly(self, specs: Sequence[RejectorSpec]) -> bool:
        """Return whether these rejectors may learn from samples that the server was fitted to."""
        return self.soft

    def train(self, job: Job, context: Context) -> Trained:
        """Train the server of a job, then its rejectors."""
        if context.settings.recipe == "paper":
            raise SettingsError(
                f"recipe 'paper' trains a rejector for a price by L2: method {self.name!r} needs recipe 'default'"
            )
        return train_default(
            job,
            context,
            lambda right: self.objective(job.specs, context.device, right),
            self.learns_softly(job.specs),
            self.final,
        )

    def judgement(
        self,
        spec: RejectorSpec,
        scores: npt.NDArray[np.floating],
        log_probability: npt.NDArray[np.float32],
        platt: npt.ArrayLike | None = None,
        answerers: tuple[Answerer, ...] = TWO,
    ) -> Judgement:
        """Return what a rejector makes of inputs, from its scores (n, 2) and the client's log-probabilities (n, K).

        ``platt`` (2, 2) holds scale and shift of each logit.
        """
        decided = self.final(torch.from_numpy(scores), torch.from_numpy(log_probability)).numpy()
        if spec.costs is None:
            return Judgement.from_heads(decided, platt, answerers)
        return Judgement(decided, None, answerers)

    def fit_platt(
        self, spec: RejectorSpec, scores: npt.NDArray[np.floating], right: BoolArray
    ) -> list[tuple[float, float]]:
        """Return scale and shift of each logit, from final scores and who was right on held-out samples, (n, J)."""
        if not self.calibrated or spec.costs is not None:
            return [(1.0, 0.0)] * scores.shape[1]
        return [metrics.fit_platt(scores[:, head], right[:, head]) for head in range(scores.shape[1])]

    def fit(self, bench: Bench) -> LearnedRule:
        """Train one rejector per price, all at once, or one for all prices."""
        return fit_together([(self, bench)], bench.context)[0]

    def stage(self, bench: Bench) -> RejectorStage:
        """Return the training of the method's rejectors on a bench, not begun."""
        pool = bench.soft if self.learns_softly(self.specs(bench.costs)) else bench.unseen
        return stack_stage(self.name, [self], bench, bench.context, pool)


def stack_stage(
    name: str,
    stack: Sequence[Learned],
    bench: Bench,
    context: Context,
    pool: SamplePool,
    over: Callable[[Objective], Objective] = lambda objective: objective,
) -> RejectorStage:
    """Return the training of the rejectors of methods with nets of one kind and size, as one stack, not begun.

    ``over`` makes of each method's loss the one that is trained.
    """
    job, one = bench.job, stack[0]
    options = {"width": WIDTH, **bench.rejector_options, **one.options}
    if one.net == "separate":
        options.pop("hidden", None)
    make = rejector_builder(
        one.net,
        job.X,
        job.rejector_inputs,
        settings=context.settings,
        options=options,
        student=one.student,
        heads=len(bench.answerers),
    )
    right = float(bench.calibration.server_correct.mean())
    specs = [method.specs(bench.costs) for method in stack]
    losses = [over(method.objective(own, context.device, right)) for method, own in zip(stack, specs, strict=True)]
    sizes = [len(own) for own in specs]

    def objective(scores: Tensor, samples: SamplePool) -> Tensor:
        return torch.cat([loss(own, samples) for loss, own in zip(losses, scores.split(sizes), strict=True)])

    return make_rejector_stage(
        name,
        replace(
            job,
            specs=[spec for own in specs for spec in own],
            make_rejector=make,
            size=RejectorSize(options, one.budget),
        ),
        context,
        pool,
        bench.pools.stopping,
        losses[0] if len(stack) == 1 else objective,
    )


def fit_together(trainings: Sequence[tuple[Learned, Bench]], context: Context) -> list[LearnedRule]:
    """Train the rejectors of several methods, each on its bench, at once; each rule is that of the method alone."""
    stages = [method.stage(bench) for method, bench in trainings]
    run_together(stages, context)
    return [method.rule(method, bench, stage) for (method, bench), stage in zip(trainings, stages, strict=True)]


def client_scores(pool: SamplePool) -> Tensor:
    """Return the fixed client's log-probabilities (n, K)."""
    return client_log_probability(pool.view, pool.server_probability.shape[1])


def local_score(scores: Tensor) -> Tensor:
    """Return the one score ``r`` of methods that have one, above 0 for LOCAL: (..., 2) to (...)."""
    return scores[..., 0] - scores[..., 1]


def bounded_exp(x: Tensor) -> Tensor:
    """Return exp(x), straight above 15: nothing overflows and the gradient still points back."""
    top = 15.0
    return torch.where(x > top, float(np.exp(top)) * (1 + x - top), torch.exp(x.clamp(max=top)))
