"""Joining the requests of many connections into one call of the model, in a thread of its own.

The thread takes whatever waits, up to a bound, as soon as it is free: with nothing to wait for, a request runs at once.
Only while requests do come together (the calls of late held several) does it wait a little, at most the delay, for
more of them. The interpreter's lock is free while the model computes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt

from l2h.serving.model.job import FAILED, GONE, NOT_FINITE, Job
from l2h.serving.model.timing import Timing

log = logging.getLogger("l2h.serving")

#: Weight of the latest call in the running mean of requests a call.
_NEW = 0.2
#: From how many requests a call on it is worth waiting for more.
_SEVERAL = 1.5
#: So many delays without a request are a rest, after which the next one runs at once.
_REST = 10


class Batcher:
    """One lane to the model.

    Args:
        most: inputs of one call.
        delay: seconds to wait for more at most.
        computed: takes the jobs that have scores; called in the thread.
        failed: takes the jobs that have none, with their outcome; called in the thread.
        called: told the inputs and the seconds of each call.
    """

    def __init__(
        self,
        most: int,
        delay: float,
        computed: Callable[[list[Job]], None],
        failed: Callable[[list[Job]], None],
        called: Callable[[int, float], None] = lambda inputs, seconds: None,
    ) -> None:
        self.most, self.delay = most, delay
        self._computed, self._failed, self._called = computed, failed, called
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._put = self._taken = 0  # each written by one thread alone
        self._at_hand: deque[Job] = deque()
        self._stopping = False
        self._until = 0.0
        self._usual = 1.0
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job computed; from the event loop's thread."""
        self._put += job.inputs
        self._queue.put(job)

    @property
    def waiting(self) -> int:
        """Inputs that no call has taken yet."""
        return self._put - self._taken

    def wait(self, timing: Timing) -> float:
        """Expected seconds until an input that comes now would begin to be computed."""
        running = max(0.0, self._until - time.monotonic())
        waiting = self.waiting
        return running + timing.wait(waiting, self.most) if waiting else running

    def close(self) -> None:
        """Compute what waits, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._gather():
            jobs = self._choose()
            self._taken += sum(job.inputs for job in jobs)
            self._call(jobs)

    def _gather(self) -> bool:
        """Have something at hand, and whatever came with it; False at the end."""
        if not self._at_hand and not self._stopping:
            since = time.monotonic()
            self._take(self._queue.get())
            if time.monotonic() - since > _REST * self.delay:
                self._usual = 1.0
        deadline: float | None = None
        while not self._stopping:
            try:
                self._take(self._queue.get_nowait())
                continue
            except Empty:
                count = len(self._at_hand)
            if self._usual < _SEVERAL or count >= self._usual or self.waiting >= self.most or self.delay <= 0.0:
                break
            now = time.monotonic()
            deadline = deadline or now + self.delay
            try:
                self._take(self._queue.get(timeout=max(0.0, deadline - now)))
            except Empty:
                if count == 1:
                    self._usual /= 2  # waited for nobody
                break
        self._usual += _NEW * (len(self._at_hand) - self._usual)
        return bool(self._at_hand)

    def _take(self, job: Job | None) -> None:
        if job is None:
            self._stopping = True
        else:
            self._at_hand.append(job)

    def _choose(self) -> list[Job]:
        """The jobs of the next call: the first, and those after it that fit and are for the same model."""
        jobs = [self._at_hand.popleft()]
        model, inputs = jobs[0].model, jobs[0].inputs
        while self._at_hand and self._at_hand[0].model is model and inputs + self._at_hand[0].inputs <= self.most:
            inputs += self._at_hand[0].inputs
            jobs.append(self._at_hand.popleft())
        return jobs

    def _call(self, jobs: list[Job]) -> None:
        left = [job for job in jobs if job.gone]
        if left:
            for job in left:
                job.outcome = GONE
            self._failed(left)
            jobs = [job for job in jobs if job.outcome is None]
        if not jobs:
            return
        try:
            scores = self._scores(jobs)
        except Exception as error:  # noqa: BLE001 - whatever a model does, the server goes on
            self._rescue(jobs, error)
            return
        finite = bool(np.isfinite(scores).all())
        bad: list[Job] = []
        at = 0
        for job in jobs:
            job.scores = scores[at : at + job.inputs]
            job.batch = len(scores)
            at += job.inputs
            if not finite and not np.isfinite(job.scores).all():
                job.outcome = NOT_FINITE
                bad.append(job)
        if bad:
            self._failed(bad)
            jobs = [job for job in jobs if job.outcome is None]
        if jobs:
            self._computed(jobs)

    def _scores(self, jobs: list[Job]) -> npt.NDArray[np.float32]:
        """Of all inputs of all jobs, in their order."""
        model = jobs[0].model
        start = time.monotonic()
        try:
            x = jobs[0].x if len(jobs) == 1 else np.concatenate([job.x for job in jobs])
            self._until = start + model.timing.of(len(x))
            scores = model.run(x)
        finally:
            self._until = 0.0
        seconds = time.monotonic() - start
        model.timing.observe(len(x), seconds)
        self._called(len(x), seconds)
        return scores

    def _rescue(self, jobs: list[Job], error: Exception) -> None:
        """A call that failed: each job by itself, so that one cannot take the others with it."""
        if len(jobs) > 1:
            for job in jobs:
                self._call([job])
            return
        log.error("model_failed", extra={"fields": {"error": str(error), "request_id": jobs[0].request_id}})
        jobs[0].outcome = FAILED
        self._failed(jobs)
