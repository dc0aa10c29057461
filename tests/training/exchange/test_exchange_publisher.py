"""The publisher tells those with the token what they ask for, and everybody else nothing."""

from __future__ import annotations

import socket
import sys
import time
from hashlib import sha256

import httpx
import pytest
from exchange_maker import IDENTITY, TOKEN, content, publish

from l2h.errors import MissingExtraError
from l2h.training.exchange import ExchangeError, PublisherServer, SnapshotStore

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def ask(server, path, **headers):
    return httpx.get(f"{server.url}/l2h/v1/{path}", headers={**BEARER, **headers}, trust_env=False, verify=False)


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}"]
)
def test_without_the_token_every_path_says_the_same(standing, authorization):
    headers = {} if authorization is None else {"Authorization": authorization}
    paths = ("/l2h/v1/identity", "/l2h/v1/snapshots/latest?kind=weights", "/l2h/v1/snapshots/1?kind=weights", "/", "/x")
    answers = [httpx.get(standing.url + path, headers=headers, trust_env=False, verify=False) for path in paths]
    assert {answer.status_code for answer in answers} == {401}
    assert {answer.text for answer in answers} == {"unauthorized\n"}
    assert not any(
        name.startswith("l2h") or name in ("server", "etag") for answer in answers for name in answer.headers
    )


def test_the_identity_names_protocol_run_and_kinds(server, store):
    assert ask(server, "identity").json() == {
        "classes": 10,
        "input_shape": [3, 32, 32],
        "data": "f00d",
        "protocol": 1,
        "run": store.run,
        "kinds": ["weights", "answers"],
    }


def test_latest_is_told_when_there_is_something_newer(server, store):
    assert ask(server, "snapshots/latest?kind=weights").status_code == 204
    publish(store, 0)
    snapshot = publish(store, 5)
    assert ask(server, "snapshots/latest?kind=weights").json()["version"] == snapshot.version
    assert ask(server, "snapshots/latest?kind=weights&after=1").json()["step"] == 5
    assert ask(server, "snapshots/latest?kind=weights&after=2").status_code == 304
    assert ask(server, "snapshots/latest?kind=answers").status_code == 204
    for question in ("", "?kind=other", "?kind=weights&after=-1", f"?kind=weights&after={'9' * 5000}"):
        assert ask(server, f"snapshots/latest{question}").status_code == 400


@pytest.mark.parametrize(
    ("asked", "status", "first", "last"),
    [
        ("bytes=0-", 200, 0, 999),
        ("bytes=400-", 206, 400, 999),
        ("bytes=400-499", 206, 400, 499),
        ("bytes=400-5000", 206, 400, 999),
        ("bytes=999-", 206, 999, 999),
        ("bytes=-5", 200, 0, 999),
        ("bytes=1-2,4-5", 200, 0, 999),
        ("lines=1-2", 200, 0, 999),
    ],
)
def test_ranges_are_served(standing, asked, status, first, last):
    answer = ask(standing, "snapshots/1?kind=weights", Range=asked)
    assert answer.status_code == status
    assert answer.content == content(0, 1000)[first : last + 1]
    assert answer.headers["etag"] == f'"{sha256(content(0, 1000)).hexdigest()}"'
    assert answer.headers.get("content-range") == (f"bytes {first}-{last}/1000" if status == 206 else None)


def test_a_range_beyond_the_end_or_of_other_bytes_is_not_served(standing):
    assert ask(standing, "snapshots/1?kind=weights", Range="bytes=1000-").status_code == 416
    other = ask(standing, "snapshots/1?kind=weights", Range="bytes=10-", **{"If-Range": '"other"'})
    assert (other.status_code, len(other.content)) == (200, 1000)


@pytest.mark.parametrize(
    "path", ["", "snapshots", "snapshots/2?kind=weights", "snapshots/1", "snapshots/1?kind=answers", "identity/",
             "snapshots/../identity/x", "snapshots/x?kind=weights", "snapshots/-1?kind=weights"]
)  # fmt: skip
def test_there_is_nothing_else(standing, path):
    assert ask(standing, path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_nothing_can_be_changed(standing, method):
    answer = httpx.request(method, f"{standing.url}/l2h/v1/identity", headers=BEARER, trust_env=False, verify=False)
    assert answer.status_code == 405


def test_a_port_in_use_is_named(standing, store):
    second = PublisherServer(store, IDENTITY, TOKEN, port=standing.port)
    with pytest.raises(ExchangeError, match=f"port {standing.port} of 127.0.0.1 is in use"):
        second.start()


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_is_not_ours_is_named(store, host, port):
    with pytest.raises(ExchangeError, match=f"{port}"):
        PublisherServer(store, IDENTITY, TOKEN, host, port).start()


def test_it_listens_on_loopback_and_stops_and_starts_again(store):
    server = PublisherServer(store, IDENTITY, TOKEN)
    server.start()
    assert server.host == "127.0.0.1"
    assert ask(server, "identity").status_code == 200
    server.stop()
    with pytest.raises(httpx.ConnectError):
        ask(server, "identity")
    with server:
        assert ask(server, "identity").status_code == 200


def test_stopping_does_not_wait_for_a_reader_that_does_not_read(store):
    publish(store, 0, size=30_000_000)
    with (
        PublisherServer(store, IDENTITY, TOKEN) as server,
        socket.create_connection(("127.0.0.1", server.port)) as peer,
    ):
        peer.sendall(f"GET /l2h/v1/snapshots/1?kind=weights HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n"
                     "Host: x\r\n\r\n".encode())  # fmt: skip
        assert peer.recv(100).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("token", ["", "with space", "line\nbreak", "ümlaut"])
def test_a_token_that_keeps_nobody_out_is_refused(store, token):
    with pytest.raises(ExchangeError, match="token"):
        PublisherServer(store, IDENTITY, token)


@pytest.mark.parametrize("identity", [{"classes": 10}, {**IDENTITY, "more": object()}])
def test_an_identity_that_says_too_little_or_is_not_plain_is_refused(store, identity):
    with pytest.raises(ExchangeError, match="identity"):
        PublisherServer(store, identity, TOKEN)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_named_with_what_installs_it(tmp_path, monkeypatch, package):
    for name in list(sys.modules):
        if name.split(".")[0] == package or name == "l2h.training.exchange.app":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[serve\]'"):
        PublisherServer(SnapshotStore(tmp_path), IDENTITY, TOKEN).start()
