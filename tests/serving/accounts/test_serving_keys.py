"""Who may ask."""

from __future__ import annotations

import json
import os
import stat
from hashlib import sha256

import pytest
from serving_process import Client, Server, make_key
from waiting import until

from l2h.cli.app import run
from l2h.serving.accounts import open_keys
from l2h.serving.accounts.key import Quota, Rate
from l2h.serving.errors import AllowanceError, KeyStoreError


@pytest.fixture(scope="module")
def guarded(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    path, _, text = make_key(folder)
    with Server(bundle, folder, keys=str(path)) as running:
        running.key, running.keys = text, path
        yield running


def test_only_a_key_of_the_file_is_let_in(guarded, x, tmp_path):
    before = len(guarded.rows())
    _, _, foreign = make_key(tmp_path)
    id_, secret = guarded.key.split("_", 2)[1:]
    swapped = f"l2h_{id_}_{foreign.split('_', 2)[2]}"
    for key in (None, "", "x", foreign, swapped, guarded.key[:-1], guarded.key + "A", f"l2h_{'0' * 12}_{secret}"):
        reply = Client(guarded, key).ask(x)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert secret not in reply.error
    assert Client(guarded).ask(x, Authorization="Basic abc").status == 401
    assert len(guarded.rows()) == before
    reply = Client(guarded, guarded.key).ask(x)
    assert (reply.status, reply.headers["l2h-charged"]) == (200, "1")
    assert guarded.rows("key_id, inputs, units")[before:] == [(id_, 3, 3)]


def test_health_and_metadata_need_no_key_and_the_metrics_an_admin_s(guarded):
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/digits", "/openapi.json"):
        assert guarded.get(path)[0] == 200
    _, admin = open_keys(guarded.keys).add("prometheus", admin=True)
    assert guarded.get("/metrics")[0] == 401
    assert guarded.get("/metrics", Authorization=f"Bearer {guarded.key}")[0] == 403
    until(lambda: guarded.get("/metrics", Authorization=f"Bearer {admin}")[0] == 200)


def test_changes_of_the_file_are_taken_over(guarded, x):
    _, text = open_keys(guarded.keys).add("bob")
    client = Client(guarded, text)
    until(lambda: client.ask(x).status == 200)
    open_keys(guarded.keys).change("bob", enabled=False)
    until(lambda: client.ask(x).status == 403)
    good = guarded.keys.read_bytes()
    guarded.keys.write_bytes(good[:-20])
    until(lambda: guarded.events("keys_refused"))
    assert Client(guarded, guarded.key).ask(x).status == 200
    guarded.keys.write_bytes(good)


def test_keys_are_nowhere_in_the_log_or_the_ledger(guarded, x):
    secret = guarded.key.split("_", 2)[2]
    Client(guarded, guarded.key).ask(x)
    until(lambda: any(line["status"] == 200 for line in guarded.events("request")))
    for path in (guarded.log, *guarded.folder.glob("ledger.db*"), guarded.keys):
        assert secret.encode() not in path.read_bytes()


def test_a_key_file_that_all_can_read_is_warned_of(bundle, tmp_path):
    path, _, _ = make_key(tmp_path)
    path.chmod(0o644)
    with Server(bundle, tmp_path, keys=str(path)) as server:
        (line,) = server.events("key_file_open")
        assert "chmod 600" in line["warning"]
        assert f"keys {path} (1 in use)" in server.line


def test_the_commands(tmp_path, capsys):
    path = tmp_path / "keys.json"

    def l2h(*arguments):
        status = run(["keys", *arguments, "--file", str(path)])
        return status, capsys.readouterr().out

    status, out = l2h("add", "phones", "--quota", "10000/day", "--rate", "50/s")
    key = out.strip()
    assert status == 0
    assert key.startswith("l2h_")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.split("_", 2)[2] not in path.read_text()
    (record,) = json.loads(l2h("list", "--json")[1])
    assert (record["name"], record["quota"], record["rate"], record["burst"]) == ("phones", "10000/day", "50/s", 50)
    assert "sha256" not in record
    assert l2h("add", "phones")[0] == 1
    status, out = l2h("change", "phones", "--quota", "5/hour", "--no-rate")
    assert (status, out.split(": ")[1].strip()) == (0, "quota 5/hour")
    (changed,) = json.loads(l2h("list", "--json")[1])
    assert (changed["quota"], changed["rate"]) == ("5/hour", None)
    assert sha256(key.encode()).hexdigest() == open_keys(path).read()[0].sha256, "the key itself stays"
    assert "no bound" in l2h("change", record["id"], "--no-quota")[1]
    for nothing in ((), ("--burst", "2"), ("--quota", "1/s", "--no-quota"), ("--rate", "often")):
        assert l2h("change", "phones", *nothing)[0] == 2
    assert l2h("change", "nobody", "--no-rate")[0] == 1
    assert l2h("revoke", record["id"])[0] == 0
    assert not open_keys(path).read()[0].enabled
    assert l2h("revoke", "nobody")[0] == 1
    assert l2h("add", "x", "--quota", "many")[0] == 2


def test_adding_keeps_the_mode_and_the_other_keys(tmp_path):
    path, _, _ = make_key(tmp_path)
    path.chmod(0o640)
    open_keys(path).add("second")
    assert [key.name for key in open_keys(path).read()] == ["alice", "second"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["keys.json"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_change_by_root_leaves_the_file_to_the_server_s_user(tmp_path):
    """Else the server could not read that a key was revoked."""
    path = tmp_path / "keys.json"
    open_keys(path).add("phones")
    os.chown(path, 4321, 4321)
    open_keys(path).change("phones", enabled=False)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4321, 4321, 0o600)


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"schema": 2, "keys": []}', b'{"schema": 1, "keys": [{"id": "x"}]}'])
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "keys.json"
    path.write_bytes(damage)
    with pytest.raises(KeyStoreError):
        open_keys(path).read()


@pytest.mark.parametrize("text", ["", "10", "10/", "10/fortnight", "-1/day", "1e3/day", "10/day "[:-2]])
def test_quotas_and_rates_that_cannot_be_read(text):
    with pytest.raises(AllowanceError):
        Quota.parse(text)
    with pytest.raises(AllowanceError):
        Rate.parse(text)


def test_the_least_rate_is_one_that_a_file_can_hold(tmp_path):
    with pytest.raises(AllowanceError, match="lets nothing through"):
        Rate.parse("0.0001/week")
    path, _, _ = make_key(tmp_path, rate=Rate.parse("0.001/week"))
    (key,) = open_keys(path).read()
    assert key.rate == Rate(2e-9, 1)
