"""Who answers: rules that turn what is known of a sample into LOCAL (False) or REMOTE (True).

One convention: a boolean array, true where remote, and a rejector's tie is REMOTE. The oracle alone keeps a tie, since
asking gains nothing there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray, local_loss, remote_loss
from l2h.errors import DataError


def bayes(posterior: npt.ArrayLike, client_label: npt.ArrayLike, costs: Costs) -> BoolArray:
    """The Bayes rule (Theorem 1): true where the sample should be sent.

    LOCAL iff ``eta_j > 1 - c_e - c_1 + c_1 * max_i eta_i`` with j the client's label, that is, iff
    ``P(m != y | x) < c_e + c_1 * P(e* != y | x)``.

    Args:
        posterior: (n, K), the true class probabilities ``eta``; rows sum to 1.
        client_label: int (n,), the client's answers.
        costs: the prices.

    Example:
        >>> bayes([[0.9, 0.1], [0.9, 0.1]], [0, 1], Costs(c_e=0.1))
        array([False,  True])
    """
    eta = np.asarray(posterior, dtype=np.float64)
    if eta.ndim != 2:
        raise DataError(f"posterior must be (n, K); got shape {eta.shape}")
    if not (np.isfinite(eta).all() and (eta >= 0).all() and np.allclose(eta.sum(axis=1), 1.0, atol=1e-6)):
        raise DataError("posterior rows must be probabilities that sum to 1")
    label = np.asarray(client_label)
    if label.shape != (len(eta),) or not np.issubdtype(label.dtype, np.integer):
        raise DataError(f"client_label must be {len(eta)} integers; got {label.dtype} of shape {label.shape}")
    if label.size and (label.min() < 0 or label.max() >= eta.shape[1]):
        raise DataError(f"client_label must lie in 0..{eta.shape[1] - 1}; got {label.min()}..{label.max()}")
    client_right = eta[np.arange(len(eta)), label]
    return from_correctness(client_right, eta.max(axis=1), costs)


def expected_saving(q_m: npt.ArrayLike, q_e: npt.ArrayLike, costs: Costs) -> FloatArray:
    """How much sending a sample is expected to save: expected local loss less expected remote loss.

    Args:
        q_m: (n,), probability that the client is right.
        q_e: (n,), probability that the server is right.
        costs: the prices.
    """
    q_m = np.asarray(q_m, dtype=np.float64)
    q_e = np.asarray(q_e, dtype=np.float64)
    # 1 - q_m - c_e - c_1 (1 - q_e), grouped so that a sample with equal sides is an exact tie.
    local = costs.c_ce - (costs.c_ce - costs.c_cc) * q_m
    remote = costs.c_se - (costs.c_se - costs.c_sc) * q_e
    return np.asarray(local - remote, dtype=np.float64)


def from_correctness(q_m: npt.ArrayLike, q_e: npt.ArrayLike, costs: Costs) -> BoolArray:
    """The priced rule: REMOTE iff ``1 - q_m >= c_e + c_1 * (1 - q_e)``.

    Example:
        >>> from_correctness([0.5, 0.9], [0.95, 0.95], Costs(c_e=0.2))
        array([ True, False])
    """
    saving = expected_saving(q_m, q_e, costs)
    _refuse_nan(saving)
    return saving >= 0


def from_scores(scores: npt.ArrayLike) -> BoolArray:
    """The rejector's rule for scores (n, 2) as (local, remote): LOCAL iff ``r1 > r2``."""
    r = np.asarray(scores)
    if r.ndim != 2 or r.shape[1] != 2:
        raise DataError(f"rejector scores must be (n, 2) as (local, remote); got shape {r.shape}")
    _refuse_nan(r)
    return np.asarray(r[:, 0] <= r[:, 1])


def oracle(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, costs: Costs) -> BoolArray:
    """The rule that knows every outcome: sends exactly where sending costs less."""
    return remote_loss(server_correct, costs) < local_loss(client_correct, costs)


def confidence(max_probability: npt.ArrayLike, threshold: float) -> BoolArray:
    """Chow's rule: REMOTE iff the client's largest probability does not exceed ``threshold``."""
    # In float64: comparing float32 with a Python float would round the threshold, maybe onto a sample above it.
    p = np.asarray(max_probability, dtype=np.float64)
    _refuse_nan(p)
    return np.asarray(p <= threshold)


def confidence_threshold(
    max_probability: npt.ArrayLike, client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, costs: Costs
) -> float:
    """The threshold of :func:`confidence` with the lowest risk on these held-out samples.

    Every cut between two neighbouring values is tried, and so are keeping all (``-inf``) and sending all (``inf``).
    """
    p = np.asarray(max_probability, dtype=np.float64)
    _refuse_nan(p)
    if not len(p):
        raise DataError("a confidence threshold needs at least one held-out sample")
    gain = local_loss(client_correct, costs) - remote_loss(server_correct, costs)
    if gain.shape != p.shape:
        raise DataError(f"max_probability has shape {p.shape}, the outcomes {gain.shape}")
    order = np.argsort(p, kind="stable")
    saved = np.concatenate([[0.0], np.cumsum(gain[order])])
    sorted_p = p[order]
    # A cut after k samples is possible only where the k-th and the next value differ.
    possible = np.concatenate([[True], np.diff(sorted_p) > 0, [True]])
    best = int(np.argmax(np.where(possible, saved, -np.inf)))
    if best == 0:
        return -np.inf
    if best == len(p):
        return np.inf
    below, above = float(sorted_p[best - 1]), float(sorted_p[best])
    middle = (below + above) / 2
    # Between neighbouring floats the middle can round up to the sample that is to stay.
    return middle if middle < above else below


def _refuse_nan(values: npt.NDArray[Any]) -> None:
    bad = np.isnan(values)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise DataError(f"score of sample {row} is NaN ({int(bad.sum())} in all): the model has diverged")
