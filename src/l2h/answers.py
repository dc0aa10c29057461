"""What ``predict`` returns: arrays over the inputs, or one :class:`Answer` per input when iterated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, Costs, FloatArray

#: Reason codes of answers given with the server at hand.
NOT_WORTH_ASKING = "not_worth_asking"
WORTH_ASKING = "worth_asking"
#: Under a limit: kept although the rejector would have asked, and asked although it would not.
OVER_LIMIT = "over_limit"
WITHIN_LIMIT = "within_limit"
#: Who answers on each side.
BY = {"local": "client", "remote": "server"}


@dataclass(frozen=True)
class Answer:
    """The answer to one input.

    Attributes:
        label: the class, as it stood in the training labels.
        source: ``"local"`` or ``"remote"``: who answered.
        reason: a short code for why.
        cost: what asking cost, ``c_e`` of the costs in use where remote, else what a local answer costs (0).
        latency: seconds it took, where it was measured.
    """

    label: int | str
    source: str
    reason: str
    cost: float
    latency: float | None = None

    @property
    def by(self) -> str:
        """Name of the answerer: ``"client"`` or ``"server"``."""
        return BY[self.source]


@dataclass(frozen=True)
class Answers:
    """The answers to many inputs, as arrays of one length.

    Example:
        >>> answers = Answers.of(client_label=np.array([3, 5]), server_label=np.array([3, 8]),
        ...                      remote=np.array([False, True]), costs=Costs(c_e=0.1))
        >>> answers.label
        array([3, 8])
        >>> answers[1], answers.by.tolist()
        (Answer(label=8, source='remote', reason='worth_asking', cost=0.1, latency=None), ['client', 'server'])
    """

    label: npt.NDArray[Any]
    source: npt.NDArray[np.str_]
    reason: npt.NDArray[np.str_]
    cost: FloatArray
    latency: FloatArray | None = None

    @classmethod
    def of(
        cls,
        client_label: npt.NDArray[Any],
        server_label: npt.NDArray[Any],
        remote: BoolArray,
        costs: Costs,
        wanted: BoolArray | None = None,
    ) -> Answers:
        """Join the two sides' labels by the decision; ``wanted`` is the rejector's own, where a limit changed it."""
        return cls(
            label=np.where(remote, server_label, client_label).astype(np.int64),
            source=np.where(remote, "remote", "local"),
            reason=reasons(remote, wanted),
            cost=np.where(remote, costs.c_sc, costs.c_cc),
        )

    @property
    def by(self) -> npt.NDArray[np.str_]:
        """Names of the answerers, (n,): ``"client"`` or ``"server"``."""
        return np.where(self.source == "remote", BY["remote"], BY["local"])

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, i: int) -> Answer:
        return Answer(
            label=self.label[i].item(),
            source=str(self.source[i]),
            reason=str(self.reason[i]),
            cost=float(self.cost[i]),
            latency=None if self.latency is None else float(self.latency[i]),
        )

    def __iter__(self) -> Iterator[Answer]:
        return (self[i] for i in range(len(self)))


def reasons(remote: BoolArray, wanted: BoolArray | None = None) -> npt.NDArray[np.str_]:
    """Return the reason code of every decision; ``wanted`` is the rejector's own, where a limit changed it."""
    wanted = remote if wanted is None else wanted
    kept = np.where(wanted, OVER_LIMIT, NOT_WORTH_ASKING)
    return np.where(remote, np.where(wanted, WORTH_ASKING, WITHIN_LIMIT), kept)
