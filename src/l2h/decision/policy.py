"""From judgements to requests: the prices in use, what is worth asking about, and what limits permit."""

from __future__ import annotations  # numpy.random is loaded only where it is used

import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h import limits
from l2h.answers import Answerer
from l2h.costs import BoolArray, Costs, FloatArray, require_costs
from l2h.decision.judgement import TWO, AnyCosts, Judgement, outcome_costs
from l2h.decision.limiters import ALL, AnyLimit, KeptLimiters, LimiterSet, limits_by_name
from l2h.decision.terms import Proposal, Terms
from l2h.errors import NotFittedError, SettingsError
from l2h.limits import Limiter, LimitError, RateLimit, Threshold
from l2h.money import Money, plain_costs

#: How a share of requests can be met.
RULES = ("threshold", "guaranteed", "stochastic")
#: Under a limit and without prices asking is free, and the limit is used up.
FREE = Costs(c_e=0.0, c_1=1.0)
#: How many prices of single calls are remembered.
_REMEMBERED = 64


@dataclass(frozen=True)
class Allowed:
    """How many of some inputs may be asked about under a limit."""

    limit: str  # as a command takes it
    inputs: int  # how many there are
    total: int  # how many of them may be asked about
    by_server: Mapping[str, int]  # how many of each server, by name; never more than in all

    @property
    def share(self) -> float:
        """The share of the inputs that may be asked about."""
        return self.total / self.inputs

    def share_of(self, server: str) -> float:
        """Return the share of the inputs that one server may be asked about."""
        return self.by_server[server] / self.inputs

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, as in ``metrics.json``."""
        values: dict[str, Any] = {"limit": self.limit, "allowed": self.share}
        if len(self.by_server) > 1:
            values["allowed_by_server"] = {name: self.share_of(name) for name in self.by_server}
        return values


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
        version: Hashable = None,  # of the calibration: limiters that were made with another one measure anew
        audit: float = 0.0,  # the share of what is kept that the caller asks about all the same, by chance
        audited: int = 1,  # among how many servers that share is spread
    ) -> None:
        self._select, self._every_price, self._held_out = select, every_price, held_out
        self._answerers, self._version = answerers, version
        self._servers = [answerer.name for answerer in answerers if answerer.remote]
        self._given = set(limit) if isinstance(limit, Mapping) else None
        given = limits_by_name(limit, self._servers)
        made = {name: one for name, one in given.items() if isinstance(one, Limiter)}
        #: Limits by the server's name, or ``all``.
        self.limits = {name: one.limit if isinstance(one, Limiter) else one for name, one in given.items()}
        self._limiters = LimiterSet(self._servers, made, kept)
        self._shares = {
            name: _without_audits(one, audit if name == ALL else audit / audited)
            for name, one in self.limits.items()
            if one.fraction is not None and not one.at_run_time and name not in made
        }
        self._text = ", ".join(str(one) if name == ALL else f"{name}: {one}" for name, one in self.limits.items())
        self._rule = self._checked_rule(rule)
        self._lock = threading.Lock()
        self._terms: dict[Any, Terms] = {}

    def terms(self, costs: AnyCosts | Money | None, which: int | None = None, out: Collection[str] = ()) -> Terms:
        """Return what follows from prices, None for those of the beginning; raise where they cannot be used.

        ``out`` names servers that are left out.
        """
        costs, left_out = plain_costs(costs), frozenset(out)
        if isinstance(costs, Mapping):
            for one in costs.values():
                require_costs(one)
            outcome_costs(self._answerers, costs)
            costs = dict(costs) if len(costs) > 1 else next(iter(costs.values()))
        elif costs is not None:
            require_costs(costs)
        key = _prices(costs), which, left_out
        terms = self._terms.get(key)
        if terms is None:
            terms = self._make_terms(costs, which, left_out)
            with self._lock:
                if len(self._terms) >= _REMEMBERED:
                    self._terms.clear()
                self._terms[key] = terms
        return terms

    def without(self, terms: Terms, names: Collection[str]) -> Terms:
        """Return the terms of the same prices with some servers left out: the others meet the shares."""
        unknown = set(names) - set(self._servers)
        if unknown:
            raise SettingsError(
                f"no server is called {', '.join(sorted(unknown))}; there are: {', '.join(self._servers)}"
            )
        if terms.out == set(names):
            return terms
        return self.terms(terms.costs if terms.stated else None, terms.which, names)

    def settle_on(self, costs: AnyCosts | Money | None, out: Collection[str] = ()) -> Terms:
        """Return the terms of prices that stay, and measure scores by them for limiters that were made for others."""
        terms = self.terms(costs, out=out)
        self._limiters.settle(self._measure(terms), lambda name: self._scores(name, terms))
        return terms

    def propose(self, judgement: Judgement, terms: Terms, rng: np.random.Generator | int) -> Proposal:
        """Return where the rejector would ask and where each server may be asked; no permit is spent.

        ``rng`` breaks ties at a threshold, and draws for the stochastic rule.
        """
        if terms.plain and terms.shares is None:
            saving, wanted = judgement.decide(terms.costs)
            able = wanted
            if terms.q1 is not None:
                able = limits.stochastic(wanted, terms.q1, self._shares[ALL], rng)
            elif self.limits:
                able = wanted | self._fills(terms)
                if terms.threshold is not None:
                    able &= terms.threshold.apply(saving, rng)
            return Proposal(saving, wanted, able[:, None], saving[:, None], np.zeros(len(judgement), dtype=np.intp))
        gain, local = terms.gains(judgement)
        saving = gain.max(axis=1)
        wanted, pays, best = saving >= 0, gain >= 0, gain == saving[:, None]
        present = np.array([name not in terms.out for name in self._servers])
        if terms.q1 is not None:
            sent = limits.stochastic(wanted, terms.q1, self._shares[ALL], rng)
            pays = sent[:, None] & (best | pays) & present
        elif terms.shares is not None:
            gain, pays = terms.shares.apply(gain, rng)
            pays &= present
        else:
            if self._fills(terms):
                pays = np.broadcast_to(present, gain.shape)
            if terms.threshold is not None:
                above = terms.threshold.apply(saving, rng)
                pays = above[:, None] & pays & (best | (gain > terms.threshold.value))
        return Proposal(saving, wanted, pays, gain, local)

    def permit(
        self,
        proposal: Proposal,
        room: Sequence[int | None],
        until: float | None = None,
        again: bool = False,
        by_chance: npt.NDArray[np.intp] | None = None,
    ) -> tuple[npt.NDArray[np.intp], int]:
        """Return int (n,), the server that is asked about each input or -1, and how many inputs were decided.

        The best server that may be asked is asked, or the next best where its limiter refuses. Each server has room
        for some inputs, None where it cannot be asked at all. An input that would be asked about, but for which no
        server has room left, counts as asked of its best server, and no limiter is asked about it: the caller keeps
        what is beyond the room of a server. One that nobody would be asked about still counts in a window of inputs. An
        :class:`L2HError` says that a limiter's clock or file fails. Where the limiters have not decided until a time
        of ``time.monotonic``, the rest is not asked about. ``again`` says that the inputs were proposed before, and a
        server failed to answer: they are no new requests.

        ``by_chance`` (n,) names the server of every input that is to be asked about if it would be kept, -1 for none.
        Its permit is taken right after the decision on its input, so that it counts at that place of a window. What is
        not permitted becomes -1.
        """
        able, gain, n = proposal.able, proposal.gain, len(proposal.wanted)
        if not self._limiters:
            first = _best(gain, able)
            if len(room) == 1 or not _is_overfull(first, room):
                if by_chance is not None:
                    by_chance[first >= 0] = -1
                return first, n
        left = [most or 0 for most in room]
        counted = self._limiters.counts_inputs and any(most is not None for most in room)
        counts = proposal.wanted.tolist() if self._limiters else [True] * n
        order = [[0]] * n if len(room) == 1 else np.argsort(-gain, axis=1, kind="stable").tolist()
        choice = np.full(n, -1)
        extra = [-1] * n if by_chance is None else by_chance.tolist()
        for i, (servers, may, gains) in enumerate(zip(order, able.tolist(), gain.tolist(), strict=True)):
            asked = [s for s in servers if may[s]]
            roomy = [s for s in asked if left[s]]
            if not roomy and (asked or not (counted or any(left))):
                if asked and counts[i]:
                    choice[i] = asked[0]
            else:
                granted = self._limiters.grant(gains, roomy, until, again)
                if granted is None:
                    extra[i:] = [-1] * (n - i)
                    n = i
                    break
                if granted >= 0:
                    choice[i] = granted
                    left[granted] -= 1
            if extra[i] >= 0 and (choice[i] >= 0 or not self._limiters.grant_one(extra[i], len(room), until)):
                extra[i] = -1
        if by_chance is not None:
            by_chance[:] = extra
        return choice, n

    def allowed(self, proposal: Proposal, choice: npt.NDArray[np.intp]) -> Allowed | None:
        """Return how many of the inputs could be asked about, by what :meth:`permit` chose; None without limits.

        Of a share, that share of them. Of a limiter, what it granted where it refused some, else all that its limit
        lets be asked at once.
        """
        if not self.limits:
            return None
        n, asked = len(choice), np.bincount(choice[choice >= 0], minlength=len(self._servers)).tolist()
        best = np.where(choice < 0, -np.inf, proposal.gain[np.arange(n), choice])
        most = {}
        for name, limit in self.limits.items():
            most[name] = limit.most(n)
            if name in self._shares:
                continue
            if name == ALL:
                count, refused = sum(asked), proposal.able.any(axis=1) & (choice < 0)
            else:
                s = self._servers.index(name)
                count, refused = asked[s], proposal.able[:, s] & (proposal.gain[:, s] > best)
            most[name] = count if refused.any() else max(count, most[name])
        own = [min(most.get(name, n), most.get(ALL, n)) for name in self._servers]
        text = ", ".join(f"{name}={limit}" for name, limit in self.limits.items())
        if set(self.limits) == {ALL}:
            text = str(self.limits[ALL])
        return Allowed(text, n, min(most.get(ALL, n), sum(own)), dict(zip(self._servers, own, strict=True)))

    def status(self) -> dict[str, Any] | None:
        """Return the limiter's status as plain values, the last known while it is busy; None without a limiter.

        Where limits were given by names, the values by these names.
        """
        found = self._limiters.status()
        if self._given is None:
            return found.get(ALL)
        if ALL in found and ALL not in self._given:  # a limit of the only server is kept as one over all
            found = {self._servers[0]: found[ALL]}
        return found or None

    def threshold(self, costs: AnyCosts, which: int, out: frozenset[str] = frozenset()) -> Threshold:
        """Return the cut on the expected saving that meets the share; raise where calibration samples are missing."""
        limit, share = self.limits[ALL], self._shares[ALL]
        gain, _ = Terms(costs, which, True, self._answerers, out).gains(self._calibrated(which))
        saving = gain.max(axis=1)
        rule = self._rule or ("threshold" if limit.confidence is None else "guaranteed")
        if rule == "threshold":
            return limits.threshold_for(saving, share)
        assert rule == "guaranteed", f"rule {rule!r} has no threshold"
        return limits.guaranteed_threshold(saving, share, limit.confidence or 0.95)

    @property
    def guarantees(self) -> bool:
        """Whether a share is promised with a confidence."""
        sure = any(self.limits[name].confidence is not None for name in self._shares)
        return self._rule == "guaranteed" or (self._rule is None and sure)

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

    def _make_terms(self, costs: AnyCosts | None, which: int | None, out: frozenset[str]) -> Terms:
        stated = costs is not None
        if self.limits and costs is None and self._every_price:
            costs = FREE
        which, costs = self._select(costs, which)
        terms = Terms(costs, which, stated, self._answerers, out)
        if self._shares:
            terms = replace(terms, **self._met(terms))
        for name, limit in self.limits.items():
            if name not in self._shares:
                self._limiters.make(name, limit, self._measure(terms), partial(self._scores, name, terms))
        return terms

    def _measure(self, terms: Terms) -> Hashable:
        """Return what is equal where limiters need not measure anew."""
        return _prices(terms.costs), terms.which, terms.out, self._version

    def _met(self, terms: Terms) -> dict[str, Any]:
        if self._rule == "stochastic":
            held = self._calibrated(terms.which)
            asks = held.remote(terms.costs) if terms.plain else terms.gains(held)[0].max(axis=1) >= 0
            return {"q1": float(asks.mean())}
        if set(self._shares) == {ALL}:
            return {"threshold": self.threshold(terms.costs, terms.which, terms.out)}
        gain, _ = terms.gains(self._calibrated(terms.which))
        own = [self._shares.get(name) for name in self._servers]
        return {"shares": limits.shares_for(gain, own, self._shares.get(ALL), self._fills(terms))}

    def _fills(self, terms: Terms) -> bool:
        """Return whether a limit over all is used up: without prices. With them what does not pay is not sent."""
        return ALL in self.limits and not terms.stated

    def _scores(self, name: str, terms: Terms) -> FloatArray | None:
        """Return what a limiter ranks calibration samples by; None where there are none.

        That is what a server saves over the next best answer, and for the limiter over all, over the best local answer.
        """
        held = self._held_out(terms.which)
        if held is None:
            return None
        gain, _ = terms.gains(held)
        if terms.shares is not None:
            gain = gain - terms.shares.prices
        if name == ALL:
            return np.asarray(gain.max(axis=1))
        s = self._servers.index(name)
        return np.asarray(gain[:, s] - np.delete(gain, s, axis=1).max(axis=1, initial=0.0))

    def _calibrated(self, which: int) -> Judgement:
        held = self._held_out(which)
        if held is None:
            raise NotFittedError(
                f"limit={self._text} is met on calibration samples, and there are none: call calibrate(X_cal, y_cal) "
                "(before the system is exported), or give a number in a time, such as RateLimit(100, per='1h')"
            )
        return held


def _without_audits(limit: RateLimit, audit: float) -> float:
    """Return the share that may be sent for what it gains, so that with audits of the rest the limit is met."""
    share = limit.fraction
    assert share is not None
    if not audit:
        return share
    if share <= audit:
        raise LimitError(f"audit={audit:g} takes all of the limit {limit}: give a smaller share to audits")
    return (share - audit) / (1 - audit)


def _prices(costs: AnyCosts | None) -> Hashable:
    """Return what is equal for equal prices."""
    return frozenset(costs.items()) if isinstance(costs, Mapping) else costs


def _best(gain: FloatArray, able: BoolArray) -> npt.NDArray[np.intp]:
    """Return the server with the largest gain of those that may be asked, -1 for none."""
    if gain.shape[1] == 1:
        return np.where(able[:, 0], 0, -1)
    return np.where(able.any(axis=1), np.where(able, gain, -np.inf).argmax(axis=1), -1)


def _is_overfull(choice: npt.NDArray[np.intp], room: Sequence[int | None]) -> bool:
    used = np.bincount(choice[choice >= 0], minlength=len(room))
    return any(count > (most or 0) for count, most in zip(used.tolist(), room, strict=True))
