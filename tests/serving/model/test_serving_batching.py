"""Requests of many connections in one call of the model, each with its own answer."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
from serving_maker import linear, write_bundle
from serving_process import Client, Server
from waiting import STUCK, Stopwatch, until

from l2h import protocol
from l2h.bundle import ServerBundle


def test_joined_requests_get_their_own_answers(tmp_path):
    write_bundle(tmp_path / "b", linear(hidden=1000, layers=10))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 255, (int(rng.integers(1, 4)), 1, 4, 4)).astype(np.uint8) for _ in range(200)]
    reference = ServerBundle(tmp_path / "b")
    wanted = [reference.run(x) for x in inputs]

    async def ask_all(url: str):
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=200), timeout=STUCK) as client:

            async def ask(i: int):
                body, headers = protocol.encode_request([protocol.Tensor("x", inputs[i])], binary=i % 2 == 0, id=str(i))
                reply = await client.post(url, content=body, headers=headers)
                assert reply.status_code == 200, reply.text
                return protocol.decode_response(
                    reply.content, protocol.header_length(reply.headers.get(protocol.LENGTH_HEADER))
                )

            return await asyncio.gather(*(ask(i) for i in range(200)))

    with Server(tmp_path / "b", tmp_path / "s", max_wait=30.0) as server:
        replies = asyncio.run(ask_all(f"{server.url}/v2/models/digits/infer"))
        server.stop()
        batches = [line["batch"] for line in server.events("request")]
    for i, (reply, scores) in enumerate(zip(replies, wanted, strict=True)):
        assert reply.id == str(i)
        np.testing.assert_allclose(reply.outputs[0].data, scores, rtol=1e-3, atol=1e-3)
    assert len(batches) == 200
    assert max(batches) <= 64
    assert np.mean(batches) > 4, "requests that wait together run together"


def test_a_lone_request_does_not_wait_for_others(bundle, tmp_path, x):
    with Server(bundle, tmp_path, batch_delay=1.0) as server:
        client = Client(server)
        client.ask(x)
        for _ in range(5):
            with Stopwatch() as watch:
                assert client.ask(x[:1]).status == 200
            assert watch.seconds < 0.9


def test_under_load_the_delay_is_an_upper_bound(bundle, tmp_path, x):
    """Two clients make the server wait for a second request; when one goes away the other waits the delay at most."""
    with Server(bundle, tmp_path, batch_delay=0.2) as server, ThreadPoolExecutor(8) as pool:
        clients = [Client(server) for _ in range(8)]
        for _ in range(10):
            assert all(reply.status == 200 for reply in pool.map(lambda client: client.ask(x), clients))
        seconds = []
        for _ in range(8):
            with Stopwatch() as watch:
                clients[0].ask(x)
            seconds.append(watch.seconds)
        assert max(seconds) < 0.2 + 0.5
        assert min(seconds[4:]) < 0.15, "and soon no longer waits at all"
        until(lambda: max(line["batch"] for line in server.events("request")) > 3)
