"""What the two edge clients share: the local answer, the decision, and the answers made of it and of the replies."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from l2h.answers import Answers
from l2h.audits import AuditLog, AuditPair
from l2h.bundle import DeviceBundle
from l2h.decision import AnyCosts, AnyLimit, Judgement, Proposal, Terms
from l2h.edge.asking import Asker
from l2h.edge.auditing import AuditedCall, Auditor, make_auditor
from l2h.edge.call import PredictCall
from l2h.edge.metrics import edge_families
from l2h.edge.observing import ObservedEdge
from l2h.edge.options import EdgeError, EdgeSettingsError, check_seconds
from l2h.edge.reasons import REASONS
from l2h.edge.reporting import check_report, news_for
from l2h.edge.servers import Address, make_servers, start_reports
from l2h.edge.service import BundleService, load_bundle
from l2h.edge.stats import FEW, AnswerCounter, EdgeStats
from l2h.telemetry import Family

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

#: How much before the deadline a request ends, so that its caller is back in time: at most, and as a part of it.
_MARGIN, _MARGIN_SHARE = 0.01, 0.05
_TEXT = np.array(REASONS)
_SOURCE = np.array(["local", "remote"])
_KEPT_SOURCE, _KEPT_REASON = _SOURCE[:1], _TEXT[:1]
#: For one input that is worth asking the only server about; without a limit nobody reads the saving.
_ASK_ONE = Proposal(
    saving=np.zeros(1),
    wanted=np.ones(1, dtype=np.bool_),
    able=np.ones((1, 1), dtype=np.bool_),
    gain=np.zeros((1, 1)),
    local=np.zeros(1, dtype=np.intp),
)


class EdgeCore(ObservedEdge):
    """The base of both edge clients, which add how their callers wait; :class:`l2h.EdgeClient` has the arguments."""

    def __init__(
        self,
        bundle: str | Path | DeviceBundle,
        server: Address | Mapping[str, Address] | None = None,
        *,
        deadline: float = 0.2,
        costs: AnyCosts | None = None,
        limit: AnyLimit | None = None,
        key: str | Mapping[str, str] | None = None,
        client: Callable[..., Any] | None = None,
        binary: bool | Mapping[str, bool] = True,
        retries: int = 1,
        max_batch: int = 64,
        failures: int = 5,
        rest: float = 5.0,
        model: str | Mapping[str, str] | None = None,
        input_name: str | Mapping[str, str | None] | None = "x",
        output_name: str | Mapping[str, str | None] | None = "scores",
        connections: int = 16,
        verify_tls: bool | str | Path | Mapping[str, bool | str | Path] = True,
        verify_key: str | Path | bytes | None = None,
        watch: float | None = None,
        otlp: "str | TracerProvider | None" = None,
        traces: float = 1.0,
        audit: float = 0.0,
        audits: str | Path | AuditLog = "audits",
        report: bool | float = False,
        device: str | None = None,
    ) -> None:
        report_every = check_report(report, device)
        first = load_bundle(bundle, client, verify_key)
        manifest = first.manifest
        self._servers = make_servers(
            manifest,
            server,
            failures,
            rest,
            deadline=deadline,
            model=model,
            input_name=input_name,
            output_name=output_name,
            binary=binary,
            retries=retries,
            max_batch=max_batch,
            connections=connections,
            key=key,
            verify_tls=verify_tls,
        )
        self._deadline = self._servers[0].options.deadline
        self._names = np.array([answerer.name for answerer in first.answerers])
        self._local = sum(not answerer.remote for answerer in first.answerers)
        self._by = [self._names[j : j + 1].copy() for j in range(self._local)]
        for name in self._by:  # those of all answers that are kept
            name.flags.writeable = False
        asked = [each for each in self._servers if each.has_address]
        # Those without an address are left out of every decision, unless that would leave nobody to be missed.
        absent = frozenset(each.name for each in self._servers if asked and each not in asked)
        self._labels = None if first.labels.values is None else first.labels
        self._rng = np.random.default_rng(0)
        present = [s for s, each in enumerate(self._servers) if each in asked]
        self._auditor = make_auditor(audit, audits, present, self._local, device)
        self._asker = Asker(self._servers, self._local, self._auditor)
        self._service = BundleService(first, limit, costs, absent, float(audit))
        self._bounded = bool(self._service.live.policy.limits)
        self._counter = AnswerCounter(tuple(self._names.tolist()), self._local)
        for each in asked:
            # Whoever forgets to close the client leaves no thread behind.
            weakref.finalize(self, each.dispatcher.stop, 0.0).atexit = False
        # One that fails early leaves time for another.
        self._waits_for = "ALL_COMPLETED" if len(asked) < 2 else "FIRST_COMPLETED"
        self._closed = False
        self._pid = os.getpid()
        self._ended = threading.Event()
        weakref.finalize(self, self._ended.set).atexit = False
        if watch is not None:
            self._service.watch(check_seconds("watch", watch), self._ended)
        self._observe(otlp, traces, device)
        self._reports = report_every is not None
        if report_every is not None and device is not None:
            if manifest.rejector.specs[0].costs is None:  # it states probabilities
                self._counter.saved(0.0)
            start_reports(self._servers, device, report_every, weakref.WeakMethod(self._news))

    @property
    def bundle(self) -> DeviceBundle:
        """The device's half of the system that is in service."""
        return self._service.live.bundle

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; where labels are numbers from 0, ``class_names[label]`` is the name of one."""
        return tuple(self.bundle.classes)

    @property
    def costs(self) -> AnyCosts:
        """The prices in use, by server where there are several; may be set at any time, None for the first ones.

        Raises:
            L2HError: the rejector was trained for other prices and knows no others.
        """
        return self._service.live.terms.costs

    @costs.setter
    def costs(self, costs: AnyCosts | None) -> None:
        self._service.set_costs(costs)

    @property
    def classes_compared(self) -> bool | dict[str, bool]:
        """Whether the server gave names of classes when ``check`` last compared it with the bundle.

        Where servers have names, a value for each that has an address.
        """
        found = {each.name: each.dispatcher.transport.classes_compared for each in self._servers if each.has_address}
        return found if self.bundle.manifest.named else next(iter(found.values()), False)

    @property
    def server_versions(self) -> list[str] | dict[str, list[str]]:
        """The versions of its model that the server named when ``check`` last looked; none before.

        Where servers have names, a value for each that has an address.
        """
        found = {each.name: each.dispatcher.transport.versions for each in self._servers if each.has_address}
        return found if self.bundle.manifest.named else next(iter(found.values()), [])

    def stats(self) -> EdgeStats:
        """Return the counters since the client was made; never waits."""
        return self._stats()

    def _stats(self, *last: int) -> EdgeStats:
        servers = {each.name: each.stats(*last) for each in self._servers}
        recorders = {each.name: each.recorder for each in self._servers}
        audit = None if self._auditor is None else self._auditor.stats()
        limit, bundle = self._service.live.policy.status(), self._service.stats()
        return self._counter.stats(servers, recorders, limit, bundle, audit, *last)

    def _families(self) -> list[Family]:
        return edge_families(self.stats(), self._counter, self._servers, self.bundle.manifest)

    def __repr__(self) -> str:
        addresses = {each.name: each.options.server for each in self._servers}
        server = addresses if self.bundle.manifest.named else next(iter(addresses.values()))
        state = f"deadline={self._deadline:g}" + ", closed" * self._closed
        return f"{type(self).__name__}({self.bundle.manifest.name!r}, server={server!r}, {state})"

    def _reload(self, bundle: str | Path | DeviceBundle | None) -> bool:
        self._require_usable()
        return self._service.reload(bundle)

    def _judge(self, X: Any, costs: AnyCosts | None) -> Judgement:
        live = self._service.live
        return live.bundle.judge(X, self._service.terms(live, costs).which)[1]

    def _begin(self, call: PredictCall, X: Any, costs: AnyCosts | None, deadline: float | None) -> Answers | None:
        """Answer locally, decide, and send what goes, unless the call was abandoned.

        Returns the answers where nothing is to be waited for; else None, and :meth:`_finish` gives them.
        """
        live = self._service.live
        terms = live.terms if costs is None else self._service.terms(live, costs)
        seconds = self._deadline if deadline is None else check_seconds("deadline", deadline)
        label, student, judgement = live.bundle.examine(X, terms.which)
        trial = self._service.trial
        if trial is not None and terms is live.terms:
            self._service.observe(trial, live, X, judgement)
        auditor = self._auditor
        luck = None if auditor is None else auditor.draw(len(label))
        # One input without a limit is the common case: it is decided without work on arrays.
        simple = len(label) == 1 and not self._bounded
        watch = live.watch if terms is live.terms else None
        if simple and not call.abandoned:
            column = terms.choose(judgement)
            simple = column >= self._local
            if watch is not None:
                watch.add(simple)
                watch = None
            if not simple and (auditor is None or luck is None or luck.item() >= auditor.share):
                return self._kept(label if column == 0 else student, column, terms, call.begun)
        call.deadline, call.live, call.terms = call.begun + seconds, live, terms
        call.until = call.deadline - min(_MARGIN, _MARGIN_SHARE * seconds)
        unread = simple and terms.plain and not self._reports
        proposal = _ASK_ONE if unread else live.policy.propose(judgement, terms, self._rng)
        if self._reports and judgement.probability is not None:
            call.gain = proposal.gain if terms.shares is None else terms.gains(judgement)[0]
        if luck is not None:
            call.audit = AuditedCall(luck, label, student, judgement)
        if watch is not None:
            watch.extend(proposal.saving)
        call.inputs, call.proposal, call.column = X, proposal, proposal.local.copy()
        call.label = label if student is None else np.where(proposal.local == 0, label, student)
        if call.abandoned:
            return None
        self._asker.ask(call, None)
        return None if call.requests or call.abandoned else self._finish(call)

    def _finish(self, call: PredictCall) -> Answers:
        """Return one answer per input, with what the servers said by now."""
        codes, label, column = call.codes, call.label, call.column
        latency = time.monotonic() - call.begun
        self._counter.answered(codes, column, latency)
        cost, ids = np.array(call.terms.paid)[column], None
        if self._auditor is not None and call.audit is not None:
            cost = self._auditor.costs(call, cost)
            ids, pairs = self._auditor.pairs(call)
            if pairs:
                self._keep_pairs(self._auditor, call.live.bundle, pairs)
        if call.gain is not None:
            asked = np.flatnonzero(column >= self._local)
            self._counter.saved(float(call.gain[asked, column[asked] - self._local].sum()))
        return Answers(
            label=label if self._labels is None else self._labels.decode(label),
            source=_SOURCE[(column >= self._local).view(np.int8)],
            reason=_TEXT[codes],
            cost=cost,
            latency=np.full(len(label), latency),
            by=self._names[column],
            id=ids,
        )

    def _keep_pairs(self, auditor: Auditor, bundle: DeviceBundle, pairs: list[AuditPair]) -> None:
        auditor.write(bundle, pairs)

    def _feedback(self, id: str, label: Any) -> None:
        if self._auditor is None:
            raise EdgeSettingsError("feedback belongs to an audit: EdgeClient(..., audit=0.01, audits=FOLDER)")
        self._auditor.feedback(self.bundle, id, label)

    def _kept(self, label: Any, column: int, terms: Terms, begun: float) -> Answers:
        """Return one answer that the rejector keeps: the case that must cost next to nothing beside the models."""
        latency = time.monotonic() - begun
        self._counter.answered_one(0, column, latency)
        if self._labels is not None:
            label = self._labels.decode(label)
        paid = np.array([terms.paid[column]])
        return Answers(label, _KEPT_SOURCE.copy(), _KEPT_REASON.copy(), paid, np.array([latency]), self._by[column])

    def _news(self, server: str) -> dict[str, Any]:
        """Return what a server is told of this device."""
        return news_for(server, set(self._names[: self._local].tolist()), self._stats(FEW), self.bundle.manifest)

    def _start_checks(self, seconds: float) -> list[Future[None]]:
        """Begin to compare every server that has an address with the bundle."""
        self._require_usable()
        asked = [each for each in self._servers if each.has_address]
        if not asked:
            raise EdgeError("there is no server to check: give server=")
        until = time.monotonic() + check_seconds("deadline", seconds)
        checks = []
        for each in asked:
            try:
                checks.append(each.dispatcher.loop.submit(each.dispatcher.transport.check(until)))
            except RuntimeError as error:  # closed by another thread meanwhile, or no thread could be started
                raise self._closed_error() if self._closed else EdgeError(str(error)) from error
        return checks

    def _report_checks(self, checks: list[Future[None]]) -> None:
        """Raise what is wrong with the first server that does not fit."""
        addresses = [each.options.server for each in self._servers if each.has_address]
        for address, check in zip(addresses, checks, strict=True):
            if not check.done():
                raise EdgeError(f"{address} gave no answer in time")
            if check.cancelled():
                raise self._closed_error()
            check.result()

    def _closed_error(self) -> EdgeError:
        return EdgeError("this edge client is closed: make another")

    def _close(self) -> None:
        """End what is under way and close the connections."""
        self._closed = self._asker.closed = True
        self._ended.set()
        for each in self._servers:
            each.dispatcher.stop()
        self._end_observing()
        if self._auditor is not None:
            self._auditor.log.close()

    def _require_usable(self) -> None:
        if self._closed:
            raise self._closed_error()
        if os.getpid() != self._pid:
            raise EdgeError(
                f"this edge client was made in process {self._pid} and its connections stayed there: make one in "
                "every process, after the fork"
            )
