"""What is kept from call to call: draws, and the limiters of single servers and over all, which must both agree."""

import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np

from l2h import limits
from l2h.costs import FloatArray
from l2h.errors import about
from l2h.limits import Limiter, LimitError, Permit, RateLimit

#: One limit over all servers, or limits by the server's name, ``all`` for all servers together.
AnyLimit = RateLimit | Limiter | str | Mapping[str, RateLimit | Limiter | str]
#: Limiters that are kept from call to call, by the name that they limit and by their limit.
KeptLimiters = dict[tuple[str, RateLimit], Limiter]
#: Random numbers by their seed: a later call goes on where the one before it stopped.
KeptDraws = dict[int, np.random.Generator]
#: How many seeds are remembered.
_REMEMBERED = 64
#: Names all servers together in a mapping of limits.
ALL = "all"
#: Every score is at least this, except minus infinity, which stands for what does not pay.
_LOWEST = float(np.finfo(np.float64).min)
#: Seconds for which a limiter's status is waited for.
_SOON = 0.01
#: Held where limiters are shared between the policies of several calls; of the module, so that what keeps them can be
#: copied and pickled.
_SHARING = threading.Lock()
if hasattr(os, "register_at_fork"):  # else it could stay held in the child for ever
    os.register_at_fork(before=_SHARING.acquire, after_in_parent=_SHARING.release, after_in_child=_SHARING.release)


class LimiterSet:
    """The limiters by the names of what they limit, and what they rank inputs by at the prices of now."""

    def __init__(self, servers: list[str], given: Mapping[str, Limiter], kept: KeptLimiters | None) -> None:
        self._servers, self._kept = servers, kept
        self._limiters = dict(given)
        self._made: set[str] = set()  # names of those that are not the user's own

    def __bool__(self) -> bool:
        return bool(self._limiters)

    @property
    def counts_inputs(self) -> bool:
        """Whether a limit is a share of inputs in a row: those that are not worth asking about count, too."""
        return any(limiter.limit.counts_requests for limiter in self._limiters.values())

    def make(self, name: str, limit: RateLimit, prices: Hashable, scores: Callable[[], FloatArray | None]) -> None:
        """Make the limiter that keeps a limit, unless there is one, maybe of an earlier call: a cap is over all calls.

        One of an earlier call goes on with its permits, and measures by these prices from now on. ``scores`` gives
        those of the calibration samples at them, None where there are none.
        """
        if name in self._limiters:
            return
        kept: KeptLimiters = {} if self._kept is None else self._kept
        found = kept.get((name, limit))
        if found is None:
            made = Limiter(limit, calibration=scores(), min_score=_LOWEST)
            made.prices = prices
            with _SHARING:
                found = kept.setdefault((name, limit), made)
        self._limiters.setdefault(name, found)
        self._made.add(name)
        _measure(found, prices, scores)

    def settle(self, prices: Hashable, scores: Callable[[str], FloatArray | None]) -> None:
        """Measure by prices that stay from now on; ``scores`` gives those of the calibration samples at them."""
        for name in self._made:
            _measure(self._limiters[name], prices, partial(scores, name))

    def grant(self, gain: list[float], servers: list[int], until: float | None, again: bool) -> int | None:
        """Return the first of these servers that limiters permit, -1 for none, None where they did not decide in time.

        Every limiter is asked once about every input, which may be a request of its window. The one over all is asked
        where the server's own would give a permit, so that neither spends one that the other refuses.
        """
        repeated: dict[str, Any] = {"again": True} if again else {}  # a limiter of the user's may not know it
        overall = self._limiters.get(ALL)
        if overall is not None and len(self._limiters) == 1:
            if not servers and again:
                return -1
            score = gain[servers[0]] if servers else -np.inf
            permit = overall.allow(score, _left(until), **repeated, **self._watched(ALL, gain, score))
            if permit.reason == limits.TIMED_OUT:
                return None
            return servers[0] if servers and permit.granted else -1
        waiting = dict(self._limiters)
        found = -1
        for place, s in enumerate(servers):
            own = waiting.pop(self._servers[s], None)

            def ask_overall(left: float | None, score: float = gain[s]) -> Permit:
                return waiting.pop(ALL).allow(score, left, **repeated, **self._watched(ALL, gain, score))

            if own is not None:
                # What it saves over the next best answer, which is given if there is no permit.
                rival = max([0.0, *(gain[other] for other in servers[place + 1 : place + 2])])
                agreed: dict[str, Any] = {} if overall is None else {"other": ask_overall}
                value = gain[s] - rival
                watched = self._watched(self._servers[s], gain, value)
                permit = own.allow(value, _left(until), **repeated, **agreed, **watched)
            elif overall is not None:
                permit = ask_overall(_left(until))
            else:
                found = s
                break
            if permit.reason == limits.TIMED_OUT:
                return None
            found = s if permit.granted else -1
            if permit.granted or (overall is not None and ALL not in waiting):
                break  # the limiter over all would refuse the others too
        if not again:
            for name, limiter in waiting.items():
                permit = limiter.allow(-np.inf, _left(until), **self._watched(name, gain, -np.inf))
                if permit.reason == limits.TIMED_OUT and found < 0:
                    return None
        return found

    def grant_one(self, server: int, servers: int, until: float | None) -> bool:
        """Return whether limiters permit to ask a server about an input that was counted, whatever that gains."""
        gain = [-np.inf] * servers
        gain[server] = np.inf
        return self.grant(gain, [server], until, again=True) == server

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the status of every limiter as plain values, the last known while it is busy."""
        return {name: limiter.status(timeout=_SOON).as_dict() for name, limiter in self._limiters.items()}

    def _watched(self, name: str, gain: list[float], score: float) -> dict[str, Any]:
        """Return what a limiter measures drift by, where that is not the score.

        Limiters start with scores of calibration samples about which every server can be asked. So what other limiters
        refuse, or a server that fails, does not count as a change of the inputs.
        """
        if name not in self._made:
            return {}
        s = -1 if name == ALL else self._servers.index(name)
        value = max(gain) if s < 0 else gain[s] - max([0.0, *gain[:s], *gain[s + 1 :]])
        return {} if value == score else {"watched": value}


def limits_by_name(limit: AnyLimit | None, servers: list[str]) -> dict[str, RateLimit | Limiter]:
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
        with about(f"limit of {name}" if isinstance(limit, Mapping) else None):
            value = one if isinstance(one, Limiter) else limits.as_limit(one)
        if value is None:
            raise LimitError(f"limit of {name} is None: leave it out, or give one")
        if isinstance(value, Limiter) and value in read.values():
            raise LimitError(f"the limiter of {name} limits another name too: make one for each")
        read[name] = value
    return {ALL: read[servers[0]]} if set(read) == set(servers) and len(servers) == 1 else read


def continued(draws: KeptDraws, seed: int) -> np.random.Generator:
    """Return the random numbers of a seed that no call before took, and keep them for the next call."""
    if seed not in draws:
        if len(draws) >= _REMEMBERED:
            draws.clear()
        draws.setdefault(seed, np.random.default_rng(seed))
    return draws[seed]


def _left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()


def _measure(limiter: Limiter, prices: Hashable, scores: Callable[[], FloatArray | None]) -> None:
    """Have a limiter compare scores at these prices; those that it remembers are of no use at others."""
    if limiter.prices != prices:
        limiter.recalibrate(scores())
        limiter.prices = prices
