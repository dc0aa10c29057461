"""Who answers at any price, of inputs that were judged once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray, local_loss, remote_loss
from l2h.decision import CLIENT, Allowed, AnyCosts, Judgement, Policy, confidence, confidence_threshold
from l2h.limits import threshold_for
from l2h.metrics.choice import Answered, Names


@dataclass(frozen=True)
class ConfidenceRule:
    """A threshold on the client's confidence, chosen at every price on m held-out samples."""

    held_out: FloatArray  # (m,), the client's confidence there
    right: BoolArray  # (m, 1 + S), where client and servers are right there
    confidence: FloatArray  # (n,), the client's confidence in its answers to the inputs

    def answered(self, servers: list[str], costs: AnyCosts, allowed: Allowed | None, seed: int) -> Names:
        """Return who answers each input: the client, or the server with which the rule is best.

        Under a limit the threshold sends no larger share of the held-out samples than is allowed here, and of equal
        confidences some at random. Where that is more than is allowed here, the least confident of these are sent.
        """
        found: list[tuple[float, BoolArray, str]] = []
        for number, server in enumerate(servers):
            prices = costs if isinstance(costs, Costs) else costs[server]
            outcomes = self.right[:, 0], self.right[:, 1 + number]
            local, remote = local_loss(outcomes[0], prices), remote_loss(outcomes[1], prices)
            most = None if allowed is None else allowed.by_server[server] * len(local) // allowed.inputs
            threshold = confidence_threshold(self.held_out, *outcomes, prices, most)
            # How likely each held-out sample is sent, and what is sent here.
            rules = [tuple(confidence(one, threshold) for one in (self.held_out, self.confidence))]
            if allowed is not None:
                cut, scores = threshold_for(-self.held_out, allowed.share_of(server)), -self.held_out
                sent = (scores > cut.value) + cut.tie_share * (scores == cut.value)
                rules.append((sent, cut.apply(-self.confidence, seed)))
            for sent, asked in rules:
                found.append((float((sent * remote + (1 - sent) * local).mean()), asked, server))
        _, asked, name = min(found, key=lambda one: one[0])
        if allowed is not None:
            asked = self._least_confident(asked, allowed.by_server[name])
        return np.where(asked, name, CLIENT.name)

    def _least_confident(self, asked: BoolArray, most: int) -> BoolArray:
        """Return the least confident of those that are asked about, at most so many."""
        order = np.argsort(self.confidence, kind="stable")
        kept = np.zeros_like(asked)
        kept[order[asked[order]][:most]] = True
        return kept


@dataclass(frozen=True)
class PriceDecider:
    """Decides about inputs at any price; their judgement stays.

    Attributes:
        judgement: what the rejector makes of the inputs.
        changed: what it makes of them in the same system with other answerers on the device, as
            :class:`l2h.metrics.Answered` names it.
        rule: the confidence rule; None where there are no held-out samples.
    """

    judgement: Judgement
    changed: Mapping[str, Judgement] = field(default_factory=dict)
    rule: ConfidenceRule | None = None

    def answered(
        self,
        costs: AnyCosts | None,
        policies: Callable[[str], Policy] | None = None,
        which: int | None = None,
        seed: int = 0,
    ) -> tuple[Answered, AnyCosts]:
        """Return who answers at these prices, and the prices in use.

        ``policies`` gives a new policy for the system itself (``""``) and for each changed one by its name; without it
        there is no limit. ``which`` and ``seed`` are those of :meth:`l2h.HelpSystem.predict`.
        """
        judgement, make = self.judgement, policies or self._unlimited

        def decided(
            key: str, judgement: Judgement, without: Collection[str] = ()
        ) -> tuple[Names, AnyCosts, Allowed | None]:
            policy = make(key)
            terms = policy.without(policy.terms(costs, which), without)
            proposal = policy.propose(judgement, terms, seed)
            choice, _ = policy.permit(proposal, [len(judgement)] * len(servers))
            return _names(judgement, terms.column(proposal, choice)), terms.costs, policy.allowed(proposal, choice)

        servers = [one.name for one in judgement.answerers if one.remote]
        by, paid, allowed = decided("", judgement)
        alternatives = {key: decided(key, other)[0] for key, other in self.changed.items()}
        if len(servers) > 1:
            for server in servers:
                alternatives[server] = decided("", judgement, set(servers) - {server})[0]
        ends = [np.full(len(by), one.name) for one in judgement.answerers]
        if len(ends) > 2:
            sides = (np.full(len(by), remote) for remote in (False, True))
            ends = [_names(judgement, judgement.choose(paid, side)) for side in sides]
        answered = Answered(
            answerers=judgement.answerers,
            by=by,
            local=ends[0],
            remote=ends[1],
            confidence=None if self.rule is None else self.rule.answered(servers, paid, allowed, seed),
            allowed=allowed,
            alternatives=alternatives,
        )
        return answered, paid

    def score(self, costs: AnyCosts) -> FloatArray:
        """Return (n,), what the system's frontier ranks by.

        Between two that is the gain in accuracy; among more it depends on the prices who is the best of a side.
        """
        return self.judgement.gain if len(self.judgement.answerers) == 2 else self.judgement.saving(costs)

    def _unlimited(self, key: str) -> Policy:
        judgement = self.changed[key] if key else self.judgement
        # No held-out judgement: without a limit none is looked at.
        return Policy(lambda costs, _: (0, costs), True, lambda _: None, answerers=judgement.answerers)


def _names(judgement: Judgement, columns: npt.NDArray[np.intp]) -> Names:
    return np.array([answerer.name for answerer in judgement.answerers])[columns]
