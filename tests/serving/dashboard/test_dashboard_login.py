"""Who may see the dashboard, and who may not."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import time
from collections import Counter
from urllib.parse import urlencode

import pytest
from dashboard_server import guarded_server, log_in, visit
from serving_process import Server
from waiting import until

from l2h.errors import SettingsError
from l2h.serving.accounts import open_keys
from l2h.serving.dashboard.login import TRIES, Logins, prepare_logins
from l2h.serving.errors import KeyStoreError, RefusalError
from l2h.serving.process.config import ServingConfig

PATHS = ("/dashboard", "/dashboard/data", "/dashboard/devices", "/dashboard/ledger.csv", "/dashboard/none")


@pytest.fixture(scope="module")
def guarded(bundle, tmp_path_factory):
    with guarded_server(bundle, tmp_path_factory.mktemp("guarded")) as running:
        yield running


def test_nobody_sees_anything_before_the_login(guarded):
    for path in PATHS:
        reply = visit(guarded, path)
        assert reply.status == 401
        assert b'action="/dashboard/login"' in reply.body
        assert guarded.get(path)[0] == 401
    for key, status in (("", 401), ("x", 401), ("l2h_" + "0" * 12 + "_x", 401), (guarded.keys["phones"], 403)):
        reply = visit(guarded, "/dashboard/login", {"key": key})
        assert reply.status == status
        assert "set-cookie" not in reply.headers
        assert b"Authorization" not in reply.body  # of which somebody at a form knows nothing
        assert guarded.get("/dashboard/data", Authorization=f"Bearer {key}")[0] == status


def test_a_session_holds_at_every_worker_until_it_is_left_or_forged(guarded):
    cookie = log_in(guarded, guarded.keys["me"])
    for _ in range(8):  # each over a connection of its own
        assert visit(guarded, "/dashboard", Cookie=f"a=b; {cookie}").status == 200
    name, _, value = cookie.partition("=")
    expires, key_id, signature = value.split(".")
    phones = guarded.keys["phones"].split("_")[1]
    for forged in (
        f"{int(expires) + 1}.{key_id}.{signature}",
        f"{expires}.{phones}.{signature}",
        f"{expires}.{key_id}.{signature[:-1]}",
        f"{expires}.{key_id}.{'é' * 64}",
        "..",
        "",
    ):
        assert visit(guarded, "/dashboard", Cookie=f"{name}={forged}".encode().decode("latin-1")).status == 401
    reply = visit(guarded, "/dashboard/logout", {}, Cookie=cookie)
    assert (reply.status, "Max-Age=0" in reply.headers["set-cookie"]) == (303, True)


def test_forms_of_other_sites_are_refused(guarded):
    form = {"key": guarded.keys["me"]}
    for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        for path in ("/dashboard/login", "/dashboard/logout"):
            reply = visit(guarded, path, form, Cookie=log_in(guarded, form["key"]), **headers)
            assert (reply.status, reply.headers["l2h-reason"]) == (403, "other_site")
            assert "set-cookie" not in reply.headers
    assert visit(guarded, "/dashboard/login", form, Origin=guarded.url).status == 303
    assert visit(guarded, "/dashboard/logout").status == 405  # a link does not log out


def test_a_key_that_is_revoked_ends_its_sessions(guarded):
    _, text = open_keys(guarded.key_file).add("guest", admin=True)
    with_key = {"Authorization": f"Bearer {text}"}
    until(lambda: {guarded.get("/dashboard/data", **with_key)[0] for _ in range(8)} == {200})
    cookie = log_in(guarded, text)
    open_keys(guarded.key_file).change("guest", enabled=False)
    until(lambda: {visit(guarded, "/dashboard/data", Cookie=cookie).status for _ in range(8)} == {401})
    assert guarded.get("/dashboard/data", **with_key)[0] == 403


def test_without_keys_only_this_machine_sees_it(bundle, tmp_path, x):
    with Server(bundle, tmp_path, dashboard=True, host="0.0.0.0", open=True) as server:
        assert visit(server, "/dashboard").status == visit(server, "/dashboard/data").status == 200
        assert visit(server, "/dashboard", Host="localhost:8080").status == 200
        for headers in ({"Host": "evil.example"}, {"X_Forwarded_For": "10.0.0.1"}, {"Forwarded": "for=10.0.0.1"}):
            reply = visit(server, "/dashboard/data", **headers)
            assert (reply.status, reply.headers["l2h-reason"]) == (403, "not_local")
        server.ledger.rename(tmp_path / "moved")
        assert visit(server, "/dashboard/ledger.csv").status == 503
        until(lambda: "there is no ledger" in str(json.loads(visit(server, "/dashboard/data").body)["trouble"]))
        with pytest.raises(RefusalError, match="its own machine"):
            Logins(ServingConfig("", dashboard=True), None, _descriptors()).find({b"host": b"localhost"}, "10.0.0.1")


def test_bad_forms_and_questions_are_answered(guarded):
    cookie = log_in(guarded, guarded.keys["me"])
    assert visit(guarded, "/dashboard/data?span=year", Cookie=cookie).status == 400
    assert visit(guarded, "/dashboard/login", {"key": "x" * 5000}).status == 413
    assert visit(guarded, "/dashboard/login", {str(i): "x" for i in range(20)}).status == 400
    assert visit(guarded, "/dashboard/login").headers["location"] == "/dashboard"
    assert visit(guarded, "/dashboard/", Cookie=cookie).status == 200
    assert visit(guarded, "/dashboard", {}, Cookie=cookie).status == 405
    assert visit(guarded, "/dashboard/none", Cookie=cookie).status == 404


def test_the_cookie_is_for_the_server_alone(tmp_path, certificate):
    file = tmp_path / "keys.json"
    _, text = open_keys(file).add("me", admin=True)
    for tls in ({}, dict(zip(("tls_cert", "tls_key"), map(str, certificate), strict=True))):
        config = ServingConfig("", dashboard=True, admin_key_file=str(file), **tls)
        logins = Logins(config, None, prepare_logins(config))
        logins.refresh()
        _, cookie = logins.enter(text, {}, "127.0.0.1")
        assert {b" HttpOnly", b" SameSite=Strict", b" Path=/"} <= set(cookie.split(b";"))
        assert (b" Secure" in cookie.split(b";")) == cookie.startswith(b"__Host-") == bool(tls)
        assert logins.find({b"cookie": cookie.partition(b";")[0]}, "10.0.0.1").name == "me"
    open_keys(file).change("me", enabled=False)
    logins.refresh()
    assert logins.find({b"cookie": cookie.partition(b";")[0]}, "10.0.0.1") is None


def test_settings_that_let_nobody_in_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="goes with --dashboard"):
        ServingConfig("", admin_key_file=str(tmp_path))
    with pytest.raises(SettingsError, match="no such file"):
        ServingConfig("", dashboard=True, admin_key_file=str(tmp_path / "none"))
    file = tmp_path / "keys.json"
    open_keys(file).add("phones")
    with pytest.raises(KeyStoreError, match="--admin --file"):
        prepare_logins(ServingConfig("", dashboard=True, keys=str(file)))


def test_pages_for_people_load_and_run_nothing_of_others(guarded):
    pages = ["/", "/docs", "/dashboard", "/dashboard/none"]
    cookie = log_in(guarded, guarded.keys["me"])
    for path in pages:
        reply = visit(guarded, path, Cookie=cookie)
        policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
        html = reply.body.decode()
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        for tag, source in (("script", "script-src"), ("style", "style-src")):
            (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
            assert policy[source] == f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
        assert not re.search(r'(src|href|action)="(?!/|data:,")', html)
        assert " style=" not in html
        assert (reply.headers["cache-control"], reply.headers["x-frame-options"]) == ("no-store", "DENY")


def test_programs_get_what_they_got_and_people_a_page(server, guarded):
    for running in (server, guarded):
        assert running.get("/")[0] == running.get("/", Accept="application/json")[0] == 404
        html = visit(running, "/").body.decode()
        assert ("/dashboard" in html) == (running is guarded)
        for link in re.findall(r'href="(/[^"]*)"', html):
            assert visit(running, link).status in (200, 401)
    assert server.get("/dashboard")[0] == server.get("/dashboard/data")[0] == 404
    assert visit(server, "/docs").status == 200


def test_a_thousand_wrong_keys_are_bounded_and_keep_nobody_out(guarded):
    wrong = guarded.keys["me"][:-4] + "AAAA"
    statuses: Counter[int] = Counter()
    connections = [http.client.HTTPConnection("127.0.0.1", guarded.port) for _ in range(4)]
    start = time.monotonic()
    for i in range(1000):
        connection = connections[i % 4]
        connection.request("POST", "/dashboard/login", urlencode({"key": wrong}), {"Accept": "text/html"})
        answer = connection.getresponse()
        answer.read()
        statuses[answer.status] += 1
        if i in (20, 999):  # meanwhile, from the same address
            assert log_in(guarded, guarded.keys["me"])
    allowed = TRIES.burst + TRIES.per_second * (time.monotonic() - start)
    assert 1 <= statuses[401] <= allowed + 1
    assert statuses[429] == 1000 - statuses[401]
    assert int(answer.headers["retry-after"]) <= 1 / TRIES.per_second
    assert wrong.encode() not in guarded.log.read_bytes()
    for connection in connections:
        connection.close()


def _descriptors() -> tuple[int, ...]:
    return prepare_logins(ServingConfig("", dashboard=True))
