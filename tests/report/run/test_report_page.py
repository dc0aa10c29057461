"""The page: complete, self-contained, and safe against names from strangers."""

from __future__ import annotations

import base64
import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_maker import make_history, make_images, make_report
from report_reader import EVIL, Page

from l2h.errors import CheckpointError
from l2h.metrics import Report
from l2h.report import write_page


def page(tmp_path: Path, report: Report, **options: Any) -> Page:
    path = write_page(report, tmp_path / "run", **{"title": "A title"} | options)
    assert path == tmp_path / "run" / "report.html"
    return Page(path)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Page]:
    report = make_report(400)
    options = {
        "history": make_history(),
        "images": make_images(400, 3),
        "settings": {"seed": 0, "server": {"name": "alexnet", "epochs": 15}},
        "next_steps": ["Set a bound: `l2h calibrate run --rate 0.2`"],
    }
    return report, page(tmp_path_factory.mktemp("page"), report, **options)


def test_page_refers_to_nothing_outside(full: tuple[Report, Page]) -> None:
    _, found = full
    assert len(found.links) > 20
    assert all(link.startswith(("data:", "#")) for link in found.links)
    found.require_own_script()


def test_sections_stand_in_the_order_of_reading(full: tuple[Report, Page]) -> None:
    _, found = full
    assert [text for tag, text in found.headings if tag == "h1"] == ["A title"]
    assert [text for tag, text in found.headings if tag == "h2"] == [
        "Other prices",
        "Risk compared with every baseline",
        "Accuracy for every reject rate",
        "Accuracy on the inputs kept and sent",
        "Images kept and sent",
        "Reject rate per class",
        "Calibration of the heads",
        "Loss curves",
        "Next steps",
        "Settings",
        "How to read this page",
    ]


def test_risk_and_contrastive_tables_hold_every_number(full: tuple[Report, Page]) -> None:
    report, found = full
    cells = {row[0].removesuffix(" (best)"): row[1:] for row in found.rows}
    risk = report.risk
    for name, value in (
        ("this system", risk.system),
        ("never ask", risk.all_local),
        ("always ask", risk.all_remote),
        ("ask at random, same rate", risk.random),
        ("confidence threshold", risk.confidence),
        ("oracle", risk.oracle),
    ):
        assert float(cells[name][0]) == pytest.approx(value, abs=5.01e-5)
    for name, side in (
        ("kept (LOCAL)", report.contrastive.local),
        ("sent (REMOTE)", report.contrastive.remote),
    ):
        expected = [side.ratio, side.client, side.server]
        assert [float(cell[:-1]) / 100 for cell in cells[name][:3]] == pytest.approx(expected, abs=5.01e-4)
    for name, rate in zip(report.class_names, report.per_class, strict=True):
        assert cells[name][1] == f"{rate:.1%}"


def test_verdict_comes_before_everything_with_its_numbers(full: tuple[Report, Page]) -> None:
    report, found = full
    opening = found.text[: found.text.index("Risk compared with every baseline")]
    assert re.search("asking (may )?pay|does not pay", opening)
    values = [f"{v:.4f}" for v in (report.risk.system, report.risk.best_trivial, report.risk.confidence)]
    values += [f"{v:.1%}" for v in (report.reject_rate, *report.accuracy.values())]
    assert all(value in opening for value in values)


def test_every_image_opens_and_has_an_alternative_text(full: tuple[Report, Page]) -> None:
    _, found = full
    images = [attributes for tag, attributes in found.tags if tag == "img"]
    assert len(found.plots) == 6
    assert all(plot["aria-label"] for plot in found.plots)
    # Twelve pictures of each side.
    assert len(images) == 24
    for attributes in images:
        assert attributes["alt"]
        head, _, body = (attributes["src"] or "").partition(",")
        assert head == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(body, validate=True))) as image:
            image.load()
            assert min(image.size) >= 32


def test_plots_follow_the_colours_and_the_width_of_the_page(full: tuple[Report, Page]) -> None:
    _, found = full
    drawn = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert [drawing["class"] for drawing in drawn] == ["wide", "narrow"] * 6
    names = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(names) == len(set(names))
    styles = " ".join(attributes["style"] or "" for _, attributes in found.tags if "style" in attributes)
    assert "var(--green)" in styles
    assert not re.search(r"#[0-9a-f]{6}|font-family", styles.lower()), (
        "a colour or a font that the page does not choose"
    )
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", styles)]
    assert min(sizes) >= 8.5


def test_a_page_with_photographs_stays_small(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 3, 224, 224), dtype=np.uint8)
    assert len(page(tmp_path, make_report(60, classes=2), images=noise).source) < 1_500_000


def test_settings_fold_away_and_code_is_set_as_code(full: tuple[Report, Page]) -> None:
    _, found = full
    assert ["server.epochs", "15"] in found.rows
    assert any(tag == "details" for tag, _ in found.tags)
    assert "<code>l2h calibrate run --rate 0.2</code>" in found.source


def test_glossary_explains_the_terms(full: tuple[Report, Page]) -> None:
    _, found = full
    glossary = found.text[found.text.index("How to read this page") :]
    terms = ("c_e", "c_1", "LOCAL", "REMOTE", "risk", "frontier gain", "label-free bound", "oracle")
    assert all(term in glossary for term in terms)


def test_names_from_strangers_are_escaped_everywhere(tmp_path: Path) -> None:
    report = make_report(60, classes=2, names=(EVIL, '" onload="alert(1)'))
    object.__setattr__(report, "dataset", EVIL)
    found = page(
        tmp_path,
        report,
        title=EVIL,
        images=make_images(60, 1),
        history=make_history((EVIL, "rejector")),
        settings={EVIL: {"nested": EVIL}},
        next_steps=[EVIL, f"`{EVIL}`"],
    )
    assert found.source.count("<script") == 1
    assert found.text.count(EVIL) > 8
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.0, "classes": 2, "skill": -1.0},
        {"rate": 1.0, "heads": False, "confidence": False},
        {"classes": 100, "absent": (3,)},
        {"client_accuracy": 1.0, "server_accuracy": 1.0},
    ],
)
def test_page_holds_at_the_extremes(options: dict[str, Any], tmp_path: Path) -> None:
    report = make_report(**{"n": 200} | options)
    found = page(tmp_path, report)
    headings = [text for _, text in found.headings]
    assert "Images kept and sent" not in headings
    assert "Loss curves" not in headings
    assert ("no heads" in found.text) == (not report.heads)
    assert "nan" not in found.text.lower().split()
    if report.reject_rate in (0.0, 1.0):
        assert ["n/a", "n/a", "n/a"] in [row[2:] for row in found.rows]


def test_class_names_of_any_script_stand_on_the_page_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_page(make_report(60, 2, names=("日本語", "한국어")), tmp_path, title="t", plots="plots")
    drawn = "".join(re.findall("<svg.*?</svg>", (tmp_path / "report.html").read_text(encoding="utf-8"), re.DOTALL))
    assert "日本語" in drawn
    assert "한국어" in drawn


def test_page_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = make_report(60, classes=2)
    path = write_page(report, tmp_path, title="first")

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full_disk)
        with pytest.raises(CheckpointError, match="no space left"):
            write_page(report, tmp_path, title="second")
    assert "<h1>first</h1>" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]
