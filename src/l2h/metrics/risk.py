"""Generalized 0-1 risk, always together with its trivial baselines."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from l2h.costs import Costs, generalized_loss
from l2h.decision import oracle


@dataclass(frozen=True)
class Risks:
    """The risk of a system and of its baselines, all on the same samples at the same prices.

    Attributes:
        system: risk of the decisions taken.
        all_local: risk of never asking the server.
        all_remote: risk of always asking it.
        random: expected risk of asking at random as often as the system does.
        confidence: risk of a threshold on the client's confidence, chosen on held-out samples; ``None`` without such
            samples.
        oracle: risk of the best decisions, made with the outcomes known.
    """

    system: float
    all_local: float
    all_remote: float
    random: float
    confidence: float | None
    oracle: float

    @property
    def best_trivial(self) -> float:
        """The lower risk of never and always asking."""
        return min(self.all_local, self.all_remote)

    def as_dict(self) -> dict[str, float | None]:
        """Return plain values for JSON, as in ``metrics.json``."""
        return asdict(self)


def risk(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, remote: npt.ArrayLike, costs: Costs) -> float:
    """Return the mean generalized 0-1 loss of these decisions.

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
    """Return the risk of ``remote`` and of every baseline.

    Args:
        client_correct: bool (n,).
        server_correct: bool (n,).
        remote: bool (n,), the system's decisions, true where the server is asked.
        costs: the prices.
        confidence_remote: bool (n,), the decisions of the confidence rule at its held-out threshold.
    """
    n = len(np.asarray(client_correct))
    rate = float(np.asarray(remote).mean())

    def risk_of(decision: npt.ArrayLike) -> float:
        return risk(client_correct, server_correct, decision, costs)

    all_local, all_remote = risk_of(np.zeros(n, dtype=bool)), risk_of(np.ones(n, dtype=bool))
    return Risks(
        system=risk_of(remote),
        all_local=all_local,
        all_remote=all_remote,
        random=rate * all_remote + (1 - rate) * all_local,
        confidence=None if confidence_remote is None else risk_of(confidence_remote),
        oracle=risk_of(oracle(client_correct, server_correct, costs)),
    )
