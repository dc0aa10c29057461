"""Prices on the page: a table that needs no script, and a slider that shows what the arrays say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import two_servers
from browser import CHROMIUM, WINDOWS, opened
from bundle_maker import TABLE_TEST, on_table, tree
from report_reader import EVIL, Page

from l2h import Costs, HelpSystem, Money
from l2h.report.run.page import write_page
from l2h.report.run.prices import money_tile, price_view
from l2h.report.run.verdict import verdict


@pytest.fixture(scope="module")
def system() -> HelpSystem:
    return on_table(tree())


def rows_of(page: Page) -> list[list[dict[str, Any]]]:
    (found,) = [attributes["data-rows"] for _, attributes in page.tags if attributes.get("id") == "price-slider"]
    return json.loads(found or "")


@pytest.mark.usefixtures("no_pictures")
def test_a_page_says_all_of_it_without_script(system: HelpSystem, tmp_path: Path) -> None:
    report = system.evaluate(*TABLE_TEST, Money(0.06, 0.5, "€", per_day=500))
    page = Page(report.save(tmp_path / "page.html"))
    shown = page.table("c_e", "c_1", "risk", "best trivial rule", "sent", "accuracy", "verdict", "saves, € a day")
    sweep = {row["c_e"]: row for row in report.sweep or () if row["c_1"] == 1}
    assert [float(row[0]) for row in shown] == [0.01, 0.05, 0.1, 0.12, 0.2, 0.5]
    for row in shown:
        there = sweep[float(row[0])]
        assert row[2] == f"{there['risk']['system']:.4f}"
        assert row[3].startswith(f"{there['best_trivial']['risk']:.4f} ({there['best_trivial']['rule']})")
        assert row[4:6] == [f"{there['reject_rate']:.1%}", f"{there['accuracy']:.1%}"]
        saved = there["money"]["saved"]["best_trivial"]["amount"]
        assert float(row[7].replace(",", "")) == pytest.approx(saved, rel=0.03)
    assert report.as_dict()["money"]["sentence"] in page.text
    hidden = [attributes for _, attributes in page.tags if attributes.get("class") == "controls"]
    assert [("hidden" in attributes) for attributes in hidden] == [True], "a slider that does nothing is not shown"


@pytest.mark.usefixtures("no_pictures")
def test_every_price_that_was_asked_for_is_on_the_page(system: HelpSystem, tmp_path: Path) -> None:
    report = system.evaluate(*TABLE_TEST, Costs(0.05))
    asked = [report.at(costs).summary() for costs in (Costs(0.05), Costs(0.2), Costs(0.33, 2.0))]
    page = Page(write_page(report, tmp_path, title="t", evaluations=asked))
    assert [row[:2] for row in page.table("c_e", "c_1")] == [["0.05", "1"], ["0.2", "1"], ["0.33", "2"]]
    bounded = system.evaluate(*TABLE_TEST, limit="20%")
    page = Page(bounded.save(tmp_path / "bounded.html"))
    assert "There are no figures for other prices: the limit 20% decides how often a server is asked" in page.text
    assert "price-slider" not in [attributes.get("id") for _, attributes in page.tags]


@pytest.mark.usefixtures("no_pictures")
def test_rows_of_several_servers_are_scaled_and_names_are_escaped(tmp_path: Path) -> None:
    several = two_servers.make()
    report = several.evaluate(*two_servers.TEST, two_servers.PRICES)
    page = Page(report.save(tmp_path / "page.html", title=EVIL))
    (rows,) = rows_of(page)
    assert [row["price"].split(" times")[0] for row in rows] == [f"{row['factor']:g}" for row in report.sweep or ()]
    assert page.table("prices", "risk")[2][0] == "box 0.03 (c_1 1), cloud 0.06 (c_1 1.25)"
    assert EVIL not in page.source


def test_slider_tile_and_verdict_agree_about_the_noise(system: HelpSystem) -> None:
    report = system.evaluate(*TABLE_TEST, Money(0.05, 0.5))
    view = price_view(report)
    assert view is not None
    assert report.money is not None
    doubted = set()
    for row, there in zip((row for same in json.loads(view.data) for row in same), report.sweep or (), strict=True):
        at = report.at(report.money.at(Costs(there["c_e"], there["c_1"])))
        noise = "within the noise" in verdict(at).text
        assert ("within the noise" in row["verdict"]) == noise == money_tile(at)["title"].startswith("may "), row
        doubted.add((noise, there["verdict"]))
    assert doubted >= {(True, "bad"), (True, "unsure"), (False, "bad"), (False, "good")}
    alike = report.at(Money(50, 0.5))  # it never asks, as the best trivial rule
    assert money_tile(alike) == {"title": "saves per 1,000 inputs", "amount": "0 EUR", "note": "against never ask"}


@pytest.mark.parametrize("c_1", [1.25, 0.7 / 0.3])
def test_what_the_slider_shows_are_the_rows_of_the_sweep(system: HelpSystem, c_1: float) -> None:
    report = system.evaluate(*TABLE_TEST, Costs(0.07, c_1))
    view = price_view(report)
    assert view is not None
    shown = [row for same in json.loads(view.data) for row in same]
    assert len(shown) == len(report.sweep or ())
    for row, there in zip(shown, report.sweep or (), strict=True):
        assert (row["price"], row["risk"]) == (f"{there['c_e']:g}", f"{there['risk']['system']:.4f}")
        assert row["sent"] == f"{there['reject_rate']:.1%}"
        assert row["x"] == pytest.approx(100 * there["c_e"] ** 0.5, abs=0.01)
        assert 0 <= row["y"] <= 100
    assert sorted(map(float, view.c_1)) == pytest.approx(sorted([0.5, 1, 2, c_1]), abs=1e-5)
    own = json.loads(view.data)[view.chosen[0]][view.chosen[1]]
    assert own == view.own
    assert (own["price"], own["risk"]) == ("0.07", f"{report.risk.system:.4f}")
    assert len(view.data) < 120_000


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_the_slider_shows_what_the_arrays_say(system: HelpSystem, tmp_path: Path, width: int, dark: bool) -> None:
    report = system.evaluate(*TABLE_TEST, Money(0.05, 0.5, "EUR", per_day=10_000))
    stated = system.judge(TABLE_TEST[0]).stated
    client, server = ~report.client_correct, ~report.server_correct
    path = report.save(tmp_path / "page.html")
    with opened(path, width, dark=dark) as page:
        slider, choice = page.locator("#price-c-e"), page.locator("#price-c-1")
        assert slider.is_visible()
        seen, marks = set(), set()
        for c_1 in ("1", "0.5", "2"):
            choice.select_option(label=c_1)
            slider.focus()
            page.keyboard.press("Home")
            for key in ("Home", *["ArrowRight"] * 12, "PageUp", "End", "ArrowLeft"):
                page.keyboard.press(key)
                c_e = float(page.locator("#price-shown").inner_text().split(",")[0])
                sent = 1 - stated["client"] >= c_e + float(c_1) * (1 - stated["server"])
                paid = np.where(sent, c_e + float(c_1) * server, client)
                rivals = {"never ask": client, "always ask": c_e + float(c_1) * server}
                best = min(rivals, key=lambda name: rivals[name].mean())
                texts = {
                    name: page.locator(f'[data-shows="{name}"]').inner_text()
                    for name in ("risk", "trivial", "rule", "sent", "accuracy", "verdict", "money")
                }
                assert float(texts["risk"]) == pytest.approx(paid.mean(), abs=6e-5)
                assert float(texts["trivial"]) == pytest.approx(rivals[best].mean(), abs=6e-5)
                assert texts["rule"] == best
                assert texts["sent"] == f"{sent.mean():.1%}"
                assert texts["accuracy"] == f"{np.where(sent, ~server, ~client).mean():.1%}"
                gain = 5000 * (rivals[best] - paid).mean()
                assert texts["verdict"].startswith(("pays", "may pay") if gain > 1e-9 else "does not pay")
                if abs(gain) > 1:
                    said = float(re.findall(r"[\d,.]+", texts["money"])[0].replace(",", ""))
                    assert said == pytest.approx(abs(gain), abs=0.51)
                    assert (" more " in texts["money"].split("trivial rule")[0]) == (gain < 0)
                field = page.locator(".field").bounding_box()
                here = page.locator(".field .here").bounding_box()
                assert field is not None
                assert here is not None
                across = (here["x"] + here["width"] / 2 - field["x"]) / field["width"]
                assert across == pytest.approx(c_e**0.5, abs=0.02)
                seen.add((c_1, c_e))
                marks.add(round(here["y"]))
        assert len(seen) > 36
        assert len(marks) > 5, "the mark moves up and down too"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.evaluate(
            """[...document.querySelectorAll("#price-slider *")].filter(e => e.innerText && e.offsetParent)
            .map(e => parseFloat(getComputedStyle(e).fontSize))"""
        )
        assert min(sizes) >= 11
