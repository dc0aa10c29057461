"""Ten times more than it can do: what is taken is answered in time, the rest refused at once, and memory stays."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from serving_maker import linear, write_bundle
from serving_process import Client, Server
from waiting import until

MOST = 4
WAIT = 0.5
CLIENTS = 250


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


def _check(folder: Path, seconds: float) -> None:
    write_bundle(folder / "b", linear(hidden=2000, layers=40))
    with Server(folder / "b", folder / "s", max_batch=MOST, max_wait=WAIT) as server:
        alone = _flood(server, 1, min(seconds, 3.0))
        capacity = len(_flood(server, MOST, min(seconds, 3.0))) / min(seconds, 3.0)
        call = np.median([seconds for _, seconds in alone])
        before = server.memory()
        noted = len(server.events("request"))
        # Each asks again 0.1 s after a refusal. If all were let in, an answer would take the time of as many calls.
        replies = _flood(server, CLIENTS, seconds)
        statuses = {status for status, _ in replies}
        assert statuses == {200, 503}
        offered = len(replies) / seconds
        assert offered > 8 * capacity
        good = [status for status, _ in replies if status == 200]
        assert len(good) / seconds > 0.2 * capacity, "it goes on working"
        took = [line["ms"] / 1e3 for line in server.events("request")[noted:] if line["status"] == 200]
        assert np.quantile(took, 0.99) < min(4 * WAIT + 10 * call, 0.5 * CLIENTS * call)
        refused = np.array([seconds for status, seconds in replies if status == 503])
        assert np.median(refused) < 0.5
        assert server.memory() < before + 100
        until(lambda: Client(server).ask(np.zeros((1, 1, 4, 4), np.uint8)).status == 200)
        assert len(server.rows()) >= len(good)


@pytest.mark.long
def test_overload_for_half_a_minute(tmp_path):
    _check(tmp_path, 30.0)
