"""Kept connections to one server, and one exchange over them with every size bounded."""

import importlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import anyio
import httpx

from l2h.edge import reasons
from l2h.edge.options import EdgeOptions
from l2h.edge.reasons import FaultError
from l2h.edge.stats import Recorder

#: Seconds that an idle connection is kept.
_KEEP_ALIVE = 30.0
#: Bytes that are read of an error's body.
_ERROR_BYTES = 1 << 13
#: After so many requests that were cut off the connections are replaced.
_MOST_CUTS = 16


class Attempt:
    """How far a request and its repeats got; what is known of a connection is that of the last one."""

    __slots__ = ("blamed", "fault", "fresh", "paused", "silent", "since")

    def __init__(self) -> None:
        self.since: float | None = None  # when it was first sent, or a connection was first opened for it
        self.paused = 0.0  # seconds of pauses between repeats
        self.blamed = False  # whether an earlier repeat failed because of the server or the network
        self._reset()

    def begin(self) -> None:
        """Note that it is about to be sent."""
        self.since = time.monotonic() if self.since is None else self.since
        self._reset()

    def waited(self) -> float:
        """Return the seconds that the server had for it by now."""
        return 0.0 if self.since is None else time.monotonic() - self.since - self.paused

    def _reset(self) -> None:
        self.fresh = False  # whether it opened a connection of its own
        self.silent = False  # whether it is under way and nothing has come back yet
        self.fault: FaultError | None = None  # what the answer's status says, should the rest never come

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Note what httpcore does; it calls this."""
        del info
        if event == "connection.connect_tcp.started":
            self.fresh = True


class _Connections:
    """A set of connections and how many requests use it."""

    __slots__ = ("client", "cuts", "retired", "users")

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client, self.users, self.cuts, self.retired = client, 0, 0, False


class ConnectionPool:
    """The connections to the server of ``options``. Everything here runs on one event loop, under a timeout."""

    def __init__(self, options: EdgeOptions, recorder: Recorder) -> None:
        self._options, self._recorder = options, recorder
        # Otherwise both would be loaded within the first request's deadline.
        self._current: _Connections | None = self._connect()
        with suppress(ImportError):
            importlib.import_module("anyio._backends._asyncio")

    async def exchange(
        self, method: str, path: str, *, most: int, body: bytes | None = None,
        headers: Mapping[str, str] | None = None, attempt: Attempt | None = None,
    ) -> tuple[httpx.Headers, bytes]:  # fmt: skip
        """Send a request and return the headers and body of its answer, of the status 200 and at most so many bytes.

        ``attempt`` notes how far the request got. A :class:`FaultError` says why no such answer came.
        """
        attempt = attempt or Attempt()
        attempt.begin()
        try:
            async with self._use() as client:
                url, extensions = f"{self._options.server}{path}", {"trace": attempt.trace}
                request = client.build_request(method, url, content=body, headers=headers, extensions=extensions)
                attempt.silent = True
                response = await client.send(request, stream=True)
                attempt.silent = False
                try:
                    return response.headers, await self._body(response, most, attempt)
                finally:
                    with anyio.CancelScope(shield=True):
                        await response.aclose()
        except httpx.RemoteProtocolError as error:
            # The words of h11 and httpcore for a connection that ends too early; anything else was no HTTP.
            if "disconnected" in str(error) or "closed connection" in str(error):
                raise reasons.broken(error, stale=not attempt.fresh) from error
            raise reasons.bad_answer(f"the answer is no HTTP: {error}") from error
        except (httpx.ReadError, httpx.WriteError) as error:
            raise reasons.broken(error, stale=not attempt.fresh) from error
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise reasons.broken(error) from error

    async def cut_off(self, attempt: Attempt) -> None:
        """Note a request that was given up, and replace the connections where they may be unusable.

        Where a kept connection fell silent, the others may have died with it. A request that is cut off at the wrong
        moment can also leave its connection behind in httpcore's pool, so a pool is replaced after some of them. A
        request that was never sent used no connection.
        """
        if self._current is not None and attempt.since is not None:
            self._current.cuts += 1
            if (attempt.silent and not attempt.fresh) or self._current.cuts >= _MOST_CUTS:
                await self.renew()

    async def renew(self) -> None:
        """Use none of the present connections for another request; they close after their last one."""
        retired, self._current = self._current, None
        if retired is not None:
            retired.retired = True
            if not retired.users:
                await retired.client.aclose()

    async def _body(self, response: httpx.Response, most: int, attempt: Attempt) -> bytes:
        status, headers = response.status_code, response.headers
        attempt.fault = reasons.for_status(status, headers, f"status {status}")
        if attempt.fault is not None:
            text = reasons.describe_status(status, await self._read(response, _ERROR_BYTES), self._options.key)
            raise reasons.for_status(status, headers, text) or attempt.fault
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise reasons.bad_answer("the answer is compressed, which was not asked for")
        body = await self._read(response, most)
        if len(body) > most:
            raise reasons.bad_answer(f"the answer is longer than {most} bytes")
        return body

    async def _read(self, response: httpx.Response, most: int) -> bytes:
        """Return the body as it came; reading stops with the first piece beyond ``most`` bytes."""
        size, pieces = 0, []
        async for piece in response.aiter_raw():
            size += len(piece)
            pieces.append(piece)
            self._recorder.received(len(piece))
            if size > most:
                break
        return b"".join(pieces)

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._current is None:
            self._current = self._connect()
        used = self._current
        used.users += 1
        try:
            yield used.client
        finally:
            used.users -= 1
            if used.retired and not used.users:
                with anyio.CancelScope(shield=True):
                    await used.client.aclose()

    def _connect(self) -> _Connections:
        options = self._options
        client = httpx.AsyncClient(
            headers=options.headers(),
            verify=False if options.tls is None else options.tls,
            timeout=None,  # the caller's timeout bounds the sum of all waits
            follow_redirects=False,
            trust_env=False,  # the link is between two hosts: no proxy from the environment
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            # The callers wait before they come here: a pool that queues can lose the place of a cancelled one.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=options.connections, keepalive_expiry=_KEEP_ALIVE
            ),
        )
        return _Connections(client)
