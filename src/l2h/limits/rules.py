"""The calibrated rules that meet a share of requests q (BRR, bounded reject rate).

| rule | the bound q is met | what is sent |
|------|--------------------|--------------|
| :func:`stochastic` | in expectation | the rejector's choice, thinned or filled up at random |
| :func:`threshold_for` | on the calibration set, and in expectation | the samples that gain most |
| :func:`guaranteed_threshold` | with a stated confidence over calibrations | the samples that gain most |

All three are calibrated once and then decide each sample by itself, so none of them is a cap on what is really
sent: that is :class:`l2h.limits.Limiter`. The calibration set must never be the test set.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray, as_bool
from l2h.errors import DataError
from l2h.limits.rate import LimitError, checked_confidence, checked_share, exact


def stochastic(remote: npt.ArrayLike, q1: float, q: float, rng: np.random.Generator | int) -> BoolArray:
    """Apply the paper's post-hoc rule (Algorithms 4 and 5): thin what the rejector sends, or add some that it keeps.

    ``q1`` is the share that the rejector sends, measured on a calibration set, and ``q`` the bound. If ``q < q1`` a
    sample that the rejector sends is sent with probability ``q / q1``; if ``q >= q1`` a sample that it keeps is sent
    with probability ``(q - q1) / (1 - q1)``. With ``q = 0`` nothing is sent and with ``q = 1`` everything, whatever was
    measured. One number is drawn per sample.

    Example:
        >>> int(stochastic([True] * 1000, q1=1.0, q=0.25, rng=0).sum())
        231
    """
    sends = as_bool("remote", remote)
    q1, q = checked_share("q1", q1), checked_share("q", q)
    draw = np.random.default_rng(rng).random(sends.shape)
    if q in {0, 1}:
        return np.full(sends.shape, q == 1)
    if q < q1:
        return np.asarray(sends & (draw < q / q1))
    return np.asarray(sends | (draw < (q - q1) / (1 - q1)))


@dataclass(frozen=True)
class Threshold:
    """A cut on the rejector's score, larger meaning more to gain: what is above it is sent."""

    value: float
    tie_share: float  # probability that a score equal to the cut is sent
    q: float  # the bound it was made for
    above: float  # share of the calibration scores strictly above the cut, against which drift is measured
    samples: int  # how many calibration scores there were
    confidence: float | None = None  # of the guarantee, if there is one

    def apply(self, scores: npt.ArrayLike, rng: np.random.Generator | int | None = None) -> BoolArray:
        """Return bool (n,), true where a sample of this score is sent; ``rng``, a generator or a seed, breaks ties."""
        s = checked_scores("scores", scores)
        if self.tie_share in (0.0, 1.0):
            return np.asarray(s >= self.value if self.tie_share else s > self.value)
        if rng is None:
            raise LimitError(f"tie_share={self.tie_share:g} breaks ties at random: pass rng, such as a seed")
        draw = np.random.default_rng(rng).random(s.shape)
        return np.asarray((s > self.value) | ((s == self.value) & (draw < self.tie_share)))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which has no infinity: such a cut is written as text."""
        return {**asdict(self), "value": self.value if math.isfinite(self.value) else str(self.value)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Threshold:
        return cls(**{**values, "value": float(values["value"])})


def threshold_for(scores_cal: npt.ArrayLike, q: float) -> Threshold:
    """Return the cut that sends the share ``q`` of the calibration samples, those of the highest scores.

    Scores equal to the cut are sent with the probability that makes the expected share exactly q on the
    calibration set, so the bound is also met where scores are few and often equal.

    Example:
        >>> cut = threshold_for([0.1, 0.4, 0.4, 0.9], q=0.5)
        >>> cut.value, cut.tie_share
        (0.4, 0.5)
    """
    s, q = np.sort(checked_scores("scores_cal", scores_cal)), checked_share("q", q)
    if q in {0, 1}:
        return _everything(q, len(s))
    if not len(s):
        raise LimitError(f"q={q:g} needs calibration samples, and there are none")
    wanted = exact(q) * len(s)
    value = s[len(s) - math.ceil(wanted)]
    above = len(s) - int(np.searchsorted(s, value, side="right"))
    ties = len(s) - int(np.searchsorted(s, value, side="left")) - above
    return Threshold(float(value), float((wanted - above) / ties), q, above / len(s), len(s))


def guaranteed_threshold(scores_cal: npt.ArrayLike, q: float, confidence: float) -> Threshold:
    """Return the lowest cut whose true rate is at most ``q``, with a confidence over the draw of the calibration set.

    Let S be a score, ``G(v) = P(S > v)`` the true rate of the cut v, and ``v* = inf{v : G(v) <= q}``, the
    lowest cut that is allowed. G does not increase and is continuous from the right, so a cut v breaks the
    bound exactly if ``v < v*``. Take for the cut the j-th largest of n independent calibration scores: it
    lies below v* exactly if at most j - 1 of them are v* or more. Each is so with probability ``P(S >= v*) >=
    q``, hence the chance of a broken bound is at most ``P(Binomial(n, q) <= j - 1)``, with equality where the
    scores have no ties. The largest j for which this is no more than ``1 - confidence`` sends the most.
    Nothing was assumed of the scores but independence. Scores equal to the cut must not be sent, so the cut is
    strict.

    Example:
        >>> cut = guaranteed_threshold(np.arange(1000) / 1000, q=0.2, confidence=0.95)
        >>> cut.value, cut.above
        (0.821, 0.178)
    """
    s, q = np.sort(checked_scores("scores_cal", scores_cal)), checked_share("q", q)
    confidence = checked_confidence(confidence)
    if q in {0, 1}:
        return _everything(q, len(s), confidence)
    n, needed = len(s), samples_needed(q, confidence)
    if n < needed:
        raise LimitError(
            f"q={q:g} at confidence {confidence:g} needs at least {needed} calibration samples, got {n}: "
            f"give more samples, a larger q or less confidence"
        )
    allowed = float(1 - exact(confidence)) * (1 + 1e-12)
    j = max(1, int(np.searchsorted(binomial_cdf(n, q), allowed, side="right")))
    value = s[n - j]
    above = n - int(np.searchsorted(s, value, side="right"))
    return Threshold(float(value), 0.0, q, above / n, n, confidence)


def samples_needed(q: float, confidence: float) -> int:
    """Return the fewest calibration samples with which :func:`guaranteed_threshold` can send anything.

    Example:
        >>> samples_needed(0.2, 0.95)
        14
    """
    q, confidence = checked_share("q", q), checked_confidence(confidence)
    if q in {0, 1}:
        return 0
    enough = math.log(float(1 - exact(confidence))) * (1 - 1e-12)
    # As fractions: for a tiny q the quotient is beyond the largest float.
    return max(1, math.ceil(Fraction(enough) / Fraction(math.log1p(-q))))


def binomial_cdf(n: int, p: float) -> FloatArray:
    """Return ``P(Binomial(n, p) <= k)`` for k = 0..n, with 0 < p < 1.

    The probabilities are built from the mode outwards by the ratios of neighbours, in logs, and divided by
    their sum: no factorial is formed, so nothing overflows and no digits are lost for large n.

    Example:
        >>> binomial_cdf(2, 0.5)
        array([0.25, 0.75, 1.  ])
    """
    k = np.arange(n)
    ratio = np.log((n - k) / (k + 1.0)) + (math.log(p) - math.log1p(-p))
    mode = min(n, int((n + 1) * p))
    log_mass = np.zeros(n + 1)
    log_mass[mode + 1 :] = np.cumsum(ratio[mode:])
    log_mass[:mode] = -np.cumsum(ratio[:mode][::-1])[::-1]
    mass = np.exp(log_mass)
    return np.asarray(np.minimum(np.cumsum(mass) / mass.sum(), 1.0))


def _everything(q: float, samples: int, confidence: float | None = None) -> Threshold:
    """Return the cut for q = 0, which sends nothing, or for q = 1, which sends everything."""
    return Threshold(-math.inf if q else math.inf, q, q, q, samples, confidence)


def checked_scores(name: str, values: npt.ArrayLike) -> FloatArray:
    """Return scores as an array; raise a :class:`DataError` unless they are (n,) and none is NaN."""
    s = np.asarray(values, dtype=np.float64)
    if s.ndim != 1:
        raise DataError(f"{name} must be (n,), one score per sample; got shape {s.shape}")
    if np.isnan(s).any():
        row = int(np.argmax(np.isnan(s)))
        raise DataError(f"{name}: score of sample {row} is NaN: the model has diverged")
    return s
