"""Permits in a file: killed and restarted processes, several at once, forks, and unusable files."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forks import in_child
from waiting import STUCK

from l2h.limits import Limiter, LimitError, RateLimit, sqlite

Checker = Callable[[list[float], float], int]

#: Once told to, asks and tells of each permit at once; ends after so many seconds or requests.
CHILD = """
import sys, time
from l2h.limits import Limiter
from l2h.limits import RateLimit

path, limit, pause, seconds, requests = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
limiter = Limiter(RateLimit.parse(limit), path=path, pacing=False)
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + seconds
while requests > 0 and time.monotonic() < end:
    requests -= 1
    permit = limiter.allow(1.0)
    if permit:
        print(repr(permit.position), flush=True)
    time.sleep(pause)
print("unavailable", limiter.status().refused.get("ledger_unavailable", 0), flush=True)
"""


def start(
    path: Path, limit: str, pause: float = 0.0, *, seconds: float = STUCK, requests: int = 10**9, count: int = 1
) -> list[subprocess.Popen[str]]:
    """Start so many processes, which begin to ask at the same time."""
    command = [sys.executable, "-c", CHILD, str(path), limit, *map(str, (pause, seconds, requests))]
    found = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": found}
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) for _ in range(count)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    return children


def read_permits(child: subprocess.Popen[str], at_most: int | None = None) -> list[float]:
    """Positions told so far: ``at_most`` of them, or all until the end of the output."""
    assert child.stdout is not None
    told: list[float] = []
    while (at_most is None or len(told) < at_most) and (line := child.stdout.readline()):
        if line.startswith("unavailable"):
            assert line == "unavailable 0\n", "processes wait for one another"
        else:
            told.append(float(line))
    return told


def test_a_process_killed_inside_the_window_does_not_get_a_second_budget(tmp_path: Path) -> None:
    path, cap = tmp_path / "permits", 60
    granted: list[float] = []
    kills = 3
    for _ in range(kills):
        (child,) = start(path, f"{cap}/1h", pause=0.001)
        granted += read_permits(child, at_most=15)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        granted += read_permits(child)  # what it told before it died
    (last,) = start(path, f"{cap}/1h", requests=2 * cap)
    granted += read_permits(last)
    assert last.wait() == 0
    assert len(granted) <= cap
    # A kill between the commit and the print loses a permit: it is never given twice.
    assert len(granted) >= cap - kills
    assert len(set(granted)) == len(granted)


def test_no_window_breaks_while_processes_are_killed_and_restarted(tmp_path: Path, most_in_a_window: Checker) -> None:
    path, cap, per = tmp_path / "permits", 20, 0.4
    granted: list[float] = []
    for _ in range(4):
        (child,) = start(path, f"{cap}/{per}s")
        granted += read_permits(child, at_most=cap + 5)  # so it lives into a second window
        child.kill()
        granted += read_permits(child)
        child.wait()
    assert most_in_a_window(granted, per) <= cap
    assert len(granted) >= 4 * (cap + 5)


def test_two_processes_share_one_budget_of_time(tmp_path: Path, most_in_a_window: Checker) -> None:
    path, cap, per = tmp_path / "permits", 25, 0.2
    both = start(path, f"{cap}/{per}s", seconds=2.0, count=2)
    told = [read_permits(child) for child in both]
    assert [child.wait() for child in both] == [0, 0]
    assert most_in_a_window(told[0] + told[1], per) <= cap
    assert len(told[0] + told[1]) > 3 * cap, "several windows must have passed for this to mean anything"


def test_two_processes_share_one_count_of_requests(tmp_path: Path) -> None:
    path, window, cap = tmp_path / "permits", 100, 20
    both = start(path, "20%/100", pause=0.0005, requests=500, count=2)
    told = [position for child in both for position in read_permits(child)]
    assert [child.wait() for child in both] == [0, 0]
    with sqlite3.connect(path) as db:
        (requests,) = db.execute("SELECT requests FROM state").fetchone()
    sent = [0] * (requests + 1)
    for position in told:
        sent[int(position)] += 1
    assert max(sent) == 1
    assert max(sum(sent[i : i + window]) for i in range(len(sent))) <= cap
    assert len(told) > 3 * cap


def test_a_restart_goes_on_in_the_middle_of_a_share(tmp_path: Path) -> None:
    limit, sent = RateLimit(fraction=0.3, window=10), []
    for _ in range(25):
        with Limiter(limit, path=tmp_path / "permits", pacing=False) as limiter:
            sent += [limiter.allow(1.0).granted for _ in range(4)]
    assert sent == [i % 10 < 3 for i in range(100)]


def test_a_permit_is_in_the_file_before_it_is_given_and_old_ones_are_dropped(tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "deep" / "permits"
    with Limiter(RateLimit(3, per="10s"), path=path, clock=clock, pacing=False) as limiter:
        for second in range(200):
            clock.now = float(second)
            given = bool(limiter.allow(1.0))
            with sqlite3.connect(path) as db:
                rows = [at for (at,) in db.execute("SELECT at FROM permits ORDER BY id")]
            assert (rows[-1] == second) is given
            assert len(rows) <= 3
    assert given is (199 % 10 < 3)


def test_after_a_restart_a_clock_behind_the_file_is_waited_for(tmp_path: Path, clock: Any) -> None:
    clock.now = 5000.0
    with Limiter(RateLimit(1, per="1h"), path=tmp_path / "permits", clock=clock, pacing=False) as limiter:
        assert limiter.allow(1.0)
    clock.now = 10.0
    with Limiter(RateLimit(1, per="1h"), path=tmp_path / "permits", clock=clock, pacing=False) as limiter:
        assert not limiter.allow(1.0)
        assert limiter.status().clock_behind == 4990.0
        clock.now = 8599.0
        assert not limiter.allow(1.0)
        clock.now = 8600.0
        assert limiter.allow(1.0)


def test_a_process_that_drops_old_permits_does_not_hide_them_from_a_slower_clock(tmp_path: Path) -> None:
    fast, slow = [100.0], [100.0]
    limit, path = RateLimit(2, per="10s"), tmp_path / "permits"
    one = Limiter(limit, path=path, clock=lambda: fast[0], pacing=False)
    assert [bool(one.allow(1.0)) for _ in range(2)] == [True, True]
    fast[0] = 1000.0
    one.status()  # sees that both have left, but gives none
    two = Limiter(limit, path=path, clock=lambda: slow[0], pacing=False)
    assert not two.allow(1.0)
    assert one.allow(1.0)
    # Now the file says that it is 1000.
    assert two.status().used == 1
    assert two.allow(1.0).position == 1000.0
    assert not two.allow(1.0)
    one.close()
    two.close()


@pytest.mark.parametrize("limit", [RateLimit(3, per="1h"), RateLimit(fraction=0.3, window=10)])
def test_a_file_that_cannot_be_written_gives_no_permit_and_recovers(
    limit: RateLimit,
    tmp_path: Path,
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(sqlite, "_TIMEOUT", 0.01)
    limiter = Limiter(limit, path=tmp_path / "permits", clock=clock, pacing=False)
    assert [bool(limiter.allow(1.0)) for _ in range(2)] == [True, True]
    other = sqlite3.connect(tmp_path / "permits", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert [limiter.allow(1.0).reason for _ in range(12)] == ["ledger_unavailable"] * 12
    assert [r.levelname for r in caplog.records] == ["WARNING"], "said once"
    assert "no permit is given" in caplog.text
    other.execute("ROLLBACK")
    other.close()
    assert [limiter.allow(1.0).granted for _ in range(3)] == [True, False, False]
    assert limiter.status().used == 3
    limiter.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("with_path", [False, True])
def test_a_forked_process_has_no_budget_of_its_own(with_path: bool, tmp_path: Path, clock: Any) -> None:
    path = tmp_path / "permits" if with_path else None
    limiter = Limiter(RateLimit(3, per="1h"), path=path, clock=clock, pacing=False)
    assert limiter.allow(1.0)
    child = os.fork()
    if child == 0:
        try:
            given = sum(bool(limiter.allow(1.0)) for _ in range(5))
        except LimitError as error:
            given = 100 if "give path= so that" in str(error) else 101
        except BaseException:  # noqa: BLE001 - nothing may leave the child
            given = 102
        os._exit(given)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (2 if with_path else 100)
    assert bool(limiter.allow(1.0)) is not with_path
    limiter.close()


def test_files_that_are_not_this_limiters_are_refused(tmp_path: Path) -> None:
    limit = RateLimit(3, per="1h")
    (tmp_path / "text").write_text("this is not a database, and long enough to be seen as none" * 20)
    with pytest.raises(LimitError, match=r"cannot keep permits in .*text .*name a file that can be written"):
        Limiter(limit, path=tmp_path / "text")
    with pytest.raises(LimitError, match="cannot keep permits in"):
        Limiter(limit, path=tmp_path)
    with pytest.raises(LimitError, match="cannot make the folder"):
        Limiter(limit, path=tmp_path / "text" / "permits")
    Limiter(limit, path=tmp_path / "permits").close()
    Limiter(RateLimit(9, per="1h"), path=tmp_path / "permits").close()  # a new cap on the same window is fine
    for other in (RateLimit(3, per="2h"), RateLimit(fraction=0.5, window=3600)):
        with pytest.raises(LimitError, match=r"holds the permits of a window of 3600\.0 s, not .*: name another"):
            Limiter(other, path=tmp_path / "permits")


def test_power_safe_waits_for_the_disk(tmp_path: Path) -> None:
    modes = {}
    for safe in (False, True):
        with Limiter(RateLimit(3, per="1h"), path=tmp_path / f"{safe}", power_safe=safe) as limiter:
            modes[safe] = limiter._store._db.execute("PRAGMA synchronous").fetchone()[0]  # type: ignore[attr-defined]
    assert modes == {False: 1, True: 2}, "NORMAL and FULL"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_threads_of_a_forked_process_open_the_file_once(tmp_path: Path) -> None:
    for i in range(8):
        limiter = Limiter(RateLimit(5, per="1h"), path=tmp_path / str(i), pacing=False)

        def ask(limiter: Limiter = limiter) -> list[str]:
            barrier = threading.Barrier(8)

            def one(_: int) -> list[str]:
                barrier.wait()
                return [limiter.allow(1.0, 5.0).reason for _ in range(3)]

            with ThreadPoolExecutor(8) as pool:
                reasons = [reason for many in pool.map(one, range(8)) for reason in many]
            return [f"{reason} {n}" for reason, n in sorted(Counter(reasons).items())] + [str(len(sqlite._inherited))]

        assert in_child(ask) == str(["limit_reached 19", "within_limit 5", str(len(sqlite._inherited) + 1)])
        assert limiter.allow(1.0, 5.0).reason == "limit_reached"
        limiter.close()


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_another_thread_asks_leaves_the_child_nothing_to_wait_for(tmp_path: Path) -> None:
    """SQLite has locks of its own, which a thread that does not exist in the child would hold there for ever."""
    with Limiter(RateLimit(10**6, per="1h"), path=tmp_path / "permits", pacing=False) as limiter:
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                limiter.allow(1.0)

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask)
            try:
                told = [in_child(lambda: limiter.allow(1.0).reason) for _ in range(20)]
            finally:
                stop.set()
            asking.result()
        assert told == ["within_limit"] * 20
        with limiter._lock:  # held for long at the fork
            assert in_child(lambda: limiter.allow(1.0).reason) == "within_limit"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_file_that_cannot_be_opened_after_a_fork_is_told_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "permits"
    limiter = Limiter(RateLimit(5, per="1h"), path=folder / "file", pacing=False)

    def ask() -> str:
        folder.rename(tmp_path / "elsewhere")
        said = []
        for _ in range(2):
            with pytest.raises(LimitError, match=r"cannot open .* after a fork") as raised:
                limiter.allow(1.0)
            said.append(type(raised.value).__name__)
        (tmp_path / "elsewhere").rename(folder)
        return f"{said} {limiter.allow(1.0).reason}"

    assert in_child(ask) == "['LimitError', 'LimitError'] within_limit"
    limiter.close()


def test_no_time_is_no_request(tmp_path: Path) -> None:
    with Limiter(RateLimit(5, per="1h"), path=tmp_path / "permits", pacing=False) as limiter:
        assert limiter.allow(1.0, 0.0).reason == limiter.allow(1.0, -1.0).reason == "timed_out"
        assert limiter.status().requests == 0
