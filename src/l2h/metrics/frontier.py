"""The frontier: joint accuracy against reject rate as the threshold of a score sweeps over all samples."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from l2h.costs import FloatArray
from l2h.errors import DataError
from l2h.metrics.choice import same_length


@dataclass(frozen=True)
class Frontier:
    """A curve from (0, accuracy of the client) to (1, accuracy of the server)."""

    rate: FloatArray  # (p,), share of samples for which the server is asked, increasing from 0 to 1
    accuracy: FloatArray  # (p,), joint accuracy at that rate
    area: float  # under the curve


def frontier(score: npt.ArrayLike, client_correct: npt.ArrayLike, server_correct: npt.ArrayLike) -> Frontier:
    """Return the curve of asking the server for the samples with the highest scores first.

    Samples of equal score go together; between such groups the curve is straight, which is what breaking ties at random
    gives on average.

    Example:
        >>> frontier([0.1, 0.9], [True, False], [True, True]).accuracy
        array([0.5, 1. , 1. ])
    """
    s = np.asarray(score, dtype=np.float64)
    client, server = same_length(client_correct=client_correct, server_correct=server_correct)
    if s.shape != client.shape:
        raise DataError(f"score has shape {s.shape}, the outcomes {client.shape}")
    if np.isnan(s).any():
        raise DataError(f"score of sample {int(np.argmax(np.isnan(s)))} is NaN")
    n = len(s)
    order = np.argsort(-s, kind="stable")
    gain = server[order].astype(np.int64) - client[order].astype(np.int64)
    right = np.concatenate([[0], np.cumsum(gain)]) + int(client.sum())
    # Compared, not subtracted: scores of equal infinity are a tie too.
    ends = np.concatenate([[True], s[order][1:] != s[order][:-1], [True]])
    count = np.flatnonzero(ends)
    rate = count / n
    accuracy = right[count] / n
    # The trapezoidal rule; numpy 1 calls it trapz, numpy 2 trapezoid.
    area = float(np.sum(np.diff(rate) * (accuracy[1:] + accuracy[:-1])) / 2)
    return Frontier(rate=rate, accuracy=accuracy, area=area)


def frontier_gain(
    area: float, client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, oracle_area: float | None = None
) -> float | None:
    """Return ``(A - A_random) / (A_oracle - A_random)``: 0 for a random order, 1 for the best one.

    It is ``None`` where all orders are equally good, so that there is nothing to gain. ``oracle_area`` is that of more
    answerers than these two, where there are.
    """
    client, server = same_length(client_correct=client_correct, server_correct=server_correct)
    best = oracle_area
    if best is None:
        best = frontier(server.astype(float) - client.astype(float), client, server).area
    random = (float(client.mean()) + float(server.mean())) / 2
    if best - random <= 1e-12:
        return None
    return (area - random) / (best - random)


@dataclass(frozen=True)
class RoutingMeasures:
    """The measures of the routing community (RouteLLM), from the frontier of client ("weak") and server ("strong").

    The performance gap recovered (PGR) at a share of calls to the server is
    ``(accuracy of the system - of the client) / (accuracy of the server - of the client)``.
    """

    apgr: float  # the mean PGR over all shares from 0 to 1: the area under its curve; 0.5 for a random order
    cpt_50: float  # call-performance threshold: the smallest share at which half of the gap is recovered
    cpt_80: float  # the same for 80% of the gap

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def routing_measures(curve: Frontier) -> RoutingMeasures | None:
    """Return APGR, CPT(50%) and CPT(80%) of a frontier; ``None`` where the server is not better than the client.

    Example:
        >>> routing_measures(frontier([0.9, 0.1], [False, True], [True, True]))
        RoutingMeasures(apgr=0.75, cpt_50=0.25, cpt_80=0.4)
    """
    low, gap = float(curve.accuracy[0]), float(curve.accuracy[-1] - curve.accuracy[0])
    if gap <= 1e-12:
        return None
    return RoutingMeasures((curve.area - low) / gap, *(_first_rate(curve, low + x * gap) for x in (0.5, 0.8)))


def label_free_score(server_probability: npt.ArrayLike, client_label: npt.ArrayLike) -> FloatArray:
    """Return ``max p_e - p_e[client's label]``, (n,): a ranking that uses the server's softmax but not the truth."""
    p = np.asarray(server_probability, dtype=np.float64)
    label = np.asarray(client_label)
    if p.ndim != 2 or label.shape != (len(p),):
        raise DataError(f"need (n, K) probabilities and (n,) labels; got {p.shape} and {label.shape}")
    return np.asarray(p.max(axis=1) - p[np.arange(len(p)), label])


def _first_rate(curve: Frontier, accuracy: float) -> float:
    """Return the smallest rate at which the curve, straight between its points, reaches an accuracy that it has."""
    after = int(np.argmax(curve.accuracy >= accuracy - 1e-12))
    if after == 0:
        return float(curve.rate[0])
    (x0, x1), (y0, y1) = curve.rate[after - 1 : after + 1], curve.accuracy[after - 1 : after + 1]
    return float(x0 + (x1 - x0) * min(1.0, (accuracy - y0) / (y1 - y0)))
