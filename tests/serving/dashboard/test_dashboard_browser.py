"""The pages in a real browser, while a server with two workers answers and refuses."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, WINDOWS, browsing
from dashboard_server import guarded_server, metrics
from serving_process import Client, Load
from waiting import until

from l2h.serving.accounts import open_keys

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
#: What a name may be, and what it must not become.
HOSTILE = "<img src=x onerror=alert(1)> & 'co'"


@pytest.fixture(scope="module")
def busy(bundle, tmp_path_factory):
    """A server after traffic with refusals of many kinds, one of whose keys has a hostile name."""
    with guarded_server(bundle, tmp_path_factory.mktemp("busy")) as server:
        server.keys[HOSTILE] = open_keys(server.key_file).add(HOSTILE)[1]
        x = np.zeros((3, 1, 4, 4), np.uint8)
        until(lambda: Client(server, server.keys[HOSTILE]).ask(x).status == 200)
        with Load(server, 3, server.keys["free"]) as load:
            for _ in range(30):
                for name in ("phones", "cameras", "nobody"):
                    Client(server, server.keys.get(name)).ask(x)
            until(lambda: load.statuses[200] > 300)
        yield server


def shown(text: str) -> list[int]:
    """The whole numbers of a text."""
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)]


def texts(page, rows: str) -> list[list[str]]:
    """The texts of the parts of each row."""
    parts = "[...document.querySelectorAll(rows)].map((row) => [...row.children].map((part) => part.innerText))"
    return page.evaluate(f"(rows) => {parts}", rows)


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_the_page_shows_the_numbers_of_ledger_and_metrics(busy, width, dark, tmp_path):
    me = busy.keys["me"]
    with browsing(width, dark=dark) as visit:
        page = visit.page
        page.goto(f"{busy.url}/")
        page.click("text=Dashboard")
        page.fill("#key", "l2h_wrong")
        page.click("form button")
        assert "not one of this server's" in page.inner_text("[role=alert]")
        page.fill("#key", me)
        page.click("form button")
        page.wait_for_selector("#tile-requests")
        page.click("#spans button:has-text('Hour')")
        rows = busy.rows("key_id, inputs, units")
        statuses = metrics(busy, me, "l2h_requests_total", "status")
        refused = metrics(busy, me, "l2h_refused_total", "reason")
        total = sum(statuses.values())
        until(lambda: shown(page.inner_text("#tile-requests small")) == [total, total])
        inputs = sum(row[1] for row in rows)
        assert shown(page.inner_text("#tile-inputs small")) == [inputs, inputs]
        assert shown(page.inner_text("#tile-errors dd"))[0] == sum(refused.values())
        assert {reason: shown(count) for reason, _, count in texts(page, "#reasons .bar")} == {
            reason: [count, count] for reason, count in refused.items()
        }
        calls = sum(shown(count)[0] for _, _, count in texts(page, "#batches .bar"))
        assert calls == busy.metric("l2h_batch_inputs_count", Authorization=f"Bearer {me}")
        until(lambda: shown(page.inner_text("#charged"))[:3] == [inputs, inputs, len(rows)])
        table = {cells[0].split("\n")[0]: cells for cells in texts(page, "#keys tbody tr")}
        for name, text in busy.keys.items():
            paid = [row[1:] for row in rows if row[0] == text.split("_")[1]]
            expected = [len(paid), sum(inputs for inputs, _ in paid), sum(units for _, units in paid)]
            assert [shown(cell)[0] for cell in table[name][-3:]] == expected
        assert shown(table["phones"][1])[:2] == [39, 40]
        assert page.query_selector("img") is None
        with page.expect_download() as download:
            page.click("text=All days and keys as CSV")
        exported = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
        assert sum(int(row["units"]) for row in exported) == sum(row[2] for row in rows)
        _check_looks(page, dark, tmp_path)
        page.click("text=Log out")
        page.wait_for_selector("#key")
        page.goto(f"{busy.url}/docs")
        page.click("summary:has-text('/infer')")
        _check_looks(page, dark, tmp_path)
    assert all(url.startswith((busy.url, "data:", "blob:")) for url in visit.asked)
    assert all("401 (Unauthorized)" in error for error in visit.errors)  # a wrong key, and before the login


def test_the_page_lives(busy):
    """Numbers come by themselves, a pointer finds values, and a server that is gone is told."""
    with browsing() as visit:
        page = visit.page
        page.goto(f"{busy.url}/dashboard")
        page.fill("#key", busy.keys["me"])
        page.click("form button")
        page.wait_for_selector("#traffic path")
        before = shown(page.inner_text("#tile-requests small"))[1]
        with Load(busy, 1, busy.keys["free"]):
            until(lambda: shown(page.inner_text("#tile-requests small"))[1] > before + 5)
        page.hover("#traffic svg", position={"x": 100, "y": 60})
        assert "s ago" in page.inner_text("#traffic .when")
        busy.stop()
        page.wait_for_selector("#state.bad")


def _check_looks(page, dark: bool, folder: Path) -> None:
    """No part is wider than the window, and the page follows dark mode."""
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(shown(colour)[:3]) < 64) == dark
    page.screenshot(path=str(folder / "page.png"), full_page=True)
