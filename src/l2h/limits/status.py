"""What the limiter answers: a :class:`Permit` per request, and a :class:`LimiterStatus`."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

#: Reason codes of a permit.
WITHIN_LIMIT = "within_limit"
LIMIT_REACHED = "limit_reached"
BELOW_PACE = "below_pace"
BELOW_MIN_SCORE = "below_min_score"
LEDGER_UNAVAILABLE = "ledger_unavailable"

#: Which way the traffic has left its calibrated band.
Drift = Literal["above", "below"]


class Permit(NamedTuple):
    """The answer to one request, true where the server may be asked.

    Attributes:
        granted: whether to ask.
        reason: ``within_limit``, or why not: ``limit_reached`` (the window is full), ``below_pace`` (the
            budget is kept for inputs that gain more), ``below_min_score``, ``ledger_unavailable`` (the file
            that holds the permits cannot be written, so none is given).
        position: of the request: the limiter's time in seconds for a time window, the number of the request for
            a share of requests.
        threshold: the score that pacing required; ``None`` where pacing did not decide.
    """

    granted: bool
    reason: str
    position: float
    threshold: float | None = None

    def __bool__(self) -> bool:
        return self.granted


@dataclass(frozen=True)
class LimiterStatus:
    """Counters of a limiter.

    Attributes:
        limit: the limit as text.
        requests: requests seen by this process.
        permits: how many were granted.
        refused: how many were not, by reason.
        cap: the most a window may hold.
        used: permits in the window that ends now, including those of other processes on the same path.
        remaining: what is left of the cap.
        threshold: the score that pacing now requires; ``None`` without pacing or before the first request.
        observed: share of recent requests above the calibrated threshold; ``None`` where drift is not
            watched.
        expected: the calibrated share.
        drift: ``"above"`` or ``"below"`` while the observed share is out of its band, else ``None``.
        clock_behind: seconds by which the clock is behind the latest time the limiter has seen. It is above 0
            after a jump back: the limiter then stands still until the clock has caught up.
    """

    limit: str
    requests: int
    permits: int
    refused: dict[str, int]
    cap: int
    used: int
    remaining: int
    threshold: float | None
    observed: float | None
    expected: float | None
    drift: Drift | None
    clock_behind: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)
