"""Threads that all make their first call of ``predict`` at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from l2h.decision import limiters
from l2h.limits import Limiter


def first_calls(monkeypatch: pytest.MonkeyPatch, call: Callable[[], int], threads: int = 4) -> list[int]:
    """Return what the calls of so many threads give, none of which finds the limiter that another one makes.

    The limiters do not pace, so the first requests use up the cap.
    """
    together = threading.Barrier(threads)

    class Slow(Limiter):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named, pacing=False)
            with suppress(threading.BrokenBarrierError):  # where only one is made
                together.wait(timeout=1)

    monkeypatch.setattr(limiters, "Limiter", Slow)
    given: list[int] = []
    started = [threading.Thread(target=lambda: given.append(call())) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert len(given) == threads
    return given
