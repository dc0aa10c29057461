"""The application: what answers which path. It is a plain ASGI callable, since the path to infer must cost little."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import l2h
from l2h.serving.errors import RefusalError
from l2h.serving.http.authentication import authenticate
from l2h.serving.http.exchange import JSON, Exchange, Header, Receive, Scope, Send
from l2h.serving.http.infer import infer
from l2h.serving.http.openapi import document
from l2h.serving.process.metrics import CONTENT_TYPE
from l2h.serving.process.service import Service

#: What the server can do beyond the protocol's core, in the protocol's words.
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository"]
#: Status, body, and the header that says what the body is.
Answer = tuple[int, bytes, Header]


class App:
    """Answers every request of a worker.

    Args:
        service: of this worker.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._plain: dict[str, tuple[str, Callable[[dict[bytes, bytes]], Answer]]] = {
            "/v2": ("GET", self._server),
            "/v2/health/live": ("GET", lambda headers: _json({"live": True})),
            "/v2/health/ready": ("GET", self._ready),
            "/v2/repository/index": ("POST", self._index),
            "/metrics": ("GET", self._metrics),
            "/openapi.json": ("GET", self._openapi),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        exchange = Exchange(self.service, scope, send)
        if method == "POST" and path in self.service.current.infer_paths:
            await infer(self.service, exchange, path, receive)
            return
        exchange.noted |= {"method": method, "path": path[:200]}
        try:
            status, body, kind = self._answer(method, path, exchange.headers)
            await exchange.answer(status, body, [kind])
        except RefusalError as refusal:
            status = refusal.status
            await exchange.refuse(refusal)
        if not path.startswith("/v2/health/"):
            exchange.log(status)

    def _answer(self, method: str, path: str, headers: dict[bytes, bytes]) -> Answer:
        """The answer of any path but that of infer."""
        if path in self._plain:
            allowed, handle = self._plain[path]
            _require_method(method, allowed, path)
            return handle(headers)
        parts = path.split("/")
        if path.startswith("/v2/models/") and len(parts) > 3:
            return self._model(method, path, parts[3], parts[4:])
        raise RefusalError(404, f"there is nothing at {path[:100]}: /openapi.json says what there is", "no_path")

    def _model(self, method: str, path: str, name: str, rest: list[str]) -> Answer:
        model = self.service.current.model
        if name != model.name:
            raise RefusalError(404, f"there is no model {name[:60]!r}: this server has {model.name!r}", "no_model")
        if rest[:1] == ["versions"] and len(rest) > 1:
            if rest[1] != model.version:
                sentence = f"there is no version {rest[1][:60]!r} of {model.name!r}: it has {model.version!r}"
                raise RefusalError(404, sentence, "no_model")
            rest = rest[2:]
        what = {
            (): model.metadata,
            ("ready",): lambda: {"name": model.name, "ready": True},
            ("config",): lambda: model.config(self.service.config.batch_delay),
            ("infer",): None,
        }
        if tuple(rest) not in what:
            raise RefusalError(404, f"there is nothing at {path[:100]}: /openapi.json says what there is", "no_path")
        handle = what[tuple(rest)]
        _require_method(method, "POST" if handle is None else "GET", path)
        assert handle is not None
        if rest == ["ready"]:
            self._require_ready()
        return _json(handle())

    def _server(self, headers: dict[bytes, bytes]) -> Answer:
        return _json({"name": "l2h", "version": l2h.__version__, "extensions": _EXTENSIONS})

    def _ready(self, headers: dict[bytes, bytes]) -> Answer:
        self._require_ready()
        return _json({"ready": True})

    def _require_ready(self) -> None:
        trouble = self.service.trouble
        if trouble is not None:
            raise RefusalError(503, f"not ready: {trouble}", "not_ready", 1.0)

    def _index(self, headers: dict[bytes, bytes]) -> Answer:
        model = self.service.current.model
        state = "READY" if self.service.trouble is None else "UNAVAILABLE"
        reason = self.service.trouble or ""
        return _json([{"name": model.name, "version": model.version, "state": state, "reason": reason}])

    def _metrics(self, headers: dict[bytes, bytes]) -> Answer:
        keys = self.service.accounts.keys
        if keys is not None and not authenticate(keys, headers.get(b"authorization")).admin:
            raise RefusalError(403, "the metrics need a key made with `l2h keys add NAME --admin`", "no_admin")
        self.service.update_gauges()
        return 200, self.service.metrics.text(), (b"content-type", CONTENT_TYPE)

    def _openapi(self, headers: dict[bytes, bytes]) -> Answer:
        with_keys = self.service.accounts.keys is not None
        return _json(document(self.service.current.model, self.service.max_body, with_keys))


def _require_method(method: str, allowed: str, path: str) -> None:
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        also = "GET, HEAD" if allowed == "GET" else allowed
        raise RefusalError(405, f"{path[:100]} takes {also}", "method", headers=((b"allow", also.encode()),))


def _json(value: Any) -> Answer:
    return 200, json.dumps(value).encode(), JSON
