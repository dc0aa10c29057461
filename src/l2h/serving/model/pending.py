"""A request on its way through a worker: from HTTP to the model, to the ledger, and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from l2h.serving.accounts.store import Charge, ChargeResult
    from l2h.serving.model.model import ServedModel


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that was admitted. Each stage fills in what the next one needs.

    Attributes:
        model: answers it, also where another one is loaded meanwhile.
        x: the inputs.
        charge: what it costs.
        future: done at the end.
        cycle: uvicorn's object for this request and its answer.
        scores: (n, K), once computed.
        batch: inputs of the call that computed them.
        failure: makes the error of a request that has no scores. The error itself would keep alive, by its traceback,
            all that the request held.
        result: of its charge.
    """

    model: ServedModel
    x: npt.NDArray[Any]
    charge: Charge
    future: asyncio.Future[None]
    cycle: Any = None
    scores: npt.NDArray[np.float32] | None = None
    batch: int = 0
    failure: Callable[[], Exception] | None = None
    result: ChargeResult | None = None

    @property
    def gone(self) -> bool:
        """Whether the peer has hung up: then nothing is computed and nothing charged."""
        return bool(getattr(self.cycle, "disconnected", False))

    def finish(self) -> None:
        """Wake up who waits for it; on the event loop."""
        if not self.future.done():
            self.future.set_result(None)
