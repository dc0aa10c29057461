"""Every kind of page in a real browser: readable on a screen and on a telephone, by day and by night."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, WINDOWS, opened
from bundle_maker import TABLE_TEST, on_table, tree
from comparison_maker import make_comparison
from paper_maker import make_bounds, make_classes, make_curves, make_drawings, make_experiment, make_losses
from prompts import made_up
from report_maker import make_history, make_images, make_report, make_several

from l2h import Costs, Money
from l2h.experiments.paper.study import Drawing
from l2h.report import write_comparison, write_experiment, write_overview, write_page
from l2h.routing import fit_router

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

#: What is wrong with a page as it is shown: what is cut off, small text, and text that hardly differs from its ground.
FAULTS = """() => {
  const faults = [], root = document.documentElement;
  if (root.scrollWidth > innerWidth) faults.push(`the page is ${root.scrollWidth} wide`);
  for (const box of document.querySelectorAll(".scroll"))
    if (box.scrollWidth > box.clientWidth + 1) faults.push(`cut off: ${box.innerText.slice(0, 60)}`);
  const shade = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    const part = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return { light: 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b), a };
  };
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const found = shade(getComputedStyle(one).backgroundColor);
      if (found.a > 0) return found.light;
    }
    return 1;
  };
  let texts = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const one = node.parentElement, text = node.textContent.trim();
    if (!text || !one.getClientRects().length || one.closest("script, style")) continue;
    texts++;
    const style = getComputedStyle(one), drawn = one.closest("svg");
    const m = drawn && one.getScreenCTM(), size = parseFloat(style.fontSize) * (m ? Math.hypot(m.a, m.b) : 1);
    const light = shade(drawn ? style.fill : style.color).light, below = ground(drawn ? drawn.parentElement : one);
    const contrast = (Math.max(light, below) + 0.05) / (Math.min(light, below) + 0.05);
    if (size < 11) faults.push(`${size.toFixed(1)} px: ${text}`);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(1)}: ${text}`);
    if (drawn) {
      const [outer, inner] = [drawn, one].map((it) => it.getBoundingClientRect());
      const across = [outer.left - inner.left, inner.right - outer.right];
      if (Math.max(...across, outer.top - inner.top, inner.bottom - outer.bottom) > 2)
        faults.push(`outside its plot: ${text}`);
    }
  }
  for (const drawn of document.querySelectorAll(".drawing")) {
    const shown = [...drawn.querySelectorAll("svg")].filter((one) => one.getBoundingClientRect().width > 0);
    if (shown.length !== 1) faults.push(`${shown.length} drawings of one plot`);
  }
  if (texts < 10) faults.push("hardly any text");
  return faults;
}"""


def paper(folder: Path) -> Path:
    curves, alone, trivial = make_curves(("svhn",), c_e=(0.0, 0.1, 0.25, 0.5))
    report = make_report(100)
    drawings = {
        "tradeoff-all.png": Drawing("tradeoff", {"curves": curves, "client": alone["client"]["svhn"]}),
        "risk.png": Drawing("risk", {"curves": curves, "trivial": trivial["svhn"]}),
        "losses.png": Drawing("losses", {"curves": make_losses()}),
        "bounds.png": Drawing("bounds", {"curves": make_bounds()}),
        "classes.png": Drawing("per_class", {"rows": {"published": make_classes(), "ours": make_classes(lift=0.1)}}),
        "samples.png": Drawing("samples", {"report": report, "images": make_images(100, 3), "seed": 0}),
    }
    experiment = make_experiment(c_e=(0.0, 0.1, 0.25, 0.5))
    experiment["sections"] += [
        {"kind": "plot", "title": file, "file": file, "alt": file, "note": "A note."}
        for file in drawings
        if file != "tradeoff-all.png"
    ]
    return write_experiment(experiment, folder, drawings)


def overview(folder: Path) -> Path:
    experiment = make_experiment(c_e=(0.0, 0.25))
    write_experiment(experiment, folder / experiment["name"], make_drawings(c_e=(0.0, 0.25)))
    return write_overview([experiment], folder)[0]


def large(folder: Path) -> Path:
    report = make_report(10_000, classes=100)
    return write_page(report, folder, title="Large", history=make_history(), images=make_images(10_000, 3))


def priced(folder: Path) -> Path:
    report = on_table(tree()).evaluate(*TABLE_TEST, Money(0.06, 0.5, "EUR", per_day=10_000))
    return report.save(folder / "report.html")


def router(folder: Path) -> Path:
    report = fit_router(*made_up(400)).evaluate(*made_up(200, seed=1), Costs(0.1))
    return write_page(report, folder, title="Routing")


PAGES: dict[str, Callable[[Path], Path]] = {
    "run": lambda folder: write_page(
        make_report(),
        folder,
        title="A run",
        history=make_history(),
        images=make_images(600, 3),
        settings={"seed": 0, "a": {"long": "value " * 30}},
        next_steps=["`l2h evaluate runs/mine --c-e 0.05 --c-e 0.2`"],
    ),
    "priced": priced,
    "router": router,
    "several": lambda folder: write_page(make_several(second_opinion=True), folder, title="Several answerers"),
    "comparison": lambda folder: write_comparison(make_comparison(), folder),
    "one price": lambda folder: write_comparison(make_comparison(c_1=(1.0,), c_e=(0.1,)), folder),
    "paper": paper,
    "overview": overview,
    "large": large,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def page(name: str) -> Path:
        if name not in made:
            made[name] = PAGES[name](tmp_path_factory.mktemp("page") / name.replace(" ", "-"))
        return made[name]

    return page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_at_every_width_in_light_and_dark(name: str, pages: Callable[[str], Path]) -> None:
    path = pages(name)
    assert path.stat().st_size < 1_500_000
    with opened(path) as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        for width, dark in WINDOWS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if dark else "light")
            assert page.evaluate(FAULTS) == [], f"{name} at {width} pixels, {'dark' if dark else 'light'}"


def spots(page: Any, plot: int) -> tuple[Any, dict[str, Any]]:
    """A plot on the screen, and the values that it knows."""
    drawing = page.locator(".drawing").nth(plot)
    drawing.scroll_into_view_if_needed()
    return drawing, json.loads(drawing.get_attribute("data-hover"))


@pytest.mark.parametrize("width", [1280, 390])
def test_a_pointer_finds_the_values_of_curves_and_bars(width: int, tmp_path: Path) -> None:
    report = make_report()
    finger = width == 390
    with opened(write_page(report, tmp_path, title="A run"), width, touch=finger) as page:
        plots = page.locator(".drawing")
        labels = [plots.nth(k).get_attribute("aria-label") or "" for k in range(plots.count())]
        curve, bars = (next(k for k, label in enumerate(labels) if word in label) for word in ("Joint", "risk"))

        drawing, data = spots(page, curve)
        shown = [one.is_visible() for one in drawing.locator("svg").all()].index(True)
        which, (left, top, right, bottom) = data["drawings"][shown][0]
        ax = data["axes"][which]
        _, xs, ys = next(one for one in ax["curves"] if one[0] == "operating point")
        assert [*xs, *ys] == pytest.approx([report.reject_rate, report.accuracy["system"]], abs=1e-5)
        box = drawing.locator("svg").nth(shown).bounding_box()
        scale = box["width"] / drawing.locator("svg").nth(shown).evaluate("(one) => one.viewBox.baseVal.width")
        x = left + (right - left) * (xs[0] - ax["x"][0]) / (ax["x"][1] - ax["x"][0])
        y = bottom + (top - bottom) * (ys[0] - ax["y"][0]) / (ax["y"][1] - ax["y"][0])
        point = page.touchscreen.tap if finger else page.mouse.move
        point(box["x"] + scale * x, box["y"] + scale * y)
        tip = page.locator(".tip").inner_text()
        assert f"{report.reject_rate:.1%}" in tip
        assert f"{report.accuracy['system']:.1%}" in tip
        if not finger:
            page.mouse.move(2, 2)
            assert page.locator(".tip").is_hidden()

        drawing, data = spots(page, bars)
        texts = []
        drawing.focus()
        for _ in range(len(data["axes"][0]["bars"])):
            page.keyboard.press("ArrowRight")
            texts.append(page.locator(".tip").inner_text().split("\n"))
        assert ["this system", f"{report.risk.system:.4g}"] in texts
        assert ["oracle", f"{report.risk.oracle:.4g}"] in texts


def test_two_writings_of_a_page_are_the_same(tmp_path: Path) -> None:
    one, two = (write_page(make_report(), tmp_path / name, title="A run") for name in "ab")
    assert one.read_bytes() == two.read_bytes()
