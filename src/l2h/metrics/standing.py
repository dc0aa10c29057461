"""A system beside the rules that need no training: which of them is best, and by how much they differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from l2h.costs import FloatArray
from l2h.decision import CLIENT, STUDENT, Answerer

if TYPE_CHECKING:
    from l2h.metrics.report import OutcomeReport

SAME = 1e-12  # risks closer than this differ by rounding alone
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Standing:
    """The system beside one trivial rule, by which one answerer answers everything."""

    answerer: Answerer
    rule: str  # such as "never ask" or "always ask"
    risk: float  # of that rule
    difference: float  # the system's risk minus that rule's
    interval: float | None  # half the 95% interval of the difference, from the paired losses; None for one sample

    @property
    def pays(self) -> bool:
        """Whether the system's risk is below that of the rule."""
        return self.difference < -SAME

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than the noise of the test set."""
        return self.interval is not None and abs(self.difference) > max(self.interval, SAME)

    @property
    def standing(self) -> str:
        """``good`` if the system clearly pays, ``unsure`` if it may pay, else ``bad``."""
        return "bad" if not self.pays else "good" if self.clear else "unsure"


def beside(report: OutcomeReport, answerers: Iterable[Answerer]) -> Standing:
    """Return the system beside the rule that costs least: one of these answers everything, or what a limit allows."""
    losses = {one: report.losses_of_one(one) for one in answerers}
    risks = {one: float(paid.mean()) for one, paid in losses.items()}
    best = min(risks, key=risks.__getitem__)
    noise = interval_to(report, losses[best])
    return Standing(best, rule_name(report, best), risks[best], report.risk.system - risks[best], noise)


def best_trivial(report: OutcomeReport) -> Standing:
    """Return the system beside the trivial rule that costs least."""
    return beside(report, report.answerers)


def interval_to(report: OutcomeReport, losses: FloatArray) -> float | None:
    """Return half the 95% interval of the difference in risk to other losses (n,); None for one sample.

    It is the standard error of the paired difference of the losses, in the normal approximation.
    """
    paired = report.choice.losses(report.costs) - losses
    return None if len(paired) < 2 else _Z95 * float(paired.std(ddof=1)) / float(np.sqrt(len(paired)))


def rule_name(report: OutcomeReport, answerer: Answerer) -> str:
    """Return the rule by which one answerer answers as much as a limit allows, as people call it."""
    several = len(report.choice.servers) > 1
    if report.allowed is None or not answerer.remote:
        return trivial_name(answerer, several=several)
    share = f"{report.allowed.share_of(answerer.name):.1%}"
    return f"ask {answerer.name} for {share} at random" if several else f"ask {share} at random"


def trivial_name(answerer: Answerer, *, several: bool = False) -> str:
    """Return the rule by which one answerer answers everything, as people call it."""
    if answerer == CLIENT:
        return "never ask"
    if answerer == STUDENT:
        return "the student alone"
    return f"always ask {answerer.name}" if several else "always ask"
