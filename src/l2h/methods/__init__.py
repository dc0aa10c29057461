"""Every method of the field behind one interface.

``known()`` names them; ``get(name)`` gives one; ``l2h compare`` runs them side by side. To add one, write it in a file
of its own and put its class into :data:`METHODS`.
"""

from __future__ import annotations

from collections.abc import Sequence

from l2h.errors import UnknownNameError
from l2h.methods.abstention import SeparateLWA
from l2h.methods.base import Choice, Method, Rule, Traits
from l2h.methods.bench import Bench, Inputs, Outcomes
from l2h.methods.binary import BinaryL2H
from l2h.methods.confidence import Confidence, Entropy, Margin, Temperature
from l2h.methods.deferral import OvAL2D, SoftmaxL2D, TwoStageConfidence, TwoStageSeparate
from l2h.methods.helping import (
    PaperL2H,
    PricedAttached,
    PricedSeparate,
    ShiftedAttached,
    ShiftedSeparate,
    SwappedAttached,
    SwappedSeparate,
)
from l2h.methods.learned import Learned, LearnedRule, Prices
from l2h.methods.reference import Knowing, LabelFree, Oracle
from l2h.methods.trivial import AllLocal, AllRemote, Random

__all__ = [
    "DEFAULT",
    "METHODS",
    "Bench",
    "Choice",
    "Inputs",
    "Knowing",
    "Learned",
    "LearnedRule",
    "Method",
    "Outcomes",
    "Prices",
    "Rule",
    "Traits",
    "get",
    "known",
]

#: In the order of tables.
METHODS: tuple[type[Method], ...] = (
    AllLocal,
    AllRemote,
    Random,
    Confidence,
    Margin,
    Entropy,
    Temperature,
    SeparateLWA,
    SoftmaxL2D,
    OvAL2D,
    TwoStageConfidence,
    TwoStageSeparate,
    BinaryL2H,
    PaperL2H,
    ShiftedSeparate,
    SwappedSeparate,
    PricedSeparate,
    ShiftedAttached,
    SwappedAttached,
    PricedAttached,
    LabelFree,
    Oracle,
)

#: What ``l2h train`` does where nothing else is asked for.
DEFAULT = PricedAttached.name


def known() -> list[str]:
    """The names of all methods."""
    return [method.name for method in METHODS]


def get(names: Sequence[str]) -> list[Method]:
    """The named methods, in the order of tables.

    Raises:
        UnknownNameError: a name is none of the known ones, or is given twice.
    """
    unknown = [name for name in names if name not in known()]
    if unknown:
        raise UnknownNameError(f"unknown method {unknown[0]!r}; known: {', '.join(known())}")
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise UnknownNameError(f"method {twice[0]!r} is named twice")
    return [method() for method in METHODS if method.name in names]
