"""What ``HelpSystem.predict`` and ``evaluate`` do: judge, decide, ask, and measure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import decision, metrics
from l2h.answers import Answers
from l2h.decision import Policy, Terms
from l2h.fitted import FittedSystem
from l2h.limits import Limiter, RateLimit

Array = npt.NDArray[Any]


def make_policy(
    fitted: FittedSystem, limit: RateLimit | str | None, rule: str | None, limiters: Mapping[RateLimit, Limiter]
) -> Policy:
    """Return how a fitted system decides under a limit; ``limiters`` keep those that are kept from call to call."""
    limit = RateLimit.parse(limit) if isinstance(limit, str) else limit
    kept = None if limit is None else limiters.get(limit, limit)
    return Policy(fitted.select, fitted.specs[0].costs is None, fitted.held_out_judgement, kept, rule)


def answer(fitted: FittedSystem, X: Array, policy: Policy, terms: Terms, seed: int) -> Answers:
    """Answer every input, asking the server where the policy says so."""
    answers = fitted.client.answers(X, fitted.num_classes)
    proposal = policy.propose(fitted.judge(X, answers, terms.which), terms, seed)
    remote = policy.permit(proposal, len(X))
    server_label = np.zeros(len(X), dtype=np.int64)
    if remote.any():
        server_label[remote] = fitted.server_log_probability(X[remote]).argmax(axis=1)
    return Answers.of(answers.label, server_label, remote, terms.costs, proposal.wanted)


def measure(
    fitted: FittedSystem, X: Array, y: npt.NDArray[np.int64], policy: Policy, terms: Terms, seed: int
) -> metrics.Report:
    """Measure the system's decisions on a test set, beside every trivial baseline."""
    answers = fitted.client.answers(X, fitted.num_classes)
    judgement = fitted.judge(X, answers, terms.which)
    confidence_remote = None
    if fitted.calibration is not None:
        held = fitted.calibration.held_out
        threshold = decision.confidence_threshold(
            held.client_confidence, held.client_correct, held.server_correct, terms.costs
        )
        confidence_remote = decision.confidence(answers.confidence, threshold)
    return metrics.evaluate(
        y=y,
        client_label=answers.label,
        client_confidence=answers.confidence,
        server_probability=np.exp(fitted.server_log_probability(X)),
        remote=policy.permit(policy.propose(judgement, terms, seed), len(X)),
        score=judgement.gain,
        head_probability=judgement.stated,
        costs=terms.costs,
        confidence_remote=confidence_remote,
        class_names=fitted.class_names,
        dataset=fitted.dataset,
        seed=fitted.settings.seed,
    )
