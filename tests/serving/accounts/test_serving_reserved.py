"""Quotas before the model runs, marks of what was not delivered, and rates that outlive the server."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from serving_maker import failing, linear, write_bundle
from serving_process import Client, Load, Server, make_key
from waiting import until

from l2h import protocol
from l2h.serving.accounts import rates, reservations
from l2h.serving.accounts.key import Key, Quota, Rate
from l2h.serving.accounts.rates import RateTable, make_memory, make_table
from l2h.serving.accounts.reservations import ReservationTable, UsedQuota, table_size
from l2h.serving.accounts.store import ChargeResult

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A bundle whose model takes its time: about 30 ms for an input, and longer on a busy machine."""
    folder = tmp_path_factory.mktemp("slow")
    write_bundle(folder, linear(hidden=2000, layers=40))
    return folder


def computed(server: Server, admin: str) -> float:
    return server.metric("l2h_batch_inputs_sum", Authorization=f"Bearer {admin}")


@pytest.mark.parametrize("inputs", [1, 3])
def test_the_model_never_runs_for_more_than_the_quota(bundle, tmp_path, x, inputs):
    """64 connections to two workers, all at once."""
    path, _, key = make_key(tmp_path, quota=Quota.parse("100/week"))
    _, _, admin = make_key(tmp_path, "admin", admin=True)
    with Server(bundle, tmp_path, keys=str(path), workers=2) as server, ThreadPoolExecutor(64) as pool:

        def ask(number: int) -> list[int]:
            client = Client(server, key)
            names = [{"Idempotency_Key": f"{number}-{i}"} if number % 2 else {} for i in range(4)]
            return [client.ask(x[:inputs], **name).status for name in names]

        statuses = Counter(status for some in pool.map(ask, range(64)) for status in some)
        served = 100 // inputs
        assert statuses == {200: served, 429: 64 * 4 - served}
        assert computed(server, admin) == served * inputs
        assert len(server.rows()) == served
        assert set(server.rows("key_id")) == {(key.split("_")[1],)}
        server.kill()
    with Server(bundle, tmp_path, keys=str(path)) as server:
        assert Client(server, key).ask(x[:inputs]).status == 429
        assert computed(server, admin) == 0


def test_what_a_killed_worker_had_reserved_is_free_again(slow, tmp_path):
    path, _, key = make_key(tmp_path, quota=Quota.parse("200/week"))
    x = np.zeros((50, 1, 4, 4), np.uint8)
    with Server(slow, tmp_path, keys=str(path), workers=2) as server, ThreadPoolExecutor(8) as pool:
        before = set(server.workers)

        def ask(_: int) -> int:
            try:
                return Client(server, key).ask(x).status
            except OSError:
                return 0

        asked = [pool.submit(ask, i) for i in range(8)]
        until(lambda: server.events("request"))
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        assert {one.result() for one in asked} <= {0, 200, 429}
        until(lambda: len(set(server.workers) - before) == 2)
        until(lambda: (reply := Client(server, key).ask(x)).status == 429 and int(reply.headers["retry-after"]) > 1)
        assert sum(inputs for (inputs,) in server.rows("inputs")) == 200, "all of the quota was given, and no more"


def test_a_request_that_failed_or_was_refused_leaves_its_quota(tmp_path):
    write_bundle(tmp_path / "b", failing())
    path, _, key = make_key(tmp_path, quota=Quota.parse("2/week"))
    good, bad = np.zeros((1, 1, 4, 4), np.uint8), np.full((1, 1, 4, 4), 2, np.uint8)
    with Server(tmp_path / "b", tmp_path, keys=str(path)) as server:
        client = Client(server, key)
        assert [client.ask(bad).status for _ in range(5)] == [500] * 5
        assert client.ask(good[:, 0]).status == 400
        assert server.rows() == []
        assert [client.ask(good).status for _ in range(3)] == [200, 200, 429]


def request_bytes(x: np.ndarray, **headers: str) -> bytes:
    body, sent = protocol.encode_request([protocol.Tensor("x", x)], binary=True)
    lines = ["POST /v2/models/digits/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in {**sent, **headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_a_charge_whose_answer_was_not_delivered_is_marked(slow, tmp_path):
    x = np.zeros((32, 1, 4, 4), np.uint8)
    with Server(slow, tmp_path) as server:

        def mark(name: str) -> list[tuple]:
            return server.rows("delivered", f"idempotency_key = '{name}'")

        for name, linger in (("closed", b""), ("reset", struct.pack("ii", 1, 0))):
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                peer.sendall(request_bytes(x, **{"Idempotency-Key": name}))
                until(lambda: server.metric("l2h_in_flight") >= 1 and server.metric("l2h_queue_inputs") == 0)
                if linger:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            until(lambda name=name: mark(name) in ([(0,)], []) and server.metric("l2h_in_flight") == 0)
        client = Client(server)
        for i in range(3):
            assert client.ask(x[:1], Idempotency_Key=f"good-{i}").status == 200
        until(lambda: server.rows("delivered", "idempotency_key LIKE 'good-%'") == [(1,)] * 3)
        gone = [mark(name) for name in ("closed", "reset")]
        assert all(found in ([], [(0,)]) for found in gone), "charged and marked, or gone before the model ran"
        assert [(0,)] in gone
        assert client.ask(x, Idempotency_Key="closed").headers["l2h-charged"] in ("0", "1")


def test_an_answer_that_nobody_takes_is_marked(tmp_path):
    """A megabyte that fills the buffers of the system, and a peer that does not read."""
    write_bundle(tmp_path / "b", linear(classes=5000), classes=5000)
    x = np.zeros((1024, 1, 4, 4), np.uint8)
    with Server(tmp_path / "b", tmp_path / "s", max_batch=1024) as server:
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", server.port))
            peer.sendall(request_bytes(x, **{"Idempotency-Key": "unread"}))
            until(lambda: server.rows("id"))
            time.sleep(0.3)
            assert server.rows("delivered") == [(None,)], "it is still on its way"
        until(lambda: server.rows("delivered") == [(0,)])
        assert Client(server).ask(x, Idempotency_Key="read").status == 200  # and hangs up at once
        until(lambda: server.rows("delivered", "idempotency_key = 'read'") == [(1,)])


def test_after_kill_9_every_row_is_marked_or_of_the_last_second(bundle, tmp_path):
    with Server(bundle, tmp_path, workers=2) as server:
        with Load(server) as load:
            until(lambda: len(load.good) > 2000)
            server.kill()
        last = max(at for (at,) in server.rows("time"))
        assert server.rows("count(*)", "delivered = 0") == [(0,)]
        assert server.rows("count(*)", f"delivered IS NULL AND time < {last - 2.5}") == [(0,)]
        assert server.rows("count(*)", "delivered = 1")[0][0] > 0


def test_headers_say_what_a_key_has_left(bundle, tmp_path, x):
    path, _, key = make_key(tmp_path, quota=Quota.parse("7/hour"), rate=Rate.parse("30/hour", burst=9))
    _, _, free = make_key(tmp_path, "free")
    with Server(bundle, tmp_path, keys=str(path)) as server:
        client = Client(server, key)
        replies = [client.ask(x) for _ in range(4)]
        assert [reply.status for reply in replies] == [200, 200, 429, 429]
        policy = '"quota";q=7;w=3600;l2h-unit="inputs", "rate";q=30;w=3600;l2h-unit="inputs";l2h-burst=9'
        assert {reply.headers["ratelimit-policy"] for reply in replies} == {policy}
        found = [re.findall(r'"(quota|rate)";r=(\d+)(?:;t=(\d+))?', reply.headers["ratelimit"]) for reply in replies]
        assert [[(name, left) for name, left, _ in some] for some in found] == [
            [("quota", "4"), ("rate", "6")],
            [("quota", "1"), ("rate", "3")],
            [("quota", "1")],
            [("rate", "0")],
        ]
        assert [reply.headers.get("l2h-reason") for reply in replies] == [None, None, "quota", "rate"]
        for reply, some in zip(replies[2:], found[2:], strict=True):
            assert reply.headers["retry-after"] == some[0][2], "no earlier than the window ends"
        assert "ratelimit" not in Client(server, free).ask(x).headers
        lines = until(lambda: (lines := server.events("request"))[4:] and lines)
        assert Counter(line["key_name"] for line in lines) == {"alice": 4, "free": 1}


def test_a_rate_goes_on_after_a_restart(bundle, tmp_path, x):
    path, _, key = make_key(tmp_path, rate=Rate.parse("1/minute", burst=3))
    with Server(bundle, tmp_path, keys=str(path)) as server:
        assert [Client(server, key).ask(x[:1]).status for _ in range(3)] == [200] * 3
        server.kill()
    with Server(bundle, tmp_path, keys=str(path), workers=2) as server:
        replies = [Client(server, key).ask(x[:1]) for _ in range(4)]
        assert {reply.status for reply in replies} == {429}
        assert all(int(reply.headers["retry-after"]) <= 60 for reply in replies)


@pytest.mark.parametrize("step", [-1e7, 0.0, 30.0, 1e7], ids="{:g} s".format)
def test_after_a_restart_of_the_system_a_bucket_is_no_fuller_than_it_was(tmp_path, monkeypatch, step):
    """The wall clock tells how long the system was down; one that is wrong locks nobody out for longer."""
    boot, wall, which = [1000.0], [1.7e9], ["first"]
    monkeypatch.setattr(rates, "boot_time", lambda: boot[0])
    monkeypatch.setattr(rates, "boot_id", lambda: which[0])
    monkeypatch.setattr(rates.time, "time", lambda: wall[0])
    rate = Rate(1.0, 100)

    def filled() -> float:
        descriptor = make_table(tmp_path / "rates")
        try:
            table = RateTable(descriptor)
            spare = -table.take("0123456789ab", rate, 1)
            table.note_time()
            return 100 - spare
        finally:
            os.close(descriptor)

    assert [round(filled()) for _ in range(40)] == list(range(1, 41))
    boot[0], which[0] = 5.0, "second"
    wall[0] += step
    assert round(filled()) == 1 + min(40, max(0, 40 - step))


def test_tables_that_are_damaged_are_begun_again(tmp_path):
    for content in (b"", b"short", b"\xff" * 196672):
        (tmp_path / "rates").write_bytes(content)
        descriptor = make_table(tmp_path / "rates")
        assert RateTable(descriptor).take("0123456789ab", Rate(1.0, 1), 1) <= 0.0
        os.close(descriptor)


def test_reserved_and_used_inputs_are_never_more_than_the_quota_nor_counted_twice(monkeypatch):
    """Two workers in any order, beside a list of what is under way."""
    descriptor = make_memory(table_size(2))
    workers = [ReservationTable(descriptor, 2, number) for number in range(2)]
    key = Key("0123456789ab", "k", "", "", quota=Quota(50, 604800))
    clock, rng, ends, used, held = [0.0], np.random.default_rng(0), 604800.0, 20, [[], []]
    monkeypatch.setattr(reservations, "boot_time", lambda: clock[0])
    for step in range(5000):
        if used >= 48:
            used, ends = int(rng.integers(3)), ends + 604800  # another period
            clock[0] = ends - 604800
        worker, inputs = int(rng.integers(2)), int(rng.integers(1, 6))
        if rng.random() < 0.5 or not held[worker]:
            room = workers[worker].reserve(key, inputs, lambda used=used, ends=ends: UsedQuota(used, ends))
            reserved = sum(map(sum, held))
            assert room.granted == (used + reserved + inputs <= 50), step
            if room.granted:
                held[worker].append(inputs)
        elif rng.random() < 0.02:
            workers[worker] = ReservationTable(descriptor, 2, worker)  # the worker was killed, and is replaced
            workers[worker].drop()
            held[worker].clear()
        else:
            inputs = held[worker].pop(int(rng.integers(len(held[worker]))))
            charged = rng.random() < 0.05
            used += inputs * charged
            # Not at all, or from the reserve of a host, which leaves the quota as it was.
            other = ChargeResult("charged") if rng.random() < 0.3 else None
            result = ChargeResult("charged", 50 - used, 1.0, used, ends) if charged else other
            workers[worker].settle(key, inputs, result)
            if rng.random() < 0.1:
                workers[int(rng.integers(2))].flush()
    assert ends > 604800, "there were several periods"
    for each in workers:
        each.flush()
    assert (workers[0].used_up(key) > 0) == (used >= 50)
    os.close(descriptor)


def test_workers_that_reserve_more_than_they_need_give_it_back(monkeypatch):
    """While there is much room: no worker is refused for what another one holds and does not use."""
    monkeypatch.setattr(reservations, "boot_time", lambda: 0.0)
    descriptor = make_memory(table_size(2))
    one, two = (ReservationTable(descriptor, 2, number) for number in range(2))
    key, used = Key("0123456789ab", "k", "", "", quota=Quota(10_000, 604800)), 0
    for worker in (one, two):
        for _ in range(10):
            assert worker.reserve(key, 3, lambda: UsedQuota(0, 604800.0)).granted
            used += 3
            worker.settle(key, 3, ChargeResult("charged", 0, 1.0, used, 604800.0))
    for worker in (one, two, one, two):
        worker.flush()
    many = 10_000 - used
    assert not two.reserve(key, many + 1, lambda: None).granted
    assert two.reserve(key, many, lambda: None).granted, "all the rest"
    assert not one.reserve(key, 1, lambda: None).granted
    os.close(descriptor)


def test_a_ledger_that_another_server_uses_up_is_believed(bundle, tmp_path, x):
    """Two servers on one ledger: what one charges the other learns of at its next charge, and computes no more."""
    path, _, key = make_key(tmp_path, quota=Quota.parse("10/week"))
    _, _, admin = make_key(tmp_path, "admin", admin=True)
    ledger = str(tmp_path / "ledger.db")
    with (
        Server(bundle, tmp_path / "a", keys=str(path), ledger=ledger) as one,
        Server(bundle, tmp_path / "b", keys=str(path), ledger=ledger) as two,
    ):
        assert Client(one, key).ask(x[:1]).status == 200
        assert [Client(two, key).ask(x).status for _ in range(3)] == [200] * 3
        assert [Client(one, key).ask(x[:1]).status for _ in range(5)] == [429] * 5
        assert computed(one, admin) <= 2
        with closing(sqlite3.connect(ledger)) as db:
            assert db.execute("SELECT sum(inputs) FROM charges").fetchone() == (10,)
