"""Ten times more than it can do: what is taken is answered in time, the rest refused at once, and memory stays."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from serving_maker import linear, write_bundle
from serving_process import Client, Server
from waiting import until

from l2h import protocol
from l2h.telemetry import SECONDS

MOST = 4
WAIT = 0.5
CLIENTS = 250
DURATION = 30.0


def _flood(server: Server, clients: int, seconds: float) -> list[tuple[int, float]]:
    """Clients that ask again as soon as they may; status and seconds of every answer."""
    end = time.monotonic() + seconds
    out: list[tuple[int, float]] = []

    def ask(number: int) -> None:
        client = Client(server)
        x = np.random.default_rng(number).integers(0, 255, (MOST, 1, 4, 4)).astype(np.uint8)
        while time.monotonic() < end:
            start = time.monotonic()
            try:
                reply = client.ask(x)
            except (OSError, http.client.HTTPException):
                out.append((0, time.monotonic() - start))
                continue
            out.append((reply.status, time.monotonic() - start))
            if reply.status != 200:
                assert int(reply.headers["retry-after"]) >= 1
                time.sleep(0.1)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


def _calls(server: Server) -> np.ndarray:
    """The seconds of all model calls; how many there were; then how many took at most each of SECONDS."""
    names = ["sum", "count", *(f'bucket{{le="{most}"}}' for most in SECONDS)]
    return np.array([server.metric(f"l2h_batch_seconds_{name}") for name in names])


def test_requests_that_begin_together_are_not_all_let_in(tmp_path: Path) -> None:
    """When their heads come nobody waits for the model yet; when their bodies come only some find room."""
    write_bundle(tmp_path / "b", linear(hidden=2000, layers=40))
    body, sent = protocol.encode_request([protocol.Tensor("x", np.zeros((MOST, 1, 4, 4), np.uint8))], binary=True)
    told = {**sent, "Host": "here", "Content-Length": str(len(body)), "Connection": "close"}
    lines = ["POST /v2/models/digits/infer HTTP/1.1", *(f"{name}: {value}" for name, value in told.items()), "", ""]
    with Server(tmp_path / "b", tmp_path / "s", max_batch=MOST, max_wait=0.1) as server, ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(100)]
        for peer in peers:
            peer.sendall("\r\n".join(lines).encode())
        until(lambda: server.metric("l2h_in_flight") >= len(peers))
        for peer in peers:
            peer.sendall(body)
        statuses = Counter(peer.makefile("rb").readline().split()[1] for peer in peers)
        calls = server.metric("l2h_batch_seconds_sum"), server.metric("l2h_batch_seconds_count")
    assert statuses.keys() == {b"200", b"503"}
    assert statuses[b"200"] < 3 * (0.1 / (calls[0] / calls[1]) + 1), "each call holds one request"


@pytest.mark.long
@pytest.mark.alone
def test_overload_for_half_a_minute(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", linear(hidden=2000, layers=40))
    with Server(tmp_path / "b", tmp_path / "s", max_batch=MOST, max_wait=WAIT) as server:
        capacity = len(_flood(server, MOST, 3.0)) / 3.0
        before, calls = server.memory(), _calls(server)
        noted = len(server.events("request"))
        # Each asks again 0.1 s after a refusal. If all were let in, an answer would take the time of as many calls.
        replies = _flood(server, CLIENTS, DURATION)
        statuses = {status for status, _ in replies}
        assert statuses == {200, 503}
        offered = len(replies) / DURATION
        assert offered > 8 * capacity
        good = [status for status, _ in replies if status == 200]
        # By the server's clock: so many clients in one process are late by themselves.
        lines = server.events("request")[noted:]
        took, refused = ([line["ms"] / 1e3 for line in lines if line["status"] == status] for status in (200, 503))
        total, count, *within = _calls(server) - calls
        # How many answers that gives depends on what else the machine does meanwhile.
        assert total > 0.5 * DURATION, "the model is at work most of the time"
        assert len(good) > 0.9 * count, "each call holds one request, and it is answered"
        # Other processes may hold up a call, and the answers behind it: what 99 of 100 calls took at most.
        slow = SECONDS[int(np.searchsorted(within, 0.99 * count))]
        all_in = CLIENTS * total / count  # what an answer would take
        assert np.quantile(took, 0.99) < min(4 * WAIT + 10 * slow, 0.5 * all_in)
        assert np.median(refused) < 0.5
        assert server.memory() < before + 100
        until(lambda: Client(server).ask(np.zeros((1, 1, 4, 4), np.uint8)).status == 200)
        assert len(server.rows()) >= len(good)
