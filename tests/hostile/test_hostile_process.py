"""Processes that die, hang or are given something else to load; a log that nobody reads."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest
from serving_maker import endless, failing, linear, write_bundle
from serving_process import Client, Server, make_key
from waiting import STUCK, until

from l2h import protocol
from l2h.serving.accounts import open_keys

pytestmark = pytest.mark.long

REFUSED = {
    "name": lambda folder: write_bundle(folder, linear(seed=9), name="other"),
    "classes": lambda folder: write_bundle(folder, linear(seed=9, classes=7), classes=7),
    "inputs": lambda folder: write_bundle(folder, linear(seed=9, shape=(1, 2, 2)), shape=(1, 2, 2)),
    "no model": lambda folder: write_bundle(folder, b"no model at all"),
    "cut": lambda folder: (folder / "server.onnx").write_bytes(linear(seed=9)[:-1]),
    "no manifest": lambda folder: (folder / "manifest.json").write_text("{"),
}


def version(reply) -> str:
    length = protocol.header_length(reply.headers.get(protocol.LENGTH_HEADER.lower()))
    return protocol.decode_response(reply.body, length).version


def ask_afresh(server, x, key=None):
    """An answer over a connection of its own, which any of the workers may get."""
    client = Client(server, key)
    try:
        return client.ask(x)
    finally:
        client.close()


def kill_all(server):
    """Kill the workers one after the other, each when the one before was replaced."""
    for pid in server.workers:
        before = len(server.events("worker_replaced"))
        os.kill(pid, signal.SIGKILL)
        until(lambda before=before: len(server.events("worker_replaced")) > before)


@contextlib.contextmanager
def unread_pipe():
    """A pipe that nobody reads, already full; and its other end."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write, b"\n" * 4096)
    try:
        yield read, write
    finally:
        for end in (read, write):
            with contextlib.suppress(OSError):
                os.close(end)


@pytest.mark.parametrize("asked", [200, 24_000])
def test_a_log_that_nobody_reads_holds_up_nothing(tmp_path, x, asked):
    """Not the requests, not a change of keys, not a failing model, not a new bundle, not a restart, not the end."""
    folder = tmp_path / "b"
    write_bundle(folder, failing())
    keys, _, key = make_key(tmp_path, "admin", admin=True)
    with unread_pipe() as (_, write), Server(folder, tmp_path, workers=2, keys=str(keys), stderr=write) as server:
        with ThreadPoolExecutor(4) as pool:
            clients = [Client(server, key) for _ in range(4)]
            statuses = pool.map(lambda client: {client.ask(x % 2).status for _ in range(asked // 4)}, clients)
            assert set.union(*statuses) <= {200, 503}
        assert ask_afresh(server, x * 0 + 255, key).status == 500, "the model fails, and says so to stderr"
        for name in ("bob", "carol", "dave"):
            other = open_keys(keys).add(name)[1]
            until(lambda other=other: {ask_afresh(server, x % 2, other).status for _ in range(8)} == {200})
        new = write_bundle(folder, linear()).version
        until(lambda: {version(ask_afresh(server, x % 2, key)) for _ in range(8)} == {new})
        first, _ = server.workers
        os.kill(first, signal.SIGKILL)
        until(lambda: len(server.workers) == 2 and first not in server.workers)
        if asked > 20_000:
            assert server.metric("l2h_log_dropped_total", Authorization=f"Bearer {key}") > 0
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 20


def test_lines_that_nobody_reads_are_counted_and_the_others_are_whole():
    """Several threads write more than may wait; then somebody reads: what was written and dropped is all there was."""
    program = (
        "import sys, threading\n"
        "from l2h.serving.process.logs import log_as_json, log_event\n"
        "log = log_as_json('info')\n"
        "def write(k):\n"
        "    for i in range(8000):\n"
        "        log_event('info', 'line', k=k, i=i) if i % 2 else log.put_request({'k': k, 'i': i})\n"
        "threads = [threading.Thread(target=write, args=(k,)) for k in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "print(log.dropped, flush=True)\n"
        "sys.stdin.readline()\n"
        "log.close()\n"
    )
    with unread_pipe() as (read, write):
        command = [sys.executable, "-c", program]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=write, text=True) as process:
            os.close(write)
            dropped = int(process.stdout.readline())
            text: list[bytes] = []
            reader = threading.Thread(target=lambda: text.extend(iter(lambda: os.read(read, 65536), b"")))
            reader.start()
            until(lambda: b"".join(text).count(b"\n") > 4096 + 10_000)
            process.stdin.write("\n")
        reader.join()
    lines = [json.loads(line) for line in b"".join(text).split(b"\n") if line]
    written = [(line["k"], line["i"]) for line in lines if "k" in line]
    assert len(written) == len(set(written))
    assert dropped > 0
    assert len(written) + dropped == 32_000
    assert sum(line["lines"] for line in lines if line["event"] == "log_lines_dropped") == dropped


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_bundle_is_not_served_by_a_worker_that_starts_again(tmp_path, x, kind):
    folder = tmp_path / "b"
    write_bundle(folder, linear())
    with Server(folder, tmp_path, workers=2) as server:
        new = write_bundle(folder, linear(seed=1)).version
        until(lambda: len(server.events("bundle_taken")) == 2)
        REFUSED[kind](folder)
        until(lambda: server.events("bundle_refused"))
        kill_all(server)
        replies = [ask_afresh(server, x) for _ in range(40)]
        assert {(reply.status, reply.status == 200 and version(reply)) for reply in replies} == {(200, new)}
        assert server.metric('l2h_reloads_total{result="refused"}') >= 1
        assert server.get("/v2/health/ready") == (200, b'{"ready": true}')


@pytest.mark.parametrize("how", ["broken", "moved"])
def test_without_its_key_file_a_worker_that_dies_is_missed_and_the_other_goes_on(bundle, tmp_path, x, how):
    keys, _, key = make_key(tmp_path)
    good = keys.read_bytes()
    with Server(bundle, tmp_path, workers=2, keys=str(keys)) as server:
        keys.write_text("{") if how == "broken" else keys.rename(tmp_path / "elsewhere")
        until(lambda: len(server.events("keys_refused")) == 2)
        os.kill(server.workers[0], signal.SIGKILL)
        until(lambda: len(server.events("worker_failed")) >= 2)
        assert {ask_afresh(server, x, key).status for _ in range(40)} == {200}, "nobody waits for the dead one"
        status, body = server.get("/v2/health/ready")
        assert (status, json.loads(body)) == (
            200,
            {"ready": True, "degraded": "1 of 2 workers cannot answer now"},
        )
        assert json.loads(server.get("/v2/models/digits/ready")[1])["degraded"]
        keys.write_bytes(good)
        until(lambda: server.events("worker_replaced"))
        until(lambda: {server.get("/v2/health/ready")[1] for _ in range(8)} == {b'{"ready": true}'})
        assert {ask_afresh(server, x, key).status for _ in range(40)} == {200}
        assert server.stop() == 0


def test_a_moved_ledger_and_the_death_of_a_worker_stop_nothing_for_good(bundle, tmp_path, x):
    with Server(bundle, tmp_path, workers=2) as server:
        server.ledger.rename(tmp_path / "elsewhere")
        until(lambda: {ask_afresh(server, x).status for _ in range(8)} == {503})
        os.kill(server.workers[0], signal.SIGKILL)
        until(lambda: len(server.events("worker_failed")) >= 4)
        assert {ask_afresh(server, x).status for _ in range(20)} == {503}
        (tmp_path / "elsewhere").rename(server.ledger)
        until(lambda: server.events("worker_replaced"))
        until(lambda: {ask_afresh(server, x).status for _ in range(8)} == {200})
        assert server.stop() == 0


def test_while_a_single_worker_cannot_start_nobody_waits_for_it(bundle, tmp_path, x):
    keys, _, key = make_key(tmp_path)
    good = keys.read_bytes()
    with Server(bundle, tmp_path, keys=str(keys)) as server:
        keys.write_text("{")
        until(lambda: server.events("keys_refused"))
        os.kill(server.workers[0], signal.SIGKILL)

        def refused() -> bool:
            with socket.socket() as peer:
                return peer.connect_ex(("127.0.0.1", server.port)) == errno.ECONNREFUSED

        until(refused)
        until(lambda: len(server.events("worker_failed")) >= 2)
        assert refused()
        keys.write_bytes(good)
        until(lambda: server.events("worker_replaced"))
        assert {ask_afresh(server, x, key).status for _ in range(8)} == {200}
        assert server.stop() == 0


def test_a_bundle_that_says_much_is_refused_in_few_words(tmp_path, x):
    folder = tmp_path / "b"
    write_bundle(folder, linear())
    talking = onnx.load_from_string(linear())
    talking.graph.node[-1].op_type = "Word" * 2**20
    with Server(folder, tmp_path) as server:
        write_bundle(folder, talking.SerializeToString())
        (refused,) = until(lambda: server.events("bundle_refused"))
        assert "cannot be loaded" in refused["error"]
        assert len(refused["error"]) < 10_000
        assert Client(server).ask(x).status == 200


def test_a_key_is_revoked_while_an_endless_bundle_loads_and_the_end_is_not_held_up(tmp_path, x):
    folder = tmp_path / "b"
    write_bundle(folder, linear())
    keys, key_id, key = make_key(tmp_path)
    with Server(folder, tmp_path, keys=str(keys), load_timeout=600.0, drain=60.0) as server:
        write_bundle(folder, endless())
        (loading,) = until(lambda: server.children("candidate"))
        assert Client(server, key).ask(x).status == 200
        open_keys(keys).change(key_id, enabled=False)
        until(lambda: Client(server, key).ask(x).status == 403)
        assert server.children("candidate") == [loading], "the key ended while the bundle was being tried"
        start = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - start < 20
        assert not os.path.exists(f"/proc/{loading}")


def test_a_bundle_that_does_not_load_in_time_is_refused(tmp_path, x):
    folder = tmp_path / "b"
    write_bundle(folder, linear())
    with Server(folder, tmp_path, load_timeout=2.0) as server:
        write_bundle(folder, endless())
        (refused,) = until(lambda: server.events("bundle_refused"))
        assert "--load-timeout 2 s" in refused["error"]
        assert version(Client(server).ask(x)) == server.version
        assert not server.children("candidate")


def test_a_start_that_never_works_fails_with_its_reason(tmp_path):
    write_bundle(tmp_path / "b", endless())
    with Server(tmp_path / "b", tmp_path / "s", load_timeout=1.0, wait=False) as server:
        assert server.process.wait(STUCK) == 1
        assert server.events("worker_stuck")[0]["loading"] > 1.0
        assert re.search(r"a worker could not start; the line above says why", server.log.read_text())


def test_nothing_is_left_behind(tmp_path, x, monkeypatch):
    """Copies of bundles go with the server, and those of a server that was killed with the next one."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    folder = tmp_path / "b"
    write_bundle(folder, linear())
    with Server(folder, tmp_path / "killed") as server:
        for seed in (1, 2):
            write_bundle(folder, linear(seed=seed))
            until(lambda seed=seed: len(server.events("bundle_taken")) == seed)
        (copies,) = (tmp_path / "tmp").glob("l2h-bundle-*")
        until(lambda: len(list(copies.iterdir())) == 1)
        assert copies.stat().st_mode & 0o777 == 0o700
    os.utime(copies, (0, 0))
    with Server(folder, tmp_path / "s") as server:
        assert not copies.exists()
        assert server.stop() == 0
    assert not list((tmp_path / "tmp").glob("l2h-*"))
