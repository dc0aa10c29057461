"""The devices on the dashboard: what they reported last, oldest first, and which of them need somebody."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

import pytest
from browser import CHROMIUM, browsing
from dashboard_server import guarded_server
from serving_process import Client
from waiting import until

from l2h.fleet import HEADER, PATH, DeviceReport

#: Later than the bundle that is served.
NEW = int(time.time()) - 1000
REPORTS = {
    "well": {"inputs": 1200, "asked": 240, "created": NEW, "latency": (0.0012, 0.034), "expected_saving": 12.5},
    "drifting": {"inputs": 900, "asked": 800, "created": NEW, "drift": "above", "reasons": {"worth_asking": 800}},
    "silent": {"inputs": 7, "created": NEW, "answerers": {"client": 7}},
    "outdated": {"created": NEW - 1},
}


@pytest.fixture(scope="module")
def fleet(bundle, tmp_path_factory):
    """A server with a device of every kind."""
    with guarded_server(bundle, tmp_path_factory.mktemp("fleet")) as server:
        client = Client(server, server.keys["free"])
        for name, values in REPORTS.items():
            report = DeviceReport(
                device=name, start=1, count=1, every=900, model="digits", version="0a1b2c3d4e5f", **values
            )
            assert client.post(b"", {HEADER: report.encode()}, PATH).status == 200
        until(lambda: shown(server)["total"] == len(REPORTS))
        now = time.time()
        with closing(sqlite3.connect(f"{server.ledger}-devices", timeout=10)) as db, db:
            db.execute("UPDATE devices SET time = ? WHERE device = 'silent'", (now - 5000,))
            db.execute("UPDATE hearing SET since = ?", (now - 9000,))
        until(lambda: shown(server)["flagged"]["offline"])
        yield server


def shown(server):
    status, body = server.get("/dashboard/devices", Authorization=f"Bearer {server.keys['me']}")
    assert status == 200
    return json.loads(body)


def test_every_worker_lists_them_with_their_flags_and_keys(fleet):
    for _ in range(6):  # each over a connection of its own
        found = until(lambda: (all_ := shown(fleet))["flagged"]["offline"] and all_)
        flags = {device["device"]: device["flags"] for device in found["devices"]}
        assert flags == {"silent": ["offline"], "well": [], "drifting": ["drift"], "outdated": ["old_bundle"]}
        assert next(iter(flags)) == "silent"
        assert {device["key_name"] for device in found["devices"]} == {"free"}
        assert found["flagged"] == {"drift": 1, "offline": 1, "old_bundle": 1}


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_lists_them(fleet, width, dark, tmp_path):
    with browsing(width, dark=dark) as visit:
        page = visit.page
        page.goto(f"{fleet.url}/dashboard")
        page.fill("#key", fleet.keys["me"])
        page.click("form button")
        page.wait_for_selector("#fleet tbody tr")
        assert "4 devices: 1 with drift, 1 offline, 1 with an old bundle" in page.inner_text("#fleet-counts")
        names = "[...document.querySelectorAll('#fleet tbody th')].map((cell) => cell.innerText.split('\\n')[0])"
        assert page.evaluate(names)[0] == "silent"
        assert sorted(page.evaluate(names)) == sorted(REPORTS)
        row = page.inner_text("#fleet tbody tr:has-text('drifting')")
        assert all(text in row for text in ("drifts (above)", "800", "worth_asking 800", "free"))
        page.locator("#devices").screenshot(path=str(tmp_path / "devices.png"))
        page.click("#flagged")
        assert "well" not in page.evaluate(names)
        page.wait_for_timeout(1500)  # it stays so when the next news come
        assert sorted(page.evaluate(names)) == ["drifting", "outdated", "silent"]
        assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert all("401 (Unauthorized)" in error for error in visit.errors)
