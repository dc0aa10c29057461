"""The publisher's HTTP application and its server. Imported only when needed: starlette and uvicorn are optional."""

import asyncio
import hmac
import json
import logging
import re
import socket
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, BinaryIO

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from l2h.connections import bounded
from l2h.training.exchange.identity import DIGEST_HEADER, IDENTITY_HEADER, LATEST_HEADER, PREFIX
from l2h.training.exchange.snapshot import KINDS
from l2h.training.exchange.store import SnapshotStore

log = logging.getLogger("l2h.training.exchange")

#: A receiver that takes less than this within the idle timeout is cut off, and resumes its download.
_CHUNK = 256 * 1024
#: Connections in all and of one address, each with a descriptor or two; few beside the 1024 that a process may have.
_CONNECTIONS, _PER_ADDRESS = 64, 32
#: Seconds without a request, for the headers of one, and without a byte taken of an answer.
_IDLE = 30.0
#: Seconds between two connections that are accepted, and after one that could not be.
_PACE, _AFTER_ERROR = 0.01, 1.0
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})?")
_NUMBER = re.compile(r"\d{1,15}")


def build_app(store: SnapshotStore, identity: Mapping[str, Any], token: str) -> Starlette:
    """Return the application that :class:`l2h.training.exchange.PublisherServer` describes, for an identity as sent."""
    stated = json.dumps(identity, sort_keys=True).encode()

    async def send_identity(request: Request) -> Response:
        return _json(stated)

    async def send_latest(request: Request) -> Response:
        kind, after = request.query_params.get("kind"), request.query_params.get("after", "0")
        if kind not in KINDS or not _NUMBER.fullmatch(after):
            return PlainTextResponse("kind must be weights or answers, after a version\n", 400)
        newest = store.latest(kind)
        if newest is None:
            return Response(status_code=204)
        if newest.version <= int(after):
            return Response(status_code=304, headers={LATEST_HEADER: str(newest.version)})
        return _json(newest.to_json())

    async def send_snapshot(request: Request) -> Response:
        kind, version = request.query_params.get("kind"), request.path_params["version"]
        if kind not in KINDS or not _NUMBER.fullmatch(version):
            return PlainTextResponse("no such snapshot\n", 404)
        opened = store.open(kind, int(version))
        if opened is None:
            return PlainTextResponse("no such snapshot\n", 404)
        snapshot, file = opened
        etag = f'"{snapshot.sha256}"'
        first, last = _requested_range(request.headers, etag, snapshot.size)
        if first >= snapshot.size or last < first:
            file.close()
            return Response(status_code=416, headers={"content-range": f"bytes */{snapshot.size}"})
        headers = {"etag": etag, "accept-ranges": "bytes", "content-length": str(last - first + 1)}
        partial = "range" in request.headers and (first > 0 or last < snapshot.size - 1)
        if partial:
            headers["content-range"] = f"bytes {first}-{last}/{snapshot.size}"
        log.debug("sending kind=%s version=%d first=%d last=%d", kind, snapshot.version, first, last)
        return _FileSlice(file, first, last - first + 1, 206 if partial else 200, headers)

    routes = [
        Route(f"{PREFIX}/identity", send_identity),
        Route(f"{PREFIX}/snapshots/latest", send_latest),
        Route(f"{PREFIX}/snapshots/{{version}}", send_snapshot),
    ]
    guard = Middleware(_Guard, token=token, digest=sha256(stated).hexdigest())
    app = Starlette(routes=routes, middleware=[guard])
    app.router.redirect_slashes = False
    return app


def build_server(app: Starlette) -> uvicorn.Server:
    """Return a server for the application, with nothing in it that the publisher does not need.

    Strangers cost the training little: connections are few, accepted one at a time and not faster than a hundred per
    second, and those without the token give way to others.
    """
    logger = logging.getLogger("uvicorn")
    if not logger.handlers:  # keeps warnings of cut connections off the console, unless the program set up logging
        logger.addHandler(logging.NullHandler())
    config = uvicorn.Config(
        app,
        http=bounded(_CONNECTIONS, _IDLE, _PER_ADDRESS),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(_IDLE),
        timeout_graceful_shutdown=1,
    )
    return _PacedServer(config)


class _PacedServer(uvicorn.Server):
    """Accepts connections itself: asyncio would take all that wait at once, and with them every descriptor."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._accepting = [asyncio.create_task(self._accept(listener)) for listener in sockets or []]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                peer, _ = await loop.sock_accept(listener)
                await loop.connect_accepted_socket(self._connection, peer)
            except OSError as error:  # such as no descriptor left
                log.warning("a connection was not accepted: %s", error)
                await asyncio.sleep(_AFTER_ERROR)
            await asyncio.sleep(_PACE)

    def _connection(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state={})  # type: ignore[no-any-return]


class _Guard:
    """Middleware that refuses all but a GET with the token, and adds the identity's digest to every answer."""

    def __init__(self, app: ASGIApp, token: str, digest: str) -> None:
        self._app, self._expected, self._digest = app, sha256(f"Bearer {token}".encode()).digest(), digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        authorization = b", ".join(value for name, value in scope["headers"] if name == b"authorization")
        # In a time that does not depend on how much of the token is right.
        if not hmac.compare_digest(sha256(authorization).digest(), self._expected):
            # Closed, so that guessing is as slow as connections are accepted.
            refusal = PlainTextResponse("unauthorized\n", 401, {"www-authenticate": "Bearer", "connection": "close"})
            await refusal(scope, receive, send)
            return
        scope["state"]["known"] = True  # to the connection, which stays when those of strangers give way
        if scope["method"] != "GET":
            await Response(status_code=405, headers={"allow": "GET"})(scope, receive, send)
            return

        async def send_with_digest(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[IDENTITY_HEADER] = self._digest
            await send(message)

        await self._app(scope, receive, send_with_digest)


class _FileSlice(StreamingResponse):
    """Sends a part of an open file, read as fast as the receiver takes it, and closes the file in any case."""

    def __init__(self, file: BinaryIO, first: int, length: int, status: int, headers: Mapping[str, str]) -> None:
        chunks = iterate_in_threadpool(_chunks(file, first, length))
        super().__init__(chunks, status, headers, media_type="application/octet-stream")
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


def _chunks(file: BinaryIO, first: int, length: int) -> Iterator[bytes]:
    file.seek(first)
    while length > 0:
        chunk = file.read(min(_CHUNK, length))
        if not chunk:  # shorter than its manifest says: the receiver sees a cut connection
            return
        length -= len(chunk)
        yield chunk


def _requested_range(headers: Headers, etag: str, size: int) -> tuple[int, int]:
    """Return the first and the last byte to send; an unsupported form of Range means everything, as HTTP allows."""
    parsed = _RANGE.fullmatch(headers.get("range", ""))
    if parsed is None or headers.get("if-range", etag) != etag:
        return 0, size - 1
    return int(parsed[1]), min(int(parsed[2] or size), size - 1)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={DIGEST_HEADER: sha256(body).hexdigest()})
