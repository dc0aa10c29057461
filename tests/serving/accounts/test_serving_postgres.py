"""Accounts in PostgreSQL: one truth for servers on several hosts, whatever ends in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import commands
import pytest
from ledger_maker import NOW, fill
from serving_process import Client, Server, make_key
from waiting import STUCK, until

from l2h.serving.accounts import copy_ledger, open_accounts, open_history, open_keys, prepare_accounts
from l2h.serving.accounts.history import DAY, SUMS
from l2h.serving.accounts.key import Quota, Rate
from l2h.serving.accounts.reserve import OutageReserve, prepare_reserve
from l2h.serving.accounts.store import Charge


def test_two_servers_share_keys_quotas_rates_and_the_ledger(bundle, tmp_path, x, postgres):
    url = postgres.new()
    limited, key = open_keys(url).add("phones", quota=Quota.parse("100/week"))
    _, slow = open_keys(url).add("slow", rate=Rate(1e-6, 7))
    with (
        Server(bundle, tmp_path / "a", accounts=url, workers=2) as one,
        Server(bundle, tmp_path / "b", accounts=url) as two,
    ):
        assert "2 keys in use, accounts in PostgreSQL" in one.line

        def ask(number: int) -> list[tuple[int, int]]:
            client = Client((one, two)[number % 2], key)
            sizes = [1 + (i + number) % 3 for i in range(12)]
            return [(client.ask(x[:n], Idempotency_Key=f"{number}-{i}").status, n) for i, n in enumerate(sizes)]

        with ThreadPoolExecutor(8) as pool:
            replies = [reply for some in pool.map(ask, range(8)) for reply in some]
        assert sum(inputs for status, inputs in replies if status == 200) == 100
        assert {status for status, _ in replies} == {200, 429}
        assert one.rows("sum(inputs)") == [(100,)]
        clients = [Client(server, slow) for server in (one, two)]
        assert Counter(clients[i % 2].ask(x[:1]).status for i in range(10)) == {200: 7, 429: 3}

        _, name, inputs = one.rows("id, idempotency_key, inputs", "inputs < 3 LIMIT 1")[0]
        number = int(name.split("-")[0])
        other = Client((two, one)[number % 2], key).ask(x[:inputs], Idempotency_Key=name)
        assert (other.status, other.headers["l2h-charged"]) == (200, "0"), "charged by the other server"
        until(lambda: one.rows("count(*)", "delivered IS DISTINCT FROM 1") == [(0,)])
        open_keys(url).change("phones", enabled=False)
        until(lambda: {Client(server, key).ask(x[:1]).status for server in (one, two)} == {403})
    assert open_history(url).report(["key"]) == open_history(url).report(["key"], since=0.0)
    assert open_history(url).used([limited]) == {limited.id: 100}


@pytest.mark.long
def test_a_server_begins_without_its_database_where_it_may_serve(bundle, tmp_path, x, postgres):
    """With the keys that it knew; and answers that wait to be charged are named where they are left."""
    url = postgres.new()
    _, key = open_keys(url).add("phones", quota=Quota.parse("100/week"))
    settings = {"accounts": url, "when_accounts_fail": "serve"}
    postgres.stop()
    try:
        with Server(bundle, tmp_path, **settings, wait=False) as server:
            assert server.process.wait(STUCK) == 1, "it never knew any"
        postgres.start()
        with Server(bundle, tmp_path, **settings) as server:
            assert Client(server, key).ask(x).status == 200
        postgres.stop()
        with Server(bundle, tmp_path, **settings) as server:
            assert server.events("accounts_down")
            assert Client(server, key).ask(x).status == 200
    finally:
        postgres.start()
    with Server(bundle, tmp_path, accounts=url) as server:
        assert [line["inputs"] for line in server.events("reserve_waiting")] == [3]
    with Server(bundle, tmp_path, **settings) as server:
        until(lambda: server.rows("sum(inputs)") == [(6,)])


@pytest.mark.long
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_database_that_ends_means_503_until_it_is_back(bundle, tmp_path, x, postgres, end):
    url = postgres.new()
    _, key = open_keys(url).add("phones", quota=Quota.parse("1000/week"), rate=Rate(1e6, 1000))
    with Server(bundle, tmp_path, accounts=url) as server:
        client = Client(server, key)
        assert client.ask(x).status == 200
        getattr(postgres, end)()
        try:
            reply = client.ask(x)
            assert (reply.status, reply.headers["l2h-reason"]) == (503, "ledger")
            until(lambda: server.get("/v2/health/ready")[0] == 503)
            assert server.get("/v2/health/live")[0] == 200
        finally:
            postgres.start()
        until(lambda: client.ask(x[:1]).status == 200)
        until(lambda: server.get("/v2/health/ready")[0] == 200)
        good = 3 + 1
        assert server.rows("sum(inputs)") == [(good,)]
        assert len(server.events("ledger_failed")) == 1


@pytest.mark.long
def test_a_server_may_go_on_without_its_database_within_its_reserve(bundle, tmp_path, x, postgres):
    """Two workers, of which one is killed meanwhile: the reserve holds over both, and every answer has its row."""
    url = postgres.new()
    limited, key = open_keys(url).add("phones", quota=Quota.parse("10/week"), rate=Rate(1e6, 1000))
    _, free = open_keys(url).add("free")
    _, admin = open_keys(url).add("admin", admin=True)
    asked = {"Authorization": f"Bearer {admin}"}
    settings = {"accounts": url, "when_accounts_fail": "serve", "reserve": 7, "workers": 2}
    with Server(bundle, tmp_path, **settings) as server:
        assert server.metric("l2h_reserve_inputs", **asked) == 7
        assert Client(server, key).ask(x).status == 200
        elsewhere = open_accounts(url, url, prepare_accounts(url))  # another host takes the rest of the quota
        (result,) = elsewhere.charge([Charge(limited, "r", "elsewhere", b"", "digits", "1", 7, 7)])
        assert (result.outcome, result.quota_left) == ("charged", 0)
        elsewhere.close()
        postgres.kill()
        try:
            until(lambda: server.events("accounts_down"))
            replies = [Client(server, key).ask(x[:2], Idempotency_Key=f"during-{i}") for i in range(6)]
            assert [reply.status for reply in replies] == [200] * 3 + [503] * 3
            assert Client(server, key).ask(x[:2], Idempotency_Key="during-0").headers["l2h-charged"] == "0"
            assert Client(server, key).ask(x[:1], Idempotency_Key="last").status == 200
            victim = server.workers[0]
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(set(server.workers) - {victim}) == 2 and server.events("worker_replaced"))
            assert [Client(server, key).ask(x[:1]).status for _ in range(6)] == [503] * 6, "kept, also by the new one"
            assert {Client(server, free).ask(x).status for _ in range(6)} == {200}, "a key without a quota has no bound"
            assert "reserve" in server.get("/v2/health/ready")[1].decode()
            until(lambda: server.metric("l2h_reserve_pending_inputs", **asked) == 7 + 6 * 3)
            assert server.metric("l2h_ledger_up", **asked) == 0
        finally:
            postgres.start()
        until(lambda: server.metric("l2h_reserve_pending_inputs", **asked) == 0)
        until(lambda: server.metric("l2h_ledger_up", **asked) == 1)
        charged = Counter(dict(server.rows("key_id, sum(inputs)", f"key_id = '{limited.id}' GROUP BY 1")))
        assert charged == {limited.id: 10 + 7}, "beyond the quota by no more than the reserve"
        assert open_history(url).used([limited]) == {limited.id: 17}
        assert server.rows("count(*)", f"key_id <> '{limited.id}'") == [(6,)]
        until(lambda: Client(server, key).ask(x[:1]).status == 429)
        again = Client(server, key).ask(x[:2], Idempotency_Key="during-1")
        assert (again.status, again.headers["l2h-charged"]) == (200, "0"), "what was moved is known to every host"


def summed(*reports: list[dict]) -> list[dict]:
    """Reports of several ledgers as one."""
    found: dict[tuple, dict] = {}
    for row in [row for report in reports for row in report]:
        place = tuple(value for name, value in row.items() if name not in SUMS)
        other = found.setdefault(place, {**row, **dict.fromkeys(SUMS, 0)})
        for name in SUMS:
            other[name] += row[name]
    return [found[place] for place in sorted(found)]


def test_a_copy_is_exact_and_may_be_repeated_whatever_happened_meanwhile(tmp_path, postgres):
    """Two ledgers of several hosts, of which one grows, is marked and pruned between the copies."""
    url, by = postgres.new(), ("key", "day", "model", "version")
    ledgers = [tmp_path / "one.db", tmp_path / "two.db"]
    for seed, ledger in enumerate(ledgers):
        fill(ledger, 700, seed)
    open_history(ledgers[0]).prune(NOW - 100 * DAY)
    _, key_id, _ = make_key(tmp_path, "phones", quota=Quota.parse("100/week"))
    week = int(time.time() // 604800)
    with closing(sqlite3.connect(ledgers[0])) as db, db:
        db.execute("INSERT INTO usage VALUES (?, 604800, ?, 42, '', 0)", (key_id, week))
        db.execute("INSERT INTO usage VALUES ('a', 604800, ?, 42, '', 0)", (week - 1,))

    def copy(ledger: Path) -> dict[str, int]:
        status, out, err = commands.call("accounts", "copy", ledger, url, "--keys", tmp_path / "keys.json", "--json")
        assert status == 0, err
        found, charged = json.loads(out), {row["key"] for row in open_history(ledger).report(["key"])}
        assert ({*found.pop("unknown")}, "copy again" in err) == (charged - {key_id}, True)
        return found

    def same(*expected: Path) -> None:
        history = open_history(url)
        assert history.report(by) == summed(*(open_history(ledger).report(by) for ledger in expected))
        assert history.used(open_keys(url).read()) == {key_id: used}

    used, first = 42, copy(ledgers[0])
    with closing(sqlite3.connect(ledgers[0])) as db:
        rows = db.execute("SELECT count(*) FROM charges").fetchone()[0]
    assert first == {"keys": 1, "charges": rows, "requests": 700}
    same(ledgers[0])
    assert open_keys(url).read() == open_keys(tmp_path / "keys.json").read()
    for _ in range(2):
        assert copy(ledgers[0]) == {"keys": 0, "charges": 0, "requests": 0}
    same(ledgers[0])
    with closing(sqlite3.connect(ledgers[0])) as db, db:
        columns = "time, key_id, request_id, idempotency_key, fingerprint, model, version, inputs, units"
        for i in range(5):
            values = (NOW + i, key_id, f"new-{i}", f"i-{i}", b"f", "digits", "2", 3, 4)
            db.execute(f"INSERT INTO charges ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        db.execute("UPDATE charges SET delivered = 1 WHERE delivered IS NULL AND id % 2")
        db.execute("UPDATE usage SET used = 50 WHERE key_id = ?", (key_id,))
    open_history(ledgers[0]).prune(NOW - 50 * DAY)
    open_history(url).prune(NOW - 70 * DAY)
    used = 50
    assert copy(ledgers[0]) == {"keys": 0, "charges": 5, "requests": 5}
    same(ledgers[0])
    with closing(sqlite3.connect(ledgers[1])) as db, db:  # the same request was charged on the other host as well
        db.execute("UPDATE charges SET key_id = ?, idempotency_key = 'i-0' WHERE id = 1", (key_id,))
    assert copy(ledgers[1])["requests"] == 700
    same(*ledgers)
    store = open_accounts(url, url, prepare_accounts(url))
    (phones,) = open_keys(url).read()
    again = [Charge(phones, "r", f"i-{i}", b"f", "digits", "2", 3, 4) for i in range(5)]
    assert {result.outcome for result in store.charge(again)} == {"repeated"}
    store.close()
    open_keys(tmp_path / "keys.json").change("phones", enabled=False)
    copy(ledgers[0])
    assert [key.enabled for key in open_keys(url).read()] == [False], "what is revoked is not given back by a copy"


def test_servers_go_on_while_a_ledger_is_copied_and_a_second_copy_is_refused(tmp_path, postgres):
    """A second copy might have read the ledger before the first, and take back what that has brought."""
    url = postgres.new()
    fill(tmp_path / "ledger.db", 50)
    limited, _ = open_keys(url).add("phones", quota=Quota.parse("100/week"))
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db, db:
        week = int(time.time() // 604800)
        db.execute("INSERT INTO usage VALUES (?, 604800, ?, 42, '', 0)", (limited.id, week))
    store = open_accounts(url, url, prepare_accounts(url))
    outcomes = []

    def progress(done: int, of: int) -> None:
        outcomes.extend(store.charge([Charge(limited, "r", None, None, "digits", "1", 5, 5)]))
        store.probe()
        open_keys(url).add("added meanwhile")
        status, _, err = commands.call("accounts", "copy", tmp_path / "ledger.db", url)
        assert (status, "another copy to" in err, err.count("\n")) == (1, True, 1)

    copy_ledger(tmp_path / "ledger.db", [], url, progress)
    assert [result.outcome for result in outcomes] == ["charged"]
    assert open_history(url).used([limited]) == {limited.id: 42 + 5}
    store.close()


def add_charges(ledger: Path, *names: str) -> None:
    with closing(sqlite3.connect(ledger)) as db, db:
        for name in names:
            values = (NOW, "a", name, name, b"f", "digits", "1", 1, 1)
            columns = "time, key_id, request_id, idempotency_key, fingerprint, model, version, inputs, units"
            db.execute(f"INSERT INTO charges ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


@pytest.mark.parametrize("older", [False, True])
def test_a_ledger_whose_backup_was_copied_brings_only_what_is_new(tmp_path, postgres, older):
    url, ledger, backup = postgres.new(), tmp_path / "ledger.db", tmp_path / "backup.db"
    fill(ledger, 100)
    if older:  # of a version that gave ledgers no name
        with closing(sqlite3.connect(ledger)) as db, db:
            db.execute("DROP TABLE identity")
            db.execute("PRAGMA user_version = 3")
    shutil.copy(ledger, backup)
    add_charges(ledger, "one", "two")
    for file in (backup, ledger):
        status, _, err = commands.call("accounts", "copy", file, url)
        assert status == 0, err
    status, _, err = commands.call("accounts", "copy", backup, url)
    assert (status, "a newer copy of this ledger" in err, err.count("\n")) == (1, True, 1), err
    assert open_history(url).report(["key"]) == open_history(ledger).report(["key"])


def test_a_copy_brings_what_came_after_everything_was_summed_up(tmp_path, postgres):
    url, ledger = postgres.new(), tmp_path / "ledger.db"
    fill(ledger, 100)
    copy_ledger(ledger, [], url, lambda done, of: None)
    open_history(ledger).prune(NOW + 10 * DAY)
    add_charges(ledger, "one", "two")
    assert copy_ledger(ledger, [], url, lambda done, of: None)["charges"] == 2
    assert open_history(url).report(["key"]) == open_history(ledger).report(["key"])


def test_what_is_no_ledger_is_not_copied(tmp_path, postgres):
    """What a host answered without its database is charged by its server, and an empty file stays one."""
    (tmp_path / "empty.db").touch()
    prepare_reserve(OutageReserve(str(tmp_path / "ledger.db-reserve"), 7))
    for name, says in (("empty.db", "there is no ledger"), ("ledger.db-reserve", "--when-accounts-fail serve")):
        status, _, err = commands.call("accounts", "copy", tmp_path / name, postgres.new())
        assert (status, says in err, err.count("\n")) == (1, True, 1), err
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_a_copy_that_fails_leaves_nothing(tmp_path, postgres, monkeypatch):
    url = postgres.new()
    fill(tmp_path / "ledger.db", 50)
    make_key(tmp_path, "phones")
    open_keys(url).add("phones")
    call = "accounts", "copy", tmp_path / "ledger.db", url, "--keys", tmp_path / "keys.json"
    status, _, err = commands.call(*call)
    assert (status, "another key named 'phones' in use" in err) == (1, True)
    with monkeypatch.context() as patch:
        patch.setattr("l2h.serving.accounts.postgres.copying._REST", "SELECT 1 / 0 WHERE %s <> ''")
        status, _, err = commands.call("accounts", "copy", tmp_path / "ledger.db", url)
    assert (status, "nothing was copied" in err, err.count("\n")) == (1, True, 1)
    assert open_history(url).report(["key"]) == []
    assert len(open_keys(url).read()) == 1
    assert commands.call("accounts", "copy", tmp_path / "none.db", url)[0] == 1
    assert commands.call("accounts", "copy", tmp_path / "ledger.db", "mysql://x/y")[0] == 2
