"""Requests to a publisher that may answer anything, late, or never."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import httpx

from l2h.training.exchange.identity import DIGEST_HEADER, IDENTITY_HEADER, LATEST_HEADER, PREFIX
from l2h.training.exchange.snapshot import JSON_LIMIT, ExchangeError, Snapshot, SnapshotError, parse_object

_PUBLISHER_STATUSES = (200, 204, 206, 304, 404, 416)
_T = TypeVar("_T")


class FetchFailure(Exception):  # noqa: N818 - the fetcher counts it and tries again
    """Raised when an answer did not come, or is not what it should be; it is counted under ``reason``."""

    def __init__(self, reason: str, message: str, discard: bool = False) -> None:
        super().__init__(message)
        self.reason, self.discard = reason, discard  # discard: the unfinished download cannot be resumed


class FetchStopped(Exception):  # noqa: N818 - no error
    """Raised when the fetcher is being stopped."""


def check_url(url: str) -> str:
    """Return the address without a slash at its end; ExchangeError where no publisher's can look like this."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ExchangeError(f"{url!r} is not an address: {error}") from error
    usable = (
        parsed.scheme in ("http", "https") and bool(parsed.host) and (parsed.port is None or 0 < parsed.port < 65536)
    )
    # httpx drops a space before the port, and the port with it.
    if not usable or parsed.userinfo or parsed.query or parsed.fragment or any(c.isspace() for c in url):
        raise ExchangeError(f"{url!r} is not the address of a publisher: write http://HOST:PORT")
    return str(parsed).rstrip("/")


class PublisherConnection:
    """Sends requests to one publisher, from one thread.

    Every wait, for connecting or for the next piece of an answer, is bounded by ``timeout``, except the system's name
    look-up, and all waits for the head of an answer together by twice that. A request raises :class:`FetchFailure` when
    it fails, and :class:`FetchStopped` when ``stopping`` is set.
    ``count_bytes`` is told of the bytes of heads and bodies that move, in both directions, as HTTP/1.1 writes them;
    what lies below (TLS, TCP) is not counted.
    """

    def __init__(
        self, url: str, token: str, timeout: float, stopping: threading.Event, count_bytes: Callable[[int], None]
    ) -> None:
        self.saved = 0  # bytes added to downloads
        self.verified: str | None = None  # the digest of the verified identity; an answer under another is not used
        self._timeout, self._stopping, self._count_bytes = timeout, stopping, count_bytes
        self._socket: socket.socket | None = None
        # The link is between two hosts: no proxy from the environment, no redirect, no compression.
        self._client = httpx.Client(
            base_url=url + PREFIX,
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity", "User-Agent": "l2h"},
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
            verify=ssl.create_default_context() if url.startswith("https:") else False,
            limits=httpx.Limits(max_connections=1),
        )

    def identity(self) -> tuple[dict[str, Any], str]:
        """Return the identity that the publisher states, and the digest to expect on its other answers."""
        self.verified = None
        with self._get("/identity", (200,)) as response:
            return self._read_json(response, parse_object), response.headers[DIGEST_HEADER]

    def latest(self, kind: str, after: int) -> Snapshot | None:
        """Return the newest manifest, or None when there is none newer than ``after``."""
        with self._get("/snapshots/latest", (200, 204, 304), params={"kind": kind, "after": str(after)}) as response:
            if response.status_code == 304:
                newest = response.headers.get(LATEST_HEADER, "")
                if newest.isdecimal() and len(newest) < 16 and int(newest) < after:
                    raise FetchFailure(
                        "older", f"the publisher's newest version is {newest}, ours of its run is {after}"
                    )
            return self._read_json(response, Snapshot.from_json) if response.status_code == 200 else None

    def download(self, snapshot: Snapshot, part: Path) -> None:
        """Fetch the bytes of a snapshot into ``part``, resuming after the bytes that it holds."""
        have = part.stat().st_size if part.exists() else 0
        if have == snapshot.size:
            return
        etag = f'"{snapshot.sha256}"'
        headers = {"Range": f"bytes={have}-", "If-Range": etag} if have else {}
        path, params = f"/snapshots/{snapshot.version}", {"kind": snapshot.kind}
        with self._get(path, (200, 206, 404), params=params, headers=headers) as response:
            if response.status_code == 404:
                raise FetchFailure("gone", f"version {snapshot.version} is no longer offered", discard=True)
            if response.headers.get("etag") != etag:
                raise FetchFailure("damaged", f"version {snapshot.version} has other bytes now", discard=True)
            if response.status_code == 200:
                have = 0
            elif response.headers.get("content-range") != f"bytes {have}-{snapshot.size - 1}/{snapshot.size}":
                raise FetchFailure("protocol", "the publisher did not resume where it was asked to", discard=True)
            # Unbuffered: what has arrived outlives a kill.
            with part.open("ab" if have else "wb", buffering=0) as file:
                for chunk in self._chunks(response):
                    have += len(chunk)
                    if have > snapshot.size:
                        raise FetchFailure("damaged", f"more than the {snapshot.size} bytes announced", discard=True)
                    file.write(chunk)
                    self.saved += len(chunk)
        if have < snapshot.size:
            raise FetchFailure("cut", f"the answer ended after {have} of {snapshot.size} bytes")

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _get(self, path: str, expected: tuple[int, ...], **request: Any) -> Iterator[httpx.Response]:
        if self._stopping.is_set():
            raise FetchStopped
        # Answers that are not final (1xx) may come for ever before the one that is.
        watch = threading.Timer(2 * self._timeout, self._cut)
        watch.daemon = True
        watch.start()
        try:
            with self._client.stream("GET", path, extensions={"trace": self._trace}, **request) as response:
                watch.cancel()
                self._count_bytes(_head_bytes(response))
                self._check_head(response, expected)
                yield response
        except httpx.TimeoutException as error:
            raise FetchFailure("timeout", f"no answer within {self._timeout:g} s") from error
        except httpx.ConnectError as error:
            raise FetchFailure("connect", f"cannot connect: {error}") from error
        except httpx.TransportError as error:
            raise FetchFailure("cut", f"the connection broke: {error}") from error
        except httpx.HTTPError as error:
            raise FetchFailure("protocol", f"not an answer: {error}") from error
        finally:
            watch.cancel()

    def _trace(self, event: str, details: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = details["return_value"].get_extra_info("socket")

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _check_head(self, response: httpx.Response, expected: tuple[int, ...]) -> None:
        """Raise :class:`FetchFailure` unless the head is the verified publisher's, with an expected status."""
        status = response.status_code
        if status == 401:
            raise FetchFailure("refused", "the publisher refused the token: give both sides the same one")
        if status not in _PUBLISHER_STATUSES:
            raise FetchFailure("status", f"the answer was {status}; redirects are not followed")
        digest = response.headers.get(IDENTITY_HEADER)
        if digest is None or "content-encoding" in response.headers:
            raise FetchFailure("protocol", f"an answer of status {status} that is not a publisher's: check the address")
        if self.verified is not None and digest != self.verified:
            self.verified = None
            raise FetchFailure("restarted", "another publisher answers at this address: asking who it is")
        if status not in expected:
            raise FetchFailure("status", f"an unexpected answer of status {status}", discard=True)

    def _read_json(self, response: httpx.Response, parse: Callable[[bytes], _T]) -> _T:
        """Read and parse a short body, and make sure that it was not changed on its way."""
        deadline, body = time.monotonic() + 2 * self._timeout, b""
        for chunk in self._chunks(response):
            body += chunk
            if len(body) > JSON_LIMIT:
                raise FetchFailure("protocol", f"a manifest of more than {JSON_LIMIT} bytes")
            if time.monotonic() > deadline:
                raise FetchFailure("timeout", f"a manifest that took more than {2 * self._timeout:g} s")
        if response.headers.get(DIGEST_HEADER) != sha256(body).hexdigest():
            raise FetchFailure("damaged", "a manifest or identity that was changed on its way, or is not a publisher's")
        try:
            return parse(body)
        except SnapshotError as error:
            raise FetchFailure("protocol", str(error)) from error

    def _chunks(self, response: httpx.Response) -> Iterator[bytes]:
        for chunk in response.iter_raw():
            self._count_bytes(len(chunk))
            if self._stopping.is_set():
                raise FetchStopped
            yield chunk


def _head_bytes(response: httpx.Response) -> int:
    """Return the bytes of a request's and its answer's head: first lines, and headers with colon, blank, line end."""
    request = response.request
    lines = [*request.headers.raw, *response.headers.raw]
    first = len(request.method) + len(request.url.raw_path) + 12 + len("HTTP/1.1 200 OK\r\n") + 4
    return first + sum(len(name) + len(value) + 4 for name, value in lines)
