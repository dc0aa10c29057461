"""Who is asked: what the rejector makes of inputs, the prices, and a bound on asking."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from l2h import limits
from l2h.bundle import BundleError, DeviceBundle
from l2h.costs import BoolArray, Costs, FloatArray, require_costs
from l2h.decision import Judgement
from l2h.errors import L2HError
from l2h.limits import Limiter, RateLimit, Threshold

log = logging.getLogger("l2h.edge")
#: Under a limit and without prices asking is free, and the limit is used up.
FREE = Costs(c_e=0.0, c_1=1.0)
#: Every score but minus infinity, which stands for what does not pay.
_LOWEST = float(np.finfo(np.float64).min)
#: How many prices of single calls are remembered.
_REMEMBERED = 64


@dataclass(frozen=True)
class Prices:
    """Prices, and what follows from them.

    Attributes:
        costs: the prices.
        which: number of the rejector that answers for them.
        said: whether somebody said them: what does not pay is then not sent to fill a limit.
        threshold: of a limit that is a share of all requests.
    """

    costs: Costs
    which: int
    said: bool
    threshold: Threshold | None
    _outcomes: tuple[float, float, float, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        c = self.costs
        object.__setattr__(self, "_outcomes", (c.c_ce, c.c_ce - c.c_cc, c.c_se, c.c_se - c.c_sc))

    def keeps(self, judgement: Judgement) -> bool:
        """Whether the rejector keeps a single input: :meth:`Judgement.saving` without the price of arrays."""
        if judgement.q_m is None or judgement.q_e is None:
            local, remote = judgement.scores[0].tolist()
            return not local <= remote
        wrong, gained, helped_wrong, helped = self._outcomes
        saving = (wrong - gained * judgement.q_m.item()) - (helped_wrong - helped * judgement.q_e.item())
        return not saving >= 0


class Wishes(NamedTuple):
    """What is to become of some inputs before a limiter is asked.

    Attributes:
        saving: by asking about each.
        wanted: what the rejector wants sent.
        able: what may go, as far as a limiter permits.
    """

    saving: FloatArray
    wanted: BoolArray
    able: BoolArray


class Measure:
    """Savings at some prices in the measure of others: what was the k-th largest of the held-out samples stays it.

    A limiter goes by scores that it has seen, and by held-out ones. Other prices move them all, which says nothing of
    the inputs: so it is told what they would have been at the prices that it was made for.
    """

    def __init__(self, here: FloatArray, there: FloatArray) -> None:
        self._here, self._there = np.sort(here), np.sort(there)

    def there(self, saving: FloatArray) -> FloatArray:
        """What stands for these savings there."""
        return _moved(saving, self._here, self._there)

    def here(self, saving: FloatArray) -> FloatArray:
        """And back."""
        return _moved(saving, self._there, self._here)


def _moved(saving: FloatArray, before: FloatArray, after: FloatArray) -> FloatArray:
    beyond = saving - np.clip(saving, before[0], before[-1])
    return np.asarray(np.interp(saving, before, after) + beyond, dtype=np.float64)


class Policy:
    """Decides as ``HelpSystem.predict`` does.

    Args:
        bundle: whose rejector judges.
        limit: a bound on asking.

    Raises:
        BundleError: a share is to be kept and the bundle has no calibration samples.
        LimitError: they are too few for the confidence asked for.
    """

    def __init__(self, bundle: DeviceBundle, limit: RateLimit | Limiter | None) -> None:
        self._bundle = bundle
        self._limit = limit.limit if isinstance(limit, Limiter) else limit
        self.limiter = limit if isinstance(limit, Limiter) else None
        self._rng = np.random.default_rng(0)
        self._lock = threading.Lock()
        self._made: dict[Costs | None, Prices] = {}
        self._complained = False
        self._calibration: FloatArray | None = None
        self._measure: Measure | None = None

    def settle_on(self, costs: Costs | None) -> Prices:
        """Prices to stay, by which a limiter made here then measures all that it sees.

        Raises:
            L2HError: the rejector was trained for others.
        """
        prices = self.prices(costs)
        held = None if self._calibration is None else self._bundle.held_out(prices.which)
        if held is not None and self._calibration is not None:
            saving = held.saving(prices.costs)
            same = np.array_equal(saving, self._calibration)
            self._measure = None if same else Measure(saving, self._calibration)
        return prices

    def prices(self, costs: Costs | None) -> Prices:
        """What follows from prices; None: those that nobody had to say.

        Raises:
            L2HError: the rejector was trained for others.
        """
        if costs is not None:
            require_costs(costs)
        found = self._made.get(costs)
        if found is None:
            found = self._prices(costs)
            with self._lock:
                if len(self._made) >= _REMEMBERED:
                    self._made.clear()
                self._made[costs] = found
        return found

    def weigh(self, judgement: Judgement, prices: Prices) -> Wishes:
        """What the rejector wants sent, and what may go; no permit is spent."""
        saving = judgement.saving(prices.costs)
        # A rejector that says nothing (NaN) wants nothing.
        wanted: BoolArray = saving >= 0
        if self._limit is None:
            return Wishes(saving, wanted, wanted)
        saving = np.where(np.isnan(saving), -np.inf, saving)
        # With a price a limit is only a bound: what does not pay is not sent to fill it.
        pays: BoolArray = wanted | (not prices.said)
        if self.limiter is not None:
            return Wishes(saving, wanted, pays)
        assert prices.threshold is not None
        return Wishes(saving, wanted, prices.threshold.apply(saving, self._rng) & pays)

    def permit(self, wishes: Wishes, most: int | None) -> BoolArray:
        """What goes, as far as there is leave to send it.

        Args:
            wishes: what :meth:`weigh` made of the inputs.
            most: inputs that can be sent; None: nobody can be asked. The limiter is not asked for those that cannot be:
                of them all goes that is wanted, and the caller sees to it that it stays.
        """
        if self.limiter is None:
            return wishes.able
        if most is None:
            return wishes.wanted
        remote = wishes.wanted.copy()
        given = 0
        saving = wishes.saving if self._measure is None else self._measure.there(wishes.saving)
        try:
            for i, (score, able) in enumerate(zip(saving.tolist(), wishes.able.tolist(), strict=True)):
                if able and given == most:
                    break
                # A limiter of the user's may let through what does not pay.
                remote[i] = bool(self.limiter.allow(score if able else -np.inf)) and able
                given += int(remote[i])
        except L2HError as error:  # its clock or its file; no permit, no request
            if not self._complained:
                log.warning("the limiter fails, so the server is not asked: %s", error)
            self._complained = True
            return np.zeros(len(remote), dtype=np.bool_)
        return remote

    def _prices(self, costs: Costs | None) -> Prices:
        said = costs is not None
        if self._limit is not None and costs is None and self._priced():
            costs = FREE
        which, costs = self._bundle.which(costs)
        threshold = None
        if self._limit is not None and self.limiter is None:
            held = self._bundle.held_out(which)
            if self._limit.fraction is not None and self._limit.window is None:
                threshold = self._threshold(held, costs, self._limit.fraction, self._limit.confidence)
            else:
                calibration = None if held is None else held.saving(costs)
                with self._lock:
                    if self.limiter is None:
                        self._calibration = calibration
                        self.limiter = Limiter(self._limit, calibration=calibration, min_score=_LOWEST)
        return Prices(costs, which, said, threshold)

    def _threshold(self, held: Judgement | None, costs: Costs, fraction: float, confidence: float | None) -> Threshold:
        if held is None:
            raise BundleError(
                f"limit={self._limit} is met on calibration samples, and the bundle has none: calibrate the system "
                "before it is exported, or give a number in a time, such as RateLimit(100, per='1h')"
            )
        if confidence is None:
            return limits.threshold_for(held.saving(costs), fraction)
        return limits.guaranteed_threshold(held.saving(costs), fraction, confidence)

    def _priced(self) -> bool:
        """Whether the bundle's rejector answers for every price."""
        return self._bundle.manifest.rejector.specs[0].costs is None

    def status(self) -> dict[str, Any] | None:
        """The limiter's, where there is one."""
        if self.limiter is None:
            return None
        status = self.limiter.status().as_dict()
        if self._measure is not None and status["threshold"] is not None:
            status["threshold"] = float(self._measure.here(np.array([status["threshold"]]))[0])
        return status
