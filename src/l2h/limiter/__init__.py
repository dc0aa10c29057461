"""The run-time limiter: a hard cap on requests that no burst, thread or restart can break.

:class:`Limiter` keeps the cap (:mod:`~l2h.limiter.window`, or :mod:`~l2h.limiter.store` where it must outlive
the process), spends it on the inputs that gain most (:mod:`~l2h.limiter.pacing`) and says when the traffic is
no longer what it was calibrated for (:mod:`~l2h.limiter.drift`).
"""

from l2h.limiter.drift import DriftMonitor
from l2h.limiter.limiter import Limiter
from l2h.limiter.status import Permit, Status

__all__ = ["DriftMonitor", "Limiter", "Permit", "Status"]
