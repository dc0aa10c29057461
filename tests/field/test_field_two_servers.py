"""Two real servers, of which one dies, hangs or fails: every answer in time, and the books of both are right."""

from __future__ import annotations

import gc
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_processes import Proxy, Server, calm_deadline
from two_servers import CLOUD_FIRST, PRICES, TEST, make, seeing
from waiting import STUCK, Stopwatch, until

from l2h import EdgeClient, Limiter, RateLimit
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.edge.stats import ServerStats

X = TEST[0]
REST = 0.3
#: Later than this after the deadline is late, beyond what the machine was late by.
LATE = 0.15
#: What is not sent, and so neither charged nor permitted.
NOT_SENT = {"circuit_open", "no_server", "crowded"}

#: The box as a function whose model can go bad: what it does is in a file.
BOX = """
from pathlib import Path
import numpy as np

W, B = np.array({weights}), np.array({bias})

def predict(x):
    mode = Path({mode!r}).read_text()
    scores = x @ W.T + B
    if mode == "nan":
        scores[:, 0] = np.nan
    return scores
"""


@pytest.fixture(scope="session")
def two(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A bundle with a box, a cloud and a second opinion."""
    return once("two-opinion", lambda path: make(second_opinion=True).export(path, name="clouds", costs=PRICES))


class Pair:
    """The two servers: ``cloud`` as the bundle has it, ``box`` as a function that gives NaN when it is told to."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self._mode, model = folder / "mode", seeing(3)
        self.say("truth")
        source = folder / "box.py"
        text = BOX.format(weights=model.coef_.tolist(), bias=model.intercept_.tolist(), mode=str(self._mode))
        source.write_text(text)
        folders = {name: folder / name for name in ("box", "cloud")}
        for each in folders.values():
            each.mkdir()
        quiet = "--no-log-requests"
        self.box = Server(Path(f"{source}:predict"), folders["box"], "--bundle", str(bundle), "--server", "box", quiet)
        self.cloud = Server(bundle, folders["cloud"], "--server", "cloud", quiet)
        with ThreadPoolExecutor(2) as starting:
            list(starting.map(Server.start, (self.box, self.cloud)))

    def say(self, mode: str) -> None:
        self._mode.write_text(mode)

    def close(self) -> None:
        self.box.kill()
        self.cloud.kill()


@pytest.fixture
def pair(two: Path, tmp_path: Path) -> Iterator[Pair]:
    started = Pair(two, tmp_path)
    gc.collect()
    gc.freeze()
    yield started
    gc.unfreeze()
    started.close()


def charged(server: Server) -> Counter[str]:
    """The requests in its ledger, by their keys, with the inputs of each."""
    with closing(sqlite3.connect(server.ledger)) as ledger:
        return Counter(dict(ledger.execute("SELECT idempotency_key, inputs FROM charges").fetchall()))


def first(stats: ServerStats) -> int:
    """The requests without those that were sent again, on a connection that the server had not closed meanwhile."""
    return stats.requests - stats.retries


def sent(stats: ServerStats) -> int:
    """The inputs that travelled, answered or not."""
    return stats.answers + sum(n for reason, n in stats.faults.items() if reason not in NOT_SENT)


def whose(folder: Path) -> dict[str, np.ndarray]:
    """The labels of every answerer."""
    client, student, _ = DeviceBundle(folder).examine(X)
    servers = {name: ServerBundle(folder, server=name).run(X).argmax(axis=1) for name in ("box", "cloud")}
    return {"client": client, "student": student, **servers}


class Asker:
    """Asks about one input after the other, and sees that each answer is in time and whose it says it is."""

    def __init__(self, edge: EdgeClient, deadline: float, labels: dict[str, np.ndarray]) -> None:
        self.edge, self.deadline, self.labels = edge, deadline, labels
        self.late: list[float] = []
        self._next = iter(np.random.default_rng(0).integers(len(X), size=100_000).tolist())
        self._lock = threading.Lock()

    def ask(self, n: int) -> Counter[tuple[str, str]]:
        """The answerers and reasons of so many answers."""
        found: Counter[tuple[str, str]] = Counter()
        for _ in range(n):
            with self._lock:
                i = next(self._next)
            begun = time.perf_counter()
            answer = self.edge.predict(X[i])[0]
            self.late.append(time.perf_counter() - begun - self.deadline)
            assert answer.label == self.labels[answer.by][i]
            found[answer.by, answer.reason] += 1
        return found

    def recovered(self, by: str) -> bool:
        return until(lambda: any(name == by for name, _ in self.ask(1)) or time.sleep(REST / 3))


def limiters(**caps: int) -> dict[str, Any]:
    return {name: Limiter(RateLimit(cap, per="1h"), pacing=False, min_score=0) for name, cap in caps.items()}


@pytest.mark.long
@pytest.mark.alone
def test_one_hangs_and_dies_and_the_other_answers_until_it_fails_too(two: Path, pair: Pair) -> None:
    servers = {"box": pair.box.address, "cloud": pair.cloud.address}
    limits = limiters(box=500, cloud=500, all=1000)
    with EdgeClient(two, servers, deadline=STUCK, costs=CLOUD_FIRST) as edge:
        deadline = calm_deadline(edge, X)
    calm = charged(pair.cloud)
    given = {"deadline": deadline, "costs": CLOUD_FIRST, "failures": 3, "rest": REST, "retries": 0}
    with Stopwatch() as watch, EdgeClient(two, servers, limit=limits, **given) as edge:
        edge.check()
        assert edge.server_versions["cloud"] == [edge.bundle.manifest.version]
        asker = Asker(edge, deadline, whose(two))
        assert asker.ask(20) == {("cloud", "worth_asking"): 20}
        pair.cloud.signal(signal.SIGSTOP)
        assert asker.ask(8) == {("box", "worth_asking"): 8}
        assert edge.stats().servers["cloud"].faults["deadline"] >= 3, "then it was left out"
        pair.cloud.signal(signal.SIGCONT)
        assert asker.recovered("cloud")
        pair.cloud.kill()
        assert asker.ask(20) == {("box", "worth_asking"): 20}
        pair.say("nan")
        alone = asker.ask(4)
        assert {name for name, _ in alone} <= {"client", "student"}
        assert {reason for _, reason in alone} == {"refused"}, "a server gives no answer that is not finite"
        pair.say("truth")
        assert asker.recovered("box")
        stats = edge.stats()
    assert max(asker.late) - watch.late < LATE
    # A permit for every input that was sent, and no other.
    used = {name: status["used"] for name, status in stats.limit.items()}
    own = {name: sent(stats.servers[name]) for name in ("box", "cloud")}
    assert used == {**own, "all": sum(own.values())}
    # The box was up all the time: it charged for every answer, and for nothing that it refused.
    books = {"box": charged(pair.box), "cloud": charged(pair.cloud) - calm}
    assert own["box"] == first(stats.servers["box"])
    assert books["box"].total() == stats.servers["box"].answers == own["box"] - stats.servers["box"].faults["refused"]
    # The cloud charged for what it answered, and perhaps for what it had not answered when it was stopped or killed.
    assert stats.servers["cloud"].answers <= books["cloud"].total() <= own["cloud"] == first(stats.servers["cloud"])
    assert stats.servers["cloud"].answers == stats.servers["cloud"].charged


class Storm:
    """Eight threads that ask both servers, each behind a proxy, while one fault follows the other."""

    def __init__(self, asker: Asker, pair: Pair, proxies: dict[str, Proxy]) -> None:
        self.asker, self.pair, self.proxies = asker, pair, proxies

    def ask(self, *names: str, share: float = 0.95) -> None:
        """So many of 320 answers must be given by these; now and then a deadline passes by itself."""
        with ThreadPoolExecutor(8) as pool:
            found = sum(pool.map(self.asker.ask, [40] * 8), Counter())
        assert sum(n for (by, _), n in found.items() if by in names) >= share * found.total() == share * 320, found

    def links(self) -> None:
        for fault in ("cut", "delay", "half-open", "garbage", "lose"):
            for name, other in (("cloud", "box"), ("box", "cloud")):
                self.proxies[name].mode(fault, 5 * self.asker.deadline)
                self.ask(other)
                self.proxies[name].mode("pass")
                assert self.asker.recovered("cloud")

    def servers(self) -> None:
        cloud = self.pair.cloud
        cloud.signal(signal.SIGSTOP)
        self.ask("box")
        self.proxies["box"].mode("garbage")
        self.ask("client", "student", share=1.0)
        self.proxies["box"].mode("pass")
        cloud.signal(signal.SIGCONT)
        assert self.asker.recovered("cloud")
        cloud.kill()
        self.ask("box")
        self.pair.say("nan")
        self.ask("client", "student", share=1.0)
        self.pair.say("truth")
        cloud.start()
        assert self.asker.recovered("cloud")


@pytest.mark.long
@pytest.mark.alone
def test_a_storm_over_both_servers(two: Path, pair: Pair) -> None:
    """Every fault of every link and of every server: the other one answers, in time, and all is counted."""
    with ExitStack() as stack:
        proxies = {"box": Proxy(pair.box.port), "cloud": Proxy(pair.cloud.port)}
        for proxy in proxies.values():
            stack.callback(proxy.close)
        addresses = {name: proxy.address for name, proxy in proxies.items()}
        limits = limiters(box=100_000, cloud=100_000, all=100_000)
        with EdgeClient(two, addresses, deadline=STUCK, costs=CLOUD_FIRST) as edge:
            deadline = calm_deadline(edge, X)
        edge = stack.enter_context(
            EdgeClient(two, addresses, deadline=deadline, costs=CLOUD_FIRST, limit=limits, failures=5, rest=REST)
        )
        asker = Asker(edge, deadline, whose(two))
        storm = Storm(asker, pair, proxies)
        with Stopwatch() as watch:
            storm.ask("cloud")
            storm.links()
            storm.servers()
        stats = edge.stats()
        reports = {name: proxy.report() for name, proxy in proxies.items()}
    late = np.array(asker.late) - watch.late
    assert (late > 0.25).sum() == 0, f"the latest by {late.max():.3f} s"
    assert (late > 0.05).mean() <= 0.002
    assert stats.answers == len(late)
    for name, server in (("box", pair.box), ("cloud", pair.cloud)):
        books, report, own = charged(server), reports[name], stats.servers[name]
        assert set(books.values()) == {1}
        assert set(report["answered"]) <= set(books) <= set(report["forwarded"])
        assert own.answers <= own.charged + own.repeats
        # What waited for its turn in vain has its permit, too.
        assert stats.limit[name]["used"] == sent(own) + own.faults.get("crowded", 0)
    assert stats.limit["all"]["used"] == sum(stats.limit[name]["used"] for name in ("box", "cloud"))


@pytest.mark.long
@pytest.mark.parametrize("lie", ["another shape", "another model"])
def test_a_server_that_serves_something_else_is_found_out(two: Path, pair: Pair, tmp_path: Path, lie: str) -> None:
    """The cloud's address leads to a model of five classes that has its name, or to the box."""
    source = tmp_path / "other.py"
    source.write_text("import numpy as np\ndef predict(x):\n    return np.ones((len(x), 5))\n")
    (tmp_path / "other").mkdir()
    described = ("--shape", "4", "--classes", "5", "--name", "clouds-cloud")
    other = Server(Path(f"{source}:predict"), tmp_path / "other", *described)
    try:
        address = other.start().address if lie == "another shape" else pair.box.address
        with EdgeClient(
            two, {"box": pair.box.address, "cloud": address}, deadline=2.0, costs=CLOUD_FIRST, failures=1000
        ) as edge:
            assert {answer.by for answer in edge.predict(X[:30])} == {"box"}
            fault = "bad_answer" if lie == "another shape" else "refused"
            assert edge.stats().servers["cloud"].faults == {fault: 30}
    finally:
        other.kill()
