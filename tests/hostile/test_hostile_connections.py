"""Connections: too many of them, strangers that stay, requests without waiting, and framing that others may misread."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import ssl
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from serving_process import Client, Server, make_key
from waiting import until

from l2h import connections, protocol
from l2h.serving.accounts import open_keys

pytestmark = pytest.mark.long


def request(target, *more: str, x=None, method: str = "POST") -> bytes:
    """A good request to infer, as bytes."""
    body, sent = protocol.encode_request([protocol.Tensor("x", target.x if x is None else x)], binary=False)
    headers = {"Host": "x", **target.headers, **sent, "Content-Length": len(body)}
    lines = [f"{method} {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def heads(reply: bytes) -> list[int]:
    """The statuses of the answers in what came."""
    return [int(part[:3]) for part in reply.split(b"HTTP/1.1 ")[1:]]


def talk(target, *parts: bytes, until_answers: int = 0) -> bytes:
    """Send the parts; what came until the other side closed, or so many answers had come."""
    out = b""
    with target.connect() as peer, contextlib.suppress(ConnectionError):
        for part in parts:
            peer.sendall(part)
        while not (until_answers and out.count(b"HTTP/1.1 ") >= until_answers):
            piece = peer.recv(65536)
            if not piece:
                break
            out += piece
    return out


@pytest.mark.parametrize(("count", "padding"), [(4, 12_000), (12, 30_000), (40, 0)])
def test_requests_without_waiting_are_answered_in_order(target, count, padding):
    """Also where those that wait are longer than headers may be; each is charged once, and answered."""
    ids = [f"row-{count}-{padding}-{i}" for i in range(count)]
    pad = f"X-Padding: {'p' * padding}"
    reply = talk(target, b"".join(request(target, f"X-Request-Id: {one}", pad) for one in ids), until_answers=count)
    assert heads(reply) == [200] * count
    assert [one for one in ids if f"x-request-id: {one}\r\n".encode() in reply] == ids
    at = [reply.index(f"x-request-id: {one}\r\n".encode()) for one in ids]
    assert at == sorted(at)
    if hasattr(target, "server"):
        assert len(target.server.rows(where=f"request_id LIKE 'row-{count}-{padding}-%'")) == count


def test_a_bad_request_after_a_good_one_is_refused_after_its_answer(target):
    for bad, status in ((b"NO HTTP\r\n\r\n", 400), (b"GET /v2 HTTP/1.1\r\nX: " + b"x" * 40_000, 431)):
        assert heads(talk(target, request(target) + bad)) == [200, status]


def test_thousands_of_requests_at_once_take_little_memory(bundle, tmp_path):
    """A peer that sends and sends and reads nothing: what it sent waits with it, not with us."""
    ask = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 5000
    with Server(bundle, tmp_path, idle_timeout=20) as server:
        assert Client(server).ask(np.zeros((1, 1, 4, 4), np.uint8)).status == 200
        before = server.memory("VmHWM")
        peers = [socket.create_connection(("127.0.0.1", server.port), timeout=0.2) for _ in range(8)]
        for peer in peers * 3:
            with contextlib.suppress(OSError):
                while True:
                    peer.sendall(ask)
        assert Client(server).ask(np.zeros((1, 1, 4, 4), np.uint8)).status == 200
        for peer in peers:
            peer.close()
        assert server.memory("VmHWM") - before < 32


@pytest.mark.parametrize("protocol_name", ["h2c", "websocket", "TLS/1.0, HTTP/2.0"])
@pytest.mark.parametrize("spell", [str.title, str.upper, str.lower])
def test_a_wish_to_upgrade_is_ignored(target, protocol_name, spell):
    wish = (
        f"{spell('upgrade')}: {protocol_name}",
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
    )
    whole = request(target, *wish)
    again = request(target)
    for parts in ((whole + again,), (whole, again), (whole[:40], whole[40:-5], whole[-5:], again)):
        assert heads(talk(target, *parts, until_answers=2)) == [200, 200]
    assert heads(
        talk(target, f"GET /v2 HTTP/1.1\r\nHost: x\r\n{wish[0]}\r\n{wish[1]}\r\n\r\n".encode(), until_answers=1)
    ) == [200]


@pytest.mark.parametrize("coding", ["identity, chunked", "gzip, chunked", "chunked, chunked", "identity", "xchunked"])
def test_a_body_framed_in_doubt_is_refused(target, coding):
    """A proxy in front might see another end of the body."""
    start = f"POST {target.path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n"
    reply = talk(target, start.encode() + b"2\r\n{}\r\n0\r\n\r\n")
    assert heads(reply) == [400]
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        ("POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 12", 400),
        ("POST {path} HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        ("GET /v2 HTTP/1.1", 400),
        ("GET /v2 HTTP/1.1\r\nHost: x\r\nHost: y", 400),
        ("GET /v2 HTTP/1.0", 200),
    ],
)
def test_a_request_has_one_host_and_one_framing(target, head, status):
    body = b"2\r\n{}\r\n0\r\n\r\n" if head.startswith("POST") else b""
    assert heads(talk(target, head.format(path=target.path).encode() + b"\r\n\r\n" + body))[0] == status


def test_a_chunked_body_in_any_pieces_is_read_and_the_next_request_too(target):
    body = request(target).split(b"\r\n\r\n", 1)[1] + b"\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    key = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
    start = f"POST {target.path} HTTP/1.1\r\nHost: x\r\n{key}Transfer-Encoding: chunked\r\n\r\n".encode()
    whole = start + chunks + b"0\r\nAuthorization: none\r\n\r\n" + request(target)
    for size in (1, 2, 3, 5, len(whole)):
        with target.connect() as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(0, len(whole), size):
                peer.sendall(whole[i : i + size])
            reply = b""
            while len(heads(reply)) < 2:
                reply += peer.recv(65536)
            assert heads(reply) == [200, 200]


def test_a_framing_in_doubt_is_refused_also_after_a_good_request(target):
    for bad in (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
        with target.connect() as peer:
            peer.sendall(request(target))
            assert heads(peer.recv(65536)) == [200]
            peer.sendall(bad)
            assert heads(closed(peer)) == [400]


@pytest.mark.parametrize("line", [b"x\r\n", b"2 \r\n", b"2\n", b";a\r\n", b"-2\r\n", b"0x2\r\n", b"2;" + b"a" * 40_000])
def test_chunks_framed_in_doubt_are_refused(target, line):
    key = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
    start = f"POST {target.path} HTTP/1.1\r\nHost: x\r\n{key}Transfer-Encoding: chunked\r\n\r\n".encode()
    assert heads(talk(target, start + b"1;b=c\r\n{\r\n" + line)) == [400]


def test_a_chunk_and_the_next_line_both_in_doubt_are_refused_once(target):
    key = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
    start = f"POST {target.path} HTTP/1.1\r\nHost: x\r\n{key}Transfer-Encoding: chunked\r\n\r\n".encode()
    assert heads(talk(target, start + b"1\r\n{XXzz\r\n")) == [400]


@pytest.fixture(scope="module")
def hasty(bundle, tmp_path_factory):
    """A server that asks for keys, with one worker and little patience."""
    folder = tmp_path_factory.mktemp("hasty")
    keys, _, key = make_key(folder)
    with Server(bundle, folder, keys=str(keys), idle_timeout=2.0, max_connections=6, max_per_address=0) as server:
        server.key = key
        yield server


def test_the_end_of_a_body_is_sought_only_where_it_can_be(hasty):
    """A stranger's chunk full of what looks like ends costs as little as any other."""
    chunk = b"40000\r\n" + b"\r\n\r\n" * 2**16 + b"\r\n"
    before = seconds(hasty)
    (peer,) = connect(hasty, 1)
    with peer:
        peer.sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(64):
            peer.sendall(chunk)
        peer.sendall(b"0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert heads(closed(peer)) == [401, 200]
    assert seconds(hasty) - before < 1.0


def test_a_body_in_tiny_chunks_is_not_read_for_ever_after_its_answer(hasty):
    (peer,) = connect(hasty, 1)
    before = seconds(hasty)
    with peer:
        peer.sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            peer.sendall(b"1\r\na\r\n" * 5_000_000)
    assert seconds(hasty) - before < 1.0


def test_a_request_of_many_tiny_chunks_is_answered(hasty, x):
    body, sent = protocol.encode_request([protocol.Tensor("x", x)], binary=False)
    body += b" " * 5000
    head = {"Host": "x", "Authorization": f"Bearer {hasty.key}", "Transfer-Encoding": "chunked", **sent}
    lines = ["POST /v2/models/digits/infer HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    ask = "\r\n".join(lines).encode() + b"\r\n\r\n" + chunks + b"0\r\nX: y\r\n\r\n"
    (peer,) = connect(hasty, 1)
    with peer:
        peer.sendall(ask + ask)
        reply = b""
        while len(heads(reply)) < 2:
            reply += peer.recv(65536)
        assert heads(reply) == [200, 200]


def test_half_a_head_behind_a_request_does_not_stay(hasty):
    (peer,) = connect(hasty, 1)
    with peer:
        peer.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\nGET /")
        assert heads(closed(peer)) == [200]


@pytest.mark.parametrize("last", [pytest.param(b"", marks=pytest.mark.long), b"BAD\r\n\r\n"])
def test_peers_that_read_nothing_leave_their_places(hasty, last):
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    (worker,) = hasty.workers
    before = len(os.listdir(f"/proc/{worker}/fd"))
    peers = []
    for _ in range(2):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", hasty.port))
        peers.append(peer)
        peer.sendall(ask * 60)
        at, more = waiting(hasty, peer), True
        while more:  # until the kernel takes no more, and less than what stops the server is left with it
            peer.sendall(ask)
            time.sleep(0.03)
            now = waiting(hasty, peer)
            at, more = now, now - at > 20_000
        peer.sendall(last)
    until(lambda: len(os.listdir(f"/proc/{worker}/fd")) <= before, seconds=12)
    assert hasty.get("/v2/health/live")[0] == 200
    for peer in peers:
        peer.close()


def waiting(server: Server, peer: socket.socket) -> int:
    """Bytes that the kernel holds for the peer."""
    ports = f":{server.port:04X} ", f":{peer.getsockname()[1]:04X} "
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, ours, theirs, _, queues = line.split()[:5]
        if (ours + " ").endswith(ports[0]) and (theirs + " ").endswith(ports[1]):
            return int(queues.split(":")[0], 16)
    return 0


def seconds(server: Server) -> float:
    """Of processor time, of the one worker."""
    (worker,) = server.workers
    fields = Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connect(server: Server, count: int, address: str = "127.0.0.1") -> list[socket.socket]:
    return [
        socket.create_connection(("127.0.0.1", server.port), timeout=10, source_address=(address, 0))
        for _ in range(count)
    ]


def closed(peer: socket.socket) -> bytes:
    """What came before the other side closed."""
    out = b""
    while piece := peer.recv(4096):
        out += piece
    return out


def test_strangers_give_way_to_a_newcomer_and_see_the_503(bundle, tmp_path, x):
    keys, _, key = make_key(tmp_path)
    with Server(bundle, tmp_path, keys=str(keys), max_connections=20) as server:
        known = Client(server, key)
        assert known.ask(x).status == 200
        strangers = connect(server, 19)
        slow = strangers[3]
        slow.sendall(b"POST /v2/models/dig")  # headers that do not end
        time.sleep(0.2)
        newcomers = [Client(server, key) for _ in range(10)]
        for newcomer in newcomers:
            assert newcomer.ask(x).status == 200
        for peer in strangers[:10]:
            reply = closed(peer)
            assert reply.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in reply
        assert known.ask(x).status == 200, "on the connection it had"
        assert all(newcomer.ask(x).status == 200 for newcomer in newcomers)
        strangers += connect(server, 40)
        time.sleep(0.2)
        assert known.ask(x).status == 200
        assert all(newcomer.ask(x).status == 200 for newcomer in newcomers)
        (line,) = until(lambda: server.events("connections_closed"))[:1]
        assert line["displaced"] >= 10


def test_those_with_a_key_do_not_give_way_and_a_refused_one_reads_why(bundle, tmp_path, x):
    keys, _, key = make_key(tmp_path)
    with Server(bundle, tmp_path, keys=str(keys), max_connections=5) as server:
        known = [Client(server, key) for _ in range(5)]
        assert {client.ask(x).status for client in known} == {200}
        for _ in range(20):
            refused = Client(server, key)
            reply = refused.ask(x)  # it sends all of its request, and can still read the answer
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert {client.ask(x).status for client in known} == {200}


def test_one_address_cannot_take_the_places_of_others(bundle, tmp_path, x):
    keys, _, key = make_key(tmp_path)
    with Server(bundle, tmp_path, keys=str(keys), max_connections=20, max_per_address=8) as server:
        others = connect(server, 5, "127.0.0.2")
        crowd = connect(server, 30, "127.0.0.3")
        assert Client(server, key).ask(x).status == 200
        for peer in others:
            peer.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert peer.recv(4096).startswith(b"HTTP/1.1 200"), "from an address that had few"
        assert sum(closed(peer).startswith(b"HTTP/1.1 503") for peer in crowd[:22]) == 22
        for peer in crowd[22:]:
            peer.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert peer.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_key_that_was_revoked_keeps_no_place(bundle, tmp_path, x):
    keys, _, key = make_key(tmp_path)
    with Server(bundle, tmp_path, keys=str(keys), max_connections=5) as server:
        known = [Client(server, key) for _ in range(5)]
        assert {client.ask(x).status for client in known} == {200}
        assert Client(server, key).ask(x).status == 503
        *_, other = make_key(tmp_path, "bob")
        open_keys(keys).change("alice", enabled=False)
        until(lambda: known[0].ask(x).status == 403)
        assert {client.post(b"", path="/v2/repository/index").status for client in known} == {200}
        newcomers = [Client(server, other) for _ in range(5)]
        for newcomer in newcomers:  # a connection gives way once its last answer is wholly sent: until then, 503
            until(lambda newcomer=newcomer: newcomer.ask(x).status == 200)


@pytest.mark.parametrize("answering", [False, True])
def test_an_answer_to_a_request_from_before_a_change_of_keys_makes_nobody_known(answering):
    class Peer:
        def give_way(self):
            return True

    async def newcomer_enters():
        peer, places = Peer(), connections.Places(1, 1)
        peer.answering = answering
        assert places.enter(peer, ("192.0.2.1", 1))
        places.forget_known()
        places.know(peer)  # its answer ends; where the request began before, the key that it showed may be revoked
        return places.enter(Peer(), ("192.0.2.2", 1))

    assert asyncio.run(newcomer_enters()) is answering


@pytest.mark.parametrize(
    ("name", "first", "second", "status"),
    [
        ("Authorization", None, "Bearer none", 401),
        ("Authorization", "Bearer none", None, 401),
        ("Authorization", None, None, 401),
        ("Idempotency-Key", "a", "b", 400),
        ("Content-Encoding", "identity", "identity", 415),
        ("Content-Length", None, None, 400),
        (protocol.LENGTH_HEADER, "1", "1", 400),
        ("Accept", "text/plain", "application/json", 200),
    ],
)
def test_a_header_that_has_one_value_is_not_repeated(target, name, first, second, status):
    """Another server on the way may read the other one. None stands for the value that is right."""
    if name == "Authorization" and target.key is None:
        pytest.skip("a server without keys")
    start, body = request(target).split(b"\r\n\r\n", 1)
    lines = start.decode().split("\r\n")
    right = next((line for line in lines if line.startswith(f"{name}: ")), None)
    more = [right if value is None else f"{name}: {value}" for value in (first, second)]
    whole = "\r\n".join([*(line for line in lines if line != right), *more]).encode() + b"\r\n\r\n" + body
    assert heads(talk(target, whole, until_answers=1)) == [status]


@pytest.mark.parametrize("addresses", [1, 8])
def test_thousands_of_idle_connections_lock_nobody_out(bundle, tmp_path, x, addresses):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    keys, _, key = make_key(tmp_path)
    peers = []
    try:
        with Server(bundle, tmp_path, keys=str(keys), workers=2) as server:
            for i in range(4200):
                peers += connect(server, 1, f"127.0.0.{1 + i % addresses}")
                if i % 100 == 0:
                    assert Client(server, key).ask(x).status == 200
            assert not server.events("worker_died")
    finally:
        for peer in peers:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_peers_that_never_shake_hands_hold_no_place_for_long(bundle, tmp_path, x, certificate):
    """They count as connections, give way to others, and the log says how many there were."""
    cert, cert_key = certificate
    keys, _, key = make_key(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    settings = {"tls_cert": str(cert), "tls_key": str(cert_key), "max_connections": 10}
    with Server(bundle, tmp_path, keys=str(keys), **settings) as server:
        silent = connect(server, 30)
        body, sent = protocol.encode_request([protocol.Tensor("x", x)], binary=True)
        head = {"Host": "x", "Authorization": f"Bearer {key}", "Content-Length": len(body), **sent}
        lines = ["POST /v2/models/digits/infer HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        ask = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        for _ in range(3):
            with (
                socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
                context.wrap_socket(plain) as peer,
            ):
                peer.sendall(ask + ask)
                reply = b""
                while len(heads(reply)) < 2:
                    reply += peer.recv(65536)
                assert heads(reply) == [200, 200]
        for peer in silent[:20]:
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""

        def counted(*kinds: str) -> int:
            return sum(line.get(kind, 0) for line in server.events("connections_closed") for kind in kinds)

        until(lambda: counted("displaced", "without_tls") >= 30)
        assert counted("displaced", "without_tls", "refused") == 30, "each once"
        assert counted("displaced") >= 20
        assert "Traceback" not in server.log.read_text()


def test_a_peer_for_whom_no_descriptor_is_left_holds_no_place(monkeypatch):
    """TLS begins on a copy of the socket."""

    def fail(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    class Peer(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    async def arrive() -> None:
        with socket.socket() as plain:
            places, peer = connections.Places(1, None), Peer({"peername": ("127.0.0.1", 1), "socket": plain})
            handshake = connections.TlsHandshake(
                lambda: SimpleNamespace(places=places), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            )
            handshake.connection_made(peer)
            assert peer.aborted
            assert places.enter(handshake, None), "the one place is free"

    monkeypatch.setattr("l2h.connections.tls.os.dup", fail)
    asyncio.run(arrive())
