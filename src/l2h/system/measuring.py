"""What a system does on a test set, beside every trivial baseline and beside the same system with other answerers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from l2h import decision, metrics
from l2h.costs import Costs, FloatArray, generalized_loss
from l2h.data.dataset import Array, Labels
from l2h.decision import AnyCosts, AnyLimit, Judgement
from l2h.system.steps import make_policy

if TYPE_CHECKING:
    from l2h.fitted import FittedSystem

Names = npt.NDArray[np.str_]


@dataclass(frozen=True)
class Question:
    """How a system is to decide: the arguments of :meth:`l2h.HelpSystem.evaluate`."""

    costs: AnyCosts | None
    limit: AnyLimit | None
    rule: str | None
    which: int | None
    seed: int

    def decided(
        self, fitted: FittedSystem, judgement: Judgement, without: Collection[str] = ()
    ) -> tuple[Names, AnyCosts]:
        """Return who answers each input, some servers left out, and the prices in use; limiters begin afresh."""
        policy = make_policy(fitted, self.limit, self.rule, {})
        terms = policy.without(policy.terms(self.costs, self.which), without)
        proposal = policy.propose(judgement, terms, self.seed)
        choice, _ = policy.permit(proposal, [len(judgement)] * len(fitted.servers))
        return _names(judgement, terms.column(proposal, choice)), terms.costs


def measure(fitted: FittedSystem, X: Array, y: Labels, question: Question) -> metrics.Report:
    """Measure the system's decisions on a test set."""
    which = make_policy(fitted, question.limit, question.rule, {}).terms(question.costs, question.which).which
    answers = fitted.client.answers(X, fitted.num_classes)
    scores, student = fitted.opinions(X, answers)

    def judged(system: FittedSystem) -> Judgement:
        return system.judgement(scores[which], which, None if student is None else student.features[which])

    judgement = judged(fitted)
    by, costs = question.decided(fitted, judgement)
    alternatives = {}
    if fitted.second_opinion or (fitted.calibration is not None and fitted.calibration.student is not None):
        other = replace(fitted, second_opinion=not fitted.second_opinion)
        name = "two_ways" if fitted.second_opinion else "three_ways"
        alternatives[name] = question.decided(other, judged(other))[0]
    names = {server.name for server in fitted.servers}
    if len(names) > 1:
        for server in fitted.servers:
            alternatives[server.name] = question.decided(fitted, judgement, names - {server.name})[0]
    nobody, everybody = np.zeros(len(X), dtype=np.bool_), np.ones(len(X), dtype=np.bool_)
    return metrics.evaluate(
        y=y,
        client_label=answers.label,
        client_confidence=answers.confidence,
        server_probability={
            server.name: np.exp(fitted.server_log_probability(X, number))
            for number, server in enumerate(fitted.servers)
        },
        # Between two, the gain in accuracy is the frontier's own ranking; among more it depends on the prices who is
        # the best of a side.
        score=judgement.gain if len(fitted.answerers) == 2 else judgement.saving(costs),
        head_probability=judgement.stated,
        costs=costs,
        answered=metrics.Answered(
            answerers=fitted.answerers,
            by=by,
            local=_names(judgement, judgement.choose(costs, nobody)),
            remote=_names(judgement, judgement.choose(costs, everybody)),
            confidence=_by_confidence(fitted, answers.confidence, costs),
            alternatives=alternatives,
        ),
        class_names=fitted.labels,
        dataset=fitted.dataset,
        seed=fitted.settings.seed,
        student_label=None if student is None else student.label[which],
        compute=fitted.compute,
    )


def _by_confidence(fitted: FittedSystem, confidence: FloatArray, costs: AnyCosts) -> Names | None:
    """Return who answers by a threshold on the client's confidence: the client, or the server with which it is best."""
    if fitted.calibration is None:
        return None
    held = fitted.calibration.held_out
    found = []
    for number, server in enumerate(fitted.servers):
        prices = costs if isinstance(costs, Costs) else costs[server.name]
        outcomes = held.client_correct, held.right[:, 1 + number]
        threshold = decision.confidence_threshold(held.client_confidence, *outcomes, prices)
        asked = decision.confidence(held.client_confidence, threshold)
        found.append((float(generalized_loss(*outcomes, asked, prices).mean()), threshold, server.name))
    _, threshold, name = min(found, key=lambda one: one[0])
    return np.where(decision.confidence(confidence, threshold), name, decision.CLIENT.name)


def _names(judgement: Judgement, columns: npt.NDArray[np.intp]) -> Names:
    return np.array([answerer.name for answerer in judgement.answerers])[columns]
