"""A publisher that lies: nothing of it is used, and the thread goes on to the honest one that comes after it."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from contextlib import suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from exchange_maker import IDENTITY, TOKEN, arrives, fetcher_for, publish, whole
from fault_proxy import Fault, FaultProxy
from waiting import STUCK, until

from l2h.training.exchange import PublisherServer, SnapshotStore

STATED = json.dumps({**IDENTITY, "protocol": 1, "run": "rogue", "kinds": ["weights"]}).encode()
DIGEST = sha256(STATED).hexdigest()
DATA = b"d" * 5000


def answer(status, body, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"l2h-identity": DIGEST, "l2h-digest": sha256(body).hexdigest(), **named}, body


def manifest(**changes):
    values = {
        "schema": 1, "kind": "weights", "version": 5, "step": 1, "size": len(DATA), "meta": {}, "time": 1.0,
        "sha256": sha256(DATA).hexdigest(), **changes,
    }  # fmt: skip
    return answer(200, json.dumps(values).encode())


def with_head(status, body=DATA, **headers):
    return answer(status, body, etag=f'"{sha256(DATA).hexdigest()}"', **headers)


IDENTITY_ANSWER = answer(200, STATED)
BYTES = with_head(200)
FALSE_BYTES = answer(200, b"f" * len(DATA), etag=f'"{sha256(DATA).hexdigest()}"')

ROGUES = {
    "not JSON": ({"identity": answer(200, b"<html>")}, "protocol"),
    "a page of somebody else": ({"identity": (200, {}, b"<html>log in</html>")}, "protocol"),
    "a list": ({"identity": answer(200, b"[]")}, "protocol"),
    "nested without end": ({"identity": answer(200, b"[" * 100_000)}, "protocol"),
    "an endless identity": ({"identity": answer(200, b" " * (1 << 21))}, "protocol"),
    "a redirect": ({"identity": (302, {"location": "http://127.0.0.1:9/"}, b"")}, "status"),
    "a server error": ({"identity": (500, {}, b"oops")}, "status"),
    "another protocol": ({"identity": answer(200, STATED.replace(b'"protocol": 1', b'"protocol": 2'))}, "identity"),
    "a run that is none": ({"identity": answer(200, STATED.replace(b'"rogue"', b"null"))}, "identity"),
    "a manifest that is none": ({"latest": answer(200, b"{}")}, "protocol"),
    "a manifest changed on its way": ({"latest": answer(200, manifest()[2], l2h_digest="0")}, "damaged"),
    "a size beyond all bounds": ({"latest": manifest(size=10**15)}, "too_large"),
    "a size that is no number": ({"latest": manifest(size="5000")}, "protocol"),
    "a version that is no number": ({"latest": manifest(version=True)}, "protocol"),
    "a negative version": ({"latest": manifest(version=-1)}, "protocol"),
    "a path for a hash": ({"latest": manifest(sha256="../../etc/passwd")}, "protocol"),
    "NaN": ({"latest": manifest(time=float("nan"))}, "protocol"),
    "another kind": ({"latest": manifest(kind="answers")}, "protocol"),
    "another schema": ({"latest": manifest(schema=9)}, "protocol"),
    "bytes that are others": ({"latest": manifest(), "5": FALSE_BYTES}, "damaged"),
    "another etag": ({"latest": manifest(), "5": answer(200, DATA, etag='"x"')}, "damaged"),
    "nothing where a manifest was": ({"latest": manifest(), "5": answer(404, b"")}, "gone"),
    "204 for bytes": ({"latest": manifest(), "5": answer(204, b"")}, "status"),
    "206 unasked": ({"latest": manifest(), "5": with_head(206, content_range="bytes 9-4999/5000")}, "protocol"),
    "a length too long": ({"latest": manifest(), "5": with_head(200, DATA[:4000], content_length="9999")}, "cut"),
    "a length too short": ({"latest": manifest(), "5": with_head(200, content_length="4000")}, "cut"),
    "a length that is none": ({"latest": manifest(), "5": with_head(200, content_length="-4")}, "cut"),
    "too many bytes": ({"latest": manifest(size=4000), "5": BYTES}, "damaged"),
    "bytes of another publisher": ({"latest": manifest(), "5": with_head(200, l2h_identity="0" * 64)}, "restarted"),
    "compressed": ({"latest": manifest(), "5": with_head(200, content_encoding="gzip")}, "protocol"),
}  # fmt: skip


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """An honest publisher with one snapshot."""
    store = SnapshotStore(tmp_path_factory.mktemp("standing"))
    publish(store, 0, size=1000)
    with PublisherServer(store, IDENTITY, TOKEN) as running:
        yield running


@pytest.fixture
def rogue():
    """A server that answers what its ``answers`` say, by the last part of the path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.split("?")[0].rsplit("/", 1)[-1]
            status, headers, body = server.answers[name]
            self.send_response(status)
            for key, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ROGUES)
def test_nothing_of_a_liar_is_used_and_the_thread_lives_on(rogue, standing, tmp_path, name):
    lies, reason = ROGUES[name]
    rogue.answers = {"identity": IDENTITY_ANSWER, "latest": manifest(), "5": BYTES, **lies}
    proxy = FaultProxy(rogue.server_port)
    with fetcher_for(proxy.url, tmp_path / "copy", max_bytes=10**9) as fetcher:
        until(lambda: fetcher.status().failures.get(reason, 0) >= 2)
        assert fetcher.latest() is None
        assert fetcher.status().error
        proxy.target = standing.port
        proxy.use(Fault())
        until(fetcher.latest)
    proxy.close()
    assert fetcher.latest().version == 1
    assert whole(fetcher.latest())


def test_what_the_disk_has_no_room_for_is_not_fetched(rogue, tmp_path):
    """Nor what is within ``max_bytes``; the bytes are not even asked for."""
    free = shutil.disk_usage(tmp_path).free
    rogue.answers = {"identity": IDENTITY_ANSWER, "latest": manifest(size=free - (32 << 20))}
    bounds = {"max_bytes": 2 * free, "timeout": 10}
    with fetcher_for(f"http://127.0.0.1:{rogue.server_port}", tmp_path / "copy", **bounds) as fetcher:
        until(lambda: fetcher.status().failures.get("disk", 0) >= 2)
        assert "of the disk free" in fetcher.status().error
        assert fetcher.status().failures.keys() == {"disk"}
        assert not (tmp_path / "copy" / "weights.part").exists()
        rogue.answers = {**rogue.answers, "latest": manifest(), "5": BYTES}
        assert arrives(fetcher, 5).read() == DATA


def test_a_download_begun_under_wider_bounds_is_given_up(rogue, tmp_path):
    rogue.answers = {
        "identity": IDENTITY_ANSWER,
        "latest": manifest(),
        "5": with_head(200, DATA[:4000], content_length="5000"),
    }
    with fetcher_for(f"http://127.0.0.1:{rogue.server_port}", tmp_path / "copy") as fetcher:
        until(lambda: fetcher.status().failures.get("cut"))
    (tmp_path / "copy" / "weights.part").write_bytes(DATA[:4000])  # a further try may have begun again
    with fetcher_for(f"http://127.0.0.1:{rogue.server_port}", tmp_path / "copy", max_bytes=4500, timeout=10) as fetcher:
        until(lambda: fetcher.status().failures.get("too_large"))
        assert not (tmp_path / "copy" / "weights.part").exists()
        assert fetcher.status().failures.keys() == {"too_large"}


def test_an_older_version_is_refused_whoever_offers_it(rogue, tmp_path):
    rogue.answers = {"identity": IDENTITY_ANSWER, "latest": manifest(), "5": BYTES}
    with fetcher_for(f"http://127.0.0.1:{rogue.server_port}", tmp_path / "copy") as fetcher:
        assert arrives(fetcher, 5).read() == DATA
        for version in (4, 5):
            before = fetcher.status().failures.get("older", 0)
            rogue.answers = {**rogue.answers, "latest": manifest(version=version), str(version): BYTES}
            until(lambda: fetcher.status().failures.get("older", 0) >= before + 2)  # noqa: B023
        assert fetcher.latest().version == 5
        assert fetcher.status().syncs == 1


def test_answers_that_are_not_final_do_not_come_for_ever(standing, tmp_path):
    gone = threading.Event()

    def flood(listener):
        peer, _ = listener.accept()
        with peer, suppress(OSError):
            while True:
                peer.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
        gone.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=flood, args=(listener,), daemon=True).start()
        proxy = FaultProxy(listener.getsockname()[1])
        with fetcher_for(proxy.url, tmp_path / "copy", timeout=0.5) as fetcher:
            assert gone.wait(STUCK)
            until(lambda: fetcher.status().failures)
            proxy.target = standing.port
            until(fetcher.latest)
        proxy.close()


def test_the_token_goes_to_the_publisher_alone(rogue, tmp_path):
    asked = []
    rogue.answers = {"identity": (302, {"location": f"http://127.0.0.1:{rogue.server_port}/elsewhere"}, b""),
                     "elsewhere": (200, {}, b"")}  # fmt: skip
    real = rogue.RequestHandlerClass.do_GET

    def noting(self):
        asked.append((self.path, self.headers["Authorization"]))
        real(self)

    rogue.RequestHandlerClass.do_GET = noting
    with fetcher_for(f"http://127.0.0.1:{rogue.server_port}", tmp_path / "copy") as fetcher:
        until(lambda: fetcher.status().failures.get("status", 0) >= 3)
    assert set(asked) == {("/l2h/v1/identity", f"Bearer {TOKEN}")}
