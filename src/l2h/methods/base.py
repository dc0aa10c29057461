"""The one interface behind which every method of the field stands.

A method is fitted on a *bench*: one seed's samples, client and server, the same for all. Fitting gives a rule, and a
rule turns inputs and prices into decisions. An ordinary rule is handed the inputs and the client's answers and nothing
else, so it cannot look at what a device does not know; a *reference* (the oracle, the label-free bound) is handed the
outcomes as well.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from l2h import decision
from l2h.costs import BoolArray, Costs, FloatArray, generalized_loss
from l2h.errors import SettingsError
from l2h.methods.bench import Bench, Inputs

FAMILIES = ("trivial", "confidence", "learned", "reference")


@dataclass(frozen=True)
class Traits:
    """The four columns of the paper's comparison of methods.

    Attributes:
        separate: the rejector decides from the input alone, before the client runs.
        learns_client: its ranking of inputs depends on what the client does with each of them.
        learns_server: its ranking depends on which inputs the server gets right; how often it is right on the whole may
            set a threshold.
        asynchronous: its loss trains the rejector alone, so that server and rejector can be trained in different
            places; False where one loss trains a classifier as well; None where there is no server in it.
    """

    separate: bool
    learns_client: bool
    learns_server: bool
    asynchronous: bool | None

    def as_dict(self) -> dict[str, bool | None]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """Decisions on n inputs.

    Attributes:
        remote: bool (n,), true where sent.
        score: (n,), the ranking behind them; larger is sent first.
        as_published: bool (n,), the decisions by the rule of the method's own paper, where the threshold that
            ``remote`` uses was chosen on calibration samples; None where there is no such difference.
    """

    remote: BoolArray
    score: FloatArray
    as_published: BoolArray | None = None


class Rule(ABC):
    """A fitted method."""

    @abstractmethod
    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        """Decide at these prices, which are among those of the bench."""

    def facts(self, inputs: Inputs, y: npt.NDArray[np.int64]) -> dict[str, float]:
        """Return figures beside the decisions: how large, how long trained. None for most."""
        return {}


class Method(ABC):
    """One method: what it is, where it comes from, and how it is fitted.

    Attributes:
        name: in flags, files and tables.
        title: for people.
        family: ``trivial``, ``confidence``, ``learned`` or ``reference``.
        ours: True for those of L2H's own.
        reference: the paper it is from.
        equation: its loss or its rule, as there.
        change: what had to change because the client is fixed and the server shared; empty where nothing.
        traits: its row of the property table; None for rules without a rejector.
        published_traits: the row that the L2H paper prints for it; None where it prints none.
        classes: the number of classes it is made for; None for any.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    family: ClassVar[str]
    ours: ClassVar[bool] = False
    reference: ClassVar[str] = ""
    equation: ClassVar[str]
    change: ClassVar[str] = ""
    traits: ClassVar[Traits | None] = None
    published_traits: ClassVar[Traits | None] = None
    classes: ClassVar[int | None] = None

    @abstractmethod
    def fit(self, bench: Bench) -> Rule:
        """Learn or choose whatever the method needs from the bench's training and calibration samples."""

    def check(self, num_classes: int) -> None:
        """Raise ``SettingsError`` for a number of classes that the method is not made for."""
        if self.classes is not None and num_classes != self.classes:
            raise SettingsError(
                f"method {self.name!r} is for {self.classes} classes, the data have {num_classes}: leave it out, or "
                "take two classes with --classes"
            )

    def card(self) -> dict[str, Any]:
        """Return what the method says of itself, as plain values."""
        plain = ("name", "title", "family", "ours", "reference", "equation", "change")
        traits = {"traits": self.traits, "published_traits": self.published_traits}
        return {key: getattr(self, key) for key in plain} | {key: of and of.as_dict() for key, of in traits.items()}


class ThresholdRule(Rule):
    """Send where a score is high enough: the threshold is chosen for each price on the calibration samples.

    It is the one of the lowest risk there. A method whose paper has a threshold of its own keeps that one unless the
    other is better by more than its standard error, so that chance alone seldom moves it.

    Subclasses give the score, and the threshold of their paper if there is one.
    """

    #: Of the method's own paper: REMOTE iff the score is not below it; None where there is none.
    published: float | None = None

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._thresholds: dict[Costs, float] = {}

    @abstractmethod
    def score(self, inputs: Inputs, costs: Costs) -> FloatArray:
        """Return (n,), larger is sent first."""

    def threshold(self, costs: Costs) -> float:
        """Return the threshold for these prices: REMOTE iff the score is not below it."""
        if costs not in self._thresholds:
            self._thresholds[costs] = self._choose(costs)
        return self._thresholds[costs]

    def _choose(self, costs: Costs) -> float:
        held = self.bench.calibration
        outcomes = (held.client_correct, held.server_correct)
        score = self.score(held.inputs, costs)
        best = -decision.confidence_threshold(-score, *outcomes, costs)
        if self.published is None:
            return best
        saved = generalized_loss(*outcomes, score >= self.published, costs) - generalized_loss(
            *outcomes, score >= best, costs
        )
        error = float(saved.std()) / max(1, len(saved)) ** 0.5
        return best if float(saved.mean()) > error else self.published

    def decide(self, inputs: Inputs, costs: Costs) -> Choice:
        score = self.score(inputs, costs)
        own = None if self.published is None else score >= self.published
        return Choice(score >= self.threshold(costs), score, own)
