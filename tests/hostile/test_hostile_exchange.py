"""Strangers at a training that publishes its server: they end nothing, and those who have the token are served."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import resource
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from commands import command, environment
from exchange_maker import TOKEN, arrives, fetcher_for, run_role, whole, words
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from properties import examples
from waiting import until

#: The publisher's bounds: connections of one address, new ones per second, and seconds of idleness.
PER_ADDRESS, PER_SECOND, IDLE = 32, 100, 30
#: Refused peers that may still read why.
LINGERING = 64
SIZE = 20_000_000
ASK = f"GET /l2h/v1/snapshots/1?kind=weights HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
BAD = b"GET /l2h/v1/identity HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\r\n"


class Watched:
    """A process that publishes, and what it uses."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port, self.url = process, port, f"http://127.0.0.1:{port}"
        self.before = self.descriptors()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self) -> int:
        """MiB, at most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024

    def seconds(self) -> float:
        """Of processor time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def connect(self, said: bytes = b"", seconds: float = 20.0) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        peer.sendall(said)
        return peer

    def talk(self, *said: bytes) -> bytes:
        """What comes back until the connection is closed."""
        out = b""
        with self.connect() as peer, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for piece in said:
                peer.sendall(piece)
            while piece := peer.recv(65536):
                out += piece
        return out

    def flood(self, count: int) -> list[socket.socket]:
        """Begin so many connections at once, and say nothing."""
        peers = [socket.socket() for _ in range(count)]
        for peer in peers:
            peer.setblocking(False)
            peer.connect_ex(("127.0.0.1", self.port))
        return peers


@contextlib.contextmanager
def closing(peers):
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def head(peer: socket.socket) -> bytes:
    out = b""
    while b"\r\n\r\n" not in out and (piece := peer.recv(4096)):
        out += piece
    return out


@pytest.fixture(scope="module")
def publisher(tmp_path_factory):
    """A publisher as a process of its own, with one snapshot."""
    process = run_role("publish", tmp_path_factory.mktemp("store"), SIZE, 1)
    port = int(words(process)[1])
    assert words(process) == ["published", "1"]
    yield Watched(process, port)
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def training(tmp_path):
    """``l2h train --role server`` under ``ulimit -n 1024``, with more epochs than anybody waits for."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 1500)
    X = (rng.normal(size=(1500, 6)) + y[:, None]).astype(np.float32)
    np.savez(tmp_path / "data.npz", X_train=X[:1000], y_train=y[:1000], X_test=X[1000:], y_test=y[1000:])
    words = [
        *("train", "--role", "server", "--recipe", "paper", "--data", tmp_path / "data.npz", "--device", "cpu"),
        *("--server", "mlp", "--client", "tree", "--set", "server.epochs=100000", "--publish-every", 20),
        *("--listen", "127.0.0.1:0", "--out", tmp_path / "run"),
    ]
    said = tmp_path / "said"
    with said.open("w") as log, subprocess.Popen(
        ["sh", "-c", 'ulimit -n 1024; exec "$@"', "sh", *command(*words)],
        stdout=log, stderr=log, env=environment(L2H_TOKEN=TOKEN),
    ) as process:  # fmt: skip
        try:
            found = until(lambda: re.search(r"offering \w+ at http://[\d.]+:(\d+)", said.read_text()))
            yield Watched(process, int(found[1])), tmp_path / "run" / "history.csv", said
        finally:
            process.kill()


@pytest.mark.long
def test_a_flood_of_strangers_does_not_end_a_training(training, tmp_path):
    """1,300 connections without a token, where the training may have 1,024 descriptors."""
    running, history, said = training
    identity = {"classes": ["0", "1", "2"], "input_shape": [6]}
    until(history.exists)

    def epochs() -> int:
        return len(list(csv.DictReader(history.read_text().splitlines())))

    def alive() -> None:
        assert running.process.poll() is None, said.read_text()[-2000:]
        assert running.descriptors() <= running.before + PER_ADDRESS + LINGERING + 4

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with closing(running.flood(1300)), fetcher_for(running.url, tmp_path / "copy", identity=identity) as fetcher:
        begun = epochs()
        until(lambda: epochs() > begun + 20, alive=alive)
        newest = until(fetcher.latest, alive=alive).version
        until(lambda: fetcher.latest().version > newest, alive=alive)
    assert "not published" not in said.read_text()


def test_strangers_give_way_to_those_who_have_the_token(publisher, tmp_path):
    question = ASK.replace("snapshots/1?kind=weights", "snapshots/latest?kind=weights&after=1").encode() + b"\r\n"
    with publisher.connect(question) as before:
        assert status(head(before)) == 304
        with closing(publisher.flood(200)):
            with fetcher_for(publisher.url, tmp_path / "copy", timeout=10) as fetcher:
                assert whole(arrives(fetcher, 1))
            assert publisher.descriptors() <= publisher.before + PER_ADDRESS + LINGERING + 4
        before.sendall(question)
        assert status(head(before)) == 304, "and those who had it before keep their connection"


def test_wrong_tokens_are_tried_slowly(publisher):
    """However many questions come on a connection, one is answered, and connections are taken at a certain pace."""
    began, used = time.monotonic(), publisher.seconds()

    def guess() -> list[int]:
        found = []
        while time.monotonic() < began + 2:
            with contextlib.suppress(OSError):
                found += [int(code) for code in re.findall(rb"HTTP/1.1 (\d+)", publisher.talk(BAD * 50))]
        return found

    with ThreadPoolExecutor(8) as pool:
        found = [code for future in [pool.submit(guess) for _ in range(8)] for code in future.result()]
    spent, used = time.monotonic() - began, publisher.seconds() - used
    assert set(found) <= {401, 503}
    assert 0 < len(found) <= PER_SECOND * spent + 1
    assert used < 0.5 * spent, "it has other things to do"


@pytest.mark.parametrize(
    "said",
    [
        ASK.encode() + b"a: " + b"b" * 40_000 + b"\r\n\r\n",
        ASK.encode() + b"a: b\r\n" * 10_000 + b"\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a" * 10_000_000,
    ],
    ids=["one", "many", "path", "endless"],
)
def test_headers_without_end_are_not_kept(publisher, said):
    before = publisher.memory()
    reply = publisher.talk(*(said[at : at + 60_000] for at in range(0, len(said), 60_000)))
    assert not reply or status(reply) == 431
    assert publisher.memory() - before < 8


@pytest.mark.parametrize(
    ("asked", "code", "size"),
    [
        ("bytes=" + ",".join(["0-"] * 5000), 200, SIZE),
        ("bytes=0-0,-1", 200, SIZE),
        ("bytes=5-2", 416, 0),
        (f"bytes={'9' * 15}-", 416, 0),
        (f"bytes={'9' * 4000}-", 200, SIZE),
        (f"bytes=1-{'9' * 15}", 206, SIZE - 1),
        ("bytes=٣-٤", 200, SIZE),
        ("bytes=0x1-", 200, SIZE),
    ],
    ids=["many", "two", "backwards", "beyond", "long", "far", "arabic", "hex"],
)
def test_ranges_are_one_part_or_the_whole(publisher, asked, code, size):
    with publisher.connect(f"{ASK}Range: {asked}\r\n\r\n".encode()) as peer:
        answer = head(peer)
    assert status(answer) == code
    assert int(re.search(rb"content-length: (\d+)", answer)[1]) == size


def test_downloads_beside_each_other_are_bounded(publisher, tmp_path):
    """Those who have the token and do not read: no memory is taken for them, and the next are told to wait."""
    before = publisher.memory()
    with closing([publisher.connect(f"{ASK}\r\n".encode()) for _ in range(2 * PER_ADDRESS)]) as peers:
        found = [status(head(peer)) for peer in peers]
        assert found == [200] * PER_ADDRESS + [503] * PER_ADDRESS
        assert publisher.descriptors() <= publisher.before + 2 * PER_ADDRESS + LINGERING + 4
        assert publisher.memory() - before < 48
    with fetcher_for(publisher.url, tmp_path / "copy") as fetcher:
        assert whole(arrives(fetcher, 1))


def test_no_descriptor_left_is_outlived(publisher):
    """The system refuses to accept; the publisher goes on when it can."""
    until(lambda: publisher.descriptors() == publisher.before)  # those of the test before
    pid, kind = publisher.process.pid, resource.RLIMIT_NOFILE
    soft, hard = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (3, hard))
    try:
        peer = publisher.connect(f"{ASK}\r\n".encode(), 60)
        time.sleep(0.3)
        assert publisher.descriptors() == publisher.before
    finally:
        resource.prlimit(pid, kind, (soft, hard))
    with peer:
        assert status(head(peer)) == 200


@examples(100, suppress_health_check=list(HealthCheck))
@given(data=st.binary(min_size=1, max_size=200), asked=st.booleans())
def test_any_bytes_get_an_answer_or_are_dropped(publisher, data, asked):
    with publisher.connect(ASK.encode() * asked + data) as peer, contextlib.suppress(ConnectionResetError):
        peer.shutdown(socket.SHUT_WR)
        reply = peer.recv(4096)
        assert not reply or status(reply) in (200, 206, 400, 401, 405, 416, 431, 503)


@pytest.mark.long
@pytest.mark.parametrize(
    "said",
    [b"", b"GET /l2h/v1/identity HTTP/1.1\r\n", ASK.encode() + b"\r\n", ASK.replace("1?", "9?").encode() + b"\r\n"],
    ids=["nothing", "part of a head", "takes no answer", "asks once"],
)
def test_who_is_idle_or_slow_is_left(publisher, said):
    """With the token as well."""
    before = publisher.before
    until(lambda: publisher.descriptors() == before)  # those of the test before
    began = time.monotonic()
    with publisher.connect(said):
        until(lambda: publisher.descriptors() > before)
        until(lambda: publisher.descriptors() == before, 3 * IDLE)
    assert time.monotonic() - began > IDLE - 5


def test_after_all_that_it_is_well(publisher, tmp_path):
    with fetcher_for(publisher.url, tmp_path / "copy") as fetcher:
        assert whole(arrives(fetcher, 1))
    assert publisher.descriptors() <= publisher.before + 1
