"""The fetcher's side on the network: requests to a publisher that may answer anything, late, or never."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from l2h.training.exchange.errors import ExchangeError, SnapshotError
from l2h.training.exchange.identity import DIGEST_HEADER, IDENTITY_HEADER, LATEST_HEADER, PREFIX
from l2h.training.exchange.snapshot import JSON_LIMIT, Snapshot, parse_object

_ANSWERS = (200, 204, 206, 304, 404, 416)


class LinkFailure(Exception):  # noqa: N818 - an event on the link, not an error of the program
    """Something did not come as it should have.

    Attributes:
        reason: a word to count it under: connect, timeout, cut, refused, status, protocol, damaged, older, gone,
            restarted, too_large.
        spoiled: whether the download under way cannot be resumed.
    """

    def __init__(self, reason: str, message: str, spoiled: bool = False) -> None:
        super().__init__(message)
        self.reason, self.spoiled = reason, spoiled


class Stopping(Exception):  # noqa: N818 - no error
    """The fetcher is being stopped."""


def check_url(url: str) -> str:
    """The publisher's address without a slash at its end.

    Raises:
        ExchangeError: it is none that could be fetched from.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ExchangeError(f"{url!r} is no address: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query or parsed.fragment:
        raise ExchangeError(f"{url!r} is no publisher's address: write http://HOST:PORT")
    return str(parsed).rstrip("/")


class Peer:
    """One publisher, asked by one thread. Every wait is bounded by ``timeout``, save the system's name look-up.

    Args:
        url: as :func:`check_url` gives it.
        token: shared with the publisher.
        timeout: for connecting and between two pieces of an answer, in seconds.
        stopping: set when the requests should end.

    Attributes:
        moved: bytes of heads and bodies, both ways, as HTTP/1.1 writes them; what lies below (TLS, TCP) is not counted.
        kept: bytes added to downloads.
        trusted: the digest of the identity that was verified; an answer under another one is not used.
    """

    def __init__(self, url: str, token: str, timeout: float, stopping: threading.Event) -> None:
        self.moved = 0
        self.kept = 0
        self.trusted: str | None = None
        self._timeout, self._stopping = timeout, stopping
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
        """Who the publisher says it is, and the digest to expect on its other answers."""
        self.trusted = None
        with self._get("/identity") as response:
            _expect(response, 200)
            return self._object(response), response.headers[DIGEST_HEADER]

    def latest(self, kind: str, after: int) -> Snapshot | None:
        """The newest manifest; None when there is none newer than ``after``."""
        with self._get("/snapshots/latest", {"kind": kind, "after": str(after)}) as response:
            if response.status_code == 304:
                newest = response.headers.get(LATEST_HEADER, "")
                if newest.isdecimal() and len(newest) < 16 and int(newest) < after:
                    raise LinkFailure(
                        "older", f"the publisher's newest version is {newest}, ours of its run is {after}"
                    )
                return None
            if response.status_code == 204:
                return None
            _expect(response, 200)
            values = self._body(response)
        try:
            return Snapshot.from_json(values)
        except SnapshotError as error:
            raise LinkFailure("protocol", str(error)) from error

    def download(self, snapshot: Snapshot, part: Path) -> None:
        """Bring ``part`` to the size of the snapshot, going on from what it holds."""
        have = part.stat().st_size if part.exists() else 0
        if have == snapshot.size:
            return
        etag = f'"{snapshot.sha256}"'
        headers = {"Range": f"bytes={have}-", "If-Range": etag} if have else {}
        with self._get(f"/snapshots/{snapshot.version}", {"kind": snapshot.kind}, headers) as response:
            if response.status_code == 404:
                raise LinkFailure("gone", f"version {snapshot.version} is no longer offered", spoiled=True)
            _expect(response, 200, 206)
            if response.headers.get("etag") != etag:
                raise LinkFailure("damaged", f"version {snapshot.version} is other bytes now", spoiled=True)
            if response.status_code == 200:
                have = 0
            elif response.headers.get("content-range") != f"bytes {have}-{snapshot.size - 1}/{snapshot.size}":
                raise LinkFailure("protocol", "the publisher resumed elsewhere than it was asked to", spoiled=True)
            # Unbuffered: what has arrived outlives a kill.
            with part.open("ab" if have else "wb", buffering=0) as file:
                for chunk in self._chunks(response):
                    have += len(chunk)
                    if have > snapshot.size:
                        raise LinkFailure("damaged", f"more than the {snapshot.size} bytes announced", spoiled=True)
                    file.write(chunk)
                    self.kept += len(chunk)
        if have < snapshot.size:
            raise LinkFailure("cut", f"the answer ended after {have} of {snapshot.size} bytes")

    @contextmanager
    def _get(
        self, path: str, params: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        if self._stopping.is_set():
            raise Stopping
        try:
            with self._client.stream("GET", path, params=params, headers=headers) as response:
                self.moved += _head_bytes(response)
                self._check(response)
                yield response
        except httpx.TimeoutException as error:
            raise LinkFailure("timeout", f"no answer within {self._timeout:g} s") from error
        except httpx.ConnectError as error:
            raise LinkFailure("connect", f"cannot connect: {error}") from error
        except httpx.TransportError as error:
            raise LinkFailure("cut", f"the connection broke: {error}") from error
        except httpx.HTTPError as error:
            raise LinkFailure("protocol", f"not an answer: {error}") from error

    def _check(self, response: httpx.Response) -> None:
        """Whether the head of an answer can be a publisher's, and is the one's that was verified."""
        status = response.status_code
        if status == 401:
            raise LinkFailure("refused", "the publisher refused the token: give both sides the same one")
        if status not in _ANSWERS:
            raise LinkFailure("status", f"the answer was {status}; redirects are not followed")
        digest = response.headers.get(IDENTITY_HEADER)
        if digest is None or "content-encoding" in response.headers:
            raise LinkFailure("protocol", f"an answer of status {status} that is not a publisher's: check the address")
        if self.trusted is not None and digest != self.trusted:
            self.trusted = None
            raise LinkFailure("restarted", "another publisher answers at this address: asking who it is")

    def _object(self, response: httpx.Response) -> dict[str, Any]:
        try:
            return parse_object(self._body(response))
        except SnapshotError as error:
            raise LinkFailure("protocol", str(error)) from error

    def _body(self, response: httpx.Response) -> bytes:
        """A short body, whole and as it was sent."""
        deadline, body = time.monotonic() + 2 * self._timeout, b""
        for chunk in self._chunks(response):
            body += chunk
            if len(body) > JSON_LIMIT:
                raise LinkFailure("protocol", f"a manifest of more than {JSON_LIMIT} bytes")
            if time.monotonic() > deadline:
                raise LinkFailure("timeout", f"a manifest that took more than {2 * self._timeout:g} s")
        if response.headers.get(DIGEST_HEADER) != sha256(body).hexdigest():
            raise LinkFailure("damaged", "a manifest or an identity that was changed on its way, or is none")
        return body

    def _chunks(self, response: httpx.Response) -> Iterator[bytes]:
        for chunk in response.iter_raw():
            self.moved += len(chunk)
            if self._stopping.is_set():
                raise Stopping
            yield chunk

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


def _expect(response: httpx.Response, *statuses: int) -> None:
    if response.status_code not in statuses:
        raise LinkFailure("status", f"an answer of status {response.status_code} where it has no place", spoiled=True)


def _head_bytes(response: httpx.Response) -> int:
    """The heads of a request and its answer: the first lines, and each header with its colon, blank and line end."""
    request = response.request
    lines = [*request.headers.raw, *response.headers.raw]
    first = len(request.method) + len(request.url.raw_path) + 12 + len("HTTP/1.1 200 OK\r\n") + 4
    return first + sum(len(name) + len(value) + 4 for name, value in lines)
