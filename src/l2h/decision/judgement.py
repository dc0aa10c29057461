"""What a rejector makes of inputs, and what is sent because of it: by price, or under a bound on asking."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from l2h import limits
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import rules
from l2h.errors import SettingsError
from l2h.limits import RateLimit

#: How a share of requests can be met.
RULES = ("threshold", "guaranteed", "stochastic")


@dataclass(frozen=True)
class Judgement:
    """What a rejector makes of n inputs.

    Attributes:
        scores: (n, 2), raw.
        q_m: (n,), calibrated probability that the client is right; None without priced heads.
        q_e: (n,), that the server is right; None likewise.
    """

    scores: npt.NDArray[np.float32]
    q_m: FloatArray | None
    q_e: FloatArray | None

    def saving(self, costs: Costs) -> FloatArray:
        """What asking is expected to save at these prices; of a rejector without priced heads, ``r2 - r1``."""
        if self.q_m is None or self.q_e is None:
            return self.gain
        return rules.expected_saving(self.q_m, self.q_e, costs)

    def remote(self, costs: Costs) -> BoolArray:
        """The decisions at these prices."""
        if self.q_m is None or self.q_e is None:
            return rules.from_scores(self.scores)
        return rules.from_correctness(self.q_m, self.q_e, costs)

    @property
    def gain(self) -> FloatArray:
        """What the frontier ranks by: expected gain in accuracy, or ``r2 - r1``."""
        if self.q_m is None or self.q_e is None:
            return np.asarray(self.scores[:, 1] - self.scores[:, 0], dtype=np.float64)
        return np.asarray(self.q_e - self.q_m)


def bounded(
    judgement: Judgement, held_out: Judgement, costs: Costs, limit: RateLimit, rule: str | None, seed: int
) -> BoolArray:
    """What goes under a share, by a rule calibrated on held-out samples.

    Raises:
        SettingsError: an unknown rule.
        LimitError: too few calibration samples for the confidence asked for.
    """
    assert limit.fraction is not None
    rule = rule or ("threshold" if limit.confidence is None else "guaranteed")
    if rule == "stochastic":
        return limits.stochastic(judgement.remote(costs), float(held_out.remote(costs).mean()), limit.fraction, seed)
    if rule == "threshold":
        threshold = limits.threshold_for(held_out.saving(costs), limit.fraction)
    elif rule == "guaranteed":
        confidence = 0.95 if limit.confidence is None else limit.confidence
        threshold = limits.guaranteed_threshold(held_out.saving(costs), limit.fraction, confidence)
    else:
        raise SettingsError(f"rule={rule!r} is unknown; known: {', '.join(RULES)}")
    return threshold.apply(judgement.saving(costs), seed)
