"""Generalized 0-1 risk, never without its trivial baselines."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from l2h.costs import Costs, generalized_loss
from l2h.decision import oracle


@dataclass(frozen=True)
class Risks:
    """The system's risk and what it must be compared with, all on the same samples and prices.

    Attributes:
        system: of the decisions taken.
        all_local: of never asking.
        all_remote: of always asking.
        random: expected risk of asking at random as often as the system does.
        confidence: of a threshold on the client's own confidence, chosen on held-out samples; ``None`` where no
            held-out samples were given.
        oracle: of the decisions of one who knows every outcome.
    """

    system: float
    all_local: float
    all_remote: float
    random: float
    confidence: float | None
    oracle: float

    @property
    def best_trivial(self) -> float:
        """The better of never and always asking."""
        return min(self.all_local, self.all_remote)

    def as_dict(self) -> dict[str, float | None]:
        """Plain values for JSON, as in ``metrics.json``."""
        return asdict(self)


def risk(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, remote: npt.ArrayLike, costs: Costs) -> float:
    """Mean generalized 0-1 loss of these decisions.

    Example:
        >>> risk([True, False], [True, True], [False, True], Costs(c_e=0.1))
        0.05
    """
    return float(generalized_loss(client_correct, server_correct, remote, costs).mean())


def risks(
    client_correct: npt.ArrayLike,
    server_correct: npt.ArrayLike,
    remote: npt.ArrayLike,
    costs: Costs,
    confidence_remote: npt.ArrayLike | None = None,
) -> Risks:
    """The risk of ``remote`` beside every trivial baseline.

    Args:
        client_correct: bool (n,).
        server_correct: bool (n,).
        remote: bool (n,), the system's decisions.
        costs: the prices.
        confidence_remote: bool (n,), the decisions of the confidence rule at its held-out threshold.
    """
    n = len(np.asarray(client_correct))
    rate = float(np.asarray(remote).mean())

    def of(decision: npt.ArrayLike) -> float:
        return risk(client_correct, server_correct, decision, costs)

    all_local, all_remote = of(np.zeros(n, dtype=bool)), of(np.ones(n, dtype=bool))
    return Risks(
        system=of(remote),
        all_local=all_local,
        all_remote=all_remote,
        random=rate * all_remote + (1 - rate) * all_local,
        confidence=None if confidence_remote is None else of(confidence_remote),
        oracle=of(oracle(client_correct, server_correct, costs)),
    )
