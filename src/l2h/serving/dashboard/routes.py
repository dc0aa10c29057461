"""The paths for people, and those below ``/dashboard``: who may see them, and what they answer."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import orjson

import l2h
from l2h.serving.dashboard.data import DashboardData
from l2h.serving.dashboard.login import Logins
from l2h.serving.dashboard.pages import PRIVATE, Page, dashboard_page, docs_page, error_page, login_page, welcome_page
from l2h.serving.dashboard.ring import SPANS
from l2h.serving.errors import GoneError, KeyStoreError, LedgerError, RefusalError, malformed
from l2h.serving.http.body import BodyReader
from l2h.serving.http.exchange import HUNG_UP, JSON, Exchange, Header, Receive, Scope, require_method
from l2h.serving.process.service import Service

PATH = "/dashboard"
#: Bytes of the login form.
_FORM = 4096
#: The reason why somebody who has not logged in is refused.
_NOBODY = "no_login"


def page_for_people(service: Service, method: str, path: str, accept: bytes) -> Page | None:
    """Return the page at ``/`` or ``/docs``; None for other paths, and for programs that ask for ``/``."""
    if method not in ("GET", "HEAD"):
        return None
    if path == "/docs":
        return docs_page()
    if path == "/" and b"text/html" in accept:
        model, keys = service.current.model, service.accounts.keys is not None
        return welcome_page(model.name, model.version, l2h.__version__, dashboard=service.config.dashboard, keys=keys)
    return None


class Dashboard:
    """Answers every request below ``/dashboard`` of a worker."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._data = DashboardData(service)
        self._logins = Logins(service.config, service.accounts.keys, service.inherited_logins)
        #: What gives the JSON of a path, in another thread, from the query.
        self._routes: dict[str, Callable[[dict[str, list[str]]], Any]] = {
            f"{PATH}/data": self._overview,
            f"{PATH}/devices": lambda query: self._data.devices(),
        }

    async def answer(self, scope: Scope, exchange: Exchange, receive: Receive) -> int:
        """Answer a request; return the status. What is refused is a page where somebody reads it."""
        try:
            return await self._answer(scope, exchange, receive)
        except GoneError:
            return HUNG_UP
        except RefusalError as refusal:
            if b"text/html" not in exchange.headers.get(b"accept", b""):
                raise
            form = self._logins.keys is not None and refusal.status in (401, 403, 429)
            shown = login_page if form else error_page
            message = "" if refusal.reason == _NOBODY else refusal.sentence  # they have only just come
            await exchange.refuse(refusal, shown(self._service.current.model.name, message))
            exchange.noted["reason"] = refusal.reason
            return refusal.status

    async def _answer(self, scope: Scope, exchange: Exchange, receive: Receive) -> int:
        method, path, peer = scope["method"], scope["path"].rstrip("/"), (scope["client"] or ("",))[0]
        exchange.noted["address"] = peer
        await asyncio.to_thread(self._logins.refresh)
        if path == f"{PATH}/login" and method in ("GET", "HEAD"):
            return await self._redirect(exchange)
        if path == f"{PATH}/login" and self._logins.keys is not None:
            require_method(method, "POST", path)
            cookie = self._logins.enter(await self._read_key(exchange, receive), exchange.headers, peer)
            return await self._redirect(exchange, cookie)
        key = self._logins.find(exchange.headers, peer)
        if path == f"{PATH}/logout":
            require_method(method, "POST", path)
            return await self._redirect(exchange, self._logins.leave(exchange.headers))
        if key is None:
            raise RefusalError(401, "log in at /dashboard, or send `Authorization: Bearer KEY`", _NOBODY)
        require_method(method, "GET", path)
        exchange.noted["key"] = key.id
        try:
            content = await self._content(path, scope["query_string"])
        except (LedgerError, KeyStoreError) as error:
            raise RefusalError(503, str(error), "ledger", 1.0) from error
        await exchange.answer(200, *content)
        return 200

    def quiet(self, path: str, status: int) -> bool:
        """Return whether the log leaves out an answer: the page asks for its numbers every second."""
        return status == 200 and path in self._routes

    async def _content(self, path: str, query: bytes) -> Page:
        """Body and headers for those who may see them."""
        if path == PATH:
            return dashboard_page(self._service.current.model.name, logged_in=self._logins.keys is not None)
        if path == f"{PATH}/ledger.csv":
            kind = [
                (b"content-type", b"text/csv; charset=utf-8"),
                (b"content-disposition", b'attachment; filename="ledger.csv"'),
            ]
            return await asyncio.to_thread(self._data.ledger_csv), [*kind, *PRIVATE.items()]
        if path not in self._routes:
            raise RefusalError(404, f"there is nothing at {path[:100]}", "no_path")
        values = await asyncio.to_thread(self._routes[path], parse_qs(query.decode("latin-1")))
        return orjson.dumps(values), [JSON, *PRIVATE.items()]

    async def _read_key(self, exchange: Exchange, receive: Receive) -> str:
        """The key of the login form."""
        length = exchange.headers.get(b"content-length")
        if length is None or int(length) > _FORM:
            raise RefusalError(413, f"the form has a Content-Length of at most {_FORM}", "too_large")
        with BodyReader(self._service) as reader:
            try:
                form = parse_qs(bytes(await reader.read(receive, length)).decode("latin-1"), max_num_fields=8)
            except ValueError as error:
                raise malformed(f"the form cannot be read: {error}") from error
        return form.get("key", [""])[0]

    async def _redirect(self, exchange: Exchange, *cookies: Header) -> int:
        """Lead back to the page."""
        await exchange.answer(303, b"", [(b"location", PATH.encode()), *cookies, *PRIVATE.items()])
        return 303

    def _overview(self, query: dict[str, list[str]]) -> dict[str, Any]:
        span = query.get("span", ["minute"])[0]
        if span not in SPANS:
            raise malformed(f"no span {span[:40]!r}: one of {', '.join(SPANS)}")
        return self._data.overview(span)
