"""What a system does on a test set, beside every trivial baseline and beside the same system with other answerers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from l2h import decision, metrics
from l2h.costs import BoolArray, Costs, FloatArray, local_loss, remote_loss
from l2h.data.dataset import Array, Labels
from l2h.decision import Allowed, AnyCosts, AnyLimit, Judgement
from l2h.limits import threshold_for
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
    ) -> tuple[Names, AnyCosts, Allowed | None]:
        """Return who answers each input, some servers left out, the prices in use, and what the limit allows.

        Limiters begin afresh.
        """
        policy = make_policy(fitted, self.limit, self.rule, {})
        terms = policy.without(policy.terms(self.costs, self.which), without)
        proposal = policy.propose(judgement, terms, self.seed)
        choice, _ = policy.permit(proposal, [len(judgement)] * len(fitted.servers))
        return _names(judgement, terms.column(proposal, choice)), terms.costs, policy.allowed(proposal, choice)


def measure(fitted: FittedSystem, X: Array, y: Labels, question: Question) -> metrics.Report:
    """Measure the system's decisions on a test set."""
    which = make_policy(fitted, question.limit, question.rule, {}).terms(question.costs, question.which).which
    answers = fitted.client.answers(X, fitted.num_classes)
    scores, student = fitted.opinions(X, answers)

    def judged(system: FittedSystem) -> Judgement:
        return system.judgement(scores[which], which, None if student is None else student.features[which])

    judgement = judged(fitted)
    by, costs, allowed = question.decided(fitted, judgement)
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
            confidence=_by_confidence(fitted, answers.confidence, costs, allowed, question.seed),
            allowed=allowed,
            alternatives=alternatives,
        ),
        class_names=fitted.labels,
        dataset=fitted.dataset,
        seed=fitted.settings.seed,
        student_label=None if student is None else student.label[which],
        compute=fitted.compute,
    )


def _by_confidence(
    fitted: FittedSystem, confidence: FloatArray, costs: AnyCosts, allowed: Allowed | None, seed: int
) -> Names | None:
    """Return who answers by a threshold on the client's confidence: the client, or the server with which it is best.

    Under a limit the threshold sends no larger share of the calibration samples than is allowed here, and of equal
    confidences some at random. Where that is more than is allowed here, the least confident of these are sent.
    """
    if fitted.calibration is None:
        return None
    held = fitted.calibration.held_out
    found: list[tuple[float, BoolArray, str]] = []
    for number, server in enumerate(fitted.servers):
        prices = costs if isinstance(costs, Costs) else costs[server.name]
        outcomes = held.client_correct, held.right[:, 1 + number]
        local, remote = local_loss(outcomes[0], prices), remote_loss(outcomes[1], prices)
        most = None if allowed is None else allowed.by_server[server.name] * len(local) // allowed.inputs
        threshold = decision.confidence_threshold(held.client_confidence, *outcomes, prices, most)
        # How likely each calibration sample is sent, and what is sent here.
        rules = [tuple(decision.confidence(one, threshold) for one in (held.client_confidence, confidence))]
        if allowed is not None:
            cut, scores = threshold_for(-held.client_confidence, allowed.share_of(server.name)), -held.client_confidence
            rules.append(((scores > cut.value) + cut.tie_share * (scores == cut.value), cut.apply(-confidence, seed)))
        for sent, asked in rules:
            found.append((float((sent * remote + (1 - sent) * local).mean()), asked, server.name))
    _, asked, name = min(found, key=lambda one: one[0])
    if allowed is not None:
        asked = _least_confident(confidence, asked, allowed.by_server[name])
    return np.where(asked, name, decision.CLIENT.name)


def _least_confident(confidence: FloatArray, asked: BoolArray, most: int) -> BoolArray:
    """Return the least confident of those that are asked about, at most so many."""
    order = np.argsort(confidence, kind="stable")
    kept = np.zeros_like(asked)
    kept[order[asked[order]][:most]] = True
    return kept


def _names(judgement: Judgement, columns: npt.NDArray[np.intp]) -> Names:
    return np.array([answerer.name for answerer in judgement.answerers])[columns]
