"""Either side as a program of its own, killed and stopped at any moment."""

from __future__ import annotations

import random
import signal
import time

import pytest
from exchange_maker import arrives, fetcher_for, publish, run_role, whole, words
from fault_proxy import Fault, FaultProxy
from waiting import STUCK, Stopwatch, until

from l2h.training.exchange import SnapshotStore


@pytest.fixture
def started():
    """Start programs; whatever is left of them is killed in the end."""
    processes = []

    def start(*arguments):
        processes.append(run_role(*arguments))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.long
def test_a_publisher_killed_while_publishing_repeats_no_version_and_serves_no_half(started, tmp_path):
    chance = random.Random(5)
    published, taken = [], []
    proxy = FaultProxy(9)
    with fetcher_for(proxy.url, tmp_path / "copy") as fetcher:
        for _ in range(5):
            publisher = started("publish", tmp_path / "store", 1_000_000, 10**9)
            proxy.target = int(words(publisher)[1])
            for _ in range(chance.randint(1, 8)):
                published.append(int(words(publisher)[1]))
            arrives(fetcher, published[-1] - 3)
            time.sleep(chance.uniform(0, 0.02))  # not to wait for anything: to be killed at any moment of a publish
            publisher.send_signal(signal.SIGKILL)
            rest = publisher.stdout.read().split()
            published += [int(word) for word in rest if word.isdecimal()]
            taken += [arrived for arrived in [fetcher.take()] if arrived]
        last = started("publish", tmp_path / "store", 1_000_000, 1)
        proxy.target = int(words(last)[1])
        published.append(int(words(last)[1]))
        taken.append(arrives(fetcher, published[-1]))
    proxy.close()
    assert published == sorted(set(published))
    versions = [arrived.version for arrived in taken]
    assert versions == sorted(versions)
    assert versions[-1] == published[-1]
    assert all(whole(arrived) for arrived in taken)


@pytest.mark.long
@pytest.mark.parametrize("damage", [False, True], ids=["as it was", "partial file damaged"])
def test_a_fetcher_killed_while_downloading_goes_on_and_uses_nothing_damaged(
    started, store, server, proxy, tmp_path, damage
):
    size, copy = 10_000_000, tmp_path / "copy"
    publish(store, 0, size)
    proxy.use(Fault("throttle"))
    proxy.rate = 1e7
    fetching = started("fetch", proxy.url, copy)
    part = copy / "weights.part"
    until(lambda: part.exists() and part.stat().st_size > size // 3)
    fetching.send_signal(signal.SIGKILL)
    assert fetching.wait(STUCK) == -signal.SIGKILL
    assert fetching.stdout.read().split() == ["started"]
    if damage:
        with part.open("r+b") as file:
            file.seek(1000)
            file.write(b"\0" * 1000)
    proxy.use(Fault())
    again = started("fetch", proxy.url, copy)
    assert words(again) == ["started"]
    assert words(again) == ["took", "1", "True"]
    assert proxy.down < (2.6 if damage else 1.6) * size


@pytest.mark.long
def test_a_fetcher_killed_at_any_moment_never_goes_back(started, store, server, tmp_path):
    chance = random.Random(3)
    copy, taken = tmp_path / "copy", []
    for step in range(4):
        fetching = started("fetch", server.url, copy)
        assert words(fetching) == ["started"]
        newest = publish(store, step, 300_000).version
        while not taken or taken[-1][1] < newest:
            _, version, right = words(fetching)
            taken.append((step, int(version), right))
        publish(store, 100 + step, 300_000)
        time.sleep(chance.uniform(0, 0.03))  # not to wait for anything: to be killed at any moment of a download
        fetching.send_signal(signal.SIGKILL)
        fetching.wait(STUCK)
    assert {right for _, _, right in taken} == {"True"}
    for process in range(4):
        versions = [version for step, version, _ in taken if step == process]
        assert versions == sorted(set(versions))
    # A restart begins with the copy in use, so a version may be seen again, never one before it.
    assert [version for _, version, _ in taken] == sorted(version for _, version, _ in taken)


def test_a_publisher_that_is_stopped_does_not_hold_the_fetcher_up(started, tmp_path):
    publisher = started("publish", tmp_path / "store", 1000, 1)
    port = words(publisher)[1]
    assert words(publisher) == ["published", "1"]
    timeout = 0.6
    fetcher = fetcher_for(f"http://127.0.0.1:{port}", tmp_path / "copy", timeout=timeout)
    with fetcher:
        arrives(fetcher, 1)
        publisher.send_signal(signal.SIGSTOP)
        until(lambda: fetcher.status().state == "unreachable")
        assert "no answer within" in fetcher.status().error
        with Stopwatch() as watch:
            fetcher.stop()
        assert watch.seconds < timeout + 0.5
        assert not fetcher._thread.is_alive()
    publisher.send_signal(signal.SIGCONT)
    with fetcher:
        until(lambda: fetcher.status().state == "ok")
        assert fetcher.latest().version == SnapshotStore(tmp_path / "store").latest("weights").version
