"""Rules that turn what is known of a sample into LOCAL (False) or REMOTE (True), and what an answerer costs.

A tie is REMOTE; the oracle alone keeps a tie, since asking gains nothing there.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray, local_loss, remote_loss
from l2h.errors import DataError


def bayes(posterior: npt.ArrayLike, client_label: npt.ArrayLike, costs: Costs) -> BoolArray:
    """Return where the Bayes rule (Theorem 1) asks the server: bool (n,).

    LOCAL iff ``eta_j > 1 - c_e - c_1 + c_1 * max_i eta_i`` with j the client's label, that is, iff
    ``P(m != y | x) < c_e + c_1 * P(e* != y | x)``. For a client whose answer is drawn after the decision,
    ``P(m = y | x) = sum_i P(m = i | x) eta_i`` stands in the place of ``eta_j``.

    Args:
        posterior: (n, K), the true class probabilities ``eta``; rows sum to 1.
        client_label: int (n,), the client's answers; or (n, K), how likely it gives each answer: rows sum to 1. Given
            x, its draw must not depend on y.
        costs: the prices.

    Example:
        >>> bayes([[0.9, 0.1], [0.9, 0.1]], [0, 1], Costs(c_e=0.1))
        array([False,  True])
        >>> bayes([[0.9, 0.1], [0.9, 0.1]], [[1.0, 0.0], [0.5, 0.5]], Costs(c_e=0.1))
        array([False,  True])
    """
    eta = _distributions("posterior", posterior)
    client = np.asarray(client_label)
    if client.ndim == 2:
        drawn = _distributions("client_label", client)
        if drawn.shape != eta.shape:
            raise DataError(f"client_label of a random client must be {eta.shape}; got shape {drawn.shape}")
        of_client = (drawn * eta).sum(axis=1)
    else:
        of_client = eta[np.arange(len(eta)), _labels(client, eta)]
    right = np.stack([of_client, eta.max(axis=1)], axis=1)
    expected = expected_costs(right, [(costs.c_cc, costs.c_ce), (costs.c_sc, costs.c_se)])
    return np.asarray(expected[:, 0] - expected[:, 1] >= 0)


def expected_costs(probability: FloatArray, outcomes: npt.ArrayLike) -> FloatArray:
    """Return (n, J), what each answerer costs by its chance (n, J) to be right and its two outcomes (J, 2)."""
    right, wrong = np.asarray(outcomes, dtype=np.float64).T
    # Grouped so that two answerers with equal costs and probabilities are an exact tie.
    return np.asarray(wrong - (wrong - right) * probability)


def oracle(client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, costs: Costs) -> BoolArray:
    """Return where asking costs less, knowing every outcome: bool (n,)."""
    return remote_loss(server_correct, costs) < local_loss(client_correct, costs)


def confidence(max_probability: npt.ArrayLike, threshold: float) -> BoolArray:
    """Return Chow's rule: REMOTE iff the client's largest probability does not exceed ``threshold``."""
    # In float64: comparing float32 with a Python float would round the threshold, maybe onto a sample above it.
    p = np.asarray(max_probability, dtype=np.float64)
    refuse_nan(p)
    return np.asarray(p <= threshold)


def confidence_threshold(
    max_probability: npt.ArrayLike,
    client_correct: npt.ArrayLike,
    server_correct: npt.ArrayLike,
    costs: Costs,
    most: int | None = None,
) -> float:
    """Return the threshold of :func:`confidence` with the lowest risk on these held-out samples.

    Every cut between two neighbouring values is tried, and so are keeping all (``-inf``) and sending all (``inf``).
    Where ``most`` is given, no cut that sends more of these samples.
    """
    p = np.asarray(max_probability, dtype=np.float64)
    refuse_nan(p)
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
    if most is not None:
        possible[most + 1 :] = False
    best = int(np.argmax(np.where(possible, saved, -np.inf)))
    if best == 0:
        return -np.inf
    if best == len(p):
        return np.inf
    below, above = float(sorted_p[best - 1]), float(sorted_p[best])
    middle = (below + above) / 2
    # Between neighbouring floats the middle can round up to the sample that is to stay.
    return middle if middle < above else below


def refuse_nan(values: npt.NDArray[Any]) -> None:
    """Raise ``DataError`` where a value is NaN, with its place: the model has diverged."""
    bad = np.isnan(values)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise DataError(f"score of sample {row} is NaN ({int(bad.sum())} in all): the model has diverged")


def _distributions(name: str, values: npt.ArrayLike) -> FloatArray:
    p = np.asarray(values, dtype=np.float64)
    if p.ndim != 2:
        raise DataError(f"{name} must be (n, K); got shape {p.shape}")
    if not (np.isfinite(p).all() and (p >= 0).all() and np.allclose(p.sum(axis=1), 1.0, atol=1e-6)):
        raise DataError(f"{name} rows must be probabilities that sum to 1")
    return p


def _labels(label: npt.NDArray[Any], eta: FloatArray) -> npt.NDArray[Any]:
    if label.shape != (len(eta),) or not np.issubdtype(label.dtype, np.integer):
        raise DataError(f"client_label must be {len(eta)} integers; got {label.dtype} of shape {label.shape}")
    if label.size and (label.min() < 0 or label.max() >= eta.shape[1]):
        raise DataError(f"client_label must lie in 0..{eta.shape[1] - 1}; got {label.min()}..{label.max()}")
    return label
