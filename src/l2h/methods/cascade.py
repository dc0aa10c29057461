"""A cascade by confidence: the client, then each server in turn, until one is confident enough.

Whoever is asked is paid for, also where the next one is asked after it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray
from l2h.decision import Answerer, AnyCosts
from l2h.decision.judgement import outcome_costs

#: Combinations of thresholds that are tried, about.
TRIED = 1000


@dataclass(frozen=True)
class Cascade:
    """Thresholds of all answerers but the last: where the confidence of one does not exceed its own, the next is asked.

    Example:
        >>> Cascade((0.5,)).choose(np.array([[0.9, 0.8], [0.4, 0.7]]))
        array([0, 1])
    """

    thresholds: tuple[float, ...]

    def choose(self, confidence: FloatArray) -> npt.NDArray[np.intp]:
        """Return int (n,), who answers, from the confidence (n, J) of each in its own answer."""
        on = confidence[:, :-1] <= np.asarray(self.thresholds)
        return np.asarray(np.cumprod(on, axis=1).sum(axis=1), dtype=np.intp)


def cascade_losses(
    correct: BoolArray, chosen: npt.NDArray[np.intp], answerers: Sequence[Answerer], costs: AnyCosts
) -> FloatArray:
    """Return (n,), what each answer costs: the one who answers, and the requests to those before."""
    outcomes = outcome_costs(answerers, costs)
    requests = outcomes[:, 0] - outcomes[0, 0]  # none for the client
    asked = np.concatenate([[0.0], np.cumsum(requests)[:-1]])
    right = correct[np.arange(len(chosen)), chosen]
    return np.asarray(np.where(right, outcomes[chosen, 0], outcomes[chosen, 1]) + asked[chosen])


def fit_cascade(confidence: FloatArray, correct: BoolArray, answerers: Sequence[Answerer], costs: AnyCosts) -> Cascade:
    """Return the cascade with the lowest risk on held-out samples, of thresholds at quantiles of each confidence.

    ``confidence`` (n, J) is that of each answerer in its own answer, the client first; ``correct`` (n, J) who is right.
    """
    stages = confidence.shape[1] - 1
    shares = np.linspace(0, 1, max(3, round(TRIED ** (1 / stages))) - 1)
    candidates = [(-np.inf, *np.quantile(confidence[:, k], shares)) for k in range(stages)]
    tried = [Cascade(thresholds) for thresholds in itertools.product(*candidates)]
    risks = [cascade_losses(correct, one.choose(confidence), answerers, costs).mean() for one in tried]
    return tried[int(np.argmin(risks))]
