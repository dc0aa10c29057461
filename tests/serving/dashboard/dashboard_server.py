"""A server with a dashboard, and a person at it."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from urllib.parse import urlencode

from serving_process import Reply, Server
from waiting import STUCK

from l2h.serving.accounts import open_keys
from l2h.serving.accounts.key import Quota, Rate


def guarded_server(bundle: Path, folder: Path, **settings) -> Server:
    """Two workers, keys with a quota, with a rate and without either, and an admin's."""
    file = folder / "keys.json"
    keys = {}
    if not file.exists():
        store = open_keys(file)
        keys["phones"] = store.add("phones", quota=Quota.parse("40/day"))[1]
        keys["cameras"] = store.add("cameras", rate=Rate.parse("30/hour", burst=30))[1]
        keys["free"] = store.add("free")[1]
        keys["me"] = store.add("me", admin=True)[1]
    server = Server(bundle, folder, workers=2, keys=str(file), dashboard=True, **settings)
    server.keys, server.key_file = keys, file
    return server


def visit(server: Server, path: str, form: dict[str, str] | None = None, **headers: str) -> Reply:
    """Ask for a page over a connection of its own, as a browser does; with a form, send it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=STUCK)
    sent = {"Accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request("GET" if form is None else "POST", path, None if form is None else urlencode(form), sent)
    answer = connection.getresponse()
    reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    connection.close()
    return reply


def log_in(server: Server, key: str) -> str:
    """Log in by the form; the cookie."""
    reply = visit(server, "/dashboard/login", {"key": key})
    assert (reply.status, reply.headers["location"]) == (303, "/dashboard")
    return reply.headers["set-cookie"].partition(";")[0]


def numbers(server: Server, key: str, span: str = "minute") -> dict:
    """What the page shows."""
    status, body = server.get(f"/dashboard/data?span={span}", Authorization=f"Bearer {key}")
    assert status == 200
    return json.loads(body)


def metrics(server: Server, key: str, name: str, label: str) -> dict[str, int]:
    """A divided counter of /metrics, by its label."""
    text = server.get("/metrics", Authorization=f"Bearer {key}")[1].decode()
    return {found[1]: int(float(found[2])) for found in re.finditer(rf'{name}{{{label}="(.*?)"}} (\S+)', text)}
