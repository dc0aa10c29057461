"""What a system does on a test set, beside every trivial baseline and beside the same system with other answerers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from l2h import metrics
from l2h.classifiers import ClassifierAnswers
from l2h.costs import FloatArray
from l2h.data.dataset import Array, Labels
from l2h.decision import AnyCosts, AnyLimit, Policy
from l2h.errors import warn
from l2h.metrics import ConfidenceRule, PriceDecider
from l2h.money import Money, plain_costs
from l2h.system.steps import make_policy
from l2h.training import StudentAnswers

if TYPE_CHECKING:
    from l2h.fitted import FittedSystem


@dataclass(frozen=True)
class Question:
    """How a system is to decide: the arguments of :meth:`l2h.HelpSystem.evaluate`."""

    costs: AnyCosts | Money | None
    limit: AnyLimit | None = None
    rule: str | None = None
    which: int | None = None
    seed: int = 0

    def check(self, fitted: FittedSystem) -> None:
        """Raise where the system cannot be asked so, before any model is run."""
        make_policy(fitted, self.limit, self.rule, {}).terms(self.costs, self.which)


@dataclass(frozen=True)
class AskedSamples:
    """Samples about which all models were asked once, to be decided about at any price and under any limit."""

    fitted: FittedSystem
    y: Labels
    answers: ClassifierAnswers  # of the client
    scores: Any  # (R, n, 1 + S), of the rejectors
    student: StudentAnswers | None
    server_probability: Mapping[str, FloatArray]  # (n, K) by the server's name

    @classmethod
    def of(cls, fitted: FittedSystem, X: Array, y: Labels) -> AskedSamples:
        """Run all models on samples that were checked; warn where the confidence baseline will be missing."""
        if fitted.calibration is None:
            warn("no held-out samples: call calibrate(X, y) to compare with the confidence baseline")
        answers = fitted.client.answers(X, fitted.num_classes)
        scores, student = fitted.opinions(X, answers)
        probability = {
            server.name: np.exp(fitted.server_log_probability(X, number))
            for number, server in enumerate(fitted.servers)
        }
        return cls(fitted, y, answers, scores, student, probability)

    def report(self, question: Question) -> metrics.Report:
        """Measure the system's decisions."""
        fitted, systems = self.fitted, {"": self.fitted}
        if fitted.second_opinion or (fitted.calibration is not None and fitted.calibration.student is not None):
            name = "two_ways" if fitted.second_opinion else "three_ways"
            systems[name] = replace(fitted, second_opinion=not fitted.second_opinion)

        # Limiters begin afresh: judging neither finds a window partly spent nor spends what is to be predicted with.
        def policy(key: str) -> Policy:
            return make_policy(systems[key], question.limit, question.rule, {})

        which = policy("").terms(question.costs, question.which).which
        features = None if self.student is None else self.student.features[which]
        judged = {key: system.judgement(self.scores[which], which, features) for key, system in systems.items()}
        rule = None
        if fitted.calibration is not None:
            held = fitted.calibration.held_out
            rule = ConfidenceRule(held.client_confidence, held.right, self.answers.confidence)
        judgement = judged.pop("")
        decider = PriceDecider(judgement, judged, rule)
        answered, costs = decider.answered(plain_costs(question.costs), policy, question.which, question.seed)
        return metrics.evaluate(
            y=self.y,
            client_label=self.answers.label,
            client_confidence=self.answers.confidence,
            server_probability=self.server_probability,
            score=decider.score(costs),
            head_probability=judgement.stated,
            costs=costs,
            answered=answered,
            class_names=fitted.labels,
            dataset=fitted.dataset,
            seed=fitted.settings.seed,
            student_label=None if self.student is None else self.student.label[which],
            compute=fitted.compute,
            decider=decider,
            money=question.costs if isinstance(question.costs, Money) else None,
        )
