"""The frontier of one seed: one client, one server, and what every budget makes of them."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from l2h import decision, methods, metrics
from l2h.budgets import Budget
from l2h.classifiers import Classifier, as_client
from l2h.costs import BoolArray, FloatArray
from l2h.data import Dataset
from l2h.decision import CLIENT, Judgement
from l2h.errors import ModelError
from l2h.experiments.compare.seed import make_bench
from l2h.experiments.frontier.rows import (
    CONFIDENCE,
    GRID,
    PRICES,
    REPLACED,
    RIVALS,
    SHOWN,
    STUDENT,
    THREE_WAYS,
    TWO_WAYS,
    Row,
    Way,
)
from l2h.experiments.plan import Plan
from l2h.methods import Learned, fit_together
from l2h.methods.helping import PricedRule
from l2h.metrics import AnswererChoice
from l2h.models import build_rejector, multiply_adds, within_budget
from l2h.settings import SEPARABLE_REJECTOR
from l2h.system.sizing import RejectorTimer, classifier_seconds, size_method
from l2h.training import Context
from l2h.training.counting import classifier_multiply_adds
from l2h.training.job import input_scale
from l2h.training.loop import seeded
from l2h.training.server import ServerStage, log_probabilities
from l2h.training.streaming import take_inputs
from l2h.training.together import run_together

OURS = (TWO_WAYS, THREE_WAYS, STUDENT)


class SeedFrontier:
    """Client and server of one seed, on which budgets are measured one by one; on a GPU their nets train together.

    ``timings`` keeps microseconds by what was timed: a net's time is a matter of its size, the same for every seed.
    """

    def __init__(self, plan: Plan, dataset: Dataset, context: Context, timings: dict[Any, float | None]) -> None:
        self._begun = time.monotonic()
        self.timings = timings
        self.context, self.settings = context, plan.settings
        self.bench = make_bench(replace(plan, rejector_options={}), dataset, context)
        self.bench.costs = PRICES
        self.test = self.bench.outcomes(dataset.X_test, dataset.y_test)
        self.inputs = self.bench.job.rejector_inputs
        self._nets: dict[Way, Learned] = {}
        self.common = self._common()

    def rows(self, ways: Sequence[Way]) -> Iterator[Row]:
        """Give a row for each of these ways; it has no figures where there is no such net at the budget."""
        if ("0", CONFIDENCE) in ways:
            yield self._row(("0", CONFIDENCE), self._confidence())
        budgets = list(dict.fromkeys(budget for budget, way in ways if way != CONFIDENCE))
        at_once = [budgets] if self.context.device.type == "cuda" else [[budget] for budget in budgets]
        for some in at_once:
            yield from self._rejectors([way for way in ways if way[0] in some and way[1] in (*OURS, *RIVALS)])
            yield from self._replaced([budget for budget in some if (budget, REPLACED) in ways])

    def _rejectors(self, ways: Sequence[Way]) -> Iterator[Row]:
        """Train the rejectors of these ways; two ways, three ways and the student alone are of one rejector."""
        trained = {(budget, TWO_WAYS if way in OURS else way): None for budget, way in ways}
        nets = [(self._sized(budget, way), self.bench) for budget, way in trained]
        rules = dict(zip(trained, fit_together(nets, self.context), strict=True))
        for (budget, way), rule in rules.items():
            facts = rule.facts(self.test.inputs, self.test.y)
            known = {
                "multiply_adds": int(facts["multiply_adds"]),
                "microseconds": self._rejector_time(rule.method),
                "options": json.dumps(dict(rule.method.options)),
            }
            choices = [rule.decide(self.test.inputs, costs) for costs in PRICES]
            found = {way: self._two_ways([choice.remote for choice in choices], choices[0].score)}
            if isinstance(rule, PricedRule) and "student" in facts:
                judgement, label = rule.second_opinion(self.test.inputs)
                found |= {STUDENT: _alone(label == self.test.y), THREE_WAYS: self._three_ways(judgement, label)}
            for name in OURS if way == TWO_WAYS else (way,):
                if (budget, name) in ways:
                    yield self._row((budget, name), known | found[name] if name in found else {})

    def _replaced(self, budgets: Sequence[str]) -> Iterator[Row]:
        """Train nets in the client's place, each with the work of the client and a rejector together, by the labels."""
        job, client = self.bench.job, self.common["client_multiply_adds"] or 0
        stages = {budget: self._replacement(client + self._work(self._sized(budget, TWO_WAYS))) for budget in budgets}
        run_together([stage for stage in stages.values() if stage is not None], self.context)
        x = take_inputs(self.test.X, self.context)
        for budget, stage in stages.items():
            if stage is None:
                yield self._row((budget, REPLACED), {})
                continue
            net = stage.model.eval()
            right = log_probabilities(net, x, self.context).argmax(-1).cpu().numpy() == self.test.y
            work = multiply_adds(net.cpu(), torch.from_numpy(job.X[:1]))
            known = {"multiply_adds": work, "microseconds": self._classifier_time((REPLACED, work), as_client(net))}
            yield self._row((budget, REPLACED), known | _alone(right))

    def _replacement(self, allowed: int) -> ServerStage | None:
        """Return the training of the largest net of so many multiply-adds; None where there is none so small."""
        job, shape = self.bench.job, self.inputs.shape

        def build(budget: float) -> nn.Module:
            options = within_budget(budget, "separate", shape, 0, 0)
            scale = input_scale(job.inputs, self.settings)
            net = build_rejector("separate", shape, 0, scale=scale, **options)
            net.head = nn.Linear(net.get_parameter("head.weight").shape[1], job.num_classes)
            return net

        budget = float(allowed)
        try:
            with seeded(self.context.device, self.settings.seed, REPLACED):
                net = build(budget)
                while (work := multiply_adds(net, torch.from_numpy(job.X[:1]))) > allowed:
                    budget -= work - allowed  # its head has a row per class, not two
                    net = build(budget)
        except ModelError:
            return None
        stage = replace(self.settings.rejector or SEPARABLE_REJECTOR, patience=None)
        x, y = take_inputs(job.X, self.context), torch.from_numpy(job.y).to(self.context.device)
        return ServerStage(REPLACED, net.to(self.context.device), x, y, stage, self.context)

    def _sized(self, budget: str, way: str) -> Learned:
        """Return the method of a way with the largest net of a budget, found once."""
        if (budget, way) not in self._nets:
            (method,) = methods.get([methods.DEFAULT if way == TWO_WAYS else way])
            assert isinstance(method, Learned)
            self._nets[budget, way] = size_method(method, Budget.parse(budget), self.bench.job)
        return self._nets[budget, way]

    def _work(self, method: Learned) -> int:
        classes, view = self.inputs.num_classes if method.student else 0, self.inputs.view_size
        net = build_rejector("attached", self.inputs.shape, view, classes, **method.options)
        return multiply_adds(net, torch.from_numpy(self.bench.job.X[:1]), torch.zeros(1, view))

    def _rejector_time(self, method: Learned) -> float | None:
        """Return the microseconds of a method's rejector for one input, here, with onnxruntime on one thread."""
        key = (method.student, *method.options.items())
        if key not in self.timings:
            timer = RejectorTimer("attached", method, self.inputs, self.inputs.num_classes * method.student)
            self.timings[key] = round(timer.seconds(method.options) * 1e6, 2)
        return self.timings[key]

    def _classifier_time(self, key: Any, classifier: Classifier) -> float | None:
        if key not in self.timings:
            seconds = classifier_seconds(classifier, self.bench.job.X, self.inputs.num_classes)
            self.timings[key] = None if seconds is None else round(seconds * 1e6, 2)
        return self.timings[key]

    def _confidence(self) -> Row:
        held, test = self.bench.calibration, self.test
        outcomes = (held.client_correct, held.server_correct)
        thresholds = [decision.confidence_threshold(held.client.confidence, *outcomes, costs) for costs in PRICES]
        remotes = [decision.confidence(test.client.confidence, threshold) for threshold in thresholds]
        known = {"multiply_adds": 0, "microseconds": 0.0}
        return known | self._two_ways(remotes, -test.client.confidence)

    def _two_ways(self, remotes: Sequence[BoolArray], score: FloatArray) -> Row:
        """Return the figures of decisions at every price, with the ranking behind them."""
        outcomes = (self.test.client_correct, self.test.server_correct)
        return _figures([AnswererChoice.of_two(*outcomes, remote) for remote in remotes]) | {"gain": self._gain(score)}

    def _three_ways(self, judgement: Judgement, student: npt.NDArray[np.int64]) -> Row:
        test = self.test
        right = np.stack([test.client_correct, student == test.y, test.server_correct], axis=1)
        chosen = [judgement.choose(costs, judgement.remote(costs)) for costs in PRICES]
        return _figures([AnswererChoice(judgement.answerers, right, who) for who in chosen])

    def _gain(self, score: FloatArray) -> float | None:
        outcomes = (self.test.client_correct, self.test.server_correct)
        gain = metrics.frontier_gain(metrics.frontier(score, *outcomes).area, *outcomes)
        return None if gain is None else round(gain, 5)

    def _common(self) -> Row:
        job, test = self.bench.job, self.test
        either = AnswererChoice.of_two(test.client_correct, test.server_correct, np.zeros(len(test), dtype=bool))
        best = [either.cheapest(costs).risk(costs) for costs in PRICES]
        (server,) = self.bench.outcome.servers
        return {
            "client_multiply_adds": classifier_multiply_adds(job.client, self.inputs.shape, self.inputs.dtype),
            "client_microseconds": self._classifier_time("client", job.client),
            "server_multiply_adds": multiply_adds(server, torch.from_numpy(job.X[:1]).to(self.context.device))
            if isinstance(server, nn.Module)
            else None,
            "client": round(float(test.client_correct.mean()), 5),
            "server": round(float(test.server_correct.mean()), 5),
            "label_free_gain": self._gain(metrics.label_free_score(test.server_probability, test.client.label)),
            **{f"oracle_{name}": round(float(risk), 6) for name, risk in zip(SHOWN, best, strict=False)},
            "oracle_mean": round(float(np.mean(best[-len(GRID) :])), 6),
        }

    def _row(self, way: Way, figures: Row) -> Row:
        now = time.monotonic()
        seconds, self._begun = now - self._begun, now
        return self.common | figures | {"budget": way[0], "method": way[1], "seconds": round(seconds, 2)}


def _alone(right: BoolArray) -> Row:
    """Return the figures of a net that answers everything and asks nobody."""
    return _figures([AnswererChoice((CLIENT,), right[:, None], np.zeros(len(right), dtype=np.intp))] * len(PRICES))


def _figures(choices: Sequence[AnswererChoice]) -> Row:
    losses = [choice.losses(costs) for choice, costs in zip(choices, PRICES, strict=True)]
    mean = np.mean(losses[len(SHOWN) :], axis=0)
    return {
        **{f"risk_{name}": round(float(loss.mean()), 6) for name, loss in zip(SHOWN, losses, strict=False)},
        "risk_mean": round(float(mean.mean()), 6),
        "risk_error": round(float(mean.std() / len(mean) ** 0.5), 6),
        **{f"remote_{name}": round(choice.reject_rate, 5) for name, choice in zip(SHOWN, choices, strict=False)},
        "accuracy": round(choices[0].accuracy, 5),
    }
