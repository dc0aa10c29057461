"""The run-time limiter: cap, pacing and drift behind one lock."""

import logging
import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import partial

import numpy.typing as npt

from l2h.errors import DataError
from l2h.limits import permits
from l2h.limits.drift import Drift, DriftMonitor
from l2h.limits.pacing import Pacer
from l2h.limits.permits import LimiterStatus, Permit, PermitWindow, StoreBusyError, StoreUnavailableError
from l2h.limits.rate import LimitError, RateLimit
from l2h.limits.rules import Threshold, checked_scores, threshold_for
from l2h.limits.tracking import ShareTracker, TrackingPacer
from l2h.telemetry import event

log = logging.getLogger("l2h.limits")
#: What a fork calls, of every limiter, before it and in the child. At a fork none may be in the middle of a call: the
#: child would wait for ever for what SQLite holds.
_callbacks: set[weakref.WeakMethod[Callable[[bool], None]]] = set()
_forking = threading.Lock()
#: The locks that a fork under way holds, and the seconds that it waits for one of them.
_held: list[threading.Lock] = []
_FORK_WAIT = 1.0


class Limiter(AbstractContextManager["Limiter"]):
    """Keeps a limit at run time, whatever the traffic is.

    **The cap is hard.** For ``RateLimit(100, per="1h")`` no time window of that length, half open and at any
    offset, ever holds more than 100 permits. For ``RateLimit(fraction=0.2, window=1000)`` no 1000 calls of
    :meth:`allow` in a row hold more than 200. A window starts as if nothing had been sent before: the first 1000
    requests share the whole cap, and without pacing the first 200 of them use it up. Calls are counted in the
    order in which they get the lock; any number of threads may call.

    **A tracked share is met from both sides.** For ``RateLimit(fraction=0.2, within=50)`` any n calls in a row hold
    0.2 n permits, at most 50 more, and at most 50 fewer where all that are permitted may be sent. ``used`` and
    ``remaining`` of the status are of these 50. Every process tracks by itself, and begins anew after a restart.

    **Time never goes back.** The clocks that the limiter chooses count the time since the system's start, so a step
    of the wall clock changes nothing. With a path, a restart of the system goes on from the wall clock, or from the
    last permit if that is later: a wall clock that is wrong then can free one budget too early, and withholds none for
    longer than the window. If a clock of your own jumps back, the limiter stays at the latest time it saw until that
    clock has caught up (``status().clock_behind`` says by how much). A jump forward frees budget as if that time had
    passed.

    **With a path the permits last.** They are written to an SQLite file before they are given, and all
    processes that name the file share the budget. They survive ``kill -9``; to survive a loss of power as
    well, set ``power_safe``. If the file cannot be written no permit is given. Without a path the permits
    belong to one process: a forked child gets an error rather than a second budget. Pacing and drift start
    again in each process.

    Args:
        limit: a count ``per`` time, or a ``fraction`` with a ``window`` or ``within`` so many; as an object or as text
            (``"100/1h"``).
        path: file that holds the permits.
        clock: gives seconds. Leave it out unless you have a better one than the system's.
        pacing: spend the budget on the inputs that gain most (:mod:`l2h.limits.pacing`); else on the first
            that come.
        min_score: never ask below this score, such as 0 where the score is the expected saving.
        calibration: scores of a calibration set, with which pacing starts.
        threshold: the calibrated threshold against which drift is measured; made from ``calibration`` for a
            fraction. Without it drift is not watched. It does not decide what is sent.
        memory: how many recent scores pacing compares with.
        drift_window: over how many requests drift is watched.
        drift_confidence: probability of no false alarm of drift in 20,000 requests.
        power_safe: wait for the disk at every permit.
        seed: of the random numbers by which pacing breaks ties.

    Raises:
        LimitError: a limit that cannot be kept at run time, or a file that cannot hold it.

    Example:
        >>> now = 0.0
        >>> limiter = Limiter(RateLimit(2, per="1h"), clock=lambda: now, pacing=False)
        >>> [limiter.allow(score=0.5).reason for _ in range(3)]
        ['within_limit', 'within_limit', 'limit_reached']
        >>> now = 3600.0
        >>> bool(limiter.allow(score=0.5)), limiter.status().remaining
        (True, 1)
    """

    def __init__(
        self,
        limit: RateLimit | str,
        *,
        path: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] | None = None,
        pacing: bool = True,
        min_score: float | None = None,
        calibration: npt.ArrayLike | None = None,
        threshold: Threshold | None = None,
        memory: int = 1000,
        drift_window: int = 500,
        drift_confidence: float = 0.95,
        power_safe: bool = False,
        seed: int = 0,
    ) -> None:
        limit = RateLimit.parse(limit) if isinstance(limit, str) else limit
        if not limit.at_run_time:
            raise LimitError(
                f"RateLimit(fraction={limit.fraction!r}) has no window to keep it in at run time: add "
                f"window=1000, the number of requests in a row it is to hold for"
            )
        if memory < 1:
            raise LimitError(f"memory={memory} keeps no scores: give 1 or more")
        if min_score is not None and math.isnan(min_score):
            raise LimitError("min_score=nan is no score: leave it out to ask at any score")
        scores = None if calibration is None else checked_scores("calibration", calibration)
        if scores is not None and threshold is None and limit.fraction is not None:
            threshold = threshold_for(scores, limit.fraction)
        self.limit = limit
        self._store, found = _store(limit, path, power_safe)
        self._clock = clock or found
        self._pacer: Pacer | None = None
        if pacing and isinstance(self._store, ShareTracker):
            self._pacer = TrackingPacer(self._store, memory, scores, seed)
        elif pacing:
            self._pacer = Pacer(self._store, memory, scores, seed)
        self._min_score = -math.inf if min_score is None else min_score
        self._watch = partial(DriftMonitor, window=drift_window, confidence=drift_confidence)
        self._monitor: DriftMonitor | None = None
        self._compare_with(threshold)
        #: What the scores are measured by, for whoever calls :meth:`recalibrate` when that changes.
        self.prices: Hashable = None
        self._behind = False
        self._unwritable = False
        self._count: Counter[str] = Counter()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known = self._status(math.inf)
        _callbacks.add(weakref.WeakMethod(self._meet_fork, _callbacks.discard))

    def allow(
        self,
        score: float,
        timeout: float | None = None,
        *,
        again: bool = False,
        other: Callable[[float | None], Permit] | None = None,
        watched: float | None = None,
    ) -> Permit:
        """Decide whether the server may be asked about an input of this score; larger means more to gain.

        Every call is one request. A permit counts from the moment it is given, whether it is used or not. The call
        waits at most ``timeout`` seconds for other threads and for other processes on the same path; what is not
        decided by then gets no permit and is no request. Without a timeout it waits at most five seconds for the file.

        Args:
            score: of the input; minus infinity for one that is not to be asked about and only counts as a request.
            timeout: seconds.
            again: the input was a request before and is no new one: another server is asked about it.
            other: asks another limiter, which has to agree. It is called with the seconds left, and only where this
                limiter would give a permit; this one is spent only if the other gives one too.
            watched: the score by which drift is measured, where it is another one.

        Raises:
            DataError: the score is NaN.
            LimitError: the clock gave no finite number, or the process was forked and there is no path.
        """
        if math.isnan(score):
            raise DataError("the score is NaN: the model has diverged")
        if timeout is None:
            self._lock.acquire()
        else:
            end = time.monotonic() + timeout
            if timeout <= 0 or not self._lock.acquire(timeout=timeout):
                return Permit(False, permits.TIMED_OUT, self._store.position)
            timeout = end - time.monotonic()
        try:
            self._follow_fork()
            if self._monitor is not None and not again:
                self._monitor.observe((score if watched is None else watched) > self._cut)
            permit = self._decide(float(score), timeout, again, other)
            self._count[permit.reason] += 1
            return permit
        finally:
            self._lock.release()

    def recalibrate(self, calibration: npt.ArrayLike | None) -> None:
        """Go on with scores of another scale, such as after a change of prices; the permits that were given stay.

        Pacing compares with these scores from now on, or learns anew where there are none, and drift is measured
        against their threshold. A limiter that is new then decides the same, with the same permits in its window.

        Args:
            calibration: scores of the calibration set on the new scale; None where there are none.
        """
        scores = None if calibration is None else checked_scores("calibration", calibration)
        with self._lock:
            if self._pacer is not None:
                self._pacer.forget(scores)
            if self._monitor is not None:
                fraction = self.limit.fraction
                self._compare_with(
                    None if scores is None or fraction is None else threshold_for(scores, fraction), self._monitor
                )

    def status(self, timeout: float | None = None) -> LimiterStatus:
        """Return the counters, the window that ends now, and drift.

        Where others do not let go of the limiter within ``timeout`` seconds, the status that was last returned.
        """
        if not self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return self._known
        try:
            self._follow_fork()
            now = self._now()
            try:
                self._store.refresh(now)
            except StoreUnavailableError as error:
                self._warn_unwritable(error)
            self._known = self._status(now)
            return self._known
        finally:
            self._lock.release()

    def drift(self) -> Drift | None:
        """Return ``"above"`` or ``"below"`` while the share of requests above the threshold is out of its band."""
        return None if self._monitor is None else self._monitor.drift

    def close(self) -> None:
        """Close the file, if there is one."""
        with self._lock:
            self._store.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _compare_with(self, threshold: Threshold | None, before: DriftMonitor | None = None) -> None:
        """Measure drift against a threshold; a monitor of the same share goes on with what it has counted."""
        self._cut = math.inf if threshold is None else threshold.value
        if threshold is None or not math.isfinite(threshold.value):
            self._monitor = None
        elif before is None or before.rate != threshold.above:
            self._monitor = self._watch(threshold.above, threshold.samples)

    def _status(self, now: float) -> LimiterStatus:
        window, monitor = self._store, self._monitor
        requests = self._count.total()
        return LimiterStatus(
            limit=str(self.limit),
            requests=requests,
            permits=self._count[permits.WITHIN_LIMIT],
            refused={reason: n for reason, n in sorted(self._count.items()) if reason != permits.WITHIN_LIMIT},
            cap=window.cap,
            used=window.used,
            remaining=max(0, window.cap - window.used),
            threshold=self._pacer.cut()[0] if self._pacer and requests else None,
            observed=None if monitor is None else monitor.observed,
            expected=None if monitor is None else monitor.rate,
            drift=None if monitor is None else monitor.drift,
            clock_behind=max(0.0, window.position - now) if window.by_time else 0.0,
        )

    def _decide(
        self, score: float, timeout: float | None, again: bool, other: Callable[[float | None], Permit] | None
    ) -> Permit:
        store, pacer = self._store, self._pacer
        now = self._now()
        store.begin_request(now, again)
        self._warn_clock(now)
        asked = None
        reason = permits.WITHIN_LIMIT
        if pacer is not None and not again:
            pacer.add(score)
        if score < self._min_score or score == -math.inf:
            reason = permits.BELOW_MIN_SCORE
        elif store.full:
            reason = permits.LIMIT_REACHED
        elif pacer is not None:
            cut = pacer.cut()
            asked = cut[0]
            if not pacer.accepts(score, cut):
                reason = permits.BELOW_PACE
        end = None if timeout is None else time.monotonic() + timeout
        others: list[Permit] = []

        def confirm() -> bool:
            assert other is not None
            others.append(other(None if end is None else end - time.monotonic()))
            return others[0].granted

        try:
            granted = store.end_request(
                reason == permits.WITHIN_LIMIT, self._now, timeout, again, None if other is None else confirm
            )
        except StoreUnavailableError as error:
            if timeout is not None and isinstance(error, StoreBusyError):
                return Permit(False, permits.TIMED_OUT, store.position, asked)
            self._warn_unwritable(error)
            return Permit(False, permits.LEDGER_UNAVAILABLE, store.position, asked)
        self._unwritable = False
        if not granted and others:
            reason = permits.TIMED_OUT if others[0].reason == permits.TIMED_OUT else permits.OTHER_LIMIT
        elif not granted and reason == permits.WITHIN_LIMIT:
            reason = permits.LIMIT_REACHED
        return Permit(granted, reason, store.position, asked)

    def _now(self) -> float:
        now = float(self._clock())
        if not math.isfinite(now):
            raise LimitError(f"the clock gave {now}: it must give a finite number of seconds")
        return now

    def _warn_clock(self, now: float) -> None:
        if not self._store.by_time:
            return
        behind = self._store.position - now
        if behind > 0 and not self._behind:
            log.warning(
                "the clock is %.3f s behind the latest time the limiter saw: the limiter stands still until the "
                "clock has caught up",
                behind,
                extra=event("clock_behind", seconds=behind),
            )
        self._behind = behind > 0

    def _warn_unwritable(self, error: StoreUnavailableError) -> None:
        if not self._unwritable:
            what = event("permits_unrecorded", error=str(error))
            log.warning("no permit is given, because none can be recorded: %s", error, extra=what)
        self._unwritable = True

    def _meet_fork(self, in_child: bool) -> None:
        """Hold the lock, unless another thread keeps it for long; in the child, which lacks that thread, renew it."""
        if in_child:
            self._lock = threading.Lock()
        elif self._lock.acquire(timeout=_FORK_WAIT):
            _held.append(self._lock)

    def _follow_fork(self) -> None:
        """Go on with a connection of this process, if it was forked since; the caller holds the lock."""
        if os.getpid() == self._pid:
            return
        if not self._store.reopen():
            raise LimitError(
                "this limiter was made in another process and keeps its permits in memory: give path= so "
                "that processes share one budget"
            )
        self._pid = os.getpid()


def _store(
    limit: RateLimit, path: str | os.PathLike[str] | None, power_safe: bool
) -> tuple[PermitWindow, Callable[[], float]]:
    """Return what holds the permits, and its clock."""
    if limit.within is not None:
        assert limit.fraction is not None
        if path is not None:
            raise LimitError(f"{limit} is tracked in the memory of each process: leave out path")
        return ShareTracker(limit.fraction, limit.within), time.monotonic
    length, by_time = limit.per if limit.per is not None else limit.window, limit.per is not None
    assert limit.cap is not None
    assert length is not None
    if path is None:
        return PermitWindow(limit.cap, length, by_time), time.monotonic
    # Few limiters need SQLite, and loading it takes longer than all the rest of this package.
    from l2h.limits.sqlite import SqliteStore

    store = SqliteStore(path, limit.cap, length, by_time, power_safe)
    return store, store.clock


def _call_all(in_child: bool) -> None:
    for known in list(_callbacks):
        callback = known()
        if callback is not None:
            callback(in_child)


def _before_fork() -> None:
    _forking.acquire()
    _call_all(in_child=False)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


def _after_fork_in_child() -> None:
    _after_fork()
    _call_all(in_child=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
