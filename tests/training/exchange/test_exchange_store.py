"""Versions count up, never repeat, and are whole or not there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from exchange_maker import content, publish, run_role, words

import l2h.training.exchange.store as store_module
from l2h.errors import CheckpointError
from l2h.training.exchange import ExchangeError, SnapshotError, SnapshotStore


def test_versions_count_up_in_each_kind_and_across_restarts(tmp_path):
    versions = []
    for _ in range(3):
        store = SnapshotStore(tmp_path, keep=2)
        versions += [publish(store, step).version for step in range(3)]
    assert versions == list(range(1, 10))
    assert publish(store, 0, kind="answers").version == 1
    assert SnapshotStore(tmp_path).latest("weights") == store.latest("weights")
    assert SnapshotStore(tmp_path).run == store.run


def test_the_manifest_says_what_the_bytes_are(store):
    snapshot = store.publish("weights", b"bytes", 7, {"loss": 0.5})
    manifest = json.loads((store.folder / "weights-00000001.json").read_text())
    assert manifest.pop("time") > 0
    assert manifest == {
        "schema": 1,
        "version": 1,
        "step": 7,
        "kind": "weights",
        "size": 5,
        "sha256": "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9",
        "meta": {"loss": 0.5},
    }
    assert store.latest("weights") == snapshot


def test_only_the_newest_are_kept_and_an_open_one_stays_readable(tmp_path):
    store = SnapshotStore(tmp_path, keep=2)
    publish(store, 0)
    _, file = store.open("weights", 1)
    for step in range(1, 5):
        publish(store, step)
    with file:
        assert file.read() == content(0, 200_000)
    assert store.open("weights", 1) is None
    assert sorted(path.name for path in tmp_path.glob("weights-*")) == [
        f"weights-0000000{version}.{suffix}" for version in (4, 5) for suffix in ("bin", "json")
    ]


@pytest.mark.parametrize("writes", [0, 1], ids=["before the bytes", "before the manifest"])
def test_a_publish_that_breaks_off_leaves_the_one_before(tmp_path, monkeypatch, writes):
    store = SnapshotStore(tmp_path)
    before = publish(store, 0)
    calls = iter(range(10))

    def full_disk(path, data):
        if next(calls) == writes:
            raise CheckpointError("no space")
        return real(path, data)

    real = store_module.write_atomically
    monkeypatch.setattr(store_module, "write_atomically", full_disk)
    with pytest.raises(CheckpointError):
        publish(store, 1)
    monkeypatch.undo()
    for reopened in (store, SnapshotStore(tmp_path)):
        assert reopened.latest("weights") == before
    assert publish(SnapshotStore(tmp_path), 2).version == 2 + writes


def test_what_was_damaged_on_the_disk_is_not_offered_and_its_version_not_given_again(store):
    publish(store, 0)
    publish(store, 1)
    (store.folder / "weights-00000002.bin").write_bytes(b"damaged")
    again = SnapshotStore(store.folder)
    assert again.latest("weights").version == 1
    assert publish(again, 2).version == 3


def test_one_process_at_a_time_publishes_from_a_folder(tmp_path):
    holder = run_role("publish", tmp_path, 1000, 1)
    try:
        assert words(holder)[0] == "port"
        assert words(holder) == ["published", "1"]
        with pytest.raises(ExchangeError, match="another process publishes"):
            publish(SnapshotStore(tmp_path), 1)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert publish(SnapshotStore(tmp_path), 1).version == 2


@pytest.mark.parametrize(
    ("kind", "data", "step", "meta", "says"),
    [
        ("gradients", b"x", 0, {}, "gradients"),
        ("weights", b"", 0, {}, "without bytes"),
        ("weights", b"x", -1, {}, "-1"),
        ("weights", b"x", 0, {"loss": float("nan")}, "plain values"),
        ("weights", b"x", 0, {"loss": object()}, "plain values"),
        ("weights", b"x", 0, {"much": "x" * (1 << 20)}, "less into meta"),
    ],
)
def test_what_cannot_be_published_is_refused_and_leaves_nothing(store, kind, data, step, meta, says):
    with pytest.raises(SnapshotError, match=says):
        store.publish(kind, data, step, meta)
    assert not list(store.folder.glob("*-*"))


def test_a_store_keeps_at_least_one(tmp_path):
    with pytest.raises(ExchangeError, match="at least 1"):
        SnapshotStore(tmp_path, keep=0)


def test_the_exchange_itself_loads_neither_torch_nor_the_server():
    """``l2h.training`` loads torch, so an empty module takes its place here."""
    path = str(Path(store_module.__file__).parents[1])
    code = (
        "import sys, types; sys.modules['l2h.training'] = around = types.ModuleType('l2h.training')\n"
        f"around.__path__ = [{path!r}]\n"
        "import l2h.training.exchange; print({'torch', 'starlette', 'uvicorn'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
