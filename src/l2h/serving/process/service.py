"""All parts of one worker, put together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from l2h.serving.accounts.charging import Cashier
from l2h.serving.accounts.rates import RateTable
from l2h.serving.accounts.ring import KeyRing
from l2h.serving.http.http import Room
from l2h.serving.model.batching import Batcher
from l2h.serving.model.job import Job
from l2h.serving.model.slot import Slot, load_model
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.logs import RequestLog
from l2h.serving.process.metrics import Metrics


@dataclass
class Service:
    """What the handlers of requests share."""

    config: ServingConfig
    slot: Slot
    ring: KeyRing
    rates: RateTable
    batcher: Batcher
    cashier: Cashier
    metrics: Metrics
    requests: RequestLog
    room: Room
    draining: bool = False
    in_flight: int = 0

    @property
    def max_body(self) -> int:
        """Bytes of a body: as told, or as JSON needs for the largest request, with 32 characters a number."""
        if self.config.max_body:
            return self.config.max_body
        model = self.slot.model
        return min(self.config.max_memory, 65536 + 32 * model.most * model.elements)

    @property
    def trouble(self) -> str | None:
        """Why requests cannot be answered now."""
        if self.draining:
            return "the server is being stopped"
        if self.cashier.trouble is not None:
            return "the ledger cannot be written"
        return None


def make_service(config: ServingConfig, rate_table: int) -> Service:
    """Load, open and start all parts; the event loop must be running.

    Raises:
        L2HError: the bundle or the key file cannot be used.
        sqlite3.Error: the ledger cannot be opened.
    """
    loop = asyncio.get_running_loop()

    def deliver(jobs: list[Job]) -> None:
        loop.call_soon_threadsafe(_wake, jobs)

    metrics = Metrics()
    folder = Path(config.bundle)
    slot = Slot(folder, lambda: load_model(folder, config.model_threads, config.max_batch), metrics)
    cashier = Cashier(Path(config.ledger), deliver, metrics.committed)
    cashier.start()
    batcher = Batcher(config.max_batch, config.batch_delay, cashier.submit, deliver, metrics.called)
    batcher.start()
    return Service(
        config,
        slot,
        KeyRing(None if config.keys is None else Path(config.keys)),
        RateTable(rate_table),
        batcher,
        cashier,
        metrics,
        RequestLog(config.log_requests),
        Room(config.max_memory),
    )


def _wake(jobs: list[Job]) -> None:
    for job in jobs:
        if not job.future.done():
            job.future.set_result(None)
