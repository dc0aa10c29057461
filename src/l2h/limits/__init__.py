"""Bounds on asking: how they are written, the calibrated rules that meet them, and the run-time limiter."""

from l2h.limits.drift import Drift, DriftMonitor
from l2h.limits.limiter import Limiter
from l2h.limits.permits import TIMED_OUT, LimiterStatus, Permit
from l2h.limits.rate import LimitError, RateLimit, as_limit
from l2h.limits.rules import Threshold, binomial_cdf, guaranteed_threshold, samples_needed, stochastic, threshold_for
from l2h.limits.shares import ServerShares, shares_for

__all__ = [
    "TIMED_OUT",
    "Drift",
    "DriftMonitor",
    "LimitError",
    "Limiter",
    "LimiterStatus",
    "Permit",
    "RateLimit",
    "ServerShares",
    "Threshold",
    "as_limit",
    "binomial_cdf",
    "guaranteed_threshold",
    "samples_needed",
    "shares_for",
    "stochastic",
    "threshold_for",
]
