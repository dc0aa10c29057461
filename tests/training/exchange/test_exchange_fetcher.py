"""What is fetched, what is refused, and what is said about it."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import time
from dataclasses import asdict

import pytest
from exchange_maker import IDENTITY, QUICK, TOKEN, arrives, fetcher_for, publish, whole
from fault_proxy import Fault, FaultProxy
from waiting import Stopwatch, until

from l2h.training.exchange import (
    ExchangeError,
    PublisherServer,
    SnapshotError,
    SnapshotFetcher,
    SnapshotStore,
    pack_answers,
)


def test_the_newest_arrives_and_is_taken_once(store, server, tmp_path):
    store.publish("weights", b"one", 10, {"loss": 0.5})
    with fetcher_for(server.url, tmp_path / "copy") as fetcher:
        first = until(fetcher.take)
        assert (first.version, first.step, first.meta, first.read()) == (1, 10, {"loss": 0.5}, b"one")
        assert first.path.read_bytes() == b"one"
        assert abs(first.arrived - time.time()) < 10
        assert fetcher.take() is None
        assert fetcher.latest() is first
        store.publish("weights", b"two", 30, {})
        assert until(fetcher.take).read() == b"two"
        assert first.read() == b"one"


def test_the_age_and_the_traffic_are_told(store, proxy, tmp_path):
    fetcher = fetcher_for(proxy.url, tmp_path / "copy")
    assert asdict(fetcher.status()) == {
        "state": "connecting", "error": None, "version": None, "step": None, "run": None, "age_steps": None,
        "age_seconds": None, "syncs": 0, "bytes_moved": 0, "bytes_per_sync": None, "failures": {},
    }  # fmt: skip
    publish(store, 100)
    with fetcher:
        arrives(fetcher, 1)
        until(lambda: fetcher.status().state == "ok")
        assert fetcher.status().age_steps == 0
        proxy.use(Fault("stall", after=5_000))
        publish(store, 250)
        until(lambda: fetcher.status().age_steps == 150 and "no answer within" in (fetcher.status().error or ""))
        status = fetcher.status()
        assert (status.version, status.step, status.state, status.syncs) == (1, 100, "unreachable", 1)
        assert status.age_seconds > 0
        assert status.run == store.run


def test_bytes_a_sync_are_those_on_the_wire(store, proxy, tmp_path):
    publish(store, 0, size=1_000_000)
    store.publish("answers", pack_answers([True] * 50_000), 0, {})
    moved = {}
    for kind in ("weights", "answers"):
        before = proxy.down
        with fetcher_for(proxy.url, tmp_path / "copy", kind, interval=60, timeout=60) as fetcher:
            arrived = arrives(fetcher, 1)
            status = fetcher.status()
        moved[kind] = status.bytes_per_sync
        assert arrived.moved == status.bytes_per_sync
        answered = proxy.down - before  # what was asked comes on top
        assert answered <= arrived.moved <= answered + 2_000
    assert 1_000_000 <= moved["weights"] < 1_004_000
    assert 6_250 <= moved["answers"] < 10_250


@pytest.mark.parametrize(
    ("field", "theirs", "kind"),
    [("classes", 100, "weights"), ("input_shape", [1, 28, 28], "weights"), ("data", "beef", "answers")],
)
def test_a_peer_of_another_task_is_refused_by_name(store, tmp_path, field, theirs, kind):
    publish(store, 0, kind=kind)
    with (
        PublisherServer(store, {**IDENTITY, field: theirs}, TOKEN) as server,
        fetcher_for(server.url, tmp_path / "copy", kind) as fetcher,
    ):
        until(lambda: fetcher.status().failures.get("identity", 0) >= 2)
        status = fetcher.status()
        ours = list(IDENTITY[field]) if field == "input_shape" else IDENTITY[field]
        assert status.state == "wrong_peer"
        assert f"{field}: ours {ours!r}, theirs {theirs!r}" in status.error
        assert fetcher.latest() is None
    assert not list((tmp_path / "copy").glob("*.bin"))


def test_other_data_do_not_matter_to_weights(store, tmp_path):
    publish(store, 0)
    with (
        PublisherServer(store, {**IDENTITY, "data": "beef"}, TOKEN) as server,
        fetcher_for(server.url, tmp_path / "copy") as fetcher,
    ):
        assert whole(arrives(fetcher, 1))


def test_a_kind_that_is_not_offered_and_a_field_they_do_not_state_are_named(store, tmp_path):
    with PublisherServer(store, {**IDENTITY, "kinds": ["weights"]}, TOKEN) as server:
        with fetcher_for(server.url, tmp_path / "one", "answers") as fetcher:
            assert "kinds: ours 'answers', theirs ['weights']" in until(lambda: fetcher.status().error)
        with fetcher_for(server.url, tmp_path / "two", identity={**IDENTITY, "model": "alexnet"}) as fetcher:
            assert "model: ours 'alexnet', theirs none" in until(lambda: fetcher.status().error)


def test_a_peer_that_turns_into_another_is_never_used(store, proxy, server, tmp_path):
    publish(store, 0)
    other_store = SnapshotStore(tmp_path / "other")
    publish(other_store, 77)
    with (
        PublisherServer(other_store, {**IDENTITY, "classes": 7}, TOKEN) as other,
        fetcher_for(proxy.url, tmp_path / "copy") as fetcher,
    ):
        arrives(fetcher, 1)
        proxy.target = other.port
        proxy.use(Fault())
        until(lambda: fetcher.status().state == "wrong_peer")
        assert fetcher.latest().step == 0
        proxy.target = server.port
        proxy.use(Fault())
        publish(store, 1)
        assert arrives(fetcher, 2).step == 1


def test_a_wrong_token_is_said_once_and_tried_on(store, proxy, tmp_path, caplog):
    publish(store, 0)
    with (
        caplog.at_level(logging.WARNING, "l2h.training.exchange"),
        fetcher_for(proxy.url, tmp_path / "c", token="wrong") as fetcher,
    ):
        until(lambda: fetcher.status().failures.get("refused", 0) >= 4)
        status = fetcher.status()
    assert status.state == "refused"
    assert "token" in status.error
    assert fetcher.latest() is None
    assert len([record for record in caplog.records if "token" in record.message]) == 1
    assert TOKEN not in caplog.text
    assert "wrong" not in caplog.text.replace("wrong_peer", "")


def test_nobody_there_is_unreachable_until_somebody_is(store, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with fetcher_for(f"http://127.0.0.1:{port}", tmp_path / "copy") as fetcher:
        until(lambda: fetcher.status().failures.get("connect", 0) >= 3)
        assert fetcher.status().state == "unreachable"
        publish(store, 0)
        with PublisherServer(store, IDENTITY, TOKEN, port=port):
            assert whole(arrives(fetcher, 1))


def test_a_restart_begins_with_the_copy_it_had_and_refuses_older_ones(store, server, tmp_path):
    copy = tmp_path / "copy"
    backup = tmp_path / "backup"
    publish(store, 0)
    shutil.copytree(store.folder, backup)
    publish(store, 1)
    publish(store, 2)
    with fetcher_for(server.url, copy) as fetcher:
        arrives(fetcher, 3)
    server.stop()
    restored = SnapshotStore(backup)  # the same run, its counter back at 1
    with PublisherServer(restored, IDENTITY, TOKEN) as older:
        again = fetcher_for(older.url, copy)
        assert again.latest().version == 3
        assert whole(again.take())
        with again:
            until(lambda: again.status().failures.get("older", 0) >= 2)
            publish(restored, 10)
            publish(restored, 11)  # version 3 once more: no newer than ours
            until(lambda: again.status().state == "ok")
            assert again.latest().step == 2
            publish(restored, 12)
            assert arrives(again, 4).step == 12


def test_a_new_store_is_a_new_series_and_the_old_one_goes_on_above_what_was_seen(store, proxy, server, tmp_path):
    for step in range(3):
        publish(store, step)
    fresh = SnapshotStore(tmp_path / "fresh")
    publish(fresh, 50)
    with PublisherServer(fresh, IDENTITY, TOKEN) as other, fetcher_for(proxy.url, tmp_path / "copy") as fetcher:
        assert arrives(fetcher, 3).run == store.run
        proxy.target = other.port
        proxy.use(Fault())
        until(lambda: fetcher.latest().run == fresh.run)
        assert (fetcher.latest().version, fetcher.latest().step) == (1, 50)
        proxy.target = server.port
        proxy.use(Fault())
        until(lambda: fetcher.status().state == "ok")
        assert fetcher.latest().run == fresh.run
        publish(store, 3)
        until(lambda: fetcher.latest().run == store.run)
        assert fetcher.latest().version == 4


def test_a_copy_damaged_on_the_disk_is_fetched_again(store, server, tmp_path):
    publish(store, 0)
    with fetcher_for(server.url, tmp_path / "copy") as fetcher:
        arrived = arrives(fetcher, 1)
    data = bytearray(arrived.path.read_bytes())
    data[1000] ^= 1
    arrived.path.write_bytes(data)
    with pytest.raises(SnapshotError, match="damaged"):
        arrived.read()
    again = fetcher_for(server.url, tmp_path / "copy")
    assert again.latest() is None
    with again:
        assert whole(arrives(again, 1))


@pytest.mark.parametrize("name", ["weights.json", "weights.part.json"])
@pytest.mark.parametrize("text", [b"", b"[]", b'{"schema": 1}', b'{"run": 3, "snapshot": {}}', b"\xff"])
def test_damaged_notes_are_as_none(store, server, tmp_path, name, text):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / name).write_bytes(text)
    (tmp_path / "copy" / "weights.part").write_bytes(b"of something")
    publish(store, 0)
    with fetcher_for(server.url, tmp_path / "copy") as fetcher:
        assert whole(arrives(fetcher, 1))


@pytest.mark.parametrize("field", ["seen", "arrived"])
def test_a_note_of_a_number_without_end_is_as_none(store, server, tmp_path, field):
    publish(store, 0)
    with fetcher_for(server.url, tmp_path / "copy") as fetcher:
        arrives(fetcher, 1)
    path = tmp_path / "copy" / "weights.json"
    note = json.loads(path.read_text())
    note[field] = {"r": float("inf")} if field == "seen" else 10**400
    path.write_text(json.dumps(note).replace("Infinity", "1e999"))
    again = fetcher_for(server.url, tmp_path / "copy")
    assert again.latest() is None
    with again:
        assert whole(arrives(again, 1))


def test_a_copy_kept_for_another_task_is_not_used(store, server, tmp_path):
    publish(store, 0)
    with fetcher_for(server.url, tmp_path / "copy") as fetcher:
        arrives(fetcher, 1)
    assert fetcher_for(server.url, tmp_path / "copy", identity={**IDENTITY, "classes": 3}).latest() is None


def test_a_move_that_was_not_noted_is_not_fetched_twice(store, server, tmp_path):
    """Killed between moving the finished download and writing down that it is the copy in use."""
    copy = tmp_path / "copy"
    publish(store, 0)
    with fetcher_for(server.url, copy) as fetcher:
        arrived = arrives(fetcher, 1)
    state = (copy / "weights.json").read_text()
    plan = state[: state.index('"arrived"')].rstrip(", ") + "}"
    (copy / "weights.part.json").write_text(plan)
    (copy / "weights.json").unlink()
    with fetcher_for(server.url, copy) as again:
        assert whole(arrives(again, 1))
        assert again.status().bytes_moved < arrived.snapshot.size / 10


def test_stopping_is_quick_and_starting_again_goes_on(store, proxy, tmp_path):
    publish(store, 0)
    fetcher = fetcher_for(proxy.url, tmp_path / "copy", interval=30, timeout=5.0)
    fetcher.stop()
    with fetcher:
        arrives(fetcher, 1)
        with Stopwatch() as watch:
            fetcher.stop()
        assert watch.seconds < 1
        publish(store, 1)
    with fetcher:
        assert whole(arrives(fetcher, 2))
        assert fetcher.status().syncs == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"url": "ftp://host"}, "http://HOST:PORT"),
        ({"url": "host:80"}, "http://HOST:PORT"),
        ({"url": "http://h:99999"}, "http://HOST:PORT"),
        ({"url": "http://h:0"}, "http://HOST:PORT"),
        ({"url": "http://h:-1"}, "http://HOST:PORT"),
        ({"url": "http://h: 80"}, "http://HOST:PORT"),
        ({"url": "http://user:pass@host"}, "http://HOST:PORT"),
        ({"url": "http://[::1"}, "address"),
        ({"token": ""}, "token"),
        ({"kind": "all"}, "all"),
        ({"interval": 0}, "interval"),
        ({"timeout": float("nan")}, "timeout"),
        ({"backoff": (2.0, 1.0)}, "backoff"),
        ({"identity": {"classes": 2}}, "input_shape"),
        ({"kind": "answers", "identity": {"classes": 2, "input_shape": [2]}}, "data"),
    ],
)
def test_arguments_that_cannot_serve_are_named(tmp_path, changes, says):
    arguments = {"url": "http://h:1", "token": TOKEN, "kind": "weights", "identity": IDENTITY, **QUICK, **changes}
    with pytest.raises(ExchangeError, match=says):
        SnapshotFetcher(folder=tmp_path, **arguments)


def test_a_full_disk_is_counted_and_outlived(store, server, tmp_path, monkeypatch):
    publish(store, 0)
    fetcher = fetcher_for(server.url, tmp_path / "copy")
    real = fetcher._downloads.begin

    def full(run, snapshot):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetcher._downloads, "begin", full)
    with fetcher:
        until(lambda: fetcher.status().failures.get("disk"))
        assert "No space left" in fetcher.status().error
        monkeypatch.setattr(fetcher._downloads, "begin", real)
        assert whole(arrives(fetcher, 1))


def test_a_fault_nobody_foresaw_does_not_end_the_thread(store, server, tmp_path, monkeypatch):
    publish(store, 0)
    fetcher = fetcher_for(server.url, tmp_path / "copy")
    real = fetcher._check_offer
    monkeypatch.setattr(fetcher, "_check_offer", lambda *_: 1 / 0)
    with fetcher:
        until(lambda: fetcher.status().failures.get("internal"))
        assert fetcher.status().state == "faulty"
        monkeypatch.setattr(fetcher, "_check_offer", real)
        assert whole(arrives(fetcher, 1))


def test_the_proxy_of_the_environment_is_not_used(store, server, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    publish(store, 0)
    between = FaultProxy(server.port)
    with fetcher_for(between.url, tmp_path / "copy") as fetcher:
        assert whole(arrives(fetcher, 1))
    between.close()
