"""All parts of one worker, put together."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from l2h.serving.accounts import open_accounts
from l2h.serving.accounts.charging import ChargeWriter
from l2h.serving.accounts.deliveries import Deliveries
from l2h.serving.accounts.devices import DeviceNews
from l2h.serving.model.batching import Batcher, PendingRequest
from l2h.serving.model.model import CurrentModel, ServedModel, load_model
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.logs import LogWriter
from l2h.serving.process.metrics import Metrics
from l2h.serving.process.tracing import RequestTracer

#: What traces and metrics name the server.
SERVICE = "l2h-server"


class Service:
    """What the handlers of requests share. To make one loads, opens and starts all parts on the running event loop.

    ``inherited`` are the descriptors of :func:`l2h.serving.accounts.prepare_accounts`, then those of
    :func:`l2h.serving.dashboard.login.prepare_logins`; ``worker`` is its number.
    """

    def __init__(self, config: ServingConfig, log: LogWriter, inherited: Sequence[int], worker: int = 0) -> None:
        loop = asyncio.get_running_loop()

        def deliver(requests: list[PendingRequest]) -> None:
            loop.call_soon_threadsafe(_finish, requests)

        self.config, self.log = config, log
        self.metrics = Metrics(config.metric_keys)
        #: None where nothing is traced.
        self.tracer = None
        if config.otlp is not None:
            self.tracer = RequestTracer(config.otlp, SERVICE, config.traces / config.workers)
        self.current = CurrentModel(self.load(config.bundle), self.metrics)
        accounts, self.inherited_logins = inherited[:2], inherited[2:]
        self.accounts = open_accounts(
            *(config.key_place, config.place, accounts, worker, config.workers, config.keep),
            reserve=config.outage_reserve,
        )
        self.devices = DeviceNews(config.ledger, self.accounts.keys)
        self.charging = ChargeWriter(self.accounts, deliver, self.metrics.committed)
        self.deliveries = Deliveries(self.charging.note_delivery)
        self.batcher = Batcher(config.max_batch, config.batch_delay, self.charging.submit, deliver, self.metrics.called)
        self.free_memory = config.max_memory  # bytes that the bodies of further requests may take
        self.draining = False
        self.in_flight = 0
        self.workers_down = 0  # of all workers, as the supervisor says
        self._log_dropped = 0

    def load(self, bundle: str) -> ServedModel:
        """Load a bundle with the server's settings; from any thread."""
        config = self.config
        return load_model(Path(bundle), config.server, config.model_threads, config.max_batch)

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
        return None if self.charging.trouble is None else "the ledger cannot be written"

    @property
    def degraded(self) -> dict[str, str]:
        """What readiness says beside yes, where the server answers with less than it should have."""
        reasons = []
        if self.workers_down:
            reasons.append(f"{self.workers_down} of {self.config.workers} workers cannot answer now")
        if self.accounts.down is not None:
            reasons.append("the accounts are down, and answers come from the reserve")
        return {"degraded": "; ".join(reasons)} if reasons else {}

    def update_gauges(self) -> None:
        """Bring the metrics that others count up to date."""
        dropped = self.log.dropped
        self.metrics.log_dropped.inc(dropped - self._log_dropped)
        self._log_dropped = dropped
        self.metrics.waiting.set(self.batcher.waiting)
        self.metrics.in_flight.set(self.in_flight)
        self.metrics.ledger_up.set(self.charging.trouble is None and self.accounts.down is None)
        if self.config.outage_reserve is not None:
            self.metrics.reserve.set(self.config.reserve)
            self.metrics.reserve_pending.set(self.accounts.pending)

    def close(self) -> None:
        """Finish what waits, then stop all parts."""
        self.batcher.close()
        self.deliveries.look(last=True)
        self.devices.flush(self.current.model.origin)
        for part in (self.charging, self.accounts, self.tracer):
            if part is not None:
                part.close()


def _finish(requests: list[PendingRequest]) -> None:
    for request in requests:
        if not request.future.done():
            request.future.set_result(None)
