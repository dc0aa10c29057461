"""Bodies made to cost much: packed, long, deep, malformed. They cost little, count for the rate, and delay nobody."""

from __future__ import annotations

import gzip
import json
import threading
import time

import numpy as np
import pytest
from serving_maker import linear, write_bundle
from serving_process import Client, Reply, Server, make_key

from l2h.serving.accounts.key import Rate

GZIP = {"Content-Encoding": "gzip"}
ENTRY = '{"inputs": [{"name": "x", "datatype": "UINT8", "shape": %s, "data": %s}]}'


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A server of a model whose inputs are as large as photographs."""
    folder = tmp_path_factory.mktemp("photos")
    write_bundle(folder / "b", linear(shape=(3, 224, 224)), shape=(3, 224, 224))
    with Server(folder / "b", folder / "s", body_timeout=600.0) as running:
        assert Client(running).ask(np.zeros((64, 3, 224, 224), np.uint8)).status == 200
        yield running


class Watch:
    """The slowest answer that others got meanwhile, and how long that was."""

    def __init__(self, server: Server) -> None:
        self.server, self.slowest = server, 0.0

    def __enter__(self):
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._begun = time.monotonic()
        return self

    def __exit__(self, *exc):
        self.took = time.monotonic() - self._begun
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        client = Client(self.server)
        while not self._stop.is_set():
            start = time.monotonic()
            client.post(b"", path="/v2/repository/index")
            self.slowest = max(self.slowest, time.monotonic() - start)


def post_beside_others(server: Server, body: bytes, headers: dict[str, str]) -> Reply:
    """Post a body that holds nobody else up for most of its time, in one of some tries: the machine may, too."""
    for _ in range(5):
        with Watch(server) as watch:
            reply = Client(server).post(body, headers)
        if watch.slowest < watch.took / 2:
            return reply
    raise AssertionError(f"others waited for {watch.slowest:.3f} of {watch.took:.3f} s")


def test_a_packed_bomb_is_refused_soon_and_takes_little_memory(photos):
    start = (ENTRY % ("[64, 3, 224, 224]", "[")).removesuffix("}]}").encode()
    bomb = gzip.compress(start + b"0," * (125 * 10**6), 1)
    assert len(bomb) < 2 * 10**6
    before = photos.memory("VmHWM")
    reply = post_beside_others(photos, bomb, GZIP)
    assert reply.status in (400, 413)
    assert photos.memory("VmHWM") - before < 100 * len(bomb) / 2**20 + 64
    assert not photos.events("worker_died")


def test_unpacking_takes_time_in_proportion(photos):
    """At level 0 a packed body is as long as what it holds."""
    seconds = []
    for size in (10, 80):
        packed = gzip.compress(b" " * (size * 10**6), 0)
        start = time.monotonic()
        assert Client(photos).post(packed, GZIP).status == 400
        seconds.append(time.monotonic() - start)
    assert seconds[1] < 8 * 4 * max(seconds[0], 0.1), "quadratic work would take 64 times as long"


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize(("nested", "count"), [(True, 8), (False, 64), (True, 64)])
def test_a_large_request_in_json_is_answered_and_delays_nobody(photos, nested, count):
    x = np.random.default_rng(0).integers(0, 256, (count, 3, 224, 224)).astype(np.uint8)
    body = (ENTRY % (list(x.shape), json.dumps((x if nested else x.reshape(-1)).tolist()))).encode()
    same = Client(photos).ask(x)
    before = photos.memory("VmHWM")
    reply = post_beside_others(photos, body, {})
    assert reply.status == 200
    np.testing.assert_allclose(reply.scores, same.scores, rtol=1e-4, atol=1e-2)
    assert photos.memory("VmHWM") - before < 3 * len(body) / 2**20 + 64


ROWS = json.dumps(np.zeros((64, 1, 16, 16), int).tolist())
WRONG = {
    "value before a bracket": ROWS.replace("0], [0", "0], 0[0", 1),
    "value after a bracket": ROWS.replace("0], [0", "0] 0, [0", 1),
    "no comma": ROWS.replace("0, 0]", "0 0]", 1),
    "empty value": ROWS.replace("0, 0]", "0, ]", 1),
    "no whole number": ROWS.replace("0, 0]", "0, 0.5]", 1),
    "null": ROWS.replace("0, 0]", "0, null]", 1),
    "text": ROWS.replace("0, 0]", '0, "0"]', 1),
    "too large": ROWS.replace("0, 0]", "0, 256]", 1),
    "ragged": ROWS.replace("0, 0]", "0]", 1),
    "too deep": "[" + ROWS + "]",
    "one more": "[0," + ROWS[1:],
    "long number": ROWS.replace("0, 0]", f"0, {'1' * 70_000}]", 1),
    "spaces": ROWS.replace("0, 0]", f"0, {' ' * 70_000}0]", 1),
    "brackets": "[" * 100_000,
    "lists": "[" + "[]," * 100_000 + "[]]",
    "objects": "[" + "{}," * 100_000 + "{}]",
    "names": "[" + '"data":[' * 50_000,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_bundle(folder / "b", linear(shape=(1, 16, 16)), shape=(1, 16, 16))
    with Server(folder / "b", folder / "s") as running:
        yield running


@pytest.mark.parametrize("wrong", WRONG)
def test_a_long_list_that_is_not_what_it_says_is_refused(small, wrong):
    """Long lists are read by another way than short ones, which must not be more lenient."""
    padding = " " * 3500  # between rows, so that the text is long
    rows = ROWS.replace("], [", f"],{padding}[", 80)
    text = WRONG[wrong].replace("], [", f"],{padding}[", 80)
    assert Client(small).post((ENTRY % ([64, 1, 16, 16], rows)).encode()).status == 200
    start = time.monotonic()
    assert Client(small).post((ENTRY % ([64, 1, 16, 16], text)).encode()).status == 400
    assert time.monotonic() - start < 5


def test_malformed_requests_count_against_the_rate(bundle, tmp_path, x):
    keys, _, key = make_key(tmp_path, rate=Rate.parse("1/minute", burst=5))
    with Server(bundle, tmp_path, keys=str(keys)) as server:
        bodies = [(b"no json", {}), (b"no gzip", GZIP), (gzip.compress(bytes(2**20)), GZIP), (b"{}", {}), (b"[]", {})]
        assert [Client(server, key).post(*body).status for body in bodies] == [400, 400, 413, 400, 400]
        reply = Client(server, key).post(b"no json")
        assert (reply.status, "retry-after" in reply.headers) == (429, True)
        assert Client(server, key).ask(x[:1]).status == 429
        assert server.rows() == []


def test_a_malformed_idempotency_key_counts_against_the_rate(bundle, tmp_path, x):
    keys, _, key = make_key(tmp_path, rate=Rate.parse("1/minute", burst=3))
    with Server(bundle, tmp_path, keys=str(keys)) as server:
        client = Client(server, key)
        assert [client.ask(x[:1], Idempotency_Key="a b").status for _ in range(4)] == [400] * 3 + [429]


@pytest.mark.parametrize(("inputs", "statuses"), [(1, [200] * 3 + [429]), (3, [200, 429]), (5, [200, 429])])
def test_a_good_request_counts_its_inputs_once(bundle, tmp_path, inputs, statuses):
    keys, _, key = make_key(tmp_path, rate=Rate.parse("1/minute", burst=3))
    x = np.zeros((inputs, 1, 4, 4), np.uint8)
    with Server(bundle, tmp_path, keys=str(keys)) as server:
        assert [Client(server, key).ask(x).status for _ in statuses] == statuses
