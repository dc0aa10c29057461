"""Kept connections to one server, and one exchange over them with every size bounded."""

import asyncio
import time
from collections.abc import Mapping

import h11
import httpx

from l2h.edge import reasons
from l2h.edge.connection import Connection
from l2h.edge.options import EdgeOptions
from l2h.edge.reasons import FaultError
from l2h.edge.stats import Recorder
from l2h.edge.tracing import RequestTrace
from l2h.metadata import describe_status, is_address

#: Seconds that an idle connection is kept.
_KEEP_ALIVE = 30.0
#: Seconds after which a connection to the host's next address is tried as well.
_NEXT_ADDRESS = 0.25
#: Bytes that are read of an error's body.
_ERROR_BYTES = 1 << 13


class Attempt:
    """How far a request and its repeats got; what is known of a connection is that of the last one."""

    __slots__ = ("blamed", "fault", "fresh", "paused", "repeats", "silent", "since", "trace")

    def __init__(self, trace: RequestTrace | None = None) -> None:
        self.trace, self.repeats = trace, 0
        self.since: float | None = None  # when it was first sent, or a connection was first opened for it
        self.paused = 0.0  # seconds of pauses between repeats
        self.blamed = False  # whether an earlier repeat failed because of the server or the network
        self._reset()

    def begin(self) -> None:
        """Note that it is about to be sent."""
        self.since = time.monotonic() if self.since is None else self.since
        self._reset()

    def end(self, reason: str | None = None, text: str = "") -> None:
        """Note that it is over, and why there is no answer, in its trace."""
        if self.trace is not None:
            self.trace.end(self.repeats, reason, text)

    def waited(self) -> float:
        """Return the seconds that the server had for it by now."""
        return 0.0 if self.since is None else time.monotonic() - self.since - self.paused

    def _reset(self) -> None:
        self.fresh = False  # whether it opened a connection of its own
        self.silent = False  # whether it is under way and nothing has come back yet
        self.fault: FaultError | None = None  # what the answer's status says, should the rest never come


class ConnectionPool:
    """The connections to the server of ``options``. Everything here runs on one event loop, under a timeout."""

    def __init__(self, options: EdgeOptions, recorder: Recorder) -> None:
        self._options, self._recorder = options, recorder
        self._url = httpx.URL("" if options.server is None or options.function is not None else options.server)
        self._headers = {"Host": self._url.netloc.decode("ascii"), "Accept": "*/*", **options.headers()}
        self._idle: list[tuple[Connection, float]] = []  # and since when

    async def exchange(
        self, method: str, path: str, *, most: int, body: bytes = b"",
        headers: Mapping[str, str] | None = None, attempt: Attempt | None = None,
    ) -> tuple[Mapping[str, str], bytes]:  # fmt: skip
        """Send a request and return the headers and body of its answer, of the status 200 and at most so many bytes.

        The names of the headers are in lower case. ``attempt`` notes how far the request got. A :class:`FaultError`
        says why no such answer came.
        """
        attempt = attempt or Attempt()
        attempt.begin()
        sized = {"Content-Length": str(len(body))} if method == "POST" else {}
        fields = list({**self._headers, **sized, **(headers or {})}.items())
        target = self._url.raw_path.rstrip(b"/") + path.encode("ascii")
        request = h11.Request(method=method, target=target, headers=fields)
        connection = None
        try:
            connection = self._take() or await self._connect(attempt)
            attempt.silent = True
            response = await connection.ask(request, body, most)
            attempt.silent = False
            return await self._read(connection, response, most, attempt)
        except h11.RemoteProtocolError as error:
            if connection is not None and connection.broken:
                raise reasons.broken(connection.error or error, stale=not attempt.fresh) from error
            raise reasons.bad_answer(f"the answer is no HTTP: {error}") from error
        except (OSError, UnicodeError) as error:
            raise reasons.broken(error, stale=not attempt.fresh) from error
        finally:
            if connection is not None and connection.finish():
                self._idle.append((connection, time.monotonic()))

    def drop_idle(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop()[0].abort()

    async def _read(
        self, connection: Connection, response: h11.Response, most: int, attempt: Attempt
    ) -> tuple[Mapping[str, str], bytes]:
        status = response.status_code
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in response.headers}
        attempt.fault = reasons.for_status(status, headers, f"status {status}")
        if attempt.fault is not None:
            error = await connection.read(_ERROR_BYTES)
            self._recorder.received(len(error))
            text = describe_status(status, error, self._options.key)
            raise reasons.for_status(status, headers, text) or attempt.fault
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise reasons.bad_answer("the answer is compressed, which was not asked for")
        body = await connection.read(most)
        self._recorder.received(len(body))
        if len(body) > most:
            raise reasons.bad_answer(f"the answer is longer than {most} bytes")
        return headers, body

    def _take(self) -> Connection | None:
        """Return the connection that was used last, closing those that were idle for too long."""
        oldest = time.monotonic() - _KEEP_ALIVE
        while self._idle:
            connection, since = self._idle.pop()
            if since < oldest:
                connection.abort()
                self.drop_idle()
            elif not connection.ended:
                return connection
        return None

    async def _connect(self, attempt: Attempt) -> Connection:
        attempt.fresh = True
        host, tls = self._url.raw_host.decode("ascii"), self._options.tls if self._url.scheme == "https" else None
        port = self._url.port or (443 if self._url.scheme == "https" else 80)
        # With a delay, Python 3.11 tries several addresses at a time, and keeps a connection that is cancelled at the
        # moment it is made open until the garbage collector runs. One address needs no delay.
        delay = None if is_address(host) else _NEXT_ADDRESS
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, host, port, ssl=tls, happy_eyeballs_delay=delay)
        return connection
