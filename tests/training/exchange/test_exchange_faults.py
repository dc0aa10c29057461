"""Whatever the link does, what is taken is whole and newer, and the newest arrives when the link is well again."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from exchange_maker import IDENTITY, TOKEN, arrives, content, fetcher_for, publish, whole
from fault_proxy import Fault, FaultProxy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import until

from l2h.training.exchange import PublisherServer, SnapshotStore

SIZE = 200_000
FAULTS = st.builds(
    Fault,
    kind=st.sampled_from(["pass", "refuse", "half_open", "cut", "truncate", "stall", "corrupt", "delay", "throttle"]),
    after=st.one_of(st.integers(0, 2_000), st.integers(0, SIZE * 2)),
    seconds=st.sampled_from([0.01, 0.1, 0.4]),
)


@pytest.mark.long
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(faults=st.lists(FAULTS, min_size=2, max_size=8))
def test_whatever_the_faults_only_whole_and_newer_snapshots_are_taken(faults):
    with tempfile.TemporaryDirectory() as folder:
        store = SnapshotStore(Path(folder) / "store")
        with PublisherServer(store, IDENTITY, TOKEN) as server:
            proxy = FaultProxy(server.port)
            proxy.schedule(faults)
            taken = []
            with fetcher_for(proxy.url, Path(folder) / "copy", timeout=0.25) as fetcher:
                for step in range(4):
                    newest = publish(store, step, SIZE)
                    until(lambda: (got := fetcher.take()) and (taken.append(got) or got.version == newest.version))  # noqa: B023
                until(lambda: fetcher.status().state == "ok")
            proxy.close()
        assert all(whole(arrived) for arrived in taken)
        versions = [arrived.version for arrived in taken]
        assert versions == sorted(set(versions))
        assert versions[-1] == 4


def begun(folder: Path) -> int:
    """Bytes of a download that are here."""
    part = folder / "weights.part"
    return part.stat().st_size if part.exists() else 0


@pytest.mark.parametrize("kind", ["cut", "truncate", "stall"])
def test_a_download_that_breaks_off_goes_on_where_it_stopped(store, proxy, tmp_path, kind):
    size = 20_000_000
    publish(store, 0, size)
    proxy.schedule([Fault(kind, after=size // 2), Fault(kind, after=size // 4)])
    with fetcher_for(proxy.url, tmp_path / "copy", timeout=2.0 if kind == "stall" else 60.0) as fetcher:
        arrived = arrives(fetcher, 1)
        status = fetcher.status()
    assert whole(arrived)
    assert proxy.down < 1.6 * size
    assert size <= arrived.moved <= proxy.down + 10_000
    assert sum(status.failures[reason] for reason in ("cut", "timeout") if reason in status.failures) == 2


def test_a_damaged_download_is_thrown_away_and_fetched_again(store, proxy, tmp_path):
    publish(store, 0, SIZE)
    proxy.schedule([Fault("corrupt", after=SIZE // 2)] * 2)
    with fetcher_for(proxy.url, tmp_path / "copy", interval=60) as fetcher:
        until(lambda: fetcher.status().failures.get("damaged"))
        proxy.use(Fault())
        arrived = arrives(fetcher, 1)
        assert whole(arrived)
        assert arrived.moved > 2 * SIZE
        until(lambda: fetcher.status().error is None)


def test_a_flipped_bit_anywhere_in_the_control_answers_never_changes_a_version(store, proxy, tmp_path):
    publish(store, 0, SIZE)
    with fetcher_for(proxy.url, tmp_path / "copy") as fetcher:
        arrives(fetcher, 1)
        for step in range(1, 12):
            proxy.schedule([Fault("corrupt", after=61 * step)])
            newest = publish(store, step, SIZE)
            arrived = arrives(fetcher, newest.version)
            assert arrived.version == newest.version
            assert whole(arrived)


def test_a_newer_version_does_not_take_up_the_bytes_of_an_older_one(store, proxy, tmp_path):
    publish(store, 0, SIZE)
    proxy.use(Fault("stall", after=SIZE // 2))
    with fetcher_for(proxy.url, tmp_path / "copy", timeout=0.2) as fetcher:
        until(lambda: begun(tmp_path / "copy") and fetcher.status().failures.get("timeout"))
        proxy.use(Fault("half_open"))
        for step in range(1, 5):  # the first is pruned meanwhile
            newest = publish(store, step, SIZE)
        proxy.use(Fault())
        arrived = arrives(fetcher, newest.version)
        assert fetcher.status().failures["gone"] == 1
    assert arrived.version == newest.version
    assert whole(arrived)


def test_what_was_begun_is_finished_while_it_is_offered_though_a_newer_one_is_out(store, proxy, tmp_path):
    publish(store, 0, 2_000_000)
    proxy.use(Fault("stall", after=1_000_000))
    with fetcher_for(proxy.url, tmp_path / "copy", timeout=0.2) as fetcher:
        until(lambda: begun(tmp_path / "copy") and fetcher.status().failures.get("timeout"))
        proxy.use(Fault("throttle"))
        proxy.rate = 4e6
        publish(store, 1, 2_000_000)
        versions = [until(fetcher.take).version, until(fetcher.take).version]
    assert versions == [1, 2]


def test_a_version_pruned_during_its_download_still_arrives_whole(store, proxy, tmp_path):
    publish(store, 0, 2_000_000)
    proxy.use(Fault("throttle"))
    proxy.rate = 2e5
    copy = tmp_path / "copy"
    with fetcher_for(proxy.url, copy, timeout=60) as fetcher:
        until(lambda: begun(copy) > 10_000)
        for step in range(1, 5):
            publish(store, step, 1000)
        publish(store, 5, 2_000_000)  # so that it takes a while after the first
        assert store.open("weights", 1) is None
        assert fetcher.latest() is None
        proxy.rate = 4e6
        first = until(fetcher.take)
        assert first.version == 1
        assert first.read() == content(0, 2_000_000)
        assert arrives(fetcher, 6).step == 5


def test_neither_side_waits_for_the_link(store, proxy, tmp_path):
    """The calls of the training threads cost the same whether the link is well, cut or slow."""

    def seconds(call, times):
        spent = []
        for _ in range(times):
            began = time.perf_counter()
            call()
            spent.append(time.perf_counter() - began)
        return sorted(spent)[times // 2]

    size, steps = 1_000_000, iter(range(1000))
    alone = SnapshotStore(tmp_path / "alone")
    data = content(0, size)
    publish_alone = seconds(lambda: alone.publish("weights", data, next(steps), {}), 9)
    idle = fetcher_for(proxy.url, tmp_path / "idle")
    take_idle = seconds(idle.take, 2000)
    store.publish("weights", data, 0, {})
    for fault in (Fault("half_open"), Fault("refuse"), Fault("throttle")):
        proxy.use(fault)
        proxy.rate = 5e4
        with fetcher_for(proxy.url, tmp_path / fault.kind) as fetcher:
            until(lambda: fetcher.status().failures or fetcher.status().bytes_moved > 20_000)
            assert seconds(fetcher.take, 2000) < 20 * take_idle + 1e-4
            assert seconds(fetcher.latest, 2000) < 20 * take_idle + 1e-4
            assert seconds(fetcher.status, 200) < 1e-3
            # Two cores shared with the proxy, the publisher and the fetcher: ten times leaves room for them.
            assert seconds(lambda: store.publish("weights", data, next(steps), {}), 9) < 10 * publish_alone + 0.05
            assert fetcher.latest() is None
