"""The application: what answers which path. It is a plain ASGI callable, since the path to infer must cost little."""

import json
from collections.abc import Callable
from typing import Any

import l2h
from l2h import fleet
from l2h.serving.dashboard.routes import PATH, Dashboard, page_for_people
from l2h.serving.errors import RefusalError, malformed
from l2h.serving.http.exchange import JSON, Exchange, Header, Receive, Scope, Send, authenticate, require_method
from l2h.serving.http.infer import infer
from l2h.serving.http.openapi import document
from l2h.serving.process.metrics import CONTENT_TYPE
from l2h.serving.process.service import Service

#: What the server can do beyond the protocol's core, in the protocol's words.
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository"]
#: The method of a path, and what gives the value that it answers as JSON.
_Route = tuple[str, Callable[[], Any]]


class App:
    """Answers every request of a worker."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._dashboard = Dashboard(service) if service.config.dashboard else None
        self._routes: dict[str, _Route] = {
            "/v2": ("GET", lambda: {"name": "l2h", "version": l2h.__version__, "extensions": _EXTENSIONS}),
            "/v2/health/live": ("GET", lambda: {"live": True}),
            "/v2/health/ready": ("GET", lambda: self._if_ready({"ready": True})),
            "/v2/repository/index": ("POST", self._index),
            "/openapi.json": ("GET", self._openapi),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        exchange = Exchange(self._service, scope, send)
        if method == "POST" and path in self._service.current.infer_paths:
            await infer(self._service, exchange, path, receive)
            return
        exchange.noted |= {"method": method, "path": path[:200]}
        status = 200
        try:
            page = page_for_people(self._service, method, path, exchange.headers.get(b"accept", b""))
            if self._dashboard is not None and (path == PATH or path.startswith(f"{PATH}/")):
                status = await self._dashboard.answer(scope, exchange, receive)
            elif page is not None:
                await exchange.answer(status, *page)
            elif path == fleet.PATH:
                await exchange.answer(status, self._hear(method, exchange), [JSON], exchange.told)
            else:
                body, kind = self._answer(method, path, exchange.headers)
                await exchange.answer(status, body, [kind])
        except RefusalError as refusal:
            status = refusal.status
            await exchange.refuse(refusal)
        quiet = self._dashboard is not None and self._dashboard.quiet(path, status)
        if not quiet and not path.startswith("/v2/health/"):
            exchange.log(status)

    def _answer(self, method: str, path: str, headers: dict[bytes, bytes]) -> tuple[bytes, Header]:
        """Body and content type of any path but that of infer."""
        if path == "/metrics":
            require_method(method, "GET", path)
            return self._metrics(headers.get(b"authorization")), (b"content-type", CONTENT_TYPE)
        allowed, give = self._routes.get(path) or self._model_route(path)
        require_method(method, allowed, path)
        return json.dumps(give()).encode(), JSON

    def _hear(self, method: str, exchange: Exchange) -> bytes:
        """Take the report of a device that has nothing to ask."""
        require_method(method, "POST", fleet.PATH)
        key = authenticate(self._service.accounts.keys, exchange.headers.get(b"authorization"))
        exchange.noted |= {"key": key.id, "key_name": key.name}
        result = exchange.hear_device(key)
        if result is None or result == "malformed":
            raise malformed(f"send the header {fleet.HEADER} as l2h.EdgeClient(report=True) does: at most 512 bytes")
        if result == "foreign":
            sentence = f"another key has a device named {exchange.noted['device']!r}: choose another name"
            raise RefusalError(403, sentence, "not_yours")
        if result in ("crowded", "failed"):
            raise RefusalError(503, "the report cannot be kept now: the next one may", "devices", 60.0)
        return json.dumps({"taken": result == "taken"}).encode()

    def _model_route(self, path: str) -> _Route:
        model = self._service.current.model
        parts = path.split("/")
        if not path.startswith("/v2/models/"):
            raise _nothing_at(path)
        name, rest = parts[3], parts[4:]
        if name != model.name:
            raise RefusalError(404, f"there is no model {name[:60]!r}: this server has {model.name!r}", "no_model")
        if rest[:1] == ["versions"] and len(rest) > 1:
            if rest[1] != model.version:
                sentence = f"there is no version {rest[1][:60]!r} of {model.name!r}: it has {model.version!r}"
                raise RefusalError(404, sentence, "no_model")
            rest = rest[2:]
        routes: dict[tuple[str, ...], _Route] = {
            (): ("GET", model.metadata),
            ("ready",): ("GET", lambda: self._if_ready({"name": model.name, "ready": True})),
            ("config",): ("GET", lambda: model.config(self._service.config.batch_delay)),
            ("infer",): ("POST", dict),  # for other methods; a POST goes another way
        }
        if tuple(rest) not in routes:
            raise _nothing_at(path)
        return routes[tuple(rest)]

    def _if_ready(self, value: dict[str, Any]) -> dict[str, Any]:
        trouble = self._service.trouble
        if trouble is not None:
            raise RefusalError(503, f"not ready: {trouble}", "not_ready", 1.0)
        return value | self._service.degraded

    def _index(self) -> list[dict[str, str]]:
        model, trouble = self._service.current.model, self._service.trouble
        state = "READY" if trouble is None else "UNAVAILABLE"
        return [{"name": model.name, "version": model.version, "state": state, "reason": trouble or ""}]

    def _openapi(self) -> dict[str, Any]:
        with_keys = self._service.accounts.keys is not None
        return document(self._service.current.model, self._service.max_body, with_keys)

    def _metrics(self, authorization: bytes | None) -> bytes:
        keys = self._service.accounts.keys
        if keys is not None and not authenticate(keys, authorization).admin:
            raise RefusalError(403, "the metrics need a key made with `l2h keys add NAME --admin`", "no_admin")
        self._service.update_gauges()
        return self._service.metrics.text()


def _nothing_at(path: str) -> RefusalError:
    return RefusalError(404, f"there is nothing at {path[:100]}: /openapi.json says what there is", "no_path")
