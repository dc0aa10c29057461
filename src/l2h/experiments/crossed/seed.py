"""A crossed comparison of one seed: one client, one server, and every loss with every net and kind of samples."""

import copy
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from l2h import methods, metrics
from l2h.budgets import Budget
from l2h.costs import BoolArray, generalized_loss
from l2h.data import Dataset
from l2h.experiments.compare.outcomes import without_answerers
from l2h.experiments.compare.seed import make_bench, size_methods
from l2h.experiments.crossed.rows import ATTACHED, CONFIDENCE, OUTCOMES, SEPARATE, SOFTMAX, STUDENT, Arm, Row
from l2h.experiments.plan import Plan
from l2h.experiments.statistics import block_means
from l2h.methods import Learned, LearnedRule, Outcomes, Rule
from l2h.methods.learned import stack_stage
from l2h.models import multiply_adds
from l2h.rows import digest
from l2h.settings import SEPARABLE_REJECTOR
from l2h.training import Context, RejectorStage, SamplePool
from l2h.training.recipes import rejector_scores
from l2h.training.rejector_stage import UncertainPool, over_labels
from l2h.training.together import run_together


class SeedCrossing:
    """Trains and measures the losses of one seed, arm by arm.

    The nets of an arm differ in their losses and prices only: they are one stack of weights.
    """

    stacked = True  # False trains the nets of each loss by themselves, side by side

    def __init__(self, plan: Plan, dataset: Dataset, context: Context) -> None:
        self.context = context
        self.bench = make_bench(replace(plan, rejector_options={}), dataset, context)
        self.test = self.bench.outcomes(dataset.X_test, dataset.y_test)
        self.pools = {OUTCOMES: _with_outcomes(self.bench.unseen), SOFTMAX: self._with_softmax()}
        self.common = {
            "data": dataset.name,
            "test": digest(dataset.X_test, dataset.y_test)[:12],
            "samples": len(self.test),
            "rest": len(dataset.y_train),
            "seed": plan.settings.seed,
            "client": round(float(self.test.client_correct.mean()), 5),
            "server": round(float(self.test.server_correct.mean()), 5),
        }
        self._sizes: dict[tuple[str, str], Learned] = {}  # by budget and trunk, a method with the largest net of these

    def sized_apart(self, names: Sequence[str], sizes: Iterable[tuple[str, str]]) -> "SeedCrossing":
        """Return the crossing to be sent elsewhere: its nets sized for these budgets and trunks, nobody left to ask."""
        for budget, trunk in sizes:
            self._stack(names[:1], budget, (trunk, OUTCOMES))
        apart = copy.copy(self)
        apart.bench = without_answerers(self.bench)
        apart.context = apart.bench.context
        return apart

    def _with_softmax(self) -> SamplePool:
        """Return the samples of the default method: truth and softmax mixed on unseen ones, softmax on fitted ones."""
        unseen, fitted, share = self.bench.pools.unseen, self.bench.pools.fitted, self.context.settings.distill
        truth = torch.nn.functional.one_hot(unseen.y, self.bench.num_classes)
        labels = [(1 - share) * truth + share * unseen.server_probability]
        labels += [] if fitted is None else [fitted.server_probability]
        return UncertainPool(**vars(self.bench.soft), labels=torch.cat(labels))

    def confidence(self) -> list[Row]:
        """Return the rows of a threshold on the client's confidence."""
        (method,) = methods.get([CONFIDENCE])
        rule = method.fit(self.bench)
        named = {"budget": "", "loss": CONFIDENCE, "trunk": "", "learned_from": "", "rate": "", "multiply_adds": 0}
        return [self.common | named | row for row in self._judge(rule)]

    def rows(self, names: Sequence[str], budget: str, arm: Arm, rate: float) -> Iterator[Row]:
        """Train the losses of these methods in one arm, and give a row per loss and price."""
        begun = time.monotonic()
        whole = self._stack(names, budget, arm)
        stacks = [whole] if self.stacked else [[method] for method in whole]
        stages = [self._stage(stack, arm, rate) for stack in stacks]
        run_together(stages, self.context)
        named = {
            "budget": budget,
            "trunk": arm[0],
            "learned_from": arm[1],
            "rate": f"{rate:g}",
            "multiply_adds": self._work(stages[0]),
            "steps": stages[0].epoch * stages[0].steps,
            "seconds": round(time.monotonic() - begun, 1),
        }
        for stack, stage in zip(stacks, stages, strict=True):
            for loss, student, row in self._judge_stack(stack, stage):
                yield self.common | named | {"loss": loss, "student": student} | row

    def _stack(self, names: Sequence[str], budget: str, arm: Arm) -> list[Learned]:
        """Return the methods with the net of an arm, the largest of the budget."""
        stack = [method for method in methods.get(names) if isinstance(method, Learned)]
        for method in stack:
            method.net, method.student = SEPARATE if arm[0] == SEPARATE else ATTACHED, arm[0] == STUDENT
        sized = self._sizes.setdefault((budget, arm[0]), stack[0])
        if sized is stack[0]:
            size_methods([sized], Budget.parse(budget), self.bench)
        for method in stack:
            method.options, method.budget = sized.options, sized.budget
        return stack

    def _stage(self, stack: Sequence[Learned], arm: Arm, rate: float) -> RejectorStage:
        settings = self.context.settings
        at_rate = replace(settings.rejector or SEPARABLE_REJECTOR, lr=rate)
        context = replace(self.context, settings=replace(settings, rejector=at_rate))
        name = f"{', '.join(arm)}, rate {rate:g}"
        return stack_stage(name, stack, self.bench, context, self.pools[arm[1]], over_labels)

    def _work(self, stage: RejectorStage) -> int:
        module, job, device = stage.rejectors.module(0), self.bench.job, self.context.device
        x = torch.from_numpy(self.test.X[:1]).to(device)
        view = torch.zeros(1, job.rejector_inputs.view_size, device=device)
        return multiply_adds(module, *((x, view) if getattr(module, "uses_client", False) else (x,)))

    def _judge_stack(self, stack: Sequence[Learned], stage: RejectorStage) -> Iterator[tuple[str, float | None, Row]]:
        """Give the loss, how often its first student is right, and its figures at each price."""
        both = {}
        for samples in (self.bench.calibration, self.test):
            inputs, whole = samples.inputs, stage.rejectors
            both[id(inputs)] = inputs, rejector_scores(whole, inputs.X, inputs.client, self.context, student=True)
        first, heads = 0, stage.rejectors.heads
        for method in stack:
            own = slice(first, first + len(method.specs(self.bench.costs)))
            rule = method.rule(method, self.bench, stage, first)
            for inputs, outputs in both.values():
                rule.remember(inputs, outputs[own, :, :heads])
            student = None
            if method.student:
                taught = outputs[first, :, heads:].argmax(axis=1)
                student = round(float((taught == self.test.y).mean()), 5)
            for row in self._judge(rule):
                yield method.loss_name(), student, row
            first = own.stop

    def _judge(self, rule: Rule | LearnedRule) -> Iterator[Row]:
        """Give the figures of a rule on the test samples at each price, and its risk on those it was tuned with."""
        for costs in self.bench.costs:
            held, choice = (rule.decide(of.inputs, costs) for of in (self.bench.calibration, self.test))
            losses = _losses(self.test, choice.remote, costs)
            right = self.test.client_correct, self.test.server_correct
            gain = metrics.frontier_gain(metrics.frontier(choice.score, *right).area, *right)
            yield {
                "c_1": costs.c_1,
                "c_e": costs.c_e,
                "validation": round(float(_losses(self.bench.calibration, held.remote, costs).mean()), 6),
                "risk": round(float(losses.mean()), 6),
                "reject_rate": round(float(choice.remote.mean()), 5),
                "gain": None if gain is None else round(gain, 5),
                "blocks": json.dumps([round(float(mean), 5) for mean in block_means(losses)], separators=(",", ":")),
            }


def _with_outcomes(pool: SamplePool) -> SamplePool:
    """Return samples whose targets are who was right."""
    return replace(pool, client_target=pool.client_correct.float(), server_target=pool.server_correct.float())


def _losses(samples: Outcomes, remote: BoolArray, costs: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return generalized_loss(samples.client_correct, samples.server_correct, remote, costs)
