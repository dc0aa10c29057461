"""From judgements to requests: the prices in use, what is worth asking about, and what a limit permits."""

from __future__ import annotations  # numpy.random is loaded only where it is used

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from l2h import limits
from l2h.costs import BoolArray, Costs, FloatArray, require_costs
from l2h.decision.judgement import Judgement
from l2h.errors import NotFittedError, SettingsError
from l2h.limits import Limiter, RateLimit, Threshold

#: How a share of requests can be met.
RULES = ("threshold", "guaranteed", "stochastic")
#: Under a limit and without prices asking is free, and the limit is used up.
FREE = Costs(c_e=0.0, c_1=1.0)
#: Every score is at least this, except minus infinity, which stands for what does not pay.
_LOWEST = float(np.finfo(np.float64).min)
#: Seconds for which a limiter's status is waited for.
_SOON = 0.01
#: How many prices of single calls are remembered.
_REMEMBERED = 64
#: Held where limiters are shared between the policies of several calls; of the module, so that what keeps them can be
#: copied and pickled.
_SHARING = threading.Lock()
if hasattr(os, "register_at_fork"):  # else it could stay held in the child for ever
    os.register_at_fork(before=_SHARING.acquire, after_in_parent=_SHARING.release, after_in_child=_SHARING.release)


@dataclass(frozen=True)
class Terms:
    """The prices of a call, and what follows from them."""

    costs: Costs  # the prices
    which: int  # number of the rejector that answers for them
    stated: bool  # whether a caller stated them. What does not pay is then not sent to fill a limit
    threshold: Threshold | None = None  # the cut that meets a share of all requests
    q1: float | None = None  # the share that the rejector sends of the calibration samples, for the stochastic rule
    _outcomes: tuple[float, float, float, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        c = self.costs
        object.__setattr__(self, "_outcomes", (c.c_ce, c.c_ce - c.c_cc, c.c_se, c.c_se - c.c_sc))

    def keeps(self, judgement: Judgement) -> bool:
        """Return whether one input stays local, as :meth:`Judgement.remote` decides but without work on arrays."""
        if judgement.probability is None:
            local, remote = judgement.scores[0].tolist()
            return not local <= remote
        wrong, gained, helped_wrong, helped = self._outcomes
        client, server = judgement.probability[0].tolist()
        saving = (wrong - gained * client) - (helped_wrong - helped * server)
        return not saving >= 0


class Proposal(NamedTuple):
    """What may be asked about, before a limiter is asked for permits."""

    saving: FloatArray  # (n,), by asking about each input
    wanted: BoolArray  # bool (n,), where the rejector would ask
    able: BoolArray  # bool (n,), where the server may be asked as far as a limiter permits


class Policy:
    """Decides about inputs by their judgement, the prices and a limit.

    A share is met by the rule ``threshold`` (what gains most; the default), ``guaranteed`` (the default of a limit with
    a confidence) or ``stochastic`` (the paper's).
    """

    def __init__(
        self,
        select: Callable[[Costs | None, int | None], tuple[int, Costs]],  # as l2h.decision.select_rejector
        every_price: bool,  # whether the rejector answers for every price
        held_out: Callable[[int], Judgement | None],  # of the calibration samples, by the rejector's number
        limit: RateLimit | Limiter | None = None,  # a bound on asking, or the limiter that keeps it
        rule: str | None = None,
    ) -> None:
        self._select, self._every_price, self._held_out = select, every_price, held_out
        self._limit = limit.limit if isinstance(limit, Limiter) else limit
        self.limiter = limit if isinstance(limit, Limiter) else None
        share = self._limit is not None and self._limit.fraction is not None and self._limit.window is None
        self._meets_share = share and self.limiter is None
        if rule is not None and self._limit is None:
            raise SettingsError(f"rule={rule!r} goes with a limit: limit=l2h.RateLimit(fraction=0.2)")
        if rule is not None and not self._meets_share:
            raise SettingsError(f"rule={rule!r} is for a share; {self._limit} is kept by the limiter")
        if rule is not None and rule not in RULES:
            raise SettingsError(f"rule={rule!r} is unknown; known: {', '.join(RULES)}")
        self._rule = rule
        self._lock = threading.Lock()
        self._terms: dict[tuple[Costs | None, int | None], Terms] = {}
        #: Savings of the calibration samples at the prices that the limiter was made for.
        self._calibration: FloatArray | None = None
        #: Sorted savings of the calibration samples, at the prices of now and at those that the limiter was made for.
        #: Other prices move all savings, which says nothing of the inputs. So a saving keeps its rank for the limiter:
        #: the k-th largest of the calibration samples stays the k-th largest. None where the prices are the same.
        self._scale: tuple[FloatArray, FloatArray] | None = None

    def terms(self, costs: Costs | None, which: int | None = None) -> Terms:
        """Return what follows from prices, None for those of the beginning; raise where they cannot be used."""
        if costs is not None:
            require_costs(costs)
        terms = self._terms.get((costs, which))
        if terms is None:
            terms = self._make_terms(costs, which)
            with self._lock:
                if len(self._terms) >= _REMEMBERED:
                    self._terms.clear()
                self._terms[costs, which] = terms
        return terms

    def share_limiter(self, kept: dict[RateLimit, Limiter]) -> None:
        """Keep the limiter for later calls, or use the one kept for its limit: the cap is over all calls and threads.

        To be called once the terms are known, which make the limiter, and before it is asked for permits.
        """
        if self.limiter is not None:
            with _SHARING:
                self.limiter = kept.setdefault(self.limiter.limit, self.limiter)

    def settle_on(self, costs: Costs | None) -> Terms:
        """Return the terms of prices that stay, and measure savings by them for a limiter that was made for others."""
        terms = self.terms(costs)
        held = None if self._calibration is None else self._held_out(terms.which)
        if held is not None and self._calibration is not None:
            saving = held.saving(terms.costs)
            same = np.array_equal(saving, self._calibration)
            self._scale = None if same else (np.sort(saving), np.sort(self._calibration))
        return terms

    def propose(self, judgement: Judgement, terms: Terms, rng: np.random.Generator | int) -> Proposal:
        """Return where the rejector would ask and where the server may be asked; no permit is spent.

        ``rng`` breaks ties at a threshold, and draws for the stochastic rule.
        """
        saving, wanted = judgement.decide(terms.costs)
        if self._limit is None:
            return Proposal(saving, wanted, wanted)
        if terms.q1 is not None:
            assert self._limit.fraction is not None
            return Proposal(saving, wanted, limits.stochastic(wanted, terms.q1, self._limit.fraction, rng))
        # With a price a limit is only a bound: what does not pay is not sent to fill it.
        pays: BoolArray = wanted | (not terms.stated)
        if terms.threshold is not None:
            pays = terms.threshold.apply(saving, rng) & pays
        return Proposal(saving, wanted, pays)

    def permit(self, proposal: Proposal, most: int | None, until: float | None = None) -> tuple[BoolArray, int]:
        """Return bool (n,), what is asked about, and how many inputs were decided; a limiter gives or refuses permits.

        At most ``most`` inputs can be sent, none where it is None. The limiter is not asked about those beyond: all of
        them that are wanted count as asked, and the caller keeps them. An :class:`L2HError` says that its clock or file
        fails. Where it has not decided until a time of ``time.monotonic``, the rest is not asked about.
        """
        if self.limiter is None:
            return proposal.able, len(proposal.able)
        remote = proposal.wanted.copy()
        if most is None:
            return remote, len(remote)
        given = 0
        saving = proposal.saving if self._scale is None else _interpolated(proposal.saving, *self._scale)
        for i, (score, able) in enumerate(zip(saving.tolist(), proposal.able.tolist(), strict=True)):
            if able and given == most:
                break
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                remote[i:] = False
                return remote, i
            permit = self.limiter.allow(score if able else -np.inf, left)
            if permit.reason == limits.TIMED_OUT:
                remote[i:] = False
                return remote, i
            # A limiter of the user's may let through what does not pay.
            remote[i] = permit.granted and able
            given += int(remote[i])
        return remote, len(remote)

    def status(self) -> dict[str, Any] | None:
        """Return the limiter's status as plain values, the last known while it is busy; None without a limiter."""
        if self.limiter is None:
            return None
        status = self.limiter.status(timeout=_SOON).as_dict()
        if self._scale is not None and status["threshold"] is not None:
            status["threshold"] = float(_interpolated(np.array([status["threshold"]]), *reversed(self._scale))[0])
        return status

    def threshold(self, costs: Costs, which: int) -> Threshold:
        """Return the cut on the expected saving that meets the share; raise where calibration samples are missing."""
        assert self._limit is not None
        assert self._limit.fraction is not None
        saving = self._calibrated(which).saving(costs)
        confidence = self._limit.confidence
        rule = self._rule or ("threshold" if confidence is None else "guaranteed")
        if rule == "threshold":
            return limits.threshold_for(saving, self._limit.fraction)
        assert rule == "guaranteed", f"rule {rule!r} has no threshold"
        return limits.guaranteed_threshold(saving, self._limit.fraction, 0.95 if confidence is None else confidence)

    def _make_terms(self, costs: Costs | None, which: int | None) -> Terms:
        stated = costs is not None
        if self._limit is not None and costs is None and self._every_price:
            costs = FREE
        which, costs = self._select(costs, which)
        if self._meets_share and self._rule == "stochastic":
            return Terms(costs, which, stated, q1=float(self._calibrated(which).remote(costs).mean()))
        if self._meets_share:
            return Terms(costs, which, stated, threshold=self.threshold(costs, which))
        if self._limit is not None and self.limiter is None:
            held = self._held_out(which)
            calibration = None if held is None else held.saving(costs)
            with self._lock:
                if self.limiter is None:
                    self._calibration = calibration
                    self.limiter = Limiter(self._limit, calibration=calibration, min_score=_LOWEST)
        return Terms(costs, which, stated)

    def _calibrated(self, which: int) -> Judgement:
        held = self._held_out(which)
        if held is None:
            raise NotFittedError(
                f"limit={self._limit} is met on calibration samples, and there are none: call calibrate(X_cal, y_cal) "
                "(before the system is exported), or give a number in a time, such as RateLimit(100, per='1h')"
            )
        return held


def _interpolated(saving: FloatArray, before: FloatArray, after: FloatArray) -> FloatArray:
    beyond = saving - np.clip(saving, before[0], before[-1])
    return np.asarray(np.interp(saving, before, after) + beyond, dtype=np.float64)
