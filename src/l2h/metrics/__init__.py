"""Measurements as pure functions of arrays, with no state and no torch."""

from l2h.metrics.calibration import (
    Reliability,
    apply_platt,
    expected_calibration_error,
    fit_logistic,
    fit_platt,
    reliability_curve,
)
from l2h.metrics.choice import Answered, AnswererChoice, AnswererFigures
from l2h.metrics.decider import ConfidenceRule, PriceDecider
from l2h.metrics.evaluating import evaluate, evaluate_outcomes
from l2h.metrics.frontier import Frontier, RoutingMeasures, frontier, frontier_gain, label_free_score, routing_measures
from l2h.metrics.report import OutcomeReport, Report
from l2h.metrics.risk import Contrastive, Risks, Side, contrastive, reject_rate_per_class, risk, risks, risks_of
from l2h.metrics.savings import money_sentence
from l2h.metrics.spread import Interval, Spread, interval, spread, spread_of_reports
from l2h.metrics.standing import Standing, best_trivial

__all__ = [
    "Answered",
    "AnswererChoice",
    "AnswererFigures",
    "ConfidenceRule",
    "Contrastive",
    "Frontier",
    "Interval",
    "OutcomeReport",
    "PriceDecider",
    "Reliability",
    "Report",
    "Risks",
    "RoutingMeasures",
    "Side",
    "Spread",
    "Standing",
    "apply_platt",
    "best_trivial",
    "contrastive",
    "evaluate",
    "evaluate_outcomes",
    "expected_calibration_error",
    "fit_logistic",
    "fit_platt",
    "frontier",
    "frontier_gain",
    "interval",
    "label_free_score",
    "money_sentence",
    "reject_rate_per_class",
    "reliability_curve",
    "risk",
    "risks",
    "risks_of",
    "routing_measures",
    "spread",
    "spread_of_reports",
]
