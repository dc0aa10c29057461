"""Tracking: a share that is kept on any traffic, by moving the threshold after every request.

A calibrated threshold meets its share while the traffic is like the calibration samples, and nobody promises anything
afterwards. Here the threshold follows the traffic. The level ``a`` is the share of the recent scores that are to be
sent; the threshold is their ``(1 - a)``-quantile. After every request, of which the share q is to be sent,

    a <- a + (q - 1) / (within - 1)   if it was sent,
    a <- a + q / (within - 1)         if it was not.

That is adaptive conformal inference (Gibbs and Candes 2021) with sending in the place of a miss. Nothing is sent where
``a <= 0``, and everything is where ``a >= 1``. So a never leaves ``[-(1 - q) / (within - 1), 1 + q / (within - 1)]``,
whatever the scores are and in whatever order they come, even if somebody who sees every threshold chooses them. The
sum over any n requests in a row is ``sent - q * n``, less than a's range times ``within - 1``:

    |sent - q * n| <= within.

The upper half also holds where some requests may not be sent, because they do not pay or another limit refuses them: a
is not raised beyond its range. The lower half needs that nobody else refuses. Nothing is assumed of the scores; how
much the requests that are sent gain depends on them. A large ``within`` moves the threshold slowly, and chooses better.

The level is held as a whole number, in units of ``1 / (d * (within - 1))`` for ``q = p / d``: no rounding adds up.
"""

import math

from l2h.costs import FloatArray
from l2h.limits.pacing import Pacer
from l2h.limits.permits import Clock, Confirm, PermitWindow
from l2h.limits.rate import exact


class ShareTracker(PermitWindow):
    """The level of one tracked share, in the memory of one process; every process keeps the share by itself."""

    def __init__(self, share: float, within: int) -> None:
        super().__init__(cap=within, length=math.inf, by_time=False)
        self._sent, self._all = exact(share).as_integer_ratio()
        self._full = self._all * (within - 1)
        self._level = self._sent * (within - 1)

    @property
    def level(self) -> float:
        """The share of the recent scores to send; all from 1 on, none from 0 down."""
        return self._level / self._full

    @property
    def used(self) -> int:
        # Of the requests that could be sent beyond the share from the highest level on: those that no longer can.
        return self.cap - (0 if self.full else min(self.cap, self._level // self._all + 1))

    @property
    def full(self) -> bool:
        return self._level <= 0

    def begin_request(self, now: float, again: bool = False) -> None:
        self.position += not again

    def end_request(
        self, wanted: bool, clock: Clock, timeout: float | None, again: bool = False, confirm: Confirm | None = None
    ) -> bool:
        # A second permit for one request takes as much as the first one and is made up for by no request of its own.
        enough = self._level >= self._sent if again else not self.full
        granted = wanted and enough and (confirm is None or confirm())
        changed = self._level + (0 if again else self._sent) - (self._all if granted else 0)
        self._level = min(changed, self._full + self._sent)
        return granted

    def reopen(self) -> bool:
        return True


class TrackingPacer(Pacer):
    """Decides whether a request is sent, by the tracked level among the recent scores."""

    def __init__(self, tracker: ShareTracker, memory: int, calibration: FloatArray | None, seed: int) -> None:
        super().__init__(tracker, memory, calibration, seed)
        self._tracker = tracker

    def cut(self) -> tuple[float, float]:
        return self._scores.cut(self._tracker.level)
