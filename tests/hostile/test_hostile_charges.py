"""Attacks on quotas and the ledger: deaths at every write, disks that fail, clocks that jump, files that vanish."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from histories import DAY, FAULT, History, run_histories
from hypothesis import strategies as st
from hypothesis.stateful import rule
from lives import DiedError, Life, Lives
from preload import Preload
from serving_process import Client, Server, make_key
from waiting import STUCK, until

from l2h.serving.accounts.key import Quota

pytestmark = pytest.mark.long

#: Keys with their quotas, and the seconds of the periods.
KEYS = {"minutes": ("4/minute", 60), "hours": ("6/hour", 3600), "free": (None, 0)}
#: All times are multiples of a quarter and an eighth: none is within rounding of the end of a period.
spans = st.sampled_from([0.25, 20.0, 59.75, 60.0, 61.0, 1800.0, 3600.0])
jumps = st.sampled_from([0.0, 1.0, -1.0, 60.0, -60.0, 5000.0, -5000.0, 400 * DAY, -400 * DAY])
slots = st.integers(0, 1)
charges = st.lists(
    st.tuples(
        st.sampled_from(sorted(KEYS)), st.sampled_from([None, "x", "y"]), st.sampled_from("ab"), st.integers(1, 5)
    ),
    min_size=1,
    max_size=3,
)
Charges = list[tuple[str, str | None, str, int]]


class ChargeHistory(History):
    """Two workers with one ledger, in any order and at any time, beside a list of the charges they must make."""

    def __init__(self, lives: Lives, preload: Preload, folder: Path) -> None:
        super().__init__(lives, preload, folder / "ledger.db", 1.7e9 + 0.125)
        self.rows: list[tuple[str, str | None, str, int]] = []
        self.periods: dict[str, list[float]] = {}  # number, used, which start of the system, end

    @rule(slot=slots, batch=charges)
    def charge(self, slot: int, batch: Charges) -> None:
        self.check(self.life(slot).call("charge", written(batch)), batch)

    @rule(slot=slots, batch=charges, **FAULT)
    def charge_with_a_fault(
        self, slot: int, batch: Charges, at: int, how: str, error: int, lasting: int, opening: bool
    ) -> None:
        if opening:
            self.kill(slot)
        else:
            self.life(slot)
        self.preload.arm(at, how, error, lasting)
        reply: Any = None
        try:
            life = self.life(slot, hopeful=True)
            reply = None if life is None else life.call("charge", written(batch))
        except DiedError:
            self.open.pop(slot, None)
        self.preload.disarm()
        self.life(slot)
        if isinstance(reply, list):
            self.check(reply, batch)
        elif reply is None and self.recorded() != self.rows:  # it died after the commit
            self.expect(batch)
        assert self.recorded() == self.rows, "all of a batch is charged, or nothing; and nothing where it failed"

    @rule(slot=slots, opened=st.sets(slots))
    def remove_the_log(self, slot: int, opened: set[int]) -> None:
        """Nothing is lost: the workers refuse until all of them have closed the ledger."""
        for other in {slot, *opened}:
            self.life(other)
        for life in self.open.values():
            assert life.call("probe") is None  # opens the ledger again, where a fault had closed it
        Path(f"{self.path}-wal").unlink()
        for life in self.open.values():
            assert "error" in life.call("probe")
        for life in self.open.values():
            assert life.call("probe") is None
        assert self.recorded() == self.rows

    @rule(batch=charges)
    def start_without_the_log(self, batch: Charges) -> None:
        """Whoever removes the log of a dead server is told, and may put it back."""
        self.charge(0, batch)
        for slot in list(self.open):
            self.kill(slot)
        log, away = Path(f"{self.path}-wal"), Path(f"{self.path}-away")
        log.rename(away)
        life = self.lives.begin()
        assert "was removed" in life.call("Charges", str(self.path))["error"]
        life.kill()
        away.rename(log)
        assert self.recorded() == self.rows

    @rule(slot=slots)
    def maintain(self, slot: int) -> None:
        assert self.life(slot).call("maintain") is None

    pass_time = rule(span=spans)(History.pass_time)
    step_the_clock = rule(jump=jumps)(History.step_the_clock)
    kill = rule(slot=slots)(History.kill)
    restart_the_system = rule(span=spans, jump=jumps)(History.restart_the_system)

    def teardown(self) -> None:
        super().teardown()
        if self.path.exists():
            assert self.recorded() == self.rows

    def life(self, slot: int, hopeful: bool = False) -> Life | None:
        """The worker of a slot, with the ledger open; None where that may fail, and did."""
        return self.begin(slot, hopeful, "Charges", str(self.path))

    def recorded(self) -> list[tuple[str, str | None, str, int]]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=60)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            rows = db.execute("SELECT key_id, idempotency_key, fingerprint, inputs FROM charges ORDER BY id")
            return [(key, name, (content or b"").decode(), inputs) for key, name, content, inputs in rows]

    def expect(self, batch: Charges) -> list[tuple[str, float]]:
        """Ask the model: what becomes of each charge, and the seconds until the period ends."""
        results = []
        for key, name, content, inputs in batch:
            known = [row[2] for row in self.rows if name is not None and row[:2] == (key, name)]
            left, room, period = self.room(key)
            if known:
                results.append(("repeated" if known == [content] else "conflict", 0.0))
            elif inputs > room:
                results.append(("over_quota", left))
                self.periods[key] = period  # the refusal told its end
            else:
                results.append(("charged", 0.0))
                self.rows.append((key, name, "" if name is None else content, inputs))
                self.periods[key] = period
                period[1] += inputs
        return results

    def room(self, key: str) -> tuple[float, float, list]:
        """Seconds until the key's period ends, the inputs left in it, and the period: kept once it is used or told."""
        quota, seconds = KEYS[key]
        if quota is None:
            return 0.0, math.inf, [0, 0, 0, 0]
        number = self.wall // seconds
        fresh = [number, 0, self.boot_number, self.boot + (number + 1) * seconds - self.wall]
        period = last = self.periods.get(key, fresh)
        if last[2] != self.boot_number:
            period = fresh
            if number <= last[0]:
                fresh[1] = last[1]
        elif self.boot >= last[3]:
            period = fresh
        left = period[3] - self.boot
        assert 0 < left <= seconds, "nobody is locked out for longer than the period"
        return left, int(quota.split("/")[0]) - period[1], period

    def check(self, reply: Any, batch: Charges) -> None:
        assert isinstance(reply, list), reply
        expected = self.expect(batch)
        assert [outcome for outcome, _, _ in reply] == [outcome for outcome, _ in expected]
        waits = [(wait, left) for (outcome, _, wait), (_, left) in zip(reply, expected, strict=True) if left]
        assert all(wait == pytest.approx(left, rel=0, abs=1e-4) for wait, left in waits)


def written(batch: Charges) -> list[Any]:
    return [[[key, KEYS[key][0]], name, content, inputs] for key, name, content, inputs in batch]


def test_whatever_happens_the_charges_are_those_of_the_model(lives, preload, memory):
    run_histories(lambda folder: ChargeHistory(lives, preload, folder), memory / "charges", 20)


def test_five_thousand_histories_of_charges(lives, preload, memory):
    run_histories(lambda folder: ChargeHistory(lives, preload, folder), memory / "charges-long", 5000)


@pytest.fixture
def clocked(preload, monkeypatch):
    """The clocks of servers that are started now: they go on, from noon on a day."""
    for name, value in preload.environment.items():
        monkeypatch.setenv(name, value)
    preload.set(frozen=0, boot=0, boot_number=0, how=0)
    preload.set_wall(20_000 * DAY + DAY / 2)
    return preload


def test_a_clock_that_jumps_a_year_and_back_gives_no_quota_and_takes_none(bundle, tmp_path, x, clocked):
    path, _, key = make_key(tmp_path, quota=Quota.parse("3/day"))
    with Server(bundle, tmp_path, keys=str(path), workers=2) as server:

        def ask() -> tuple[int, int]:
            reply = Client(server, key).ask(x[:1])
            return reply.status, int(reply.headers.get("retry-after", 0))

        assert [ask()[0] for _ in range(3)] == [200] * 3
        for step in (400 * DAY, -400 * DAY, -400 * DAY, 400 * DAY):
            clocked.step(wall=step)
            for status, wait in [ask() for _ in range(6)]:  # of both workers
                assert status == 429, "the same quota was given twice"
                assert 1 <= wait <= DAY, "nobody waits longer than the period"
        clocked.step(wall=DAY / 2, boot=DAY / 2)
        assert [ask()[0] for _ in range(4)] == [200, 200, 200, 429]
        clocked.step(wall=400 * DAY + 3600)
        server.kill()
    with Server(bundle, tmp_path, keys=str(path)) as server:
        assert ask()[0] == 429, "nor by a restart of the server"
        clocked.step(boot=DAY)
        assert ask()[0] == 200


def test_a_ledger_of_the_first_version_is_taken_over(bundle, tmp_path, x, clocked):
    path, key_id, key = make_key(tmp_path, quota=Quota.parse("3/day"))
    with Server(bundle, tmp_path, keys=str(path)) as server:
        server.stop()
    with contextlib.closing(sqlite3.connect(server.ledger, isolation_level=None)) as db:
        for column in ("boot", "ends"):
            db.execute(f"ALTER TABLE usage DROP COLUMN {column}")
        db.execute("ALTER TABLE charges DROP COLUMN delivered")
        db.execute("DROP TABLE totals")
        db.execute("PRAGMA user_version = 1")
        db.execute("INSERT INTO usage VALUES (?, 86400, 20000, 2)", (key_id,))
    with Server(bundle, tmp_path, keys=str(path)) as server:
        assert [Client(server, key).ask(x[:1]).status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("repeat", ["same", "other"])
def test_what_is_computed_without_charge_is_bounded(bundle, tmp_path, repeat):
    """Repeats and conflicts of a spent key, and requests that its quota has no room for."""
    path, _, key = make_key(tmp_path, quota=Quota.parse("65/week"))
    _, _, admin = make_key(tmp_path, "admin", admin=True)
    many = np.random.default_rng(0).integers(0, 255, (64, 1, 4, 4)).astype(np.uint8)
    with Server(bundle, tmp_path, keys=str(path)) as server:
        client = Client(server, key)

        def computed() -> float:
            return server.metric("l2h_batch_inputs_sum", Authorization=f"Bearer {admin}")

        assert client.ask(many, Idempotency_Key="once").headers["l2h-charged"] == "1"
        again = many if repeat == "same" else many + 1
        replies = [client.ask(again, Idempotency_Key="once") for _ in range(40)]
        for_nothing = computed() - 64
        assert for_nothing <= 256 + 3 * 64 + 64
        assert replies[-1].status == 422
        if repeat == "same":
            assert (replies[0].status, replies[0].headers["l2h-charged"]) == (200, "0"), "a lost answer is given again"
            assert "free repeats" in replies[-1].error
        for _ in range(20):
            assert client.ask(many[:2]).status == 429, "two inputs, and one is left"
        assert computed() == 64 + for_nothing
        assert client.ask(many[:1]).headers["l2h-charged"] == "1", "what can be charged is still answered"


def test_what_is_computed_without_charge_is_bounded_also_for_repeats_at_the_same_time(bundle, tmp_path):
    path, _, key = make_key(tmp_path)
    _, _, admin = make_key(tmp_path, "admin", admin=True)
    many = np.zeros((64, 1, 4, 4), np.uint8)
    with Server(bundle, tmp_path, keys=str(path)) as server, ThreadPoolExecutor(16) as pool:
        clients = [Client(server, key) for _ in range(16)]
        for name in range(20):
            replies = list(pool.map(lambda client, name=name: client.ask(many, Idempotency_Key=f"r{name}"), clients))
            assert {reply.status for reply in replies} <= {200, 422, 503}
            assert sum(reply.headers.get("l2h-charged") == "1" for reply in replies) == 1
        computed = server.metric("l2h_batch_inputs_sum", Authorization=f"Bearer {admin}")
        assert computed <= 20 * 64 * 4 + 256 + 64


def test_a_log_that_is_removed_loses_nothing(bundle, tmp_path, x):
    log = tmp_path / "ledger.db-wal"
    with Server(bundle, tmp_path, workers=2, watch=60) as server:
        good = [f"{i}" for i in range(20) if Client(server).ask(x, Idempotency_Key=f"{i}").status == 200]
        log.unlink()
        refused = until(lambda: (reply := Client(server).ask(x, Idempotency_Key="late")).status == 503 and reply)
        assert "nothing was charged" in refused.error
        until(lambda: server.events("ledger_recovered"))
        until(lambda: all(Client(server).ask(x, Idempotency_Key=f"after-{i}").status == 200 for i in range(8)))
        assert {"ledger.db-wal" in line["error"] for line in server.events("ledger_failed")} == {True}
        server.kill()
        rows = {name for (name,) in server.rows("idempotency_key")}
        assert {*good, *(f"after-{i}" for i in range(8))} <= rows
        assert len(good) == 20


def test_a_log_that_is_removed_after_a_kill_holds_a_second_at_most_and_is_missed(bundle, tmp_path, x):
    log, index = tmp_path / "ledger.db-wal", tmp_path / "ledger.db-shm"
    with Server(bundle, tmp_path) as server:
        assert all(Client(server).ask(x).status == 200 for _ in range(20))
        saved = tmp_path / "saved.db"

        def copied() -> int:
            saved.write_bytes(server.ledger.read_bytes())
            with contextlib.closing(sqlite3.connect(f"file:{saved}?immutable=1", uri=True)) as db:
                return db.execute("SELECT count(*) FROM charges").fetchone()[0]

        until(lambda: copied() == 20)
        server.kill()
    log.unlink()
    with Server(bundle, tmp_path, wait=False) as server:
        assert server.process.wait(STUCK) == 1
        assert "was removed while the ledger was in use" in server.log.read_text().splitlines()[-1]
    index.unlink()
    with Server(bundle, tmp_path) as server:
        assert len(server.rows()) == 20
