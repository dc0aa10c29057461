"""What the two edge clients share: the local answer, the decision, the requests, and one answer made of them."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.answers import NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING, Answers
from l2h.bundle import DeviceBundle
from l2h.costs import Costs
from l2h.decision import Judgement
from l2h.edge import reasons
from l2h.edge.breaker import Breaker, Pass
from l2h.edge.errors import EdgeError
from l2h.edge.loop import LoopThread
from l2h.edge.options import check_breaker, check_deadline, make_options
from l2h.edge.policy import Policy, Prices, Wishes
from l2h.edge.reasons import CODE, REASONS
from l2h.edge.stats import EdgeStats, Recorder
from l2h.edge.transport import Patience, Reply, Transport
from l2h.limits import Limiter, RateLimit

Array = npt.NDArray[Any]
#: How much before the deadline a request ends, so that its caller is back in time: at most, and as a part of it.
_MARGIN, _MARGIN_SHARE = 0.01, 0.05
_TEXT = np.array(REASONS)
_SOURCE = np.array(["local", "remote"])
_KEPT_SOURCE, _KEPT_REASON = _SOURCE[:1], _TEXT[:1]
#: The reason by 2 * goes + wanted.
_DECIDED = np.array([CODE[reason] for reason in (NOT_WORTH_ASKING, OVER_LIMIT, WITHIN_LIMIT, WORTH_ASKING)])


class Call:
    """A call of ``predict``: when it was made, and whether its caller has gone meanwhile."""

    __slots__ = ("begun", "gone")

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.gone = False


class Part:
    """Some inputs of a call that travel in one request."""

    __slots__ = ("_give_up", "_pass", "future", "rows")

    def __init__(
        self, rows: npt.NDArray[np.intp], leave: Pass, future: Future[Reply], give_up: Callable[[], None]
    ) -> None:
        self.rows, self._pass, self.future, self._give_up = rows, leave, future, give_up
        future.add_done_callback(self._settle)

    def give_up(self) -> None:
        """The caller has gone: end the request, which says nothing of the server."""
        self._pass.settle(None)
        self._give_up()

    def reply(self) -> Reply:
        """What came of it by now."""
        if not self.future.done():  # it ends by itself, any moment, and then says what it knows of the server
            return Reply(reasons.DEADLINE, None, healthy=None)
        self._settle(self.future)
        try:
            return self.future.result()
        except CancelledError:  # the client was closed meanwhile
            return Reply(reasons.SERVER_UNREACHABLE, None, healthy=True)

    def _settle(self, future: Future[Reply]) -> None:
        self._pass.settle(None if future.cancelled() or future.exception() else future.result().healthy)


class Draft:
    """A call of ``predict`` before the server's answers."""

    __slots__ = ("at", "call", "codes", "costs", "label", "parts")

    def __init__(self, call: Call, seconds: float, costs: Costs, label: npt.NDArray[np.int64]) -> None:
        self.call, self.at, self.costs, self.label = call, call.begun + seconds, costs, label
        self.codes: npt.NDArray[np.int8] = np.zeros(len(label), dtype=np.int8)
        self.parts: list[Part] = []

    def give_up(self) -> None:
        """The caller has gone: end what is under way."""
        for part in self.parts:
            part.give_up()


class Core:
    """An edge client but for the waiting. The arguments are those of :class:`l2h.edge.EdgeClient`."""

    def __init__(
        self,
        bundle: str | Path | DeviceBundle,
        server: str | None,
        *,
        deadline: float,
        costs: Costs | None,
        limit: RateLimit | Limiter | None,
        key: str | None,
        client: Callable[..., Any] | None,
        binary: bool,
        retries: int,
        max_batch: int,
        failures: int,
        rest: float,
        model: str | None,
        input_name: str | None,
        output_name: str | None,
        connections: int,
        verify_tls: bool | str | Path,
    ) -> None:
        breaker = Breaker(*check_breaker(failures, rest))
        self.bundle = bundle if isinstance(bundle, DeviceBundle) else DeviceBundle(bundle, client=client)
        self.options = make_options(
            server=server,
            deadline=deadline,
            model=self.bundle.manifest.name if model is None else model,
            input_name=input_name,
            output_name=output_name,
            binary=binary,
            retries=retries,
            max_batch=max_batch,
            connections=connections,
            key=key,
            verify_tls=verify_tls,
        )
        self._policy = Policy(self.bundle, limit)
        self._bounded = limit is not None
        self.prices = self._policy.prices(costs)
        self._breaker, self._recorder = breaker, Recorder()
        self._transport: Transport | None = None
        self._loop: LoopThread | None = None
        if self.options.server is not None:
            shape, dtype = tuple(self.bundle.input_shape), str(self.bundle.input_dtype)
            classes = tuple(str(name) for name in self.bundle.classes)
            self._transport = Transport(self.options, shape, dtype, classes, self._recorder)
            self._loop = LoopThread(self._transport.close)
            # Whoever forgets to close the client leaves no thread behind.
            weakref.finalize(self, self._loop.stop, 0.0).atexit = False
        self._closed = False
        self._pid = os.getpid()

    def set_prices(self, costs: Costs | None) -> None:
        """Prices from now on."""
        self.prices = self._policy.settle_on(costs)

    def judge(self, X: npt.ArrayLike, costs: Costs | None) -> Judgement:
        """What the rejector makes of the inputs."""
        self._usable()
        return self.bundle.judge(X, self._prices(costs).which)[1]

    def begin(self, X: npt.ArrayLike, costs: Costs | None, deadline: float | None, call: Call) -> Draft | Answers:
        """Answer locally, decide, and send what goes; the answers themselves where there is nothing to wait for.

        The deadline counts from the call on. For one whose caller has gone nothing is decided or sent.
        """
        self._usable()
        prices = self._prices(costs)
        seconds = self.options.deadline if deadline is None else check_deadline(deadline)
        label, judgement = self.bundle.judge(X, prices.which)
        if not call.gone and len(label) == 1 and not self._bounded and prices.keeps(judgement):
            return self._kept(label, prices.costs, call.begun)
        draft = Draft(call, seconds, prices.costs, label)
        if call.gone:
            return draft
        self._ask(draft, X, self._policy.weigh(judgement, prices), draft.at - min(_MARGIN, _MARGIN_SHARE * seconds))
        return draft if draft.parts or call.gone else self.finish(draft)

    def finish(self, draft: Draft) -> Answers:
        """One answer an input, with what the server said by now."""
        codes, label = draft.codes, draft.label
        for part in draft.parts:
            reply = part.reply()
            if reply.label is not None:
                label[part.rows] = reply.label
            elif reply.reason is not None:
                codes[part.rows] = CODE[reply.reason]
        remote = (codes == CODE[WORTH_ASKING]) | (codes == CODE[WITHIN_LIMIT])
        latency = time.monotonic() - draft.call.begun
        self._recorder.answered(codes, latency)
        return Answers(
            label=label,
            source=_SOURCE[remote.view(np.int8)],
            reason=_TEXT[codes],
            cost=np.where(remote, draft.costs.c_sc, draft.costs.c_cc),
            latency=np.full(len(label), latency),
        )

    def _kept(self, label: npt.NDArray[np.int64], costs: Costs, begun: float) -> Answers:
        """One answer that the rejector keeps: the case that must cost next to nothing beside the models."""
        latency = time.monotonic() - begun
        self._recorder.answered_one(0, latency)
        return Answers(label, _KEPT_SOURCE.copy(), _KEPT_REASON.copy(), np.array([costs.c_cc]), np.array([latency]))

    def start_check(self, seconds: float) -> Future[None]:
        """Begin to compare the server with the bundle."""
        self._usable()
        if self._loop is None or self._transport is None:
            raise EdgeError("there is no server to check: give server=")
        return self._loop.submit(self._transport.check(time.monotonic() + check_deadline(seconds)))

    @property
    def classes_compared(self) -> bool:
        """Whether the server gave names of classes when it was last compared with the bundle."""
        return self._transport is not None and self._transport.classes_compared

    @property
    def server_versions(self) -> list[str]:
        """Of the server's model, when last looked at."""
        return [] if self._transport is None else self._transport.versions

    def stats(self) -> EdgeStats:
        """The counters, as of now."""
        return self._recorder.stats(self._breaker.state, self._breaker.opened, self._policy.status())

    def close(self) -> None:
        """Give up what is under way and close the connections."""
        self._closed = True
        if self._loop is not None:
            self._loop.stop()

    def _prices(self, costs: Costs | None) -> Prices:
        return self.prices if costs is None else self._policy.prices(costs)

    def _ask(self, draft: Draft, X: npt.ArrayLike, wishes: Wishes, until: float) -> None:
        """Send what may go and can go, and note what becomes of the rest."""
        size = self.options.max_batch
        unable = self._unable(until)
        # Leave to send comes before the permits: none is spent on what then stays.
        passes = [] if unable else self._breaker.enter(-(-int(wishes.able.sum()) // size))
        try:
            most = len(passes) * size
            if unable is None and not most and wishes.able.any():  # it opened just now
                unable = reasons.CIRCUIT_OPEN
            remote = self._policy.permit(wishes, None if unable else most)
            draft.codes = _DECIDED[2 * remote + wishes.wanted]
            rows = np.flatnonzero(remote)
            draft.codes[rows[most:]] = CODE[unable or reasons.CIRCUIT_OPEN]
            sent = rows[:most]
            if not len(sent) or draft.call.gone:
                return
            inputs = self.bundle.check(X)
            for start in range(0, len(sent), size):
                if self._send(draft, passes[-1], inputs, sent[start : start + size], until):
                    passes.pop()
        except BaseException:
            draft.give_up()
            raise
        finally:
            for leave in passes:
                leave.settle(None)

    def _unable(self, until: float) -> str | None:
        """Why nobody can be asked, whatever is to be sent."""
        if self._loop is None:
            return reasons.NO_SERVER
        if time.monotonic() >= until:
            return reasons.DEADLINE
        return reasons.CIRCUIT_OPEN if self._breaker.blocked() else None

    def _send(self, draft: Draft, leave: Pass, inputs: Array, rows: npt.NDArray[np.intp], until: float) -> bool:
        """Send some inputs; False where there is nobody left to do it, and the pass was not used."""
        assert self._loop is not None
        assert self._transport is not None
        patience = Patience(until)
        try:
            future = self._loop.submit(self._transport.ask(inputs[rows], patience))
        except RuntimeError:  # closed by another thread meanwhile, or no thread could be started
            draft.codes[rows] = CODE[reasons.SERVER_UNREACHABLE]
            return False
        draft.parts.append(Part(rows, leave, future, partial(self._loop.call, patience.end)))
        return True

    def _usable(self) -> None:
        if self._closed:
            raise EdgeError("this edge client is closed: make another")
        if os.getpid() != self._pid:
            raise EdgeError(
                f"this edge client was made in process {self._pid} and its connections stayed there: make one in "
                "every process, after the fork"
            )
