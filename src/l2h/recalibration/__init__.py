"""Recalibration: new scales, shifts and thresholds for a bundle from the pairs of an audit, and never new weights."""

from l2h.recalibration.fitting import LABELS, agreement_probability, fit_heads, posterior_right
from l2h.recalibration.measuring import CONFIDENCE, Change
from l2h.recalibration.recalibrating import AUDITS, PAIRS, Recalibration, RecalibrationError, recalibrate

__all__ = [
    "AUDITS",
    "CONFIDENCE",
    "LABELS",
    "PAIRS",
    "Change",
    "Recalibration",
    "RecalibrationError",
    "agreement_probability",
    "fit_heads",
    "posterior_right",
    "recalibrate",
]
