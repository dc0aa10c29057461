"""Who answers each input, of any number of answerers, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray, FloatArray, as_bool
from l2h.decision import STUDENT, TWO, Allowed, Answerer, AnyCosts
from l2h.decision.judgement import outcome_costs
from l2h.errors import DataError
from l2h.limits import shares_for

Names = npt.NDArray[np.str_]


@dataclass(frozen=True)
class AnswererFigures:
    """What one answerer does in a system."""

    share: float  # of the inputs, those that it answers
    accuracy: float  # on all inputs
    accuracy_on_answered: float | None  # on those that it answers; None where there are none

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True)
class AnswererChoice:
    """Who answers each of n inputs, of J answerers of whom it is known where they are right.

    Example:
        >>> choice = AnswererChoice.of_two([True, False], [True, True], remote=[False, True])
        >>> choice.reject_rate, choice.accuracy
        (0.5, 1.0)
    """

    answerers: tuple[Answerer, ...]  # those on the device first, the client before all
    correct: BoolArray  # (n, J), where each is right
    chosen: npt.NDArray[np.intp]  # (n,), the column of the one that answers

    def __post_init__(self) -> None:
        shape = (len(self.chosen), len(self.answerers))
        if self.correct.shape != shape:
            raise DataError(f"correct must be {shape}, inputs and answerers; got shape {self.correct.shape}")

    @classmethod
    def of_two(
        cls, client_correct: npt.ArrayLike, server_correct: npt.ArrayLike, remote: npt.ArrayLike
    ) -> AnswererChoice:
        """Return the choice between a client and a server, true where ``remote``."""
        client, server, sent = same_length(client_correct=client_correct, server_correct=server_correct, remote=remote)
        return cls(TWO, np.stack([client, server], axis=1), sent.astype(np.intp))

    @classmethod
    def named(cls, answerers: tuple[Answerer, ...], correct: BoolArray, by: Names) -> AnswererChoice:
        """Return the choice of the answerers that ``by`` (n,) names."""
        chosen = np.zeros(len(by), dtype=np.intp)
        for k, answerer in enumerate(answerers[1:], start=1):
            chosen[by == answerer.name] = k
        return cls(answerers, correct, chosen)

    def __len__(self) -> int:
        return len(self.chosen)

    def always(self, answerer: Answerer) -> AnswererChoice:
        """Return the choice of one answerer for every input."""
        return replace(self, chosen=np.full(len(self), self.answerers.index(answerer), dtype=np.intp))

    def correct_of(self, answerer: Answerer) -> BoolArray:
        """Return bool (n,), where an answerer is right."""
        return self.correct[:, self.answerers.index(answerer)]

    @property
    def servers(self) -> tuple[Answerer, ...]:
        """The answerers that are asked."""
        return tuple(answerer for answerer in self.answerers if answerer.remote)

    @cached_property
    def best_server(self) -> Answerer:
        """The server that is right most often, the first of equals."""
        return max(self.servers, key=lambda server: int(self.correct_of(server).sum()))

    @cached_property
    def remote(self) -> BoolArray:
        """Bool (n,), where a server is asked."""
        return np.array([answerer.remote for answerer in self.answerers])[self.chosen]

    @property
    def right(self) -> BoolArray:
        """Bool (n,), where the one that answers is right."""
        return np.asarray(self.correct[np.arange(len(self)), self.chosen])

    @property
    def reject_rate(self) -> float:
        """The share of inputs for which a server is asked."""
        return float(np.mean(self.remote))

    @property
    def accuracy(self) -> float:
        """The share of inputs that are answered rightly."""
        return float(self.right.mean())

    @property
    def by_student(self) -> float:
        """The share of inputs that the rejector's student answers."""
        return float(sum(self._share(k) for k, answerer in enumerate(self.answerers) if answerer == STUDENT))

    def losses_of(self, answerer: Answerer, costs: AnyCosts) -> FloatArray:
        """Return (n,), what each answer costs if one answerer gives all of them."""
        right, wrong = outcome_costs(self.answerers, costs)[self.answerers.index(answerer)]
        return np.asarray(np.where(self.correct_of(answerer), right, wrong), dtype=np.float64)

    def losses(self, costs: AnyCosts) -> FloatArray:
        """Return (n,), what each answer costs."""
        right, wrong = outcome_costs(self.answerers, costs)[self.chosen].T
        return np.asarray(np.where(self.right, right, wrong), dtype=np.float64)

    def risk(self, costs: AnyCosts) -> float:
        """Return the mean generalized 0-1 loss."""
        return float(self.losses(costs).mean())

    def cheapest(self, costs: AnyCosts, allowed: Allowed | None = None) -> AnswererChoice:
        """Return the choice of who costs least, with every outcome known; a local answerer of equals.

        Where only so many inputs may be asked about, the choice that costs least in all.
        """
        right, wrong = outcome_costs(self.answerers, costs).T
        paid = np.where(self.correct, right, wrong)
        if allowed is None:
            return replace(self, chosen=paid.argmin(axis=1))
        first = len(self.answerers) - len(self.servers)
        gain = paid[:, :first].min(axis=1)[:, None] - paid[:, first:]
        shares = shares_for(gain, [allowed.share_of(server.name) for server in self.servers], allowed.share)
        server = shares.choose(gain, None)
        asked = (server >= 0) & (gain[np.arange(len(self)), server] > shares.tolerance)
        return replace(self, chosen=np.where(asked, first + server, paid[:, :first].argmin(axis=1)))

    def figures(self) -> dict[str, AnswererFigures]:
        """Return the share and the accuracies of every answerer, by name."""
        return {
            answerer.name: AnswererFigures(
                self._share(k),
                float(self.correct[:, k].mean()),
                float(self.correct[mine, k].mean()) if (mine := self.chosen == k).any() else None,
            )
            for k, answerer in enumerate(self.answerers)
        }

    def summary(self, costs: AnyCosts) -> dict[str, float]:
        """Return risk, reject rate, accuracy and the student's share as plain values for JSON."""
        figures = {"risk": self.risk(costs), "reject_rate": self.reject_rate, "accuracy": self.accuracy}
        return figures | ({"by_student": self.by_student} if STUDENT in self.answerers else {})

    def _share(self, column: int) -> float:
        return float(np.mean(self.chosen == column))


@dataclass(frozen=True)
class Answered:
    """Who answers n inputs, as names (n,): in a system, at both ends of its frontier, and in its baselines."""

    answerers: tuple[Answerer, ...]  # those of the system
    by: Names  # who answers
    local: Names  # who answers where nobody is asked: the best on the device
    remote: Names  # which server is asked where one is
    #: Who answers by a threshold on the client's confidence; None where no threshold was found.
    confidence: Names | None = None
    #: Who answers in the same system changed: ``three_ways`` with its student as a second opinion, ``two_ways`` without
    #: it, and one without all other servers by the name of each server.
    alternatives: Mapping[str, Names] = field(default_factory=dict)
    allowed: Allowed | None = None  # how many inputs may be asked about under the limit that held; None without one

    @classmethod
    def of_two(
        cls, remote: BoolArray, confidence_remote: BoolArray | None = None, allowed: Allowed | None = None
    ) -> Answered:
        """Return what a client and a server answer, where decisions are true for the server."""
        client, server = (np.full(len(remote), answerer.name) for answerer in TWO)
        confidence = None if confidence_remote is None else np.where(confidence_remote, server, client)
        return cls(TWO, np.where(remote, server, client), client, server, confidence, allowed=allowed)


def same_length(**arrays: npt.ArrayLike) -> list[BoolArray]:
    """Return boolean arrays; raise a :class:`DataError` with their names if they are empty or differ in length."""
    out = [as_bool(name, values) for name, values in arrays.items()]
    lengths = {name: array.shape for name, array in zip(arrays, out, strict=True)}
    if len(set(lengths.values())) != 1 or out[0].ndim != 1:
        raise DataError(f"arrays must be one-dimensional and of one length; got {lengths}")
    if not len(out[0]):
        raise DataError("no samples to measure on")
    return out
