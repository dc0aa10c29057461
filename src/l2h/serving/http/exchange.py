"""One request and its answer: its id, whose it is, the headers of every answer, and its line in the log."""

import hashlib
import hmac
import itertools
import json
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from l2h.fleet import HEADER
from l2h.serving.accounts.key import ANONYMOUS, ID_LENGTH, PREFIX, Key
from l2h.serving.accounts.store import KeyStore
from l2h.serving.errors import RefusalError
from l2h.serving.process.service import Service
from l2h.serving.process.tracing import RequestSpan

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
#: What the log says of a peer that hung up; it is never sent.
HUNG_UP = 499
_CLOSE = (b"connection", b"close")
_DEVICE = HEADER.lower().encode()
_PRINTABLE = re.compile(rb"[\x21-\x7e]{1,128}")
_CHALLENGE = ((b"www-authenticate", b'Bearer realm="l2h"'),)
_START = f"bearer {PREFIX}_".encode()
_NO_HASH = "0" * 64
_prefix = secrets.token_hex(8)
_numbers = itertools.count(1)


class Exchange:
    """A request, by ASGI's ``scope``, and its answer, by ASGI's ``send``."""

    __slots__ = (
        *("_echo", "_send", "_service", "_start", "headers", "key", "noted", "request_id", "spare", "state"),
        *("told", "trace"),
    )

    def __init__(self, service: Service, scope: Scope, send: Send) -> None:
        self._start = time.monotonic()
        self._service, self._send = service, send
        self.state: dict[str, Any] = scope["state"]  # read by the connection, see :mod:`l2h.connections`
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(self.headers) < len(scope["headers"]):
            self.headers = _joined(scope["headers"])
        self.request_id = clean_id(self.headers.get(b"x-request-id")) or f"{_prefix}-{next(_numbers):x}"
        self._echo = (b"x-request-id", self.request_id.encode())
        self.spare: float | None = None  # what the store said of the key's rate
        self.key: Key | None = None  # whose it is, once that is known
        self.trace: RequestSpan | None = None
        self.told: tuple[Header, ...] = ()  # headers of a good answer that only this request gets
        #: What the log will say of the request, beside its status and its time.
        self.noted: dict[str, Any] = {"request_id": self.request_id}

    def seconds(self) -> float:
        """Return the time since the request came."""
        return time.monotonic() - self._start

    def hear_device(self, key: Key) -> str | None:
        """Take the report of the device that asks, if it sent one; return what became of it."""
        value = self.headers.get(_DEVICE)
        if value is None:
            return None
        result, device, latest = self._service.devices.take(key, value)
        self._service.metrics.device_reports.labels(result).inc()
        self.noted |= {"device": device or None, "report": result}
        if result == "stale":
            self.told = ((_DEVICE, b"%d" % latest),)
        return result

    async def answer(self, status: int, body: bytes, headers: Sequence[Header], more: Sequence[Header] = ()) -> None:
        """Send the whole answer; ``more`` headers come after the request's id."""
        closing = (_CLOSE,) if self._service.draining else ()
        whole = [*headers, self._echo, *more, *closing, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": whole})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: RefusalError, page: tuple[bytes, list[Header]] | None = None) -> None:
        """Send an error as the answer: as JSON, or as a page with its headers."""
        more = [*refusal.headers, (b"l2h-reason", refusal.reason.encode())]
        if refusal.retry_after is not None:  # in whole seconds from 1
            more.append((b"retry-after", b"%d" % max(1, math.ceil(min(refusal.retry_after, 10**9)))))
        body, headers = page or (json.dumps({"error": refusal.sentence}).encode(), [JSON])
        await self.answer(refusal.status, body, headers, more)

    def log(self, status: int, seconds: float | None = None, **fields: Any) -> None:
        """Write the request's line in the log, if such lines are wanted, and end its trace, if it has one."""
        seconds = self.seconds() if seconds is None else seconds
        if self.trace is not None:
            self.trace.end(self._start + seconds, status, {**self.noted, **fields})
            fields["trace_id"] = self.trace.trace_id
        if self._service.config.log_requests:
            ms = round(seconds * 1e3, 2)
            self._service.log.put_request({**self.noted, "status": status, "ms": ms, **fields})


def _joined(headers: Iterable[Header]) -> dict[bytes, bytes]:
    """The values by their names; those of a repeated header are one list, as HTTP has it, and so no key and no id."""
    values: dict[bytes, bytes] = {}
    for name, value in headers:
        values[name] = values[name] + b", " + value if name in values else value
    return values


def clean_id(value: bytes | None) -> str | None:
    """Return an id that was sent, if it has 1 to 128 printable ASCII characters without spaces; else None."""
    if value is None or _PRINTABLE.fullmatch(value) is None:
        return None
    return value.decode("ascii")


def authenticate(keys: KeyStore | None, authorization: bytes | None) -> Key:
    """Return the key of an ``Authorization`` header, compared in constant time; ANONYMOUS where none are asked for."""
    if keys is None:
        return ANONYMOUS
    if authorization is None:
        raise _unauthorised("no key: send the header `Authorization: Bearer KEY`", "no_key")
    if authorization[: len(_START)].lower() != _START:
        raise _unauthorised(
            "the Authorization header holds no key of this server: it reads `Bearer l2h_...`", "bad_key"
        )
    key = keys.find(authorization[len(_START) : len(_START) + ID_LENGTH].decode("latin-1"))
    text = authorization[len("bearer ") :]
    expected = _NO_HASH if key is None else key.sha256
    if not hmac.compare_digest(hashlib.sha256(text).hexdigest(), expected) or key is None:
        raise _unauthorised("the key is not one of this server's", "bad_key")
    if not key.enabled:
        raise RefusalError(403, "the key was revoked", "revoked")
    return key


def require_method(method: str, allowed: str, path: str) -> None:
    """Raise where a path does not take a method."""
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        also = "GET, HEAD" if allowed == "GET" else allowed
        raise RefusalError(405, f"{path[:100]} takes {also}", "method", headers=((b"allow", also.encode()),))


def _unauthorised(sentence: str, reason: str) -> RefusalError:
    return RefusalError(401, sentence, reason, headers=_CHALLENGE)
