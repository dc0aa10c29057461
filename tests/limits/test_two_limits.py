"""Two limiters that must both agree: neither spends a permit that the other refuses, and no cap is ever broken."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from waiting import STUCK

from l2h.limits import Limiter, Permit, RateLimit


def used(limiter: Limiter) -> int:
    return limiter.status().used


def pair(tmp_path: Path | None, own: RateLimit, overall: RateLimit) -> tuple[Limiter, Limiter]:
    paths = [None, None] if tmp_path is None else [tmp_path / "own", tmp_path / "all"]
    first, second = (Limiter(limit, pacing=False, path=path) for limit, path in zip((own, overall), paths, strict=True))
    return first, second


@pytest.mark.parametrize("stored", [False, True])
def test_no_permit_is_spent_that_the_other_limiter_refuses(tmp_path: Path, stored: bool) -> None:
    own, overall = pair(tmp_path if stored else None, RateLimit(5, per="1h"), RateLimit(3, per="1h"))
    permits = [own.allow(0.5, other=lambda left: overall.allow(0.5, left)) for _ in range(8)]
    assert [permit.granted for permit in permits] == [True] * 3 + [False] * 5
    assert {permit.reason for permit in permits[3:]} == {"other_limit"}
    assert (used(own), used(overall)) == (3, 3)
    assert own.status().refused == {"other_limit": 5}


@pytest.mark.parametrize("stored", [False, True])
def test_the_other_limiter_is_not_asked_where_the_first_refuses(tmp_path: Path, stored: bool) -> None:
    own, overall = pair(tmp_path if stored else None, RateLimit(2, per="1h"), RateLimit(9, per="1h"))
    reasons = [own.allow(0.5, other=lambda left: overall.allow(0.5, left)).reason for _ in range(4)]
    assert reasons == ["within_limit", "within_limit", "limit_reached", "limit_reached"]
    assert (used(own), overall.status().requests) == (2, 2)


@pytest.mark.parametrize("stored", [False, True])
def test_threads_that_ask_several_servers_break_no_cap_and_waste_no_permit(tmp_path: Path, stored: bool) -> None:
    paths = {name: tmp_path / name if stored else None for name in ("box", "cloud", "all")}
    caps = {"box": 12, "cloud": 20, "all": 25}
    limiters = {name: Limiter(RateLimit(caps[name], per="1h"), pacing=False, path=paths[name]) for name in caps}
    sent: list[str] = []

    def ask(name: str) -> None:
        for _ in range(15):
            if limiters[name].allow(0.5, 30.0, other=lambda left: limiters["all"].allow(0.5, left)):
                sent.append(name)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("box", "cloud") * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent) == caps["all"]
    for name in ("box", "cloud"):
        assert sent.count(name) == used(limiters[name]) <= caps[name]


def test_an_other_limiter_that_is_late_or_fails_leaves_no_permit_behind() -> None:
    own = Limiter(RateLimit(5, per="1h"), pacing=False)
    assert own.allow(0.5, 1.0, other=lambda left: Permit(False, "timed_out", 0.0)).reason == "timed_out"

    def broken(left: float | None) -> Permit:
        raise RuntimeError("its clock is gone")

    with pytest.raises(RuntimeError, match="clock"):
        own.allow(0.5, other=broken)
    assert used(own) == 0
    assert own.allow(0.5), "and the limiter goes on"


@pytest.mark.parametrize("stored", [False, True])
def test_an_input_that_is_asked_about_again_is_no_new_request_of_a_share(tmp_path: Path, stored: bool) -> None:
    limit = RateLimit(fraction=0.3, window=10)
    limiter = Limiter(limit, pacing=False, path=tmp_path / "permits" if stored else None)
    rng = np.random.default_rng(0)
    at: list[int] = []  # the number of the input at which each permit was given
    for i in range(200):
        if limiter.allow(0.5):
            at.append(i)
        while rng.random() < 0.5:  # a server failed to answer, and the next one is asked
            if limiter.allow(0.5, again=True):
                at.append(i)
    counts = np.bincount(at, minlength=200)
    in_a_row = np.convolve(counts, np.ones(10))
    assert in_a_row.max() == 3, "of any 10 inputs in a row 3 requests, however often one is asked about"
    assert limiter.status().permits == len(at)


def test_what_is_only_counted_gets_no_permit() -> None:
    limiter = Limiter(RateLimit(5, per="1h"), pacing=False)
    assert limiter.allow(-np.inf).reason == "below_min_score"
    assert used(limiter) == 0


_ASK = """
import sys
from l2h.limits import Limiter, RateLimit
folder, name = sys.argv[1:]
own, overall = (Limiter(RateLimit(cap, per="1h"), pacing=False, path=f"{folder}/{file}") for file, cap in (
    (name, 12 if name == "box" else 20), ("all", 25)))
print(sum(bool(own.allow(0.5, 30.0, other=lambda left: overall.allow(0.5, left))) for _ in range(15)))
"""


def test_processes_that_share_the_files_of_both_limiters_break_no_cap(tmp_path: Path) -> None:
    names = ["box", "cloud", "cloud"]
    started = [
        subprocess.Popen([sys.executable, "-c", _ASK, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    given = [int(process.communicate(timeout=STUCK)[0]) for process in started]
    assert [process.returncode for process in started] == [0] * 3
    assert sum(given) == 25
    assert given[0] <= 12
    assert sum(given[1:]) <= 20
