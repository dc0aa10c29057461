"""Every method of the field behind one interface.

:func:`known` names them, :func:`get` gives some of them, and ``l2h compare`` runs them side by side. Each one that
learns can also be trained, saved, exported and deployed: ``HelpSystem(method=NAME)``. :func:`register` adds one from
outside.
"""

from l2h.methods.base import Bench, Choice, Inputs, Method, Outcomes, Rule, ThresholdRule, Traits
from l2h.methods.cascade import Cascade, cascade_losses, fit_cascade
from l2h.methods.learned import Learned, LearnedRule, Prices, bounded_exp, client_scores, fit_together, local_score
from l2h.methods.registry import DEFAULT, find_learned, get, known, load_file, register, spelled
from l2h.methods.simple import ReferenceRule

__all__ = [
    "DEFAULT",
    "Bench",
    "Cascade",
    "Choice",
    "Inputs",
    "Learned",
    "LearnedRule",
    "Method",
    "Outcomes",
    "Prices",
    "ReferenceRule",
    "Rule",
    "ThresholdRule",
    "Traits",
    "bounded_exp",
    "cascade_losses",
    "client_scores",
    "find_learned",
    "fit_cascade",
    "fit_together",
    "get",
    "known",
    "load_file",
    "local_score",
    "register",
    "spelled",
]
