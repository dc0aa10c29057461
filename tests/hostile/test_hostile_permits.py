"""Attacks on the limiter: processes that wait for one another, deaths at every write, full disks, clocks that jump."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from histories import DAY, FAULT, History, run_histories
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from lives import DiedError, Life, Lives
from preload import Preload

#: The window in seconds, and in requests. All times are multiples of a quarter: none is within rounding of its end.
SECONDS, REQUESTS = 10.125, 10
spans = st.sampled_from([0.25, 3.0, 9.75, 10.0, 10.25, 25.0])
jumps = st.sampled_from([0.0, 1.0, -1.0, 3600.0, -3600.0, 400 * DAY, -400 * DAY])
slots = st.integers(0, 2)


def locked(path: Path) -> sqlite3.Connection:
    """Hold the write lock of a file until the connection is closed."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    return db


class PermitHistory(History):
    """Three processes under one limit, in any order and at any time, beside a list of the permits they must give."""

    def __init__(self, lives: Lives, preload: Preload, folder: Path) -> None:
        super().__init__(lives, preload, folder / "permits", 1.7e9)
        self.offset: float | None = None  # of the limiter's time, to the time since the boot
        self.requests, self.latest = 0, -1
        self.permits: list[float] = []

    @initialize(cap=st.integers(1, 3), by_time=st.booleans())
    def choose(self, cap: int, by_time: bool) -> None:
        self.cap, self.by_time = cap, by_time
        self.length = SECONDS if by_time else REQUESTS
        self.limit = f"{cap}/{SECONDS}s" if by_time else f"{cap * 100 // REQUESTS}%/{REQUESTS}"

    @rule(slot=slots, times=st.integers(1, 4))
    def ask(self, slot: int, times: int) -> None:
        for _ in range(times):
            self.check(slot, self.life(slot).call("allow"))

    @rule(slot=slots, span=spans)
    def ask_while_the_file_is_locked(self, slot: int, span: float) -> None:
        life = self.life(slot)
        with contextlib.closing(locked(self.path)):
            life.tell("allow")
            if self.preload.await_lock_wait(life.has_answered):
                self.pass_time(span)
        self.check(slot, life.answer())

    @rule(slot=slots, **FAULT)
    def ask_with_a_fault(self, slot: int, at: int, how: str, error: int, lasting: int, opening: bool) -> None:
        if opening:
            self.kill(slot)
        else:
            self.life(slot)
        before = self.recorded() if self.path.exists() else (0, 0)
        self.preload.arm(at, how, error, lasting)
        reply: Any = None
        try:
            life = self.life(slot, hopeful=True)
            reply = None if life is None else life.call("allow")
        except DiedError:
            self.open.pop(slot, None)
        self.preload.disarm()
        self.life(slot)  # whatever has happened, the file can be opened, and the clock in it is that of now
        given, counted = self.recorded()
        if reply is not None and reply[1] != "ledger_unavailable":
            self.check(slot, reply)
            assert (given, counted) == self.expected()
        elif (given, counted) == before:
            pass  # nothing was recorded
        else:  # all of it was, before the process died
            assert reply is None, "it said that nothing was recorded"
            self.expect()
            assert (given, counted) == self.expected()

    pass_time = rule(span=spans)(History.pass_time)
    step_the_clock = rule(jump=jumps)(History.step_the_clock)
    kill = rule(slot=slots)(History.kill)

    @rule(span=spans, jump=jumps)
    def restart_the_system(self, span: float, jump: float) -> None:
        super().restart_the_system(span, jump)
        self.offset = None

    def teardown(self) -> None:
        super().teardown()
        if self.path.exists():
            with contextlib.closing(sqlite3.connect(self.path)) as db:
                assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    def life(self, slot: int, hopeful: bool = False) -> Life | None:
        """The process of a slot, with the limiter open; None where that may fail, and did."""
        life = self.begin(slot, hopeful, "Permits", self.limit, str(self.path))
        if self.offset is None and not hopeful:
            # The first process after a start of the system sets the limiter's time: it does not go back.
            self.offset = max([self.wall, *(self.permits[-1:] if self.by_time else [])]) - self.boot
        return life

    def recorded(self) -> tuple[int, int]:
        """How many permits and requests the file holds; the ids of permits have no gaps."""
        with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as db:
            if db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('permits', 'state')").fetchone() == (0,):
                return 0, 0
            (given,) = db.execute("SELECT coalesce(max(id), 0) FROM permits").fetchone()
            (counted,) = db.execute("SELECT coalesce(sum(requests), 0) FROM state").fetchone()
            return given, counted

    def expected(self) -> tuple[int, int]:
        return len(self.permits), 0 if self.by_time else self.requests

    def expect(self, wanted: bool = True) -> tuple[bool, float]:
        """Ask the model: whether a permit is given now, and the position of the request."""
        self.requests += 1
        at = float(self.requests)
        if self.by_time:
            assert self.offset is not None
            at = self.offset + self.boot
        granted = sum(permit > at - self.length for permit in self.permits) < self.cap
        if granted and wanted:
            self.permits.append(at)
        return granted, at

    def check(self, slot: int, reply: list[Any]) -> None:
        # A process learns of the others' requests at its own turn: it may refuse one that they made room for.
        stale = not self.by_time and slot != self.latest and reply[1] == "limit_reached"
        granted, at = self.expect(wanted=not stale)
        assert reply[:2] == [granted, "within_limit" if granted else "limit_reached"] or stale
        self.latest = slot
        assert reply[2] == pytest.approx(at, rel=0, abs=1e-4)


def test_ten_processes_that_waited_for_the_file_do_not_get_the_next_window_as_well(lives, preload, memory):
    path, clock = memory / "waited", 1.7e9
    preload.freeze(clock, 1000.0, 1)
    processes = [lives.begin() for _ in range(10)]
    assert [life.call("Permits", "10/2s", str(path)) for life in processes] == [None] * 10
    with contextlib.closing(locked(path)):
        for life in processes:
            life.tell("allow")
            preload.await_lock_wait()
        preload.step(wall=1.9, boot=1.9)
    first = [life.answer() for life in processes]
    preload.step(wall=0.2, boot=0.2)
    second = [life.call("allow") for life in processes]
    assert [granted for granted, _, _ in first] == [True] * 10
    assert [granted for granted, _, _ in second] == [False] * 10, "20 within a fifth of a second"
    assert min(at for _, _, at in first) > clock + 1.8
    for life in processes:
        lives.give_back(life)


def test_whatever_happens_the_permits_are_those_of_the_model(lives, preload, memory):
    run_histories(lambda folder: PermitHistory(lives, preload, folder), memory / "permits", 20)


@pytest.mark.long
def test_five_thousand_histories_of_permits(lives, preload, memory):
    run_histories(lambda folder: PermitHistory(lives, preload, folder), memory / "permits-long", 5000)
