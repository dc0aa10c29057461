"""Everything that can break, in turn and under load: every input is answered, in time, and the books are right.

All that watches server and devices is on: dashboard, traces, metrics, audits, reports.
"""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
from everything import Everything
from field_processes import Proxy, Server, calm_deadline, members
from waiting import STUCK, Stopwatch, until

from l2h import Costs, EdgeClient
from l2h.audits import read_audits
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge import EdgeStats
from l2h.serving.accounts import open_devices

THREADS = 8
REST = 0.3
REQUESTS = 10_000
#: Every input goes to the server: asking costs nothing, nor does a wrong answer of its.
ALL = Costs(c_e=0.0, c_1=0.0)
REMOTE = "worth_asking"
#: One of so many threads asks by a second device, which keeps every input, and audits half of them.
AUDITED, KEEP = 8, Costs(c_e=1.0)
KEPT = {"not_worth_asking", "audit"}
OPEN = "circuit_open"


@dataclass
class Phase:
    """A part of the storm: what is done at its beginning, and why an input may be answered locally during it."""

    name: str
    begin: Callable[[], None]
    reasons: set[str]
    requests: int
    recovers: bool = False
    answers: list[tuple[str, int, int, float]] = field(default_factory=list)  # reason, label, input, seconds

    @property
    def counted(self) -> Counter[str]:
        return Counter(reason for reason, *_ in self.answers)


@pytest.fixture
def everything(tmp_path: Path) -> Everything:
    return Everything(tmp_path)


@pytest.fixture
def server(field_bundle: Path, tmp_path: Path, everything: Everything) -> Iterator[Server]:
    one = Server(field_bundle, tmp_path, "--no-log-requests", *everything.flags).start()
    yield one
    one.kill()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    one = Proxy(server.port)
    yield one
    one.close()


def phases(server: Server, proxy: Proxy, deadline: float) -> list[Phase]:
    def nothing() -> None:
        pass

    def full() -> None:
        server.allow_files(4096)

    def up() -> None:
        proxy.mode("pass")

    def linked(mode: str) -> Callable[[], None]:
        return lambda: proxy.mode(mode, 5 * deadline)

    gone = {REMOTE, "server_unreachable", OPEN}
    silent = {REMOTE, "deadline", OPEN}
    faults: list[tuple[str, Callable[[], None], set[str], Callable[[], None]]] = [
        ("killed", server.kill, gone, lambda: void(server.start())),
        ("stopped", lambda: server.signal(signal.SIGSTOP), silent, lambda: server.signal(signal.SIGCONT)),
        ("disk full", full, {REMOTE, "server_busy", OPEN}, lambda: server.allow_files(-1)),
        ("link cut", linked("cut"), gone, up),
        ("delayed", linked("delay"), silent, up),
        ("half-open", linked("half-open"), silent, up),
        ("garbage", linked("garbage"), {REMOTE, "bad_answer", OPEN}, up),
        ("answers lost", linked("lose"), gone, up),
    ]
    out = [Phase("calm", nothing, {REMOTE}, 600)]
    for name, begin, reasons, end in faults:
        out.append(Phase(name, begin, reasons, 500))
        # What the fault left behind may still come in.
        out.append(Phase(f"after {name}", end, ANYTHING, 675, recovers=True))
    assert sum(phase.requests for phase in out) == REQUESTS
    return out


ANYTHING = {REMOTE, "server_unreachable", "deadline", "server_busy", "server_error", "bad_answer", OPEN}
#: Of each fault, a reason that must be seen: it cannot pass unnoticed.
TELLS = {
    "killed": "server_unreachable",
    "stopped": "deadline",
    "disk full": "server_busy",
    "link cut": "server_unreachable",
    "delayed": "deadline",
    "half-open": "deadline",
    "garbage": "bad_answer",
    "answers lost": "server_unreachable",
}


def void(_: object) -> None:
    """For a lambda that gives nothing."""


def storm(asking: EdgeClient, keeping: EdgeClient, X: np.ndarray, all_phases: list[Phase]) -> list[BaseException]:
    """One phase after the other, every one asked by all threads at once; what was raised, which should be nothing."""
    raised: list[BaseException] = []
    lock = threading.Lock()

    def one(phase: Phase, i: int, edge: EdgeClient = asking) -> str:
        begun = time.perf_counter()
        try:
            answer = edge.predict(X[i][None])[0]
        except BaseException as error:  # noqa: BLE001 - nothing at all may be raised
            raised.append(error)
            return "raised"
        seconds = time.perf_counter() - begun
        with lock:
            phase.answers.append((answer.reason, answer.label, i, seconds))
        time.sleep(0.004)
        return answer.reason

    def ask(number: int, phase: Phase, left: threading.Semaphore) -> None:
        rng = np.random.default_rng(number)
        while left.acquire(blocking=False):
            one(phase, int(rng.integers(len(X))), asking if number % AUDITED else keeping)

    def recover(phase: Phase) -> None:
        """The server is left alone for a while, then tried; a loaded machine may need a few tries."""
        end = time.monotonic() + STUCK
        while time.monotonic() < end and one(phase, 0) != REMOTE:
            time.sleep(REST / 3)

    for phase in all_phases:
        # Half of the load is under way when it happens, and half comes after.
        halves = [threading.Semaphore(phase.requests // 2), threading.Semaphore(phase.requests - phase.requests // 2)]
        threads = [
            threading.Thread(target=ask, args=(number, phase, halves[number % 2])) for number in range(2 * THREADS)
        ]
        for thread in threads[::2]:
            thread.start()
        phase.begin()
        if phase.recovers:
            recover(phase)
        for thread in threads[1::2]:
            thread.start()
        for thread in threads:
            thread.join()
    return raised


@pytest.mark.long
@pytest.mark.alone
def test_ten_thousand_requests_through_every_fault(
    field_bundle: Path, everything: Everything, server: Server, proxy: Proxy
) -> None:
    device, model = DeviceBundle(field_bundle), ServerBundle(field_bundle)
    X = np.random.default_rng(0).integers(0, 17, (256, *device.input_shape)).astype(device.input_dtype)
    locally, remotely = device.judge(X)[0], model.run(X).argmax(axis=1)
    assert (locally != remotely).any(), "or the two sides could not be told apart"
    # What trainings in this process left behind takes a collector a quarter of a second; a device trains nothing.
    gc.collect()
    gc.freeze()
    with EdgeClient(device, proxy.address, costs=ALL, deadline=STUCK, key=everything.key) as edge:
        deadline = calm_deadline(edge, X)
    calm, all_phases = proxy.report()["answered"].keys(), phases(server, proxy, deadline)
    # Reports ride on requests more than once a second: what a server that was killed had heard is told again.
    given = {"deadline": deadline, "failures": 5, "rest": REST, "report": 60.0}
    with (
        EdgeClient(device, proxy.address, costs=ALL, **everything.options("asks", **given)) as edge,
        EdgeClient(device, proxy.address, costs=KEEP, **everything.options("keeps", audit=0.5, **given)) as keeping,
    ):
        with Stopwatch() as watch:
            raised = storm(edge, keeping, X, all_phases)
        stats, kept = edge.stats(), keeping.stats()
        text = edge.metrics_text()
    gc.unfreeze()
    assert raised == []

    # Every one answered, by whom it says.
    answers = [answer for phase in all_phases for answer in phase.answers]
    assert len(answers) == stats.answers + kept.answers >= REQUESTS
    for reason, label, i, _ in answers:
        whose = {REMOTE: (remotely,), "audit": (locally, remotely)}.get(reason, (locally,))
        assert label in [labels[i] for labels in whose]

    # In time.
    late = np.array([seconds for *_, seconds in answers]) - deadline - watch.late
    assert (late > 0.25).sum() == 0, f"the latest by {late.max():.3f} s"
    assert (late > 0.05).mean() <= 0.001, f"{(late > 0.05).sum()} of {len(late)}"

    # With the right reasons, and the server asked again once it can be.
    for phase in all_phases:
        # On a machine with other work a deadline may pass by itself, now and then.
        assert set(phase.counted) <= phase.reasons | KEPT | {"deadline", "crowded"}, (phase.name, phase.counted)
        assert "deadline" in phase.reasons or phase.counted["deadline"] <= phase.requests // 50, phase.counted
        if phase.name in TELLS:
            assert phase.counted[TELLS[phase.name]] > 0, (phase.name, phase.counted)
        if phase.recovers:
            assert phase.counted[REMOTE] > 0, (phase.name, phase.counted)
    # On a loaded machine a few deadlines in a row open the circuit by themselves; on the whole the server is asked.
    healthy = [reason for phase in all_phases if phase.recovers for reason, *_ in phase.answers]
    assert healthy.count(REMOTE) > len(healthy) / 3

    # And the books: a row for each answer that was given, none twice, and no row for a request that was never made.
    report = proxy.report()
    with closing(sqlite3.connect(server.ledger)) as ledger:
        rows = Counter(key for (key,) in ledger.execute("SELECT idempotency_key FROM charges") if key not in calm)
    assert set(rows.values()) == {1}
    answered, made = set(report["answered"]) - calm, set(report["forwarded"])
    assert answered <= set(rows), "an answer was given that was not charged"
    assert set(rows) <= made, "a charge for a request that nobody made"
    # What was charged and not received was under way when the link or the server broke: the device says so.
    unheard = len(rows) - len(answered)
    audit = kept.audit
    assert audit is not None
    failed = sum((phase.counted for phase in all_phases), Counter(audit["unanswered"]))
    assert 0 <= unheard <= sum(failed[reason] for reason in ("server_unreachable", "deadline", "bad_answer"))
    # An answer that came after its deadline was charged and is not used.
    used = sum(reason in (REMOTE, "audit") for reason, *_ in answers)
    charged = sum(each.charged + each.repeats for each in (stats, kept))
    assert used <= charged <= min(len(answered), used + failed["deadline"])
    assert audit["answered"] == failed["audit"] > 0

    check_watchers(everything, server, stats, kept, text)


def check_watchers(everything: Everything, server: Server, stats: EdgeStats, kept: EdgeStats, text: str) -> None:
    """Every pair is in the files, the page answers, both devices are known, and traces lead from them to the model."""
    assert stats.audit is not None
    assert kept.audit is not None
    assert len(read_audits(everything.audits).client) == kept.audit["pairs"] + stats.audit["pairs"]
    assert f"l2h_edge_predict_seconds_count {stats.calls}\n" in text
    admin = {"Authorization": f"Bearer {everything.admin}"}
    assert httpx.get(f"{server.address}/dashboard/data?span=hour", headers=admin).status_code == 200
    devices = open_devices(server.ledger)
    until(lambda: {device["device"] for device in devices.view({})["devices"]} == {"asks", "keeps"})
    assert server.stop() == 0, "at its end it tells the collector what it has counted since the last time"
    got = everything.collector.close()
    assert set(got["fullest"]) >= {"predict", "ask", "infer", "model", "charge"}
    assert got["metrics"]["l2h-edge"]
    assert got["metrics"]["l2h-server"]


@pytest.mark.long
def test_nothing_grows_with_the_answers(field_bundle: Path, everything: Everything, server: Server) -> None:
    X = np.random.default_rng(0).integers(0, 17, (256, *DeviceBundle(field_bundle).input_shape)).astype(np.uint8)
    with EdgeClient(field_bundle, server.address, costs=KEEP, deadline=2.0, **everything.options("one")) as edge:

        def answer(count: int) -> list[int]:
            for i in range(count):
                edge.predict(X[i % len(X)], ALL if i % 10 == 0 else None)
            assert server.process is not None
            return [resident(pid) for pid in (os.getpid(), *members(server.process.pid))]

        before = answer(6000)  # longer than what is remembered of latencies
        after = answer(12_000)
    everything.collector.close()
    growth = [now - then for now, then in zip(after, before, strict=True)]
    assert max(growth) < 4 * 2**20, growth


def resident(pid: int) -> int:
    """The bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
