"""From judgements to requests: the prices in use, what is worth asking about, and what limits permit."""

from __future__ import annotations  # numpy.random is loaded only where it is used

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import limits
from l2h.answers import Answerer
from l2h.costs import BoolArray, Costs, FloatArray, require_costs
from l2h.decision.judgement import TWO, AnyCosts, Judgement, outcome_costs
from l2h.decision.terms import Proposal, Terms
from l2h.errors import NotFittedError, SettingsError
from l2h.limits import Limiter, LimitError, Permit, RateLimit, Threshold

#: One limit over all servers, or limits by the server's name, ``all`` for all servers together.
AnyLimit = RateLimit | Limiter | str | Mapping[str, RateLimit | Limiter | str]
#: Limiters that are kept from call to call, by the name that they limit and by their limit.
KeptLimiters = dict[tuple[str, RateLimit], Limiter]
#: Names all servers together in a mapping of limits.
ALL = "all"
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


class Policy:
    """Decides about inputs by their judgement, the prices and limits.

    One share over all servers is met by the rule ``threshold`` (what gains most; the default), ``guaranteed`` (the
    default of a limit with a confidence) or ``stochastic`` (the paper's). Shares of several servers are met by prices
    that are added to theirs. Limits in windows are kept by limiters: the server's own, then the one over all.
    """

    def __init__(
        self,
        select: Callable[..., tuple[int, AnyCosts]],  # of costs and a number, as l2h.decision.select_rejector
        every_price: bool,  # whether the rejector answers for every price
        held_out: Callable[[int], Judgement | None],  # of the calibration samples, by the rejector's number
        limit: AnyLimit | None = None,  # bounds on asking, or the limiters that keep them
        rule: str | None = None,
        answerers: tuple[Answerer, ...] = TWO,
        kept: KeptLimiters | None = None,  # limiters of earlier calls; those that this policy makes are added
    ) -> None:
        self._select, self._every_price, self._held_out = select, every_price, held_out
        self._answerers, self._kept = answerers, kept
        self._servers = [answerer.name for answerer in answerers if answerer.remote]
        self._named = isinstance(limit, Mapping)
        given = _by_name(limit, self._servers)
        #: Limits by the server's name, or ``all``.
        self.limits = {name: one.limit if isinstance(one, Limiter) else one for name, one in given.items()}
        #: The limiters that keep those in windows; made with the first terms.
        self.limiters = {name: one for name, one in given.items() if isinstance(one, Limiter)}
        self._shares = {
            name: one.fraction
            for name, one in self.limits.items()
            if one.fraction is not None and one.window is None and name not in self.limiters
        }
        self._text = ", ".join(str(one) if name == ALL else f"{name}: {one}" for name, one in self.limits.items())
        self._rule = self._checked_rule(rule)
        self._lock = threading.Lock()
        self._terms: dict[Any, Terms] = {}
        #: Scores of the calibration samples at the prices that the limiters were made for.
        self._calibration: dict[str, FloatArray] = {}
        #: Sorted scores of the calibration samples, at the prices of now and at those that a limiter was made for.
        #: Other prices move all scores, which says nothing of the inputs. So a score keeps its rank for the limiter:
        #: the k-th largest of the calibration samples stays the k-th largest. Nothing where the prices are the same.
        self._scale: dict[str, tuple[FloatArray, FloatArray]] = {}

    def terms(self, costs: AnyCosts | None, which: int | None = None) -> Terms:
        """Return what follows from prices, None for those of the beginning; raise where they cannot be used."""
        return self._remembered(costs, which, frozenset())

    def without(self, terms: Terms, names: Collection[str]) -> Terms:
        """Return the terms of the same prices with some servers left out: the others meet the shares."""
        unknown = set(names) - set(self._servers)
        if unknown:
            raise SettingsError(f"no server is called {', '.join(sorted(unknown))}; there are: {self._listed()}")
        if terms.out == set(names):
            return terms
        return self._remembered(terms.costs if terms.stated else None, terms.which, frozenset(names))

    def settle_on(self, costs: AnyCosts | None) -> Terms:
        """Return the terms of prices that stay, and measure scores by them for limiters that were made for others."""
        terms = self.terms(costs)
        held = self._held_out(terms.which) if self._calibration else None
        if held is not None:
            for name, before in self._calibration.items():
                scores = self._scores(name, held, terms)
                if np.array_equal(scores, before):
                    self._scale.pop(name, None)
                else:
                    self._scale[name] = np.sort(scores), np.sort(before)
        return terms

    def propose(self, judgement: Judgement, terms: Terms, rng: np.random.Generator | int) -> Proposal:
        """Return where the rejector would ask and where each server may be asked; no permit is spent.

        ``rng`` breaks ties at a threshold, and draws for the stochastic rule.
        """
        if terms.plain:
            saving, wanted = judgement.decide(terms.costs)
            gain, local = saving[:, None], np.zeros(len(judgement), dtype=np.intp)
            best: BoolArray = np.ones((len(judgement), 1), dtype=np.bool_)
            pays: BoolArray = wanted[:, None]
        else:
            gain, local = terms.gains(judgement)
            saving = gain.max(axis=1)
            wanted, pays, best = saving >= 0, gain >= 0, gain == saving[:, None]
        present = np.array([name not in terms.out for name in self._servers])
        if terms.q1 is not None:
            sent = limits.stochastic(wanted, terms.q1, self._shares[ALL], rng)
            return Proposal(saving, wanted, sent[:, None] & (best | pays) & present, gain, local)
        if terms.shares is not None:
            gain, pays = terms.shares.apply(gain, rng)
            return Proposal(saving, wanted, pays & present, gain, local)
        if self._fills(terms):
            pays = np.broadcast_to(present, gain.shape)
        if terms.threshold is not None:
            above = terms.threshold.apply(saving, rng)
            pays = above[:, None] & pays & (best | (gain > terms.threshold.value))
        return Proposal(saving, wanted, pays, gain, local)

    def permit(
        self, proposal: Proposal, room: Sequence[int | None], until: float | None = None, again: bool = False
    ) -> tuple[npt.NDArray[np.intp], int]:
        """Return int (n,), the server that is asked about each input or -1, and how many inputs were decided.

        The best server that may be asked is asked, or the next best where its limiter refuses. Each server has room
        for some inputs, None where it cannot be asked at all. An input that would be asked about, but for which no
        server has room left, counts as asked of its best server, and no limiter is asked about it: the caller keeps
        what is beyond the room of a server. An :class:`L2HError` says that a limiter's clock or file fails. Where the
        limiters have not decided until a time of ``time.monotonic``, the rest is not asked about. ``again`` says that
        the inputs were proposed before, and a server failed to answer: they are no new requests.
        """
        able, gain = proposal.able, proposal.gain
        first = _best(gain, able)
        if not self.limiters and (able.shape[1] == 1 or not self._overfull(first, room)):
            return first, len(first)
        choice = np.where(proposal.wanted, first, -1) if self.limiters else first.copy()
        left = [0 if number is None else number for number in room]
        if not any(left):
            return choice, len(choice)
        order = np.argsort(-gain, axis=1, kind="stable").tolist()
        for i, (servers, may) in enumerate(zip(order, able.tolist(), strict=True)):
            asked = [s for s in servers if may[s]]
            roomy = [s for s in asked if left[s]]
            if asked and not roomy:
                if any(left):
                    continue
                break
            granted = self._grant(gain[i].tolist(), roomy, until, again)
            if granted is None:
                choice[i:] = -1
                return choice, i
            choice[i] = granted
            if granted >= 0:
                left[granted] -= 1
        return choice, len(choice)

    def status(self) -> dict[str, Any] | None:
        """Return the limiter's status as plain values, the last known while it is busy; None without a limiter.

        Where limits were given by names, the values by these names.
        """
        found = {name: self._status(name, limiter) for name, limiter in self.limiters.items()}
        if self._named:
            return found or None
        return found.get(ALL)

    def threshold(self, costs: AnyCosts, which: int, out: frozenset[str] = frozenset()) -> Threshold:
        """Return the cut on the expected saving that meets the share; raise where calibration samples are missing."""
        limit = self.limits[ALL]
        assert limit.fraction is not None
        saving = self._scores(ALL, self._calibrated(which), Terms(costs, which, True, self._answerers, out))
        rule = self._rule or ("threshold" if limit.confidence is None else "guaranteed")
        if rule == "threshold":
            return limits.threshold_for(saving, limit.fraction)
        assert rule == "guaranteed", f"rule {rule!r} has no threshold"
        return limits.guaranteed_threshold(saving, limit.fraction, limit.confidence or 0.95)

    def _checked_rule(self, rule: str | None) -> str | None:
        if rule is not None and not self.limits:
            raise SettingsError(f"rule={rule!r} goes with a limit: limit=l2h.RateLimit(fraction=0.2)")
        if rule is not None and not self._shares:
            raise SettingsError(f"rule={rule!r} is for a share; {self._text} is kept by the limiter")
        if rule is not None and rule not in RULES:
            raise SettingsError(f"rule={rule!r} is unknown; known: {', '.join(RULES)}")
        if set(self._shares) - {ALL}:
            sure = [name for name in self._shares if self.limits[name].confidence is not None]
            if sure:
                raise LimitError(
                    f"limit of {sure[0]}: {self.limits[sure[0]]} has a confidence, which is for one share over all "
                    f"servers: leave out '@', or limit 'all' alone"
                )
            if rule not in (None, "threshold"):
                raise SettingsError(f"rule={rule!r} is for one share over all servers; the limits are {self._text}")
        return rule

    def _remembered(self, costs: AnyCosts | None, which: int | None, out: frozenset[str]) -> Terms:
        if isinstance(costs, Mapping):
            for one in costs.values():
                require_costs(one)
            outcome_costs(self._answerers, costs)
            costs = dict(costs) if len(costs) > 1 else next(iter(costs.values()))
        elif costs is not None:
            require_costs(costs)
        key = (frozenset(costs.items()) if isinstance(costs, dict) else costs, which, out)
        terms = self._terms.get(key)
        if terms is None:
            terms = self._make_terms(costs, which, out)
            with self._lock:
                if len(self._terms) >= _REMEMBERED:
                    self._terms.clear()
                self._terms[key] = terms
        return terms

    def _make_terms(self, costs: AnyCosts | None, which: int | None, out: frozenset[str]) -> Terms:
        stated = costs is not None
        if self.limits and costs is None and self._every_price:
            costs = FREE
        which, costs = self._select(costs, which)
        terms = Terms(costs, which, stated, self._answerers, out)
        if self._shares:
            terms = replace(terms, **self._met(terms))
        self._make_limiters(terms)
        return terms

    def _met(self, terms: Terms) -> dict[str, Any]:
        """Return what meets the shares at some terms."""
        if self._rule == "stochastic":
            held = self._calibrated(terms.which)
            asks = held.remote(terms.costs) if terms.plain else terms.gains(held)[0].max(axis=1) >= 0
            return {"q1": float(asks.mean())}
        if set(self._shares) == {ALL}:
            return {"threshold": self.threshold(terms.costs, terms.which, terms.out)}
        gain, _ = terms.gains(self._calibrated(terms.which))
        own = [self._shares.get(name) for name in self._servers]
        return {"shares": limits.shares_for(gain, own, self._shares.get(ALL), self._fills(terms))}

    def _make_limiters(self, terms: Terms) -> None:
        for name, limit in self.limits.items():
            if name in self.limiters or name in self._shares:
                continue
            with _SHARING:
                known = None if self._kept is None else self._kept.get((name, limit))
            if known is None:
                held = self._held_out(terms.which)
                scores = None if held is None else self._scores(name, held, terms)
                made = Limiter(limit, calibration=scores, min_score=_LOWEST)
                with _SHARING:
                    known = made if self._kept is None else self._kept.setdefault((name, limit), made)
                if known is made and scores is not None:
                    self._calibration[name] = scores
            with self._lock:
                self.limiters.setdefault(name, known)

    def _fills(self, terms: Terms) -> bool:
        """Return whether a limit over all is used up: without prices. With them what does not pay is not sent."""
        return ALL in self.limits and not terms.stated

    def _scores(self, name: str, judgement: Judgement, terms: Terms) -> FloatArray:
        """Return (n,), what a limiter ranks by: what a server saves over the next best answer, for all over a local."""
        gain, _ = terms.gains(judgement)
        if terms.shares is not None:
            gain = gain - terms.shares.prices
        if name == ALL:
            return np.asarray(gain.max(axis=1))
        s = self._servers.index(name)
        others = np.delete(gain, s, axis=1)
        return np.asarray(gain[:, s] - others.max(axis=1, initial=0.0))

    def _grant(self, gain: list[float], servers: list[int], until: float | None, again: bool) -> int | None:
        """Return the first of these servers that limiters permit, -1 for none, None where they did not decide in time.

        Every limiter is asked once about every input, which may be a request of its window. The one over all is asked
        where the server's own would give a permit, so that neither spends one that the other refuses.
        """
        waiting = dict(self.limiters)
        overall = waiting.get(ALL)
        repeated: dict[str, Any] = {"again": True} if again else {}
        found = -1
        for place, s in enumerate(servers):
            own = waiting.pop(self._servers[s], None)
            score = self._scaled(ALL, gain[s])

            def ask_overall(left: float | None, score: float = score) -> Permit:
                assert overall is not None
                waiting.pop(ALL)
                return overall.allow(score, left, **repeated)

            if own is not None:
                rival = max([0.0, *(gain[other] for other in servers[place + 1 : place + 2])])
                value = self._scaled(self._servers[s], gain[s] - rival)
                agreed: dict[str, Any] = {} if overall is None else {"other": ask_overall}
                permit = own.allow(value, _left(until), **repeated, **agreed)
            elif overall is not None:
                permit = ask_overall(_left(until))
            else:
                found = s
                break
            if permit.reason == limits.TIMED_OUT:
                return None
            if permit.granted:
                found = s
                break
            if overall is not None and ALL not in waiting:  # it refused, and would refuse the others too
                break
        if not again:
            for limiter in waiting.values():
                if limiter.allow(-np.inf, _left(until)).reason == limits.TIMED_OUT and found < 0:
                    return None
        return found

    def _scaled(self, name: str, score: float) -> float:
        return score if name not in self._scale else _interpolated(score, *self._scale[name])

    def _status(self, name: str, limiter: Limiter) -> dict[str, Any]:
        status = limiter.status(timeout=_SOON).as_dict()
        if name in self._scale and status["threshold"] is not None:
            status["threshold"] = _interpolated(status["threshold"], *reversed(self._scale[name]))
        return status

    def _calibrated(self, which: int) -> Judgement:
        held = self._held_out(which)
        if held is None:
            raise NotFittedError(
                f"limit={self._text} is met on calibration samples, and there are none: call calibrate(X_cal, y_cal) "
                "(before the system is exported), or give a number in a time, such as RateLimit(100, per='1h')"
            )
        return held

    def _listed(self) -> str:
        return ", ".join(self._servers)

    @staticmethod
    def _overfull(choice: npt.NDArray[np.intp], room: Sequence[int | None]) -> bool:
        used = np.bincount(choice[choice >= 0], minlength=len(room))
        return any(count > (0 if most is None else most) for count, most in zip(used.tolist(), room, strict=True))


def _by_name(limit: AnyLimit | None, servers: list[str]) -> dict[str, RateLimit | Limiter]:
    """Return limits by the names of what they limit; a limit of the only server is one over all."""
    if limit is None:
        return {}
    named = limit if isinstance(limit, Mapping) else {ALL: limit}
    unknown = set(named) - {*servers, ALL}
    if unknown:
        raise LimitError(
            f"limit names {', '.join(sorted(map(str, unknown)))}; the servers are {', '.join(servers)}, and "
            f"{ALL!r} is all of them together"
        )
    read: dict[str, RateLimit | Limiter] = {}
    for name, one in named.items():
        value = one if isinstance(one, Limiter) else limits.as_limit(one)
        if value is None:
            raise LimitError(f"limit of {name} is None: leave it out, or give one")
        read[name] = value
    if len(servers) == 1 and set(read) == set(servers):
        return {ALL: read[servers[0]]}
    return read


def _best(gain: FloatArray, able: BoolArray) -> npt.NDArray[np.intp]:
    if gain.shape[1] == 1:
        return np.where(able[:, 0], 0, -1)
    best = np.where(able, gain, -np.inf).argmax(axis=1)
    return np.where(able.any(axis=1), best, -1)


def _left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()


def _interpolated(score: float, before: FloatArray, after: FloatArray) -> float:
    beyond = score - min(max(score, before[0]), before[-1])
    return float(np.interp(score, before, after) + beyond)
