"""Drift: is the traffic still like the calibration set of the threshold?

The monitor watches the share of the last ``window`` requests whose score is above the calibrated threshold. It
looks ten times per window, and raises an alarm when the count is outside a band. The band accounts for two kinds
of chance.

The first is the error of the calibration. The true rate of a threshold put at the (k + 1)-th largest of n
calibration scores is not k / n but has a Beta(k + 1, n - k) distribution, whatever the scores are, as long as
they have no ties. So the count among m new requests is beta-binomial, which is wider than binomial. (Where the
cut was not made from these scores the lower side is Beta(k, n - k + 1); that side always uses it, because it is
wider.)

The second is the number of looks. All the looks in ``horizon`` requests together may raise a false alarm no more
often than permitted, so the permitted probability is divided by their number and by the two sides. That is the
union bound, which holds however the overlapping looks depend on one another.
"""

import logging
import math
from collections import deque
from typing import Literal

import numpy as np

from l2h.costs import FloatArray
from l2h.limits.rate import LimitError, checked_confidence, checked_share
from l2h.limits.rules import binomial_cdf
from l2h.telemetry import event

log = logging.getLogger("l2h.limits")

#: Which way the traffic has left its calibrated band.
Drift = Literal["above", "below"]
_LOOKS = 10


class DriftMonitor:
    """Watches the share of requests above a threshold, over a window of recent requests.

    ``rate`` is the calibrated share, measured on so many ``samples`` (None: it is known exactly). Without drift no
    alarm is raised within ``horizon`` requests, with probability ``confidence``. An alarm is logged unless ``quiet``.

    Example:
        >>> monitor = DriftMonitor(rate=0.2, window=500)
        >>> for i in range(1000):
        ...     _ = monitor.observe(i % 5 == 0)
        >>> monitor.drift is None, monitor.observed
        (True, 0.2)
    """

    def __init__(
        self,
        rate: float,
        samples: int | None = None,
        window: int = 500,
        confidence: float = 0.95,
        horizon: int = 20_000,
        quiet: bool = False,
    ) -> None:
        if window < _LOOKS or horizon < window:
            raise LimitError(
                f"drift is watched over {window} of {horizon} requests: give a window of {_LOOKS} or more "
                f"and a horizon no shorter"
            )
        self.rate = checked_share("rate", rate)
        self.drift: Drift | None = None
        self._window, self._quiet = window, quiet
        self._stride = window // _LOOKS
        if samples is not None and samples < 1:
            raise LimitError(f"samples={samples} is no calibration set: give its size, or None for an exact rate")
        self._samples = samples
        self._tail = (1 - checked_confidence(confidence)) / 2 / math.ceil(horizon / self._stride)
        self._bands: dict[int, tuple[int, int]] = {}
        self._recent: deque[bool] = deque()
        self._count = 0
        self._seen = 0

    @property
    def observed(self) -> float | None:
        """The share over the recent requests; ``None`` before the first."""
        return self._count / len(self._recent) if self._recent else None

    def observe(self, exceeds: bool) -> Drift | None:
        """Count one request, and return the state of drift after it."""
        if len(self._recent) == self._window:
            self._count -= self._recent.popleft()
        self._recent.append(exceeds)
        self._count += exceeds
        self._seen += 1
        if self._seen % self._stride == 0:
            self._look()
        return self.drift

    def band(self, requests: int) -> tuple[int, int]:
        """Return the least and the largest count among so many requests that is no alarm."""
        if requests not in self._bands:
            least = requests - _most(requests, 1 - self.rate, self._samples, self._tail)
            self._bands[requests] = (least, _most(requests, self.rate, self._samples, self._tail))
        return self._bands[requests]

    def _look(self) -> None:
        n = len(self._recent)
        least, most = self.band(n)
        now: Drift | None = "above" if self._count > most else "below" if self._count < least else None
        if now is None and self.drift is not None:
            # An alarm ends half way back to the calibrated rate: at the edge it would come and go.
            expected = self.rate * n
            over = self._count - expected if self.drift == "above" else expected - self._count
            edge = most - expected if self.drift == "above" else expected - least
            if over > edge / 2:
                return
        if now is not None and now != self.drift and not self._quiet:
            log.warning(
                "drift: %.1f%% of the last %d requests score above the calibrated threshold, %s the band of "
                "%.1f%% to %.1f%% around the calibrated %.1f%%; calibrate again on recent inputs",
                *(100 * self._count / n, n, now, 100 * least / n, 100 * most / n, 100 * self.rate),
                extra=event("drift", side=now, observed=self._count / n, calibrated=self.rate, requests=n),
            )
        self.drift = now


def _most(n: int, rate: float, samples: int | None, tail: float) -> int:
    """Return the least k such that more than k of n requests exceed with a probability of at most ``tail``."""
    k = 0 if samples is None else round(rate * samples)
    if rate == 1 or k == samples:
        return n
    if samples is not None:
        stay = _beta_binomial_cdf(n, samples - k, k + 1)
    elif rate > 0:
        stay = binomial_cdf(n, 1 - rate)
    else:
        return 0
    # Counted from those that stay below: their small probabilities are not differences of large ones.
    return n - int((stay <= tail).sum())


def _beta_binomial_cdf(n: int, a: float, b: float) -> FloatArray:
    """Return ``P(X <= x)`` for x = 0..n, X binomial with a Beta(a, b) rate; from ratios of neighbours, in logs."""
    x = np.arange(n)
    ratio = np.log((n - x) / (x + 1.0)) + np.log((a + x) / (b + n - x - 1.0))
    log_mass = np.concatenate([[0.0], np.cumsum(ratio)])
    mass = np.exp(log_mass - log_mass.max())
    return np.asarray(np.cumsum(mass) / mass.sum())
