"""Who answers: one rule from a rejector's judgement, the costs and a limit to a choice.

``HelpSystem``, ``EdgeClient``, the commands and the experiments all decide here, so that a system in the laboratory and
the same system on a device choose alike.
"""

from l2h.answers import Answerer
from l2h.decision.judgement import CLIENT, SERVER, STUDENT, TWO, AnyCosts, CostsT, Judgement, one_price
from l2h.decision.limiters import AnyLimit, KeptDraws, KeptLimiters, continued
from l2h.decision.policy import FREE, RULES, Allowed, Policy
from l2h.decision.rules import bayes, confidence, confidence_threshold, expected_costs, oracle
from l2h.decision.specs import RejectorSpec, fitting_rejectors, select_rejector
from l2h.decision.terms import Proposal, Terms

__all__ = [
    "CLIENT",
    "FREE",
    "RULES",
    "SERVER",
    "STUDENT",
    "TWO",
    "Allowed",
    "Answerer",
    "AnyCosts",
    "AnyLimit",
    "CostsT",
    "Judgement",
    "KeptDraws",
    "KeptLimiters",
    "Policy",
    "Proposal",
    "RejectorSpec",
    "Terms",
    "bayes",
    "confidence",
    "confidence_threshold",
    "continued",
    "expected_costs",
    "fitting_rejectors",
    "one_price",
    "oracle",
    "select_rejector",
]
