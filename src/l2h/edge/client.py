"""``EdgeClient`` for callers that block until the answer is there, ``AsyncEdgeClient`` for coroutines."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypeVar

from l2h.answers import Answers
from l2h.bundle import DeviceBundle
from l2h.decision import AnyCosts, Judgement
from l2h.edge.call import PredictCall, SentRequest
from l2h.edge.core import EdgeCore
from l2h.edge.servers import Address
from l2h.edge.transport import Reply

T = TypeVar("T")


class EdgeClient(EdgeCore, AbstractContextManager["EdgeClient"]):
    """Answers on the device and asks the server where it pays; waits for the server until the deadline at most.

    **Several servers** are given by name, as the bundle has them. The one that is expected to cost least is asked about
    an input; where it fails and time is left, the next best that still pays. Each has its own circuit and counters.

    **The answer comes, whatever the server does.** Where the server gives no good answer in time, the device's own is
    used, with the reason (:mod:`l2h.edge.reasons` lists them). ``predict`` raises for inputs that do not fit the bundle
    (:class:`l2h.bundle.BundleError`), for prices that the rejector does not know, and on a closed client, and for
    nothing else. The deadline holds for the whole call. The device's own answer is not cut short; the server gets the
    time that is left.

    **A request is safe to repeat.** Every repeat carries the same ``Idempotency-Key``, so that ``l2h serve`` answers it
    again but charges once. A request is repeated if it found no connection or lost it, or if a busy
    server (429, 503) asks for a repeat within the deadline.

    **A server that fails gets a rest.** After ``failures`` failures in a row (no connection, no answer in time, a 5xx,
    an unusable answer) it is not asked for ``rest`` seconds. Then one request tries it, while all others are answered
    without it. A request that was not sent does not count as a failure. Neither does a time-out where the server had
    less than 0.25 seconds, or less than half of the client's deadline if that is shorter, a quarter where there are
    several servers.

    Any number of threads may call one client. It does not survive a fork: in the child every call raises
    :class:`EdgeError`, so make the client after the fork.

    Args:
        bundle: the folder of an exported system, or a loaded one.
        server: ``http://HOST:PORT`` or ``https://HOST``, with or without a path before ``/v2``; a function of a batch
            that returns scores (n, K) or labels (n,); None: never ask. Of several servers a mapping by their names; one
            that is missing in it is never asked. It is not contacted before the first request.
            A function is called in a thread, at most ``connections`` times at once, and never repeated; what it raises,
            and a call that hangs, leave the local answer.
        deadline: seconds for a whole ``predict``.
        costs: the prices, of several servers by name; those of the bundle where None. Under a limit and without prices
            asking is free, and the limit is used up.
        limit: a bound on asking, as an object or as text (``"20%"``); of several servers also by name, and ``all`` for
            all together. A share is met by a threshold from the bundle's calibration samples. A share of a window, or a
            number in a time, is met by a :class:`l2h.Limiter`; give one of your own for permits that outlive the
            process, with ``min_score``, or it may spend permits on inputs that do not pay. A permit counts from the
            moment it is given, even if its request brings no answer.
        key: sent as ``Authorization: Bearer KEY``; of several servers one for all, or by name. Never logged nor shown.
        client: the classifier, where the bundle does not hold it.
        binary: send tensors as bytes; False for servers that only know JSON.
        retries: the most repeats of a request, not counting those on connections that the server closed while idle.
        max_batch: the most inputs per request; larger calls are sent as several requests at the same time.
        failures: how many failures in a row stop the asking.
        rest: seconds for which the server is then not asked.
        model: the model's name on the wire; as ``l2h serve`` calls it where None. Like the next two, ``binary`` and
            ``verify_tls``, it may be a mapping by the names of servers.
        input_name: name of the model's input, for other servers than ours; None: read it from the server's metadata.
        output_name: name of its scores (n, K), or of labels (n,); None: read it from the server's metadata.
        connections: the most requests at a time; where answers come late, fewer are sent at a time.
        verify_tls: True, or the path of certificates to trust instead of the system's.
        verify_key: the public key of whoever signs bundles (``l2h sign``): its file, its text or its 32 bytes. A bundle
            that is not signed with it is refused, now and by :meth:`reload`.
        watch: seconds after which the bundle's folder is looked at, again and again: what was put there takes over as
            by :meth:`reload`. None: never.
        otlp: the address of an OpenTelemetry collector, ``http://HOST:4318``, to which traces and metrics are sent; or
            a tracer provider of the program's own, which gets the traces. Needs the extra ``otel``. A call is a span,
            each of its requests one below it, and ``l2h serve --otlp`` adds its own to the same trace.
        traces: the most calls per second that are traced, beside those within a recorded span of the program.
        audit: the share of what would be kept that is asked about all the same, by chance, such as 0.01: the pairs of
            both answers show whether the device is still right to keep so much (``l2h audit report``). Limits hold with
            them. Such an answer waits for the server, has the reason ``audit``, and is the one that is expected to be
            better. 0: none.
        audits: the folder of the pairs, or an :class:`l2h.audits.AuditLog` with other sizes of its files.
        report: tell each server of this device, for its list of devices: counters, reasons, drift, the bundle's
            version and latency, and never inputs or answers. It is a header on requests that are made anyway, and a
            small request when there were none for so many seconds (True: 900).
        device: the name under which this device is known, such as ``cam-7``; ``report`` needs it.

    Raises:
        EdgeSettingsError: an option out of its range, or an invalid address.
        LimitError: a limit that cannot be read.
        BundleError: the bundle is damaged, or has no calibration samples for the limit.

    Example:
        >>> edge = EdgeClient("bundle/", server="http://host:8080", deadline=0.2)  # doctest: +SKIP
        >>> edge.predict(x)[0]  # doctest: +SKIP
        Answer(label=8, source='remote', reason='worth_asking', cost=0.1, latency=0.0093, by='server')
    """

    def predict(self, X: Any, costs: AnyCosts | None = None, deadline: float | None = None) -> Answers:
        """Answer every input, asking the server where it pays.

        Args:
            X: one input or many, (n, ...), of the bundle's shape and type. Where it was trained on a table: a data
                frame, a mapping of columns, or one row as a mapping of values.
            costs: prices of this call; the client's where None.
            deadline: seconds of this call; the client's where None.

        Returns:
            The answers; ``latency`` is that of the whole call.

        Raises:
            BundleError: inputs of another shape or type.
            EdgeError: the client is closed, or was made before a fork.
        """
        self._require_usable()
        call = PredictCall()
        if self._tracer is not None:
            call.trace = self._tracer.begin()
        answers = self._begin(call, X, costs, deadline)
        if answers is None:
            try:
                while call.requests:
                    wait([request.future for request in call.requests], call.wait(), self._waits_for)
                    self._asker.ask_again(call, self._asker.settle(call))
            except BaseException:
                call.abandon()
                raise
            answers = self._finish(call)
        if call.trace is not None:
            call.trace.end(answers)
        return answers

    def judge(self, X: Any, costs: AnyCosts | None = None) -> Judgement:
        """Return what the rejector makes of every input, without asking the server."""
        self._require_usable()
        return self._judge(X, costs)

    def check(self, timeout: float = 5.0) -> None:
        """See that every server can be reached, is ready, takes the key, and has a model for this bundle.

        Compared are the model's name, shapes, type and number of classes, and their names where the server gives them.
        Its version may be another than the bundle's: :attr:`server_versions`. Nothing is charged, and a function that
        is asked in place of a server is not called.

        Raises:
            EdgeError: it is not so; the message says what differs.
        """
        checks = self._start_checks(timeout)
        wait(checks, timeout + 0.5)
        self._report_checks(checks)

    def reload(self, bundle: str | Path | DeviceBundle | None = None) -> bool:
        """Put another bundle into service; calls under way finish on the old one, and no call waits.

        Permits that limits have given stay spent. For the next 5,000 inputs the new bundle is on trial: where its drift
        alarm is raised, and the old one would be less than half as far off, that is put back (``stats().rolled_back``).

        Args:
            bundle: its folder, or a loaded one; None for what is now in the folder of the bundle in service.

        Returns:
            Whether another bundle took over. With None, False where the folder holds the same one as before, or the
            one that was taken back.

        Raises:
            BundleError: it is damaged, not signed as ``verify_key`` asks, or for other inputs, classes or servers. The
                old one stays in service.
        """
        return self._reload(bundle)

    def feedback(self, id: str, label: Any) -> None:
        """Keep the true label of an input, so that ``l2h audit report`` compares what happened with the promise.

        Args:
            id: of its answer, ``answers[i].id``; those that are no part of the audit have none. It may be of an earlier
                start, as long as its pair is in the folder.
            label: the true class, as it stood in the training labels. A second one replaces the first.

        Raises:
            AuditError: no pair has this id, or the label cannot be written.
            DataError: the label is none of the classes.
            EdgeSettingsError: the client has no audit.
        """
        self._feedback(id, label)

    def close(self) -> None:
        """Close the connections; calls under way get their local answers, later ones raise :class:`EdgeError`."""
        self._close()

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncEdgeClient(EdgeCore):
    """:class:`EdgeClient` with ``await``; the arguments, the answers and the errors are the same.

    The event loop is never blocked: the device's own answer is computed in a thread, and the requests run on a loop of
    the client's own, so that one client may be used from several loops. A ``predict`` that is cancelled ends its
    requests, and sends none where it had not yet. The deadline counts from the call on, the wait for a thread included.

    Example:
        >>> async with AsyncEdgeClient("bundle/", server="http://host:8080") as edge:  # doctest: +SKIP
        ...     answers = await edge.predict(x)
    """

    def __init__(
        self, bundle: str | Path | DeviceBundle, server: Address | Mapping[str, Address] | None = None, **options: Any
    ) -> None:
        super().__init__(bundle, server, **options)
        self._unwritten: set[Future[None]] = set()  # pairs that threads are writing
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="l2h-edge-local")

    async def predict(self, X: Any, costs: AnyCosts | None = None, deadline: float | None = None) -> Answers:
        """Answer every input, as :meth:`EdgeClient.predict` does."""
        call = PredictCall()
        if self._tracer is not None:
            call.trace = self._tracer.begin()
        answers = await self._work(call, self._submit(self._begin, call, X, costs, deadline))
        waiting: dict[SentRequest, asyncio.Future[Reply]] = {}
        while answers is None and call.requests:
            waiting = {each: waiting.get(each) or asyncio.wrap_future(each.future) for each in call.requests}
            try:
                await asyncio.wait(waiting.values(), timeout=call.wait(), return_when=self._waits_for)
            except BaseException:
                call.abandon()
                raise
            failed = self._asker.settle(call)
            if failed and not self._closed:  # in a thread, since a limiter may take its time
                await self._work(call, self._submit(self._asker.ask_again, call, failed), call.until)
        answers = self._finish(call) if answers is None else answers
        if call.trace is not None:
            call.trace.end(answers)
        return answers

    async def judge(self, X: Any, costs: AnyCosts | None = None) -> Judgement:
        """Return what the rejector makes of every input, without asking the server."""
        return await asyncio.wrap_future(self._submit(self._judge, X, costs))

    async def check(self, timeout: float = 5.0) -> None:
        """Compare the server with the bundle, as :meth:`EdgeClient.check` does."""
        checks = self._start_checks(timeout)
        waiting = [asyncio.wrap_future(check) for check in checks]
        for check in waiting:  # what is raised is read below
            check.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait(waiting, timeout=timeout + 0.5)
        self._report_checks(checks)

    async def reload(self, bundle: str | Path | DeviceBundle | None = None) -> bool:
        """Put another bundle into service, as :meth:`EdgeClient.reload` does."""
        return await asyncio.to_thread(self._reload, bundle)

    async def feedback(self, id: str, label: Any) -> None:
        """Keep the true label of an input, as :meth:`EdgeClient.feedback` does."""
        writing = [asyncio.wrap_future(each) for each in self._unwritten.copy()]
        if writing:  # its pair may be among them; waiting for them cancels none
            await asyncio.wait(writing)
        await asyncio.to_thread(self._feedback, id, label)

    async def close(self) -> None:
        """Close the connections; calls under way get their local answers, later ones raise :class:`EdgeError`."""
        if os.getpid() != self._pid:
            return
        await asyncio.to_thread(self._close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _work(self, call: PredictCall, work: Future[T], until: float | None = None) -> T | None:
        """Wait for a thread that works for a call; None where none is free until a time."""
        waiting = asyncio.wrap_future(work)
        try:
            if until is not None:
                await asyncio.wait([waiting], timeout=max(0.0, until - time.monotonic()))
                if work.cancel():
                    return None
            return await waiting
        except BaseException:
            call.abandoned = True
            # What the thread sends before it sees that is ended as well.
            work.add_done_callback(lambda _: call.abandon())
            raise

    def _keep_pairs(self, *pairs: Any) -> None:
        try:  # in a thread, since a disk may take its time
            writing = self._threads.submit(super()._keep_pairs, *pairs)
        except RuntimeError:  # the threads are gone
            super()._keep_pairs(*pairs)
            return
        self._unwritten.add(writing)
        writing.add_done_callback(self._unwritten.discard)

    def _submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        # Judged here alone: what was called before the end is answered after it.
        self._require_usable()
        try:
            return self._threads.submit(work, *arguments)
        except RuntimeError:  # the threads are gone
            raise self._closed_error() from None
