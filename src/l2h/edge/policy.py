"""Who is asked: what the rejector makes of inputs, the prices, and a bound on asking."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from l2h import limits
from l2h.bundle import BundleError, DeviceBundle
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.errors import L2HError
from l2h.judgement import Judgement
from l2h.limiter import Limiter
from l2h.limits import RateLimit, Threshold

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

    def prices(self, costs: Costs | None) -> Prices:
        """What follows from prices; None: those that nobody had to say.

        Raises:
            L2HError: the rejector was trained for others.
        """
        found = self._made.get(costs)
        if found is None:
            found = self._prices(costs)
            with self._lock:
                if len(self._made) >= _REMEMBERED:
                    self._made.clear()
                self._made[costs] = found
        return found

    def decide(self, judgement: Judgement, prices: Prices, spend: bool = True) -> tuple[BoolArray, BoolArray]:
        """What the rejector wants sent, and what goes.

        Args:
            judgement: the rejector's.
            prices: those in use.
            spend: False leaves a limiter alone, where nobody could be asked: all goes that is wanted.
        """
        saving = judgement.saving(prices.costs)
        # A rejector that says nothing (NaN) wants nothing.
        wanted: BoolArray = saving >= 0
        if self._limit is None:
            return wanted, wanted
        saving = np.where(np.isnan(saving), -np.inf, saving)
        if self.limiter is None:
            assert prices.threshold is not None
            remote = prices.threshold.apply(saving, self._rng)
            # With a price a limit is only a bound: what does not pay is not sent to fill it.
            return wanted, remote & wanted if prices.said else remote
        if not spend:
            return wanted, wanted
        return wanted, self._permitted(self.limiter, saving, wanted, prices)

    def _permitted(self, limiter: Limiter, saving: FloatArray, wanted: BoolArray, prices: Prices) -> BoolArray:
        pays = wanted | (not prices.said)
        try:
            granted = [bool(limiter.allow(s)) for s in np.where(pays, saving, -np.inf).tolist()]
        except L2HError as error:  # its clock or its file; no permit, no request
            if not self._complained:
                log.warning("the limiter fails, so the server is not asked: %s", error)
            self._complained = True
            return np.zeros(len(saving), dtype=np.bool_)
        # A limiter of the user's may have let through what does not pay.
        return np.asarray(granted, dtype=np.bool_) & pays

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
                    self.limiter = self.limiter or Limiter(self._limit, calibration=calibration, min_score=_LOWEST)
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
        return None if self.limiter is None else self.limiter.status().as_dict()
