"""``Router``: two calibrated probabilities for an input, "the client is right" and "the server is right"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.answers import BY, counted, reasons
from l2h.costs import Costs, FloatArray
from l2h.data.outcomes import check_outcomes, check_prompts, read_outcomes
from l2h.decision import SERVER, Judgement, KeptDraws, KeptLimiters, Policy, continued, one_price
from l2h.errors import DataError
from l2h.limits import RateLimit
from l2h.metrics import OutcomeReport, PriceDecider, evaluate_outcomes
from l2h.money import Money, plain_costs
from l2h.ngrams import NGrams, weigh

#: Texts at a time: their n-grams must fit into memory.
_CHUNK = 2000


@dataclass(frozen=True)
class Route:
    """Who should answer one input, and why."""

    source: str  # "local" or "remote"
    reason: str  # a short code
    saving: float  # what asking the server is expected to save
    cost: float  # what asking costs, c_e of the costs in use where remote

    @property
    def by(self) -> str:
        """Name of the answerer: ``"client"`` (the weak one) or ``"server"`` (the strong one)."""
        return BY[self.source]


@dataclass(frozen=True)
class Routes:
    """Who should answer each of n inputs, as arrays of one length."""

    source: npt.NDArray[np.str_]
    reason: npt.NDArray[np.str_]
    saving: FloatArray
    cost: FloatArray

    @property
    def by(self) -> npt.NDArray[np.str_]:
        """Names of the answerers, (n,): ``"client"`` or ``"server"``."""
        return np.where(self.source == "remote", BY["remote"], BY["local"])

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"Routes({counted(self.by)}; cost {self.cost.sum():g})"

    def __getitem__(self, i: int) -> Route:
        return Route(str(self.source[i]), str(self.reason[i]), float(self.saving[i]), float(self.cost[i]))

    def __iter__(self) -> Iterator[Route]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True, eq=False, repr=False)
class Router:
    """A fitted router: linear heads on n-grams of a text, or on the user's embeddings. Running it needs numpy alone.

    ``l2h.HelpSystem.fit_outcomes`` trains one; :meth:`load` reads one.

    Attributes:
        ngrams: how a text becomes numbers; ``None`` for a router on embeddings.
        centre: (D,), what is subtracted from an embedding; empty for texts.
        scale: (D,), what the features are multiplied by: the inverse document frequency of an n-gram, or one over the
            spread of an embedding's column.
        weights: (2, D), of the heads "the client is right" and "the server is right".
        bias: (2,), of the heads.
        calibration: (2, 6), from the terms of both heads' logits (:func:`logit_terms`) to the calibrated logit of each.
        span: (2, 2), the lowest and the highest cross-validated logit of each head; others are moved into it.
        held_out: (m, 2), logits of rows that nothing was trained on. Limits are met on them.
        dataset: name of the data set.
        seed: of the training.
        choice: the inverse strength of the penalty that was chosen, and the area under its cross-validated frontier.

    Example:
        >>> import l2h
        >>> prompts = [f"{word} {i}" for i in range(40) for word in ("easy", "hard")]
        >>> right = [(i % 2 == 0) != (i % 9 == 0) for i in range(80)]
        >>> router = l2h.routing.fit_router(prompts, right, [i % 10 != 9 for i in range(80)])
        >>> router.predict(["easy question", "hard question"], costs=l2h.Costs(c_e=0.2)).by.tolist()
        ['client', 'server']
    """

    ngrams: NGrams | None
    centre: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    bias: FloatArray
    calibration: FloatArray
    span: FloatArray
    held_out: npt.NDArray[np.float32]
    dataset: str = "unnamed"
    seed: int = 0
    choice: dict[str, float] = field(default_factory=dict)
    _limiters: KeptLimiters = field(default_factory=dict, init=False)
    _draws: KeptDraws = field(default_factory=dict, init=False)

    @property
    def columns(self) -> int:
        """D, the number of features."""
        return int(self.weights.shape[1])

    def __repr__(self) -> str:
        what = f"embeddings of {self.columns}" if self.ngrams is None else "texts"
        return f"Router({self.dataset}, {what}, {self.columns:,} features)"

    def judge(self, X: Any) -> Judgement:
        """Return how likely client and server are right about each input: texts, or embeddings (n, d)."""
        return self._judged(self.logits(self._checked(X)))

    def predict(
        self,
        X: Any,
        costs: Costs | Money | None = None,
        *,
        limit: RateLimit | str | None = None,
        rule: str | None = None,
        seed: int = 0,
    ) -> Routes:
        """Say for every input who should answer: the client ("local", weak) or the server ("remote", strong).

        Args:
            X: texts, one text, or embeddings (n, d).
            costs: the prices, or :class:`l2h.Money`; c_e = 0.1 and c_1 = 1 where None. Under a limit and without prices
                asking is free, and the limit is used up.
            limit: a bound on asking, as an object or as text: ``"20%"``, ``"100/1h"``. A number in a time is kept by a
                limiter from call to call.
            rule: how a share is met: ``threshold``, ``guaranteed`` or ``stochastic``.
            seed: of what a rule draws. Each call goes on where the last one with this seed stopped.
        """
        judgement = self.judge(X)
        policy = self._policy(limit, rule, self._limiters)
        terms = policy.terms(costs)
        proposal = policy.propose(judgement, terms, continued(self._draws, seed))
        remote = policy.permit(proposal, [len(judgement)])[0] >= 0
        return Routes(
            source=np.where(remote, "remote", "local"),
            reason=reasons(remote, proposal.wanted),
            saving=proposal.saving,
            cost=np.where(remote, *reversed(terms.paid)),
        )

    def evaluate(
        self,
        X: Any,
        client_right: npt.ArrayLike | None = None,
        server_right: npt.ArrayLike | None = None,
        costs: Costs | Money | None = None,
        *,
        limit: RateLimit | str | None = None,
        rule: str | None = None,
        seed: int = 0,
        text_column: str = "prompt",
        dataset: str | None = None,
    ) -> OutcomeReport:
        """Measure the decisions beside never, always and random asking, with the frontier, APGR and CPT.

        ``X`` alone may be a table: a file or a data frame as :func:`l2h.data.outcomes.read_outcomes` takes it.
        """
        if client_right is None and server_right is None:
            known = read_outcomes(X, text_column)
        else:
            known = check_outcomes(X, client_right, server_right, dataset or self.dataset)
        judgement = self.judge(known.X)
        decider = PriceDecider(judgement)

        def policy(_: str) -> Policy:
            return self._policy(limit, rule, {})  # a limiter of its own: measuring spends nothing of predict's

        answered, paid = decider.answered(plain_costs(costs), policy, seed=seed)
        return evaluate_outcomes(
            client_correct=known.client_right,
            server_correct=known.server_right,
            remote=answered.by == SERVER.name,
            score=judgement.gain,
            costs=one_price(paid),
            head_probability=judgement.stated,
            dataset=dataset or known.name,
            seed=self.seed,
            allowed=answered.allowed,
            decider=decider,
            money=costs if isinstance(costs, Money) else None,
        )

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json`` and the arrays into a folder; :meth:`load` reads them back. Nothing is pickled."""
        from l2h.routing.saving import save_router

        return save_router(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Router:
        """Read a router that was saved, or trained by ``l2h train --outcomes``.

        Raises:
            RunError: the folder holds no router, or its files are damaged.
        """
        from l2h.routing.saving import load_router

        return load_router(Path(folder))

    def _checked(self, X: Any) -> Any:
        X = check_prompts(X)
        is_text = isinstance(X, list) and bool(X)
        if self.ngrams is not None and not is_text:
            raise DataError("this router was trained on texts; got numbers: give the prompts")
        if self.ngrams is None and is_text:
            raise DataError(f"this router was trained on embeddings (n, {self.columns}); row 0 is a text: embed it")
        if self.ngrams is None and X.shape[1] != self.columns:
            raise DataError(f"embeddings have length {X.shape[1]}; this router was trained on length {self.columns}")
        return X

    def logits(self, X: Any) -> FloatArray:
        """Return (n, 2), the logits of both heads before calibration, of inputs that were checked."""
        if self.ngrams is None:
            return np.asarray(((X - self.centre) * self.scale) @ self.weights.T + self.bias, dtype=np.float64)
        out = np.empty((len(X), 2))
        for start in range(0, len(X), _CHUNK):
            texts = X[start : start + _CHUNK]
            rows = weigh(self.ngrams.count(texts), self.ngrams, self.scale, len(texts))
            for j in (0, 1):
                part = self.weights[j, rows.column] * rows.value
                out[start : start + _CHUNK, j] = np.bincount(rows.row, weights=part, minlength=len(texts))
        return out + self.bias

    def _judged(self, logits: npt.NDArray[np.floating]) -> Judgement:
        return Judgement.from_heads(logit_terms(logits, self.span) @ self.calibration.T, None)

    def _policy(self, limit: RateLimit | str | None, rule: str | None, limiters: KeptLimiters) -> Policy:
        held_out = self._judged(self.held_out) if limit is not None else None
        return Policy(
            lambda costs, _: (0, costs or Costs(c_e=0.1)), True, lambda _: held_out, limit, rule, kept=limiters
        )


def logit_terms(logits: npt.NDArray[np.floating], span: FloatArray) -> FloatArray:
    """Return (n, 6): both logits, moved into their span, with their squares, their product and 1.

    The calibration of each head is linear in them. It uses both heads, since what is hard for the client is often hard
    for the server too.
    """
    z = np.clip(logits.astype(np.float64), span[:, 0], span[:, 1])
    return np.column_stack([z, z * z, z[:, 0] * z[:, 1], np.ones(len(z))])
