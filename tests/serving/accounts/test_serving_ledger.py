"""Charges: one row for every answer that was paid for, whatever happens."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sqlite3
import stat
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serving_maker import linear, write_bundle
from serving_process import Client, Load, Server, make_key
from waiting import STUCK, until

from l2h import protocol
from l2h.serving.accounts.sqlite import VERSION


def test_a_row_says_who_what_and_how_much(bundle, tmp_path, x):
    path, id_, key = make_key(tmp_path)
    with Server(bundle, tmp_path, keys=str(path), price=7) as server:
        client = Client(server, key)
        assert client.ask(x, X_Request_Id="r-1", Idempotency_Key="i-1").headers["l2h-charged"] == "1"
        assert client.ask(x[:1]).headers["l2h-charged"] == "1"
        assert client.ask(x[:, 0]).status == 400
        columns = "key_id, request_id, idempotency_key, model, version, inputs, units"
        first, second = server.rows(columns)
        assert first == (id_, "r-1", "i-1", "digits", server.version, 3, 21)
        assert second[2:] == (None, "digits", server.version, 1, 7)
        assert abs(server.rows("time")[0][0] - time.time()) < 60
        assert stat.S_IMODE(server.ledger.stat().st_mode) == 0o600


def test_an_open_server_charges_to_anonymous(server, x):
    Client(server).ask(x, X_Request_Id="nobody")
    assert server.rows("key_id", "request_id = 'nobody'") == [("anonymous",)]


def test_a_repeat_is_answered_and_not_charged(server, x):
    client = Client(server)
    first = client.ask(x, Idempotency_Key="once")
    again = client.ask(x, Idempotency_Key="once", binary=False)
    assert (first.headers["l2h-charged"], again.headers["l2h-charged"]) == ("1", "0")
    np.testing.assert_array_equal(first.scores, again.scores)
    other = client.ask(x + 1, Idempotency_Key="once")
    assert (other.status, "used for another request" in other.error) == (422, True)
    assert client.ask(x, Idempotency_Key="a b").status == 400
    assert len(server.rows(where="idempotency_key = 'once'")) == 1


def test_the_same_request_at_the_same_time_is_charged_once(server, x):
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: Client(server).ask(x, Idempotency_Key="twenty"), range(20)))
    assert Counter(reply.headers["l2h-charged"] for reply in replies) == {"1": 1, "0": 19}
    assert len(server.rows(where="idempotency_key = 'twenty'")) == 1


def test_every_answer_has_its_row_after_kill_9(bundle, tmp_path):
    """Workers are killed under load and come back; then all of it is killed."""
    with Server(bundle, tmp_path, workers=2) as server:
        with Load(server) as load:
            killed: set[int] = set()
            for _ in range(3):
                before = len(load.good)
                until(lambda before=before: len(load.good) > before + 100)
                victim = min(set(server.workers) - killed)
                killed.add(victim)
                os.kill(victim, signal.SIGKILL)
                until(lambda: len(set(server.workers) - killed) == 2)
            before = len(load.good)
            until(lambda: len(load.good) > before + 100)
            server.kill()
        assert len(server.events("worker_died")) == 3
    with contextlib.closing(sqlite3.connect(server.ledger)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    rows = Counter(key for (key,) in server.rows("idempotency_key"))
    assert set(rows.values()) == {1}
    assert set(load.good) <= set(rows)
    assert load.statuses[200] == len(load.good) > 400
    assert set(load.statuses) <= {200, 503}


def _fill(server: Server) -> None:
    for pid in server.workers:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


def _free(server: Server) -> None:
    for pid in server.workers:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_ledger_that_cannot_grow_refuses_and_recovers(bundle, tmp_path, x):
    with Server(bundle, tmp_path, workers=2, log_requests=False) as server:
        _check_trouble(server, x, lambda: _fill(server), lambda: _free(server))


def test_a_full_disk_refuses_and_recovers(bundle, tmp_path, x):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk takes root")
    ballast = disk / "ballast"

    def fill():
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()

    try:
        with Server(bundle, tmp_path, workers=2, ledger=str(disk / "ledger.db")) as server:
            _check_trouble(server, x, fill, ballast.unlink)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _check_trouble(server: Server, x, begin, end) -> None:
    """While it cannot be written: 503, nothing charged, not ready. Then all is well again, by itself."""
    client = Client(server)
    assert client.ask(x).status == 200
    begin()
    with Load(server, threads=4) as load:
        until(lambda: load.statuses[503] > 50)
        until(lambda: server.get("/v2/health/ready")[0] == 503)
        assert server.get("/v2/health/live")[0] == 200
    reply = until(lambda: (r := client.ask(x)).status == 503 and r)
    assert "nothing was charged" in reply.error
    assert reply.headers["retry-after"] == "1"
    end()
    until(lambda: all(client.ask(x).status == 200 for _ in range(5)))
    until(lambda: server.get("/v2/health/ready")[0] == 200)
    charged = [key for (key,) in server.rows("idempotency_key", "idempotency_key IS NOT NULL")]
    assert sorted(charged) == sorted(load.good), "those answered with 503 are not in the ledger"


def test_a_locked_ledger_refuses_and_recovers(bundle, tmp_path, x):
    with Server(bundle, tmp_path) as server:
        client = Client(server)
        assert client.ask(x).status == 200
        with contextlib.closing(sqlite3.connect(server.ledger, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            start = time.monotonic()
            reply = client.ask(x)
            assert reply.status == 503
            assert time.monotonic() - start < 10
            assert client.ask(x).status == 503
            db.execute("ROLLBACK")
        until(lambda: client.ask(x).status == 200)
        assert len(server.rows()) == 2


def test_a_ledger_taken_away_is_noticed(bundle, tmp_path, x):
    with Server(bundle, tmp_path) as server:
        client = Client(server)
        assert client.ask(x).status == 200
        away = server.ledger.with_suffix(".away")
        server.ledger.rename(away)
        assert client.ask(x).status == 503, "rows written into it would be lost"
        assert not server.ledger.exists()
        away.rename(server.ledger)
        until(lambda: client.ask(x).status == 200)
        assert len(server.rows()) == 2


def _refused(bundle, folder, ledger) -> str:
    with Server(bundle, folder, ledger=str(ledger), wait=False) as server:
        assert server.process.wait(STUCK) == 1
        lines = server.log.read_text().splitlines()
        assert len(lines) == 1
        return lines[0]


@pytest.mark.long
def test_ledgers_that_are_refused(bundle, tmp_path):
    newer = tmp_path / "newer.db"
    with Server(bundle, tmp_path / "first", ledger=str(newer)) as server:
        server.stop()
    with contextlib.closing(sqlite3.connect(newer)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    assert f"newer L2H (version {VERSION + 1}, this one reads up to {VERSION})" in _refused(
        bundle, tmp_path / "a", newer
    )
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as db:
        db.execute("CREATE TABLE t (a)")
    assert "no ledger of L2H" in _refused(bundle, tmp_path / "b", foreign)
    text = tmp_path / "text.db"
    text.write_text("not a database, but long enough to be looked at as one by anybody who cares\n" * 20)
    assert "not a database" in _refused(bundle, tmp_path / "c", text)
    assert "cannot write the ledger" in _refused(bundle, tmp_path / "d", bundle / "manifest.json" / "ledger.db")


def test_who_hung_up_is_not_charged(tmp_path):
    write_bundle(tmp_path / "b", linear(hidden=2000, layers=40))
    x = np.zeros((64, 1, 4, 4), np.uint8)
    with Server(tmp_path / "b", tmp_path / "s") as server:
        body, headers = protocol.encode_request([protocol.Tensor("x", x)], binary=True)
        with ThreadPoolExecutor(3) as pool:
            busy = [pool.submit(Client(server).ask, x) for _ in range(3)]
            until(lambda: server.metric("l2h_in_flight") >= 1)
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                head = [f"{name}: {value}" for name, value in headers.items()]
                start = ["POST /v2/models/digits/infer HTTP/1.1", "Host: x", "Idempotency-Key: left", *head]
                peer.sendall("\r\n".join([*start, f"Content-Length: {len(body)}", "", ""]).encode() + body)
                time.sleep(0.05)
            assert [one.result().status for one in busy] == [200] * 3
        until(lambda: any(line["status"] == 499 for line in server.events("request")))
        assert len(server.rows()) == 3
