"""What a rejector makes of inputs: how likely each answerer is right, or scores for one price.

One convention everywhere: a tie between a local and a remote answer is REMOTE, a tie within a side goes to the answerer
that is named first, and a NaN is refused, since it means that the model has diverged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from l2h.answers import Answerer
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision.rules import expected_costs, refuse_nan
from l2h.errors import CostError, DataError

#: One pair of prices, or one per server by its name.
AnyCosts = Costs | Mapping[str, Costs]
CostsT = TypeVar("CostsT", bound=AnyCosts)


CLIENT, SERVER = Answerer("client", remote=False), Answerer("server", remote=True)
#: The rejector's student, where it may answer.
STUDENT = Answerer("student", remote=False)
#: The paper's case.
TWO = (CLIENT, SERVER)


@dataclass(frozen=True)
class Judgement:
    """What a rejector makes of n inputs and J answerers.

    Without probabilities the largest score decides, at the one price that the rejector was trained for.
    """

    scores: npt.NDArray[np.floating]  # (n, J), the rejector's outputs
    probability: FloatArray | None = None  # (n, J), how likely each answerer is right
    answerers: tuple[Answerer, ...] = TWO  # one per column, those on the device first

    def __repr__(self) -> str:
        who = ", ".join(answerer.name for answerer in self.answerers)
        return f"Judgement({len(self)} inputs, {'scores' if self.probability is None else 'probabilities'} of {who})"

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or self.scores.shape[1] != len(self.answerers):
            raise DataError(
                f"scores must be (n, {len(self.answerers)}), one per answerer; got shape {self.scores.shape}"
            )

    @classmethod
    def from_heads(
        cls, logits: npt.NDArray[np.floating], platt: npt.ArrayLike | None, answerers: tuple[Answerer, ...] = TWO
    ) -> Judgement:
        """Judge by logits (n, J) of heads that state a probability each; ``platt`` (J, 2) scales and shifts them."""
        z = logits.astype(np.float64)
        if platt is not None:
            pairs = np.asarray(platt, dtype=np.float64)
            z = z * pairs[:, 0] + pairs[:, 1]
        return cls(logits, np.exp(-np.logaddexp(0.0, -z)), answerers)

    @classmethod
    def from_one_input(
        cls, logits: npt.NDArray[np.floating], platt: Sequence[Sequence[float]], answerers: tuple[Answerer, ...] = TWO
    ) -> Judgement:
        """Do what :meth:`from_heads` does for logits (1, J), faster: on a device one input is the common case."""
        stated = np.empty(logits.shape)
        for j, (scale, shift) in enumerate(platt):
            stated[0, j] = _sigmoid(scale * logits.item(j) + shift)
        return cls(logits, stated, answerers)

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, rows: npt.NDArray[np.intp]) -> Judgement:
        probability = None if self.probability is None else self.probability[rows]
        return Judgement(self.scores[rows], probability, self.answerers)

    def expected_costs(self, costs: AnyCosts) -> FloatArray:
        """Return (n, J), what each answerer is expected to cost; without probabilities, minus its score."""
        if self.probability is None:
            return -np.asarray(self.scores, dtype=np.float64)
        return expected_costs(self.probability, outcome_costs(self.answerers, costs))

    def saving(self, costs: AnyCosts) -> FloatArray:
        """Return (n,), what asking is expected to save: the cost of the best local answer less the best remote one.

        Limits, pacing and audits rank by it. Without probabilities it is the best remote score less the best local one.
        """
        if self.probability is None:
            return self.gain
        local, remote = self._sides(self.expected_costs(costs), np.min)
        return np.asarray(local - remote)

    def remote(self, costs: AnyCosts) -> BoolArray:
        """Return bool (n,), true where asking pays; a NaN raises :class:`l2h.errors.DataError`."""
        return self.decide(costs)[1]

    def decide(self, costs: AnyCosts) -> tuple[FloatArray, BoolArray]:
        """Return :meth:`saving` and :meth:`remote` at once."""
        saving = self.saving(costs)
        if self.probability is None:
            refuse_nan(self.scores)
            local, remote = self._sides(self.scores, np.max)
            return saving, np.asarray(local <= remote)
        refuse_nan(saving)
        return saving, np.asarray(saving >= 0)

    def choose(self, costs: AnyCosts, remote: BoolArray) -> npt.NDArray[np.intp]:
        """Return int (n,), the column of the cheapest answerer: among the servers where ``remote``, else locally."""
        on_side = np.array([answerer.remote for answerer in self.answerers]) == remote[:, None]
        return np.asarray(np.where(on_side, self.expected_costs(costs), np.inf).argmin(axis=1))

    @property
    def stated(self) -> dict[str, FloatArray]:
        """Return the stated probabilities (n,) by the answerer's name; empty without probabilities."""
        if self.probability is None:
            return {}
        return {answerer.name: self.probability[:, k] for k, answerer in enumerate(self.answerers)}

    @property
    def gain(self) -> FloatArray:
        """Return (n,), what the frontier ranks by: the expected gain in accuracy, or the difference of the scores."""
        local, remote = self._sides(self.scores if self.probability is None else self.probability, np.max)
        return np.asarray(remote - local, dtype=np.float64)

    def _sides(self, values: npt.NDArray[np.floating], best: Callable[..., Any]) -> tuple[Any, Any]:
        if len(self.answerers) == 2:
            return values[:, 0], values[:, 1]
        first = sum(not answerer.remote for answerer in self.answerers)
        return best(values[:, :first], axis=1), best(values[:, first:], axis=1)


def outcome_costs(answerers: Sequence[Answerer], costs: AnyCosts) -> FloatArray:
    """Return (J, 2), what a right and a wrong answer of each answerer cost."""
    if isinstance(costs, Costs):
        kept, asked = (costs.c_cc, costs.c_ce), (costs.c_sc, costs.c_se)
        return np.array([asked if answerer.remote else kept for answerer in answerers])
    servers, by_server = [answerer.name for answerer in answerers if answerer.remote], dict(costs)
    if set(by_server) != set(servers):
        given = ", ".join(map(str, by_server)) or "nobody"
        raise CostError(f"costs are given for {given}; the servers are {', '.join(servers)}: name each")
    local = {(one.c_cc, one.c_ce) for one in by_server.values()}
    if len(local) != 1:
        raise CostError(f"a local answer has one cost, whoever is asked instead; got (c_cc, c_ce) of {sorted(local)}")
    kept = next(iter(local))
    return np.array(
        [(by_server[a.name].c_sc, by_server[a.name].c_se) if a.remote else kept for a in answerers], dtype=np.float64
    )


def one_price(costs: AnyCosts) -> Costs:
    """Return the prices, which must be the same for every server; raise :class:`CostError` where they differ."""
    if isinstance(costs, Costs):
        return costs
    if len(set(costs.values())) == 1:
        return next(iter(costs.values()))
    raise CostError(f"this needs one pair of prices; got {', '.join(f'{name}: {one}' for name, one in costs.items())}")


def _sigmoid(z: float) -> float:
    return math.exp(-math.log1p(math.exp(-z)) if z >= 0 else z - math.log1p(math.exp(z)))
