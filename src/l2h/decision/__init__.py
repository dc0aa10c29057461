"""Who answers: what a rejector makes of inputs, and the rules that turn it into LOCAL or REMOTE."""

from l2h.decision.judgement import RULES, Judgement, bounded
from l2h.decision.rules import (
    bayes,
    confidence,
    confidence_threshold,
    expected_saving,
    from_correctness,
    from_scores,
    oracle,
)

__all__ = [
    "RULES",
    "Judgement",
    "bayes",
    "bounded",
    "confidence",
    "confidence_threshold",
    "expected_saving",
    "from_correctness",
    "from_scores",
    "oracle",
]
