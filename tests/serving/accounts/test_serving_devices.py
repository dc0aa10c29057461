"""The news of devices: whose they are, which is the last, over workers and restarts; no bad one spoils an answer."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commands
import pytest
from serving_process import Client, Server, make_key
from waiting import until

from l2h.fleet import HEADER, PATH, DeviceReport
from l2h.serving.accounts import open_devices, open_keys
from l2h.serving.accounts.devices import DeviceNews
from l2h.serving.accounts.key import ANONYMOUS, Key, Quota

PLAIN: dict[str, Any] = {"start": 5, "count": 1, "every": 900.0, "model": "digits", "version": "0a1b"}


def said(device: str = "cam-7", **values: Any) -> dict[str, str]:
    return {HEADER: DeviceReport(device=device, **PLAIN | values).encode()}


def count(server: Server, result: str, **headers: str) -> float:
    try:
        return server.metric(f'l2h_device_reports_total{{result="{result}"}}', **headers)
    except TypeError:  # none yet
        return 0.0


def seen(server: Server) -> dict[str, dict[str, Any]]:
    return {device["device"]: device for device in open_devices(server.ledger).view({})["devices"]}


@dataclass
class Fleet:
    """A server with keys and two workers."""

    server: Server
    path: Path
    admin: dict[str, str]
    alice: Client
    bob: Client


@pytest.fixture(scope="module")
def fleet(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    path, _, alice = make_key(folder, "alice")
    _, _, bob = make_key(folder, "bob")
    _, _, admin = make_key(folder, "admin", admin=True)
    with Server(bundle, folder, keys=str(path), workers=2) as server:
        headers = {"Authorization": f"Bearer {admin}"}
        yield Fleet(server, path, headers, Client(server, alice), Client(server, bob))


def test_a_report_rides_on_a_request_and_is_shown(fleet, x):
    reply = fleet.alice.ask(x, **said("rides", inputs=9, asked=3, reasons={"worth_asking": 3}, latency=(0.1, 0.2)))
    assert (reply.status, HEADER.lower() in reply.headers) == (200, False)
    device = until(lambda: seen(fleet.server).get("rides"))
    assert (device["inputs"], device["asked"], device["reasons"]) == (9, 3, {"worth_asking": 3})
    assert (device["latency"], device["round_trip"]) == ({"p50": 0.1, "p95": 0.2}, None)
    assert device["flags"] == []
    status, out, _ = commands.call("devices", "list", "--ledger", fleet.server.ledger, "--keys", fleet.path)
    assert (status, "rides" in out, "alice" in out) == (0, True, True)


def test_a_report_counts_also_where_its_request_is_refused(fleet, x):
    _, _, text = make_key(fleet.path.parent, "poor", quota=Quota.parse("3/day"))
    client = Client(fleet.server, text)
    until(lambda: client.ask(x).status == 200)
    assert client.ask(x, **said("poor")).status == 429
    until(lambda: "poor" in seen(fleet.server))


def test_a_request_of_its_own_says_what_became_of_it(fleet):
    sent = fleet.alice.post(b"", said("own", count=2), PATH)
    assert (sent.status, json.loads(sent.body)) == (200, {"taken": True})
    for late in (2, 1):  # the same once more, and an earlier one
        again = fleet.alice.post(b"", said("own", count=late), PATH)
        assert (json.loads(again.body), again.headers[HEADER.lower()]) == ({"taken": False}, "5")
    before = fleet.alice.post(b"", said("own", start=4, count=99), PATH)
    assert json.loads(before.body) == {"taken": False}
    assert json.loads(fleet.alice.post(b"", said("own", start=6), PATH).body) == {"taken": True}
    owner = until(lambda: seen(fleet.server).get("own"))["key"]  # from here on every worker knows
    assert fleet.bob.post(b"", said("own", start=7), PATH).status == 403
    assert fleet.bob.post(b"", said("own", start=7), PATH).status == 403
    assert seen(fleet.server)["own"]["key"] == owner == fleet.alice.key.split("_")[1]
    assert fleet.alice.post(b"", {}, PATH).status == 400
    assert fleet.alice.post(b"", {HEADER: "x"}, PATH).status == 400
    assert fleet.server.get(PATH, **fleet.admin)[0] == 405


def test_without_a_good_key_nothing_is_taken(fleet, x):
    before = count(fleet.server, "taken", **fleet.admin)
    for key in (None, "l2h_000000000000_forged", fleet.alice.key + "x"):
        stranger = Client(fleet.server, key)
        assert stranger.ask(x, **said("forged")).status == 401
        assert stranger.post(b"", said("forged"), PATH).status == 401
    assert fleet.alice.post(b"", said("after"), PATH).status == 200
    until(lambda: "after" in seen(fleet.server))
    assert "forged" not in seen(fleet.server)
    assert count(fleet.server, "taken", **fleet.admin) == before + 1


@pytest.mark.long
def test_a_replay_is_refused_by_every_worker_and_after_a_restart(bundle, tmp_path, x):
    recorded = said("replayed", count=7)
    with Server(bundle, tmp_path, workers=2) as server:
        assert Client(server).ask(x, **recorded).status == 200
        until(lambda: "replayed" in seen(server))
        for _ in range(8):  # every connection may meet another worker
            reply = Client(server).ask(x, **recorded)
            assert (reply.status, reply.headers[HEADER.lower()]) == (200, "5")
        assert count(server, "taken") == 1
        assert count(server, "stale") == 8
        first = seen(server)["replayed"]
    with Server(bundle, tmp_path) as server:
        assert seen(server)["replayed"]["time"] == first["time"]
        assert json.loads(Client(server).post(b"", recorded, PATH).body) == {"taken": False}
        Client(server).post(b"", said("replayed", count=8), PATH)
        assert server.stop() == 0  # what was heard last is written at the end
    assert json.loads(commands.call("devices", "list", "--ledger", server.ledger, "--json")[1])["total"] == 1


@pytest.mark.parametrize(
    "value",
    ["", "{", "cam-7", "a" * 10_000, '{"d": "' + "a" * 10_000 + '"}', said()[HEADER].replace("cam-7", "c\\u0007")],
    ids=["empty", "cut", "text", "10kB", "name of 10 kB", "control character"],
)
def test_a_bad_header_is_counted_and_the_answer_comes(fleet, x, value):
    before, lines = count(fleet.server, "malformed", **fleet.admin), len(fleet.server.rows())
    reply = fleet.alice.ask(x, **{HEADER: value})
    assert (reply.status, reply.scores.shape) == (200, (3, 5))
    assert len(fleet.server.rows()) == lines + 1
    assert count(fleet.server, "malformed", **fleet.admin) == before + 1


def test_a_name_belongs_to_its_first_key_until_that_is_revoked(fleet, x):
    path, _, carol = make_key(fleet.path.parent, "carol")
    dave = Client(fleet.server, make_key(fleet.path.parent, "dave")[2])
    first = Client(fleet.server, carol)
    until(lambda: first.post(b"", said("shared"), PATH).status == 200)
    until(lambda: "shared" in seen(fleet.server))
    before = count(fleet.server, "foreign", **fleet.admin)
    until(lambda: dave.ask(x, **said("shared", start=9)).status == 200)  # answered, and not taken
    assert count(fleet.server, "foreign", **fleet.admin) == before + 1
    assert dave.post(b"", said("shared", start=9), PATH).status == 403
    open_keys(path).change("carol", enabled=False)
    until(lambda: dave.post(b"", said("shared", start=1), PATH).status == 200)
    owner = next(key.id for key in open_keys(path).read() if key.name == "dave")
    until(lambda: seen(fleet.server)["shared"]["key"] == owner)


def test_a_file_that_cannot_be_used_spoils_no_answer(bundle, tmp_path, x):
    (tmp_path / "ledger.db-devices").write_text("no database " * 100)
    with Server(bundle, tmp_path) as server:
        assert Client(server).ask(x, **said()).status == 200
        assert Client(server).post(b"", said("cam-8"), PATH).status == 503
        (tmp_path / "ledger.db-devices").unlink()
        until(lambda: Client(server).post(b"", said("cam-9"), PATH).status == 200)
        until(lambda: "cam-9" in seen(server))


KEYS = {name: Key(name, name, "", "") for name in ("alice", "bob")}


class Known:
    """Keys that are all in use."""

    def find(self, key_id: str) -> Key | None:
        return KEYS.get(key_id)


def take(news: DeviceNews, device: str, key: Key = ANONYMOUS, **values: Any) -> str:
    return news.take(key, said(device, **values)[HEADER].encode())[0]


def listed(folder: Path) -> dict[str, dict[str, Any]]:
    (folder / "ledger.db").touch()
    return {each["device"]: each for each in open_devices(folder / "ledger.db").view({})["devices"]}


def test_nobody_crowds_out_the_devices_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr("l2h.serving.accounts.devices._MOST", 20)
    news = DeviceNews(str(tmp_path / "ledger.db"), Known())  # type: ignore[arg-type]
    for i in range(8):
        assert take(news, f"honest-{i}", KEYS["alice"]) == "taken"
    news.flush(("", 0))
    for i in range(5000):
        if take(news, f"flood-{i}", KEYS["bob"]) == "crowded":
            news.flush(("", 0))
    news.flush(("", 0))
    names = set(listed(tmp_path))
    assert len(names) == 20
    assert {f"honest-{i}" for i in range(8)} <= names
    assert "flood-4999" in names


def test_marks(tmp_path):
    """Who drifts, who is silent while the server hears, and whose bundle is older than that of others."""
    now, path = time.time(), tmp_path / "ledger.db-devices"
    news = DeviceNews(str(tmp_path / "ledger.db"), None)
    for name, values in {
        "well": {"created": 200},
        "drifts": {"created": 200, "drift": "above"},
        "old": {"created": 100},
        "far": {"created": 2**37},  # from the future
        "unknown": {},
        "alone": {"created": 7, "model": "another"},
    }.items():
        assert take(news, name, **values) == "taken"
    news.flush(("digits", 150))
    marked = {name: device["flags"] for name, device in listed(tmp_path).items()}
    assert marked == {"well": [], "drifts": ["drift"], "old": ["old_bundle"], "far": [], "unknown": [], "alone": []}
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE devices SET time = ? WHERE device = 'old'", (now - 3000,))
        # The server has run for an hour.
        db.execute("UPDATE hearing SET since = ?", (now - 3600,))
        assert listed(tmp_path)["old"]["flags"] == ["offline", "old_bundle"]
        assert next(iter(listed(tmp_path))) == "old"  # the oldest news are first
        # It was started just now, and has missed nothing.
        db.execute("UPDATE hearing SET since = ?", (now - 60,))
        assert listed(tmp_path)["old"]["flags"] == ["old_bundle"]
        # It has not run for a while: that is seen by the last time that it noted it did.
        db.execute("UPDATE hearing SET since = ?, seen = ?", (now - 9000, now - 2000))
        # The clock was wrong, and is set back.
        db.execute("UPDATE hearing SET since = ?, seen = ?", (now + 9000, now + 9000))
        assert take(news, "drifts", count=2, created=200) == "taken"
        news.flush(("digits", 150))
        assert db.execute("SELECT since <= ? FROM hearing", (time.time(),)).fetchone() == (1,)
        db.execute("UPDATE hearing SET since = ?, seen = ?", (now - 9000, now - 2000))
    assert take(news, "well", count=2, created=200) == "taken"
    news.flush(("digits", 300))
    found = listed(tmp_path)
    assert (found["old"]["flags"], found["well"]["flags"]) == (["old_bundle"], ["old_bundle"])


def test_a_device_can_be_forgotten(tmp_path):
    news = DeviceNews(str(tmp_path / "ledger.db"), None)
    assert take(news, "cam-7") == "taken"
    news.flush(("", 0))
    assert set(listed(tmp_path)) == {"cam-7"}
    ledger = tmp_path / "ledger.db"
    assert commands.call("devices", "forget", "cam-7", "--ledger", ledger)[0] == 0
    assert commands.call("devices", "forget", "cam-7", "--ledger", ledger)[0] == 2
    assert "no device has reported" in commands.call("devices", "list", "--ledger", ledger)[1]
    assert commands.call("devices", "list", "--ledger", tmp_path / "no.db")[0] == 1
    assert take(news, "cam-7") == "taken"
