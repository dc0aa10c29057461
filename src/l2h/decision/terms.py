"""The prices of a call with what follows from them, and what is proposed at these prices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from l2h.answers import Answerer
from l2h.costs import BoolArray, FloatArray
from l2h.decision.judgement import TWO, AnyCosts, Judgement, outcome_costs
from l2h.decision.rules import refuse_nan
from l2h.limits import ServerShares, Threshold


@dataclass(frozen=True)
class Terms:
    """The prices of a call, and what follows from them."""

    costs: AnyCosts  # the prices
    which: int  # number of the rejector that answers for them
    stated: bool  # whether a caller stated them. What does not pay is then not sent to fill a limit
    answerers: tuple[Answerer, ...] = TWO
    out: frozenset[str] = frozenset()  # names of servers that are left out
    threshold: Threshold | None = None  # the cut that meets one share of all requests
    shares: ServerShares | None = None  # the prices that meet shares of several servers
    q1: float | None = None  # the share that the rejector sends of the calibration samples, for the stochastic rule
    #: What an answer of each answerer costs, where it is right.
    paid: tuple[float, ...] = field(init=False, repr=False)
    #: How many answerers are on the device; the servers' columns follow.
    local_count: int = field(init=False, repr=False)
    #: Whether it is the paper's case: the client and one server, which is not left out.
    plain: bool = field(init=False, repr=False)
    _outcomes: tuple[tuple[float, float], ...] = field(init=False, repr=False)
    _two: tuple[float, float, float, float] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        outcomes = outcome_costs(self.answerers, self.costs).tolist()
        object.__setattr__(self, "paid", tuple(right for right, _ in outcomes))
        missing = [answerer.name in self.out for answerer in self.answerers]
        each = tuple(
            (math.inf, 0.0) if out else (wrong, wrong - right)
            for (right, wrong), out in zip(outcomes, missing, strict=True)
        )
        object.__setattr__(self, "local_count", sum(not answerer.remote for answerer in self.answerers))
        object.__setattr__(self, "plain", len(self.answerers) == 2 and not self.out)
        object.__setattr__(self, "_outcomes", each)
        object.__setattr__(self, "_two", each[0] + each[1] if self.plain else None)

    def choose(self, judgement: Judgement) -> int:
        """Return the column of the cheapest answerer of one input, without limits and without work on arrays."""
        if self._two is not None:
            if judgement.probability is None:
                client, server = judgement.scores[0].tolist()
                return int(client <= server)
            wrong, gained, helped_wrong, helped = self._two
            client, server = judgement.probability[0].tolist()
            return int((wrong - gained * client) - (helped_wrong - helped * server) >= 0)
        if judgement.probability is None:
            out = [outcome[0] == math.inf for outcome in self._outcomes]
            expected = [math.inf if o else -s for s, o in zip(judgement.scores[0].tolist(), out, strict=True)]
        else:
            stated = judgement.probability[0].tolist()
            expected = [wrong - gained * p for (wrong, gained), p in zip(self._outcomes, stated, strict=True)]
        first = self.local_count
        local, remote = min(expected[:first]), min(expected[first:])
        if local - remote >= 0:  # a tie between the sides is remote, one within a side goes to the first
            return expected.index(remote, first)
        return expected.index(local)

    def gains(self, judgement: Judgement) -> tuple[FloatArray, npt.NDArray[np.intp]]:
        """Return (n, S), what asking each server saves against the best local answer, and that answer's column (n,).

        Minus infinity stands for a server that is left out. A NaN raises :class:`l2h.errors.DataError`.
        """
        if self.plain:
            return judgement.decide(self.costs)[0][:, None], np.zeros(len(judgement), dtype=np.intp)
        expected = judgement.expected_costs(self.costs)
        refuse_nan(expected)
        first = self.local_count
        gain = expected[:, :first].min(axis=1)[:, None] - expected[:, first:]
        gain[:, [answerer.name in self.out for answerer in self.answerers[first:]]] = -np.inf
        return gain, expected[:, :first].argmin(axis=1)

    def column(self, proposal: Proposal, choice: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return (n,), the columns of those who answer, where :meth:`Policy.permit` chose these servers."""
        return np.where(choice < 0, proposal.local, self.local_count + choice)


class Proposal(NamedTuple):
    """What may be asked about, before limiters are asked for permits; the S servers are in their order."""

    saving: FloatArray  # (n,), by asking the best server about each input
    wanted: BoolArray  # bool (n,), where the rejector would ask
    able: BoolArray  # bool (n, S), where a server may be asked as far as limiters permit
    gain: FloatArray  # (n, S), what asking each server saves, less what meeting shares adds to its price
    local: npt.NDArray[np.intp]  # (n,), the column of the best local answer

    def rows(self, rows: npt.NDArray[np.intp]) -> Proposal:
        return Proposal(self.saving[rows], self.wanted[rows], self.able[rows], self.gain[rows], self.local[rows])
