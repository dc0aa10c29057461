"""Measures of decisions: the generalized 0-1 risk beside its trivial baselines, and the contrastive table.

The contrastive table splits the test set by the rejector's decision and scores both classifiers on both sides.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, as_bool, generalized_loss
from l2h.decision import oracle
from l2h.errors import DataError


@dataclass(frozen=True)
class Risks:
    """The risk of a system and of its baselines, all on the same samples at the same prices."""

    system: float  # of the decisions taken
    all_local: float  # of never asking the server
    all_remote: float  # of always asking it
    random: float  # expected, of asking at random as often as the system does
    confidence: float | None  # of a threshold on the client's confidence, chosen on held-out samples if there are any
    oracle: float  # of the best decisions, made with the outcomes known

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


@dataclass(frozen=True)
class Side:
    """The share of the samples on one side and both accuracies there, which are ``None`` for an empty side."""

    ratio: float
    client: float | None
    server: float | None

    @property
    def difference(self) -> float | None:
        """Server accuracy minus client accuracy: what asking the server gains on this side."""
        if self.client is None or self.server is None:
            return None
        return self.server - self.client

    def as_dict(self) -> dict[str, float | None]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Contrastive:
    """Both sides, and the joint accuracy of client and server under these decisions."""

    local: Side
    remote: Side
    joint: float

    def as_dict(self) -> dict[str, dict[str, float | None]]:
        """Return plain values for JSON, as in ``metrics.json``."""
        return {"local": self.local.as_dict(), "remote": self.remote.as_dict()}


def contrastive(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, remote: npt.ArrayLike) -> Contrastive:
    """Split the samples by decision and score both classifiers on both sides.

    Example:
        >>> table = contrastive([True, False, True, False], [True, True, True, False], [False, True, False, False])
        >>> table.remote
        Side(ratio=0.25, client=0.0, server=1.0)
        >>> table.joint
        0.75
    """
    client, server, sent = same_length(client_correct=client_correct, server_correct=server_correct, remote=remote)
    return Contrastive(
        local=_side(client, server, ~sent),
        remote=_side(client, server, sent),
        joint=float(np.where(sent, server, client).mean()),
    )


def reject_rate_per_class(remote: npt.ArrayLike, y: npt.NDArray[Any], num_classes: int) -> npt.NDArray[np.float64]:
    """Return the share of each class for which the server is asked, (K,); NaN for a class that does not occur."""
    sent = as_bool("remote", remote)
    count = np.bincount(y, minlength=num_classes).astype(np.float64)
    sent_count = np.bincount(y, weights=sent, minlength=num_classes)
    return np.asarray(np.divide(sent_count, count, out=np.full(num_classes, np.nan), where=count > 0))


def same_length(**arrays: npt.ArrayLike) -> list[BoolArray]:
    """Return boolean arrays; raise a :class:`DataError` with their names if they are empty or differ in length."""
    out = [as_bool(name, values) for name, values in arrays.items()]
    lengths = {name: array.shape for name, array in zip(arrays, out, strict=True)}
    if len(set(lengths.values())) != 1 or out[0].ndim != 1:
        raise DataError(f"arrays must be one-dimensional and of one length; got {lengths}")
    if not len(out[0]):
        raise DataError("no samples to measure on")
    return out


def _side(client: BoolArray, server: BoolArray, chosen: BoolArray) -> Side:
    if not chosen.any():
        return Side(ratio=0.0, client=None, server=None)
    return Side(ratio=float(chosen.mean()), client=float(client[chosen].mean()), server=float(server[chosen].mean()))
