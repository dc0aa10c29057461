"""What ``predict`` returns: arrays over the inputs, or one :class:`Answer` per input when iterated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray

#: Reason codes of answers given with the server at hand.
NOT_WORTH_ASKING = "not_worth_asking"
WORTH_ASKING = "worth_asking"
#: Under a limit: kept although the rejector would have asked, and asked although it would not.
OVER_LIMIT = "over_limit"
WITHIN_LIMIT = "within_limit"
#: Who answers on each side, where there is one answerer on each.
BY = {"local": "client", "remote": "server"}
#: Stands for the names that follow from the source.
_BY_SOURCE: Any = None


@dataclass(frozen=True)
class Answerer:
    """Whoever can answer an input: the client and its student on the device, or a server."""

    name: str
    remote: bool


@dataclass(frozen=True)
class Answer:
    """The answer to one input.

    Attributes:
        label: the class, as it stood in the training labels.
        source: ``"local"`` or ``"remote"``: who answered.
        reason: a short code for why.
        cost: what asking cost, ``c_e`` of the server that was asked where remote, else what a local answer costs (0).
        latency: seconds it took, where it was measured.
        by: name of the answerer: ``"client"``, ``"student"``, or the server's (``"server"`` where there is one).
        id: of an input that an audit keeps, for :meth:`l2h.EdgeClient.feedback`; else empty.
    """

    label: int | str
    source: str
    reason: str
    cost: float
    latency: float | None = None
    by: str = ""
    id: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.by:
            object.__setattr__(self, "by", BY[self.source])


@dataclass(frozen=True)
class Answers:
    """The answers to many inputs, as arrays of one length. Where an array is expected, they are that of the labels.

    Attributes:
        label: the classes, as they stood in the training labels.
        source: ``"local"`` or ``"remote"``, of each answer.
        reason: why.
        cost: what asking cost.
        latency: seconds, where they were measured.
        by: names of the answerers.
        probability: (n, K), what each answerer gives every class, in the order of the system's classes; None where
            only labels are known, as on a device.
        id: of the inputs that an audit keeps, for :meth:`l2h.EdgeClient.feedback`, and empty for the others; None where
            there are no such inputs.

    Example:
        >>> answerers = (Answerer("client", remote=False), Answerer("server", remote=True))
        >>> answers = Answers.chosen(np.array([3, 8]), np.array([0, 1]), answerers, paid=(0, 0.1))
        >>> answers.label
        array([3, 8])
        >>> answers[1]
        Answer(label=8, source='remote', reason='worth_asking', cost=0.1, latency=None, by='server')
        >>> np.asarray(answers)
        array([3, 8])
    """

    label: npt.NDArray[Any]
    source: npt.NDArray[np.str_]
    reason: npt.NDArray[np.str_]
    cost: FloatArray
    latency: FloatArray | None = None
    by: npt.NDArray[np.str_] = _BY_SOURCE
    probability: FloatArray | None = field(default=None, repr=False)
    id: npt.NDArray[np.str_] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.by is _BY_SOURCE:
            object.__setattr__(self, "by", np.where(self.source == "remote", BY["remote"], BY["local"]))

    @classmethod
    def chosen(
        cls,
        label: npt.NDArray[Any],
        column: npt.NDArray[np.intp],
        answerers: Sequence[Answerer],
        paid: npt.ArrayLike,
        wanted: BoolArray | None = None,
        probability: FloatArray | None = None,
    ) -> Answers:
        """Return answers of J answerers: ``column`` (n,) says who gave each label, ``paid`` (J,) what that costs."""
        remote = np.array([answerer.remote for answerer in answerers])[column]
        return cls(
            label=label,
            source=np.where(remote, "remote", "local"),
            reason=reasons(remote, wanted),
            cost=np.asarray(paid, dtype=np.float64)[column],
            by=np.array([answerer.name for answerer in answerers])[column],
            probability=probability,
        )

    def __len__(self) -> int:
        return len(self.label)

    def __repr__(self) -> str:
        return f"Answers({counted(self.by)}; cost {self.cost.sum():g})"

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the labels, so that ``accuracy_score(y, answers)`` and the like work."""
        return np.array(self.label, dtype=dtype, copy=copy)

    def __getitem__(self, i: int) -> Answer:
        return Answer(
            label=self.label[i].item(),
            source=str(self.source[i]),
            reason=str(self.reason[i]),
            cost=float(self.cost[i]),
            latency=None if self.latency is None else float(self.latency[i]),
            by=str(self.by[i]),
            id="" if self.id is None else str(self.id[i]),
        )

    def __iter__(self) -> Iterator[Answer]:
        return (self[i] for i in range(len(self)))


def counted(by: npt.NDArray[np.str_]) -> str:
    """Return how many inputs there are, and how many each answerer answers: ``3 inputs: client 2, server 1``."""
    names, counts = np.unique(by, return_counts=True)
    each = ", ".join(f"{name} {count}" for name, count in zip(names.tolist(), counts.tolist(), strict=True))
    return f"{len(by)} input{'s' * (len(by) != 1)}{f': {each}' if each else ''}"


def reasons(remote: BoolArray, wanted: BoolArray | None = None) -> npt.NDArray[np.str_]:
    """Return the reason code of every decision; ``wanted`` is the rejector's own, where a limit changed it."""
    wanted = remote if wanted is None else wanted
    kept = np.where(wanted, OVER_LIMIT, NOT_WORTH_ASKING)
    return np.where(remote, np.where(wanted, WORTH_ASKING, WITHIN_LIMIT), kept)
