"""Peers that send anything at all, or nothing: an answer or a closed connection, soon, and never a failure of ours."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from properties import examples
from serving_process import Client, Server

from l2h import protocol

wire_types = ["UINT8", "INT64", "FP16", "FP32", "BOOL", "BYTES"]
START = "POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def strict(bundle, tmp_path_factory):
    """A server with little patience."""
    folder = tmp_path_factory.mktemp("strict")
    with Server(bundle, folder, body_timeout=0.5, idle_timeout=0.8, max_body=4096, max_connections=20) as running:
        yield running


def talk(server: Server, *parts: bytes, pause: float = 0.0, seconds: float = 10.0) -> bytes:
    """Send the parts and read until the other side closes, or nothing comes for so long."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as peer:
        out = b""
        try:
            for part in parts:
                peer.sendall(part)
                time.sleep(pause)
            while piece := peer.recv(65536):
                out += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
        return out


def status(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def test_a_body_too_large_is_refused(strict, x):
    client = Client(strict)
    reply = client.post(bytes(4097), {})
    assert (reply.status, "larger than 4096 bytes" in reply.error) == (413, True)
    assert client.ask(x).status == 200, "the connection goes on"
    assert client.post(bytes(3 * 2**20), {}).status == 413
    chunked = START + "Transfer-Encoding: chunked\r\n\r\n"
    reply = talk(strict, chunked.encode(), *[b"800\r\n" + bytes(2048) + b"\r\n"] * 3)
    assert status(reply) == 413
    bomb = gzip.compress(bytes(10 * 2**20))[:4096]
    assert Client(strict).post(gzip.compress(bytes(2**20)), {"Content-Encoding": "gzip"}).status == 413
    assert Client(strict).post(bomb, {"Content-Encoding": "gzip"}).status == 413
    assert Client(strict).post(b"x", {"Content-Encoding": "br"}).status == 415
    assert Client(strict).post(b"x", {"Content-Encoding": "gzip"}).status == 400


def test_a_body_too_slow_is_refused(strict):
    start = time.monotonic()
    reply = talk(strict, f"{START}Content-Length: 100\r\n\r\n".encode(), *[b"x"] * 5, pause=0.2)
    assert status(reply) == 408
    assert b"did not come within 0.5 s" in reply
    assert time.monotonic() - start < 8


@pytest.mark.parametrize("begin", [b"", b"\r\n", b"POST /v2", START.encode(), b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_connections_idle_out(strict, begin):
    start = time.monotonic()
    talk(strict, begin)
    assert 0.5 < time.monotonic() - start < 8


def test_headers_that_trickle_in_are_not_waited_for(strict):
    start = time.monotonic()
    talk(strict, *[b"POST", b" /v2 ", b"HTTP/1.1\r\n", *[b"a: b\r\n"] * 10], pause=0.2)
    assert time.monotonic() - start < 8


def test_a_body_that_goes_on_after_its_answer_is_not_read_forever(strict):
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as peer:
        peer.sendall(f"{START}Content-Length: 1000000\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            while time.monotonic() - start < 10:
                peer.sendall(b"x")
                time.sleep(0.05)
    assert time.monotonic() - start < 8


def test_headers_too_large_and_bytes_that_are_no_http(strict):
    assert status(talk(strict, b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 20_000, b"b" * 20_000)) == 431
    reply = talk(strict, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello")
    assert status(reply) == 400
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]


def test_requests_in_a_row_without_waiting_are_answered_in_order(strict, x):
    body, headers = protocol.encode_request([protocol.Tensor("x", x)], binary=False)
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + f"Content-Length: {len(body)}\r\n"
    requests = [f"{START}X-Request-Id: r{i}\r\n{head}\r\n".encode() + body for i in range(5)]
    reply = talk(strict, b"".join(requests))
    assert [line for line in reply.split(b"\r\n") if line.startswith(b"x-request-id")] == [
        b"x-request-id: r%d" % i for i in range(5)
    ]
    assert reply.count(b"HTTP/1.1 200 OK") == 5


good_head = {
    "inputs": [{"name": "x", "shape": [1, 1, 4, 4], "datatype": "UINT8", "parameters": {"binary_data_size": 16}}]
}
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | values,
        "shape": st.just([1, 1, 4, 4]) | st.lists(st.integers(-2, 2**40), max_size=10) | values,
        "datatype": st.sampled_from([*protocol.DATATYPES, "BYTES", "BF16"]) | values,
        "data": st.lists(st.integers(0, 255), min_size=16, max_size=16) | values,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.just(16) | st.integers(-1, 2**50) | values})
        | values,
    },
)
heads = st.fixed_dictionaries(
    {"inputs": st.lists(tensors, max_size=3) | values},
    optional={"id": values, "outputs": values, "parameters": values},
)
json_bytes = (
    heads.map(lambda head: json.dumps(head).encode()) | st.just(json.dumps(good_head).encode()) | st.binary(max_size=64)
)
SLOW = examples(150, suppress_health_check=list(HealthCheck))


def _allowed(reply) -> None:
    assert reply.status in (200, 400, 413, 415, 422, 503), reply.body
    if reply.status != 200:
        assert json.loads(reply.body)["error"]


@SLOW
@given(head=json_bytes, tail=st.binary(max_size=40), shift=st.integers(-3, 3), said=st.booleans())
def test_any_body_gets_an_answer(server, head, tail, shift, said):
    headers = {protocol.LENGTH_HEADER: str(max(0, len(head) + shift * (len(tail) % 2)))} if said else {}
    _allowed(Client(server).post(head + tail, headers))


names = st.sampled_from(
    [
        protocol.LENGTH_HEADER,
        "Content-Encoding",
        "Idempotency-Key",
        "X-Request-Id",
        "Authorization",
        "Content-Type",
        "Expect",
    ]
)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=255, blacklist_characters="\x7f"), max_size=40)


@SLOW
@given(headers=st.dictionaries(names, texts | st.sampled_from(["gzip", "-1", "99999999999999999999", "100-continue"])))
def test_any_header_gets_an_answer(server, headers):
    body, sent = protocol.encode_request([protocol.Tensor("x", np.zeros((1, 1, 4, 4), np.uint8))], binary=True)
    headers = {name: value.strip().encode("latin-1") for name, value in headers.items()}
    _allowed(Client(server).post(body, {**sent, **headers}))


@SLOW
@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_get_an_answer_or_are_dropped(strict, data):
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        try:
            reply = peer.recv(65536)
        except ConnectionResetError:
            return
    assert not reply or status(reply) in (400, 404, 405, 431, 503)


@pytest.fixture(scope="module")
def single(bundle, tmp_path_factory):
    """A server with one worker, whose memory is watched."""
    with Server(bundle, tmp_path_factory.mktemp("single")) as running:
        assert Client(running).ask(np.zeros((64, 1, 4, 4), np.uint8)).status == 200
        yield running, running.memory("VmHWM")


pieces = st.sampled_from(["1", "1e400", "-0.5", "true", "null", "[]", "[1]", "[[1, 2]]", "{}", '"a"', f'"{"b" * 500}"'])
sizes = st.lists(st.sampled_from([0, 1, 4, 16, 1000, 10**6, 10**12]), max_size=5)


@SLOW
@given(
    piece=pieces, times=st.integers(1, 20_000), depth=st.integers(0, 60), kind=st.sampled_from(wire_types), shape=sizes
)
def test_any_long_body_gets_an_answer_and_takes_little_memory(single, piece, times, depth, kind, shape):
    server, before = single
    data = "[" * depth + ",".join([piece] * times) + "]" * depth
    body = f'{{"inputs": [{{"name": "x", "datatype": "{kind}", "shape": {shape}, "data": [{data}]}}]}}'.encode()
    _allowed(Client(server).post(body[: 2**20], {}))
    assert server.memory("VmHWM") - before < 64


def test_after_all_that_it_is_well(server, strict, x):
    for running in (server, strict):
        assert Client(running).ask(x).status == 200
        assert not running.events("worker_died")
        assert "Traceback" not in running.log.read_text()


def test_what_follows_a_chunked_body_is_not_kept(strict):
    """Trailers: read over where they are few, the connection closed where they are not, and no memory taken."""
    ask = f"{START}Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n".encode()
    reply = talk(strict, ask + b"a: b\r\n" * 10 + b"\r\n" + b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status(reply) == 400, "the body is no request, whatever follows it"
    assert reply.count(b"HTTP/1.1 200") == 1, "and the connection goes on"
    before = strict.memory()
    for piece in (b"a: b\r\n" * 10_000, b"a: " + b"b" * 60_000):
        with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as peer:
            peer.sendall(ask)
            with pytest.raises(OSError):
                peer.sendall(piece * 500)
    assert strict.memory() - before < 16


@pytest.mark.parametrize("size", [40_000, 240_000])
def test_headers_that_come_in_one_piece_are_counted_too(strict, size):
    reply = talk(strict, b"GET /v2 HTTP/1.1\r\nHost: x\r\nX: " + b"a" * size + b"\r\n\r\n")
    assert status(reply) == 431
    assert reply.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "data",
    ['["' + "a" * 20_000 + '"' + ',"b"' * 3000 + "]", "[" + "[" * 900 + "]" * 900 + "]", "[[1]" + ",[]" * 30_000 + "]"],
    ids=["long text", "deep", "ragged"],
)
def test_json_that_is_no_array_takes_no_memory(bundle, tmp_path, data):
    """numpy would make a table of the longest text for every entry."""
    entry = '{"name": "x", "datatype": "UINT8", "shape": [1, 1, 4, 4], "data": %s}'
    with Server(bundle, tmp_path) as server:
        Client(server).post(b"{}", {})
        before, start = server.memory(), time.monotonic()
        for _ in range(5):
            assert Client(server).post(('{"inputs": [' + entry % data + "]}").encode(), {}).status == 400
        assert server.memory() - before < 16
        assert time.monotonic() - start < 5


def test_packed_bodies_take_room_before_they_are_unpacked(bundle, tmp_path):
    """However many come at a time; and others are answered meanwhile."""
    packed = gzip.compress(np.random.default_rng(0).integers(0, 4, 32 * 2**20, np.uint8).tobytes(), 1)
    settings = {"max_body": 64 * 2**20, "max_memory": 48 * 2**20, "body_timeout": 600.0}
    with Server(bundle, tmp_path, **settings) as server:
        Client(server).post(b"{}", {})
        before = server.memory()
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(Client(server).post, packed, {"Content-Encoding": "gzip"}) for _ in range(8)]
            while not all(one.done() for one in waiting):
                assert server.get("/v2/health/live")[0] == 200
            found = {one.result().status for one in waiting}
        assert found <= {400, 503}
        assert 503 in found
        assert server.memory("VmHWM") - before < 48 + 2 * 32 + 32, "what is held, one whole beside its pieces, and some"
