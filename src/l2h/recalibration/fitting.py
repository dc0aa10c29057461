"""Scale and shift of every head from audited pairs: by labels where there are some, else by agreement with the server.

Without labels nobody knows who was right, but everybody sees where the device and the server agree. The chance of that
follows from the chances p and q that each is right: both are right, or both are wrong and chose the same class. Where
all wrong classes are alike, the latter happens to one in K - 1 pairs of wrong answers. So with q as the bundle states
it, agreement determines p. It cannot determine both: a server that has become worse looks like a client that has. The
scale and shift of a server are therefore fitted on labels alone.
"""

import numpy as np
import numpy.typing as npt

from l2h.audits import AuditPairs
from l2h.costs import BoolArray, FloatArray
from l2h.metrics import apply_platt, fit_platt

#: So many labelled pairs with an answer of a server are needed to fit its scale and shift.
LABELS = 50
#: How strongly a fit is pulled towards the calibration that the bundle has: as much as a few pairs.
_RIDGE = 0.5
_ROUNDS, _SETTLED = 200, 1e-6


def agreement_probability(p: FloatArray, q: FloatArray, classes: int) -> FloatArray:
    """Return how likely two answers are the same, which are right with chances p and q.

    Example:
        >>> float(agreement_probability(np.array(0.9), np.array(1.0), 10))
        0.9
    """
    return p * q + (1 - p) * (1 - q) / (classes - 1)


def posterior_right(p: FloatArray, q: FloatArray, agree: BoolArray, classes: int) -> FloatArray:
    """Return how likely the first answer is right, once it is known whether the second is the same.

    Example:
        >>> posterior_right(np.full(2, 0.8), np.ones(2), np.array([True, False]), 10)
        array([1., 0.])
    """
    together = agreement_probability(p, q, classes)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nan_to_num(np.where(agree, p * q / together, p * (1 - q) / (1 - together))))


def fit_heads(pairs: AuditPairs, start: npt.ArrayLike, servers: list[int]) -> FloatArray:
    """Return scale and shift of every head, (J, 2), by the lowest log-loss over the inputs that the pairs stand for.

    Args:
        pairs: of one rejector.
        start: (J, 2), those of the bundle, towards which the fit is pulled.
        servers: the columns of those servers that have labels enough; the others stay as they are.
    """
    platt = np.array(start, dtype=np.float64)
    labelled = pairs.label >= 0
    for j in servers:
        rows = labelled & pairs.answered & (pairs.by == j)
        platt[j] = fit_platt(
            pairs.heads[rows, j],
            pairs.server[rows] == pairs.label[rows],
            _RIDGE,
            weights=effective(pairs.weight[rows]),
            start=tuple(platt[j]),
        )
    for j in range(pairs.header.local):
        platt[j] = _fit_local(pairs, j, platt)
    return platt


def local_answers(pairs: AuditPairs, j: int) -> npt.NDArray[np.int64]:
    """Return the answers of the client (column 0) or the student (column 1); -1 where there is none."""
    return pairs.client if j == 0 else pairs.student


def input_weights(pairs: AuditPairs) -> FloatArray:
    """Return how many inputs each pair stands for, whichever server was asked about it.

    The weight of an audit counts for its server alone, and each of several is as likely to be asked.
    """
    audits = ~pairs.asked
    servers = max(1, len(np.unique(pairs.by[audits])))
    return np.where(audits, pairs.weight / servers, pairs.weight)


def effective(weights: FloatArray) -> FloatArray:
    """Return weights whose sum is the number of pairs of equal weight that would tell as much (Kish)."""
    return np.asarray(weights * (weights.sum() / (weights**2).sum()))


def _fit_local(pairs: AuditPairs, j: int, platt: FloatArray) -> tuple[float, float]:
    """Fit a head of the device by expectation and maximisation: labels where they are, else how likely it was right."""
    mine, labelled = local_answers(pairs, j), pairs.label >= 0
    rows = np.flatnonzero((mine >= 0) & (labelled | pairs.answered))
    known, by, z = labelled[rows], pairs.by[rows], pairs.heads[rows, j]
    right, agree = mine[rows] == pairs.label[rows], mine[rows] == pairs.server[rows]
    q = apply_platt(pairs.heads[rows, by], *platt[by].T)
    weights, classes = effective(input_weights(pairs)[rows]), len(pairs.header.classes)
    start = found = (float(platt[j, 0]), float(platt[j, 1]))
    for _ in range(_ROUNDS):
        expected = np.where(known, right, posterior_right(apply_platt(z, *found), q, agree, classes))
        before, found = found, fit_platt(z, expected, _RIDGE, weights=weights, start=start)
        if known.all() or max(abs(a - b) for a, b in zip(before, found, strict=True)) < _SETTLED:
            break
    return found
