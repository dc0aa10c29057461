"""One request on its way: from the reader of HTTP to the model, to the ledger, and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from l2h.serving.accounts.keys import Key
    from l2h.serving.model.model import Model

#: How a job can end. The first two are answered with scores.
CHARGED, REPEATED = "charged", "repeated"
QUOTA, CONFLICT, LEDGER, FAILED, NOT_FINITE, GONE = "quota", "conflict", "ledger", "failed", "not_finite", "gone"


class Job:
    """A request that was admitted. Each of its stages fills in what the next one needs."""

    __slots__ = (
        "batch",
        "cycle",
        "fingerprint",
        "future",
        "idempotency",
        "inputs",
        "key",
        "model",
        "outcome",
        "quota_left",
        "request_id",
        "retry_after",
        "scores",
        "units",
        "x",
    )

    def __init__(
        self,
        model: Model,
        x: npt.NDArray[Any],
        key: Key,
        request_id: str,
        future: asyncio.Future[None],
        *,
        units: int,
        idempotency: str | None = None,
        fingerprint: bytes | None = None,
        cycle: Any = None,
    ) -> None:
        self.model, self.x, self.inputs = model, x, len(x)
        self.key, self.request_id, self.future = key, request_id, future
        self.units, self.idempotency, self.fingerprint, self.cycle = units, idempotency, fingerprint, cycle
        self.scores: npt.NDArray[np.float32] | None = None
        self.outcome: str | None = None
        self.batch = 0
        self.quota_left = 0
        self.retry_after = 1.0

    @property
    def gone(self) -> bool:
        """Whether the peer has hung up: then nothing is computed and nothing charged."""
        return bool(getattr(self.cycle, "disconnected", False))
