"""Bounds on asking: how they are written, the calibrated rules that meet them, and the run-time limiter."""

from l2h.limits.drift import DriftMonitor
from l2h.limits.limiter import Limiter
from l2h.limits.rules import (
    ACCEPTED,
    LimitError,
    RateLimit,
    Threshold,
    binomial_cdf,
    checked_confidence,
    checked_share,
    guaranteed_threshold,
    samples_needed,
    stochastic,
    threshold_for,
)
from l2h.limits.status import Permit, Status

__all__ = [
    "ACCEPTED",
    "DriftMonitor",
    "LimitError",
    "Limiter",
    "Permit",
    "RateLimit",
    "Status",
    "Threshold",
    "binomial_cdf",
    "checked_confidence",
    "checked_share",
    "guaranteed_threshold",
    "samples_needed",
    "stochastic",
    "threshold_for",
]
