"""What the two edge clients share: the local answer, the decision, the requests, and the answers made of them."""

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.answers import NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING, Answers
from l2h.bundle import BundleError, DeviceBundle
from l2h.columns import numbers_of
from l2h.costs import BoolArray, Costs
from l2h.decision import Judgement, Policy, Proposal, Terms, one_price
from l2h.edge import reasons
from l2h.edge.breaker import Admission, Breaker
from l2h.edge.dispatch import CROWDED, Dispatcher, Inquiry
from l2h.edge.options import EdgeError, EdgeOptions, check_seconds
from l2h.edge.reasons import CODE, REASONS
from l2h.edge.stats import EdgeStats, Recorder
from l2h.edge.transport import Reply
from l2h.errors import L2HError, NotFittedError
from l2h.limits import Limiter, RateLimit

Array = npt.NDArray[Any]
log = logging.getLogger("l2h.edge")
#: How much before the deadline a request ends, so that its caller is back in time: at most, and as a part of it.
_MARGIN, _MARGIN_SHARE = 0.01, 0.05
#: The part of the time left in which a limiter must decide: what it permits is still to be sent and answered.
_PERMIT_SHARE = 0.5
_TEXT = np.array(REASONS)
_SOURCE = np.array(["local", "remote"])
_KEPT_SOURCE, _KEPT_REASON, _KEPT_BY = _SOURCE[:1], _TEXT[:1], np.array(["client"])
#: The reason by 2 * remote + wanted.
_DECIDED = np.array([CODE[reason] for reason in (NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING)])

#: For one input that is worth asking about; without a limit nobody reads the saving.
_ASK_ONE = Proposal(
    saving=np.zeros(1),
    wanted=np.ones(1, dtype=np.bool_),
    able=np.ones((1, 1), dtype=np.bool_),
    gain=np.zeros((1, 1)),
    local=np.zeros(1, dtype=np.intp),
)


class PredictCall:
    """A call of ``predict``: its deadline, the device's answers, and the requests it sent to the server."""

    __slots__ = ("abandoned", "begun", "codes", "deadline", "label", "paid", "requests", "until")

    paid: tuple[float, ...]  # what an answer of each answerer costs
    label: npt.NDArray[np.int64]  # (n,), the device's answers
    codes: npt.NDArray[np.int8]  # (n,), the reason of every answer, as its place in REASONS

    def __init__(self) -> None:
        self.begun = self.deadline = time.monotonic()
        self.until = self.begun  # when its requests end, so that it is back at the deadline
        self.abandoned = False  # whether its caller has gone meanwhile
        self.requests: list[SentRequest] = []

    def waits(self) -> Iterator[float]:
        """Give the seconds to wait for the requests, as long as one of them is not done.

        First until they end by themselves. What is not sent by then is not sent any more. Then until the deadline.
        """
        yield max(0.0, self.until - time.monotonic())
        if any([request.is_under_way() for request in self.requests]):
            yield max(0.0, self.deadline - time.monotonic())

    def abandon(self) -> None:
        """End what is under way, since the caller has gone."""
        self.abandoned = True
        for request in self.requests:
            request.abandon()


class SentRequest:
    """A request of a call, and what it says to the circuit breaker."""

    __slots__ = ("_admission", "_dispatcher", "_inquiry", "_withdrawn", "future", "rows")

    def __init__(self, inquiry: Inquiry, admission: Admission, dispatcher: Dispatcher) -> None:
        self._inquiry, self._admission, self._dispatcher = inquiry, admission, dispatcher
        self.rows, self.future = inquiry.rows, inquiry.future
        self._withdrawn = False
        self.future.add_done_callback(self._report)

    def abandon(self) -> None:
        """End the request, which then says nothing about the server."""
        self._admission.report(None)
        self._dispatcher.abandon(self._inquiry)

    def is_under_way(self) -> bool:
        """Return whether its reply is still to come; if it waits for its turn, it is not sent any more."""
        if self.future.done():
            return False
        self._withdrawn = self._dispatcher.withdraw(self._inquiry)
        if self._withdrawn:
            self._admission.report(None)
        return not self._withdrawn

    def reply(self) -> Reply:
        """Return what came of it by now."""
        if self._withdrawn:
            return CROWDED
        if not self.future.done():  # it ends by itself at any moment, and then reports what it knows of the server
            return Reply(reasons.DEADLINE, None, healthy=None)
        self._report(self.future)
        return self.future.result()

    def _report(self, future: Future[Reply]) -> None:
        self._admission.report(future.result().healthy)


class EdgeCore:
    """The base of both edge clients, which add how their callers wait; :class:`l2h.EdgeClient` has the arguments."""

    def __init__(
        self,
        bundle: str | Path | DeviceBundle,
        server: str | Callable[..., Any] | None = None,
        *,
        deadline: float = 0.2,
        costs: Costs | None = None,
        limit: RateLimit | Limiter | str | None = None,
        key: str | None = None,
        client: Callable[..., Any] | None = None,
        binary: bool = True,
        retries: int = 1,
        max_batch: int = 64,
        failures: int = 5,
        rest: float = 5.0,
        model: str | None = None,
        input_name: str | None = "x",
        output_name: str | None = "scores",
        connections: int = 16,
        verify_tls: bool | str | Path = True,
    ) -> None:
        self._breaker = Breaker(failures, rest)
        self._bundle = bundle if isinstance(bundle, DeviceBundle) else DeviceBundle(bundle, client=client)
        self._options = EdgeOptions(
            server=None if callable(server) else server,
            function=server if callable(server) else None,
            deadline=deadline,
            model=self._bundle.manifest.name if model is None else model,
            input_name=input_name,
            output_name=output_name,
            binary=binary,
            retries=retries,
            max_batch=max_batch,
            connections=connections,
            key=key,
            verify_tls=verify_tls,
        )
        every_price = self._bundle.manifest.rejector.specs[0].costs is None
        self._policy = Policy(self._bundle.which, every_price, self._bundle.held_out, limit)
        self._labels = None if self._bundle.labels.values is None else self._bundle.labels
        self._rng = np.random.default_rng(0)
        self._limiter_failed = False
        self._bounded = limit is not None
        try:
            self._terms = self._policy.terms(costs)
        except NotFittedError as error:
            raise BundleError(str(error)) from error
        self._recorder = Recorder()
        self._dispatcher: Dispatcher | None = None
        if self._options.server is not None:
            self._dispatcher = Dispatcher(self._options, self._bundle.manifest, self._recorder)
            # Whoever forgets to close the client leaves no thread behind.
            weakref.finalize(self, self._dispatcher.stop, 0.0).atexit = False
        self._closed = False
        self._pid = os.getpid()

    @property
    def bundle(self) -> DeviceBundle:
        """The device's half of the system."""
        return self._bundle

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; where labels are numbers from 0, ``class_names[label]`` is the name of one."""
        return tuple(self._bundle.classes)

    @property
    def costs(self) -> Costs:
        """The prices in use; may be set at any time, None for those of the beginning.

        Raises:
            L2HError: the rejector was trained for other prices and knows no others.
        """
        return one_price(self._terms.costs)

    @costs.setter
    def costs(self, costs: Costs | None) -> None:
        self._terms = self._policy.settle_on(costs)

    @property
    def classes_compared(self) -> bool:
        """Whether the server gave names of classes when ``check`` last compared it with the bundle."""
        return self._dispatcher is not None and self._dispatcher.transport.classes_compared

    @property
    def server_versions(self) -> list[str]:
        """The versions of its model that the server named when ``check`` last looked; none before."""
        return [] if self._dispatcher is None else self._dispatcher.transport.versions

    def stats(self) -> EdgeStats:
        """Return the counters since the client was made; never waits."""
        return self._recorder.stats(self._breaker.state, self._breaker.opened, self._policy.status())

    def __repr__(self) -> str:
        options = self._options
        name = f"{type(self).__name__}({self._bundle.manifest.name!r}"
        return f"{name}, server={options.server!r}, deadline={options.deadline:g})"

    def _judge(self, X: Any, costs: Costs | None) -> Judgement:
        return self._bundle.judge(X, self._terms_for(costs).which)[1]

    def _begin(self, call: PredictCall, X: Any, costs: Costs | None, deadline: float | None) -> Answers | None:
        """Answer locally, decide, and send what goes, unless the call was abandoned.

        Returns the answers where nothing is to be waited for; else None, and :meth:`_finish` gives them.
        """
        terms = self._terms_for(costs)
        seconds = self._options.deadline if deadline is None else check_seconds("deadline", deadline)
        label, judgement = self._bundle.judge(X, terms.which)
        # One input without a limit is the common case: it is decided without work on arrays.
        simple = len(label) == 1 and not self._bounded
        if simple and not call.abandoned and terms.keeps(judgement):
            return self._kept(label, terms.paid[0], call.begun)
        call.deadline, call.paid, call.label = call.begun + seconds, terms.paid, label
        call.until = call.deadline - min(_MARGIN, _MARGIN_SHARE * seconds)
        if call.abandoned:
            return None
        proposal = _ASK_ONE if simple else self._policy.propose(judgement, terms, self._rng)
        self._ask(call, X, proposal, call.until)
        return None if call.requests or call.abandoned else self._finish(call)

    def _finish(self, call: PredictCall) -> Answers:
        """Return one answer per input, with what the server said by now."""
        codes, label = call.codes, call.label
        for request in call.requests:
            reply = request.reply()
            if reply.label is not None:
                label[request.rows] = reply.label
            elif reply.reason is not None:
                codes[request.rows] = CODE[reply.reason]
        remote = (codes == CODE[WORTH_ASKING]) | (codes == CODE[WITHIN_LIMIT])
        latency = time.monotonic() - call.begun
        self._recorder.answered(codes, latency)
        return Answers(
            label=label if self._labels is None else self._labels.decode(label),
            source=_SOURCE[remote.view(np.int8)],
            reason=_TEXT[codes],
            cost=np.where(remote, *reversed(call.paid)),
            latency=np.full(len(label), latency),
        )

    def _kept(self, label: npt.NDArray[np.int64], cost: float, begun: float) -> Answers:
        """Return one answer that the rejector keeps: the case that must cost next to nothing beside the models."""
        latency = time.monotonic() - begun
        self._recorder.answered_one(0, latency)
        if self._labels is not None:
            label = self._labels.decode(label)
        parts = _KEPT_SOURCE.copy(), _KEPT_REASON.copy(), np.array([cost]), np.array([latency]), _KEPT_BY.copy()
        return Answers(label, *parts)

    def _start_check(self, seconds: float) -> Future[None]:
        """Begin to compare the server with the bundle."""
        self._require_usable()
        if self._dispatcher is None:
            raise EdgeError("there is no server to check: give server=")
        until = time.monotonic() + check_seconds("deadline", seconds)
        try:
            return self._dispatcher.loop.submit(self._dispatcher.transport.check(until))
        except RuntimeError as error:  # closed by another thread meanwhile, or no thread could be started
            raise self._closed_error() if self._closed else EdgeError(str(error)) from error

    def _late_check(self) -> EdgeError:
        return EdgeError(f"{self._options.server} gave no answer in time")

    def _closed_error(self) -> EdgeError:
        return EdgeError("this edge client is closed: make another")

    def _close(self) -> None:
        """End what is under way and close the connections."""
        self._closed = True
        if self._dispatcher is not None:
            self._dispatcher.stop()

    def _terms_for(self, costs: Costs | None) -> Terms:
        return self._terms if costs is None else self._policy.terms(costs)

    def _permit(self, proposal: Proposal, most: int | None, until: float) -> tuple[BoolArray, int]:
        now = time.monotonic()
        try:
            choice, decided = self._policy.permit(proposal, [most], now + _PERMIT_SHARE * (until - now))
            return choice >= 0, decided
        except L2HError as error:  # the limiter's clock or file; no permit, no request
            if not self._limiter_failed:
                log.warning("the limiter fails, so the server is not asked: %s", error)
            self._limiter_failed = True
            return np.zeros(len(proposal.able), dtype=np.bool_), len(proposal.able)

    def _ask(self, call: PredictCall, X: Any, proposal: Proposal, until: float) -> None:
        """Send what the policy permits and the breaker admits, and note the reasons of the rest."""
        size = self._options.max_batch
        unable = self._unable(until)
        # The breaker is asked before the limiter: no permit is spent on what is then not sent.
        admissions = [] if unable else self._breaker.admit(-(-int(proposal.able.sum()) // size))
        try:
            most = len(admissions) * size
            if unable is None and not most and proposal.able.any():  # it opened just now
                unable = reasons.CIRCUIT_OPEN
            remote, decided = self._permit(proposal, None if unable else most, until)
            call.codes = _DECIDED[2 * remote + proposal.wanted]
            if decided < len(remote):
                call.codes[decided:][proposal.able[decided:, 0]] = CODE[reasons.DEADLINE]
            rows = np.flatnonzero(remote)
            call.codes[rows[most:]] = CODE[unable or reasons.CIRCUIT_OPEN]
            sent = rows[:most]
            if not len(sent) or call.abandoned:
                return
            inputs = self._bundle.check(X)
            if self._options.function is None:  # what travels; a function gets the rows of a table themselves
                inputs = numbers_of(inputs)
            for start in range(0, len(sent), size):
                if self._send(call, admissions[-1], inputs, sent[start : start + size], until):
                    admissions.pop()
        except BaseException:
            call.abandon()
            raise
        finally:
            for admission in admissions:
                admission.report(None)

    def _unable(self, until: float) -> str | None:
        """Return the reason why the server cannot be asked at all, None where it can."""
        if self._dispatcher is None:
            return reasons.NO_SERVER
        if time.monotonic() >= until:
            return reasons.DEADLINE
        return reasons.CIRCUIT_OPEN if self._breaker.blocked() else None

    def _send(
        self, call: PredictCall, admission: Admission, inputs: Array, rows: npt.NDArray[np.intp], until: float
    ) -> bool:
        """Send some inputs; False where the loop has ended, and the admission was not used."""
        assert self._dispatcher is not None
        inquiry = Inquiry(inputs[rows], rows, until)
        try:
            self._dispatcher.send(inquiry)
        except RuntimeError:  # closed by another thread meanwhile, or no thread could be started
            call.codes[rows] = CODE[reasons.SERVER_UNREACHABLE]
            return False
        call.requests.append(SentRequest(inquiry, admission, self._dispatcher))
        return True

    def _require_usable(self) -> None:
        if self._closed:
            raise self._closed_error()
        if os.getpid() != self._pid:
            raise EdgeError(
                f"this edge client was made in process {self._pid} and its connections stayed there: make one in "
                "every process, after the fork"
            )
