"""All parts of one worker, put together."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from l2h.serving.accounts import open_accounts
from l2h.serving.accounts.charging import ChargeWriter
from l2h.serving.accounts.store import AccountStore
from l2h.serving.model.batching import Batcher
from l2h.serving.model.current import CurrentModel
from l2h.serving.model.pending import PendingRequest
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.logs import RequestLog
from l2h.serving.process.metrics import Metrics


@dataclass
class Service:
    """What the handlers of requests share."""

    config: ServingConfig
    current: CurrentModel
    accounts: AccountStore
    batcher: Batcher
    charging: ChargeWriter
    metrics: Metrics
    requests: RequestLog
    #: Bytes that the bodies of further requests may take.
    free_memory: int
    draining: bool = False
    in_flight: int = 0

    @property
    def max_body(self) -> int:
        """Bytes of a body: as set, or what JSON needs for the largest request, with 32 characters per number."""
        if self.config.max_body:
            return self.config.max_body
        model = self.current.model
        return min(self.config.max_memory, 65536 + 32 * model.most * model.elements)

    @property
    def trouble(self) -> str | None:
        """Why requests cannot be answered now."""
        if self.draining:
            return "the server is being stopped"
        if self.charging.trouble is not None:
            return "the ledger cannot be written"
        return None

    def update_gauges(self) -> None:
        """Set the gauges of the metrics to what they are now."""
        self.metrics.waiting.set(self.batcher.waiting)
        self.metrics.in_flight.set(self.in_flight)
        self.metrics.ledger_up.set(self.charging.trouble is None)

    def close(self) -> None:
        """Finish what waits, then stop all parts."""
        self.batcher.close()
        self.charging.close()
        self.accounts.close()
        self.requests.close()


def make_service(config: ServingConfig, inherited: Sequence[int]) -> Service:
    """Load, open and start all parts; the event loop must be running.

    Args:
        config: the settings.
        inherited: descriptors of :func:`l2h.serving.accounts.prepare_accounts`.

    Raises:
        L2HError: the bundle, the keys or the ledger cannot be used.
    """
    loop = asyncio.get_running_loop()

    def deliver(requests: list[PendingRequest]) -> None:
        loop.call_soon_threadsafe(_finish, requests)

    metrics = Metrics()
    current = CurrentModel(Path(config.bundle), config.model_threads, config.max_batch, metrics)
    accounts = open_accounts(config.keys, config.ledger, inherited)
    charging = ChargeWriter(accounts, deliver, metrics.committed)
    batcher = Batcher(config.max_batch, config.batch_delay, charging.submit, deliver, metrics.called)
    requests = RequestLog(config.log_requests)
    return Service(config, current, accounts, batcher, charging, metrics, requests, config.max_memory)


def _finish(requests: list[PendingRequest]) -> None:
    for request in requests:
        request.finish()
