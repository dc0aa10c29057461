"""The plots: what they show, and that they hold at the extremes."""

from __future__ import annotations

import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from report_maker import make_history, make_images, make_report

from l2h.errors import DataError
from l2h.metrics import Report
from l2h.report import (
    plot_contrastive,
    plot_frontier,
    plot_history,
    plot_per_class,
    plot_reliability,
    plot_risk,
    plot_samples,
    write_page,
)

ALL = ["frontier", "contrastive", "risk", "per_class", "reliability", "samples", "history"]

EXTREMES: dict[str, dict[str, Any]] = {
    "never asks": {"rate": 0.0},
    "always asks, no confidence rule": {"rate": 1.0, "confidence": False},
    "a hundred classes": {"classes": 100, "absent": (4, 7)},
    "a thousand classes": {"classes": 1000},
    "no heads": {"heads": False},
    "server worse than client, two classes": {"classes": 2, "client_accuracy": 0.9, "server_accuracy": 0.5},
    "nothing to gain": {"client_accuracy": 1.0, "server_accuracy": 1.0},
    "one sample": {"n": 1, "classes": 2},
    "names that mean something to matplotlib": {"classes": 2, "names": ("$\\frac{$", "_a$b^\n" + "x" * 80)},
}


def save_plots(report: Report, folder: Path, **options: Any) -> list[Path]:
    """The files that stand beside the page."""
    page = write_page(report, folder, title="", plots="plots", **options)
    return sorted((page.parent / "plots").iterdir())


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.long
@pytest.mark.parametrize("options", EXTREMES.values(), ids=EXTREMES.keys())
def test_plots_hold_at_the_extremes(options: dict[str, Any], tmp_path: Path) -> None:
    report = make_report(**{"n": 300} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = save_plots(report, tmp_path)
    expected = [name for name in ALL[:5] if name != "reliability" or report.heads]
    assert [path.name for path in paths] == [f"{name}.png" for name in sorted(expected)]
    for path in paths:
        with Image.open(path) as image:
            assert 600 <= image.width <= 2200
            assert 250 <= image.height <= 2200
            colours = image.convert("RGB").getcolors(maxcolors=1 << 24)
        assert colours is not None
        assert len(colours) > 20


@pytest.mark.parametrize("channels", [1, pytest.param(3, marks=pytest.mark.long)])
def test_all_seven_files_are_written(channels: int, tmp_path: Path) -> None:
    report = make_report(200)
    paths = save_plots(report, tmp_path, history=make_history(), images=make_images(200, channels))
    assert [path.stem for path in paths] == sorted(ALL)
    with Image.open(tmp_path / "plots" / "samples.png") as image:
        assert round(image.info["dpi"][0]) == 150
        pixels = np.asarray(image.convert("RGB")).astype(int)
    # The labels are coloured, the pictures are not where they are grey.
    greys = (np.ptp(pixels, axis=2) == 0).mean()
    assert (greys > 0.9) == (channels == 1)


def test_pyplot_is_neither_imported_nor_given_a_figure() -> None:
    plot_frontier(make_report(100))
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_frontier_shows_every_ranking_with_its_gain_and_the_operating_point() -> None:
    report = make_report()
    figure = plot_frontier(report)
    text = words(figure)
    for name in ("this system", "confidence", "label-free bound", "oracle", "random"):
        assert name in text
    assert f"this system, gain {report.gains['system']:.3f}" in text
    lines = [line.get_xydata() for line in figure.axes[0].lines]
    curve = np.column_stack([report.frontiers["system"].rate, report.frontiers["system"].accuracy])
    assert any(len(xy) == len(curve) and np.allclose(xy, curve) for xy in lines)
    point = [[report.reject_rate, report.accuracy["system"]]]
    assert any(len(xy) == 1 and np.allclose(xy, point) for xy in lines)


def test_contrastive_bars_are_as_high_as_the_accuracies_written_on_them() -> None:
    report = make_report()
    figure = plot_contrastive(report)
    heights = sorted(bar.get_height() for bar in figure.axes[0].patches)
    sides = (report.contrastive.local, report.contrastive.remote)
    expected = [side.client for side in sides] + [side.server for side in sides]
    expected += [report.accuracy["client"], report.accuracy["server"]]
    assert heights == pytest.approx(sorted(v for v in expected if v is not None))
    for value in heights:
        assert f"{100 * value:.1f}%" in words(figure)


def test_empty_side_is_written_as_missing() -> None:
    assert "n/a" in words(plot_contrastive(make_report(rate=0.0)))
    assert "n/a" not in words(plot_contrastive(make_report(rate=0.5)))


def test_risk_bars_are_the_risks() -> None:
    report = make_report()
    figure = plot_risk(report)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert sorted(widths) == pytest.approx(sorted(v for v in report.risk.as_dict().values() if v is not None))
    for value in widths:
        assert f"{value:.4f}" in words(figure)


def test_every_class_is_shown_once_even_with_a_hundred() -> None:
    report = make_report(2000, classes=100, absent=(4,))
    figure = plot_per_class(report)
    shown = [label.get_text() for ax in figure.axes for label in ax.get_yticklabels()]
    assert sorted(shown) == sorted(report.class_names)
    widths = [bar.get_width() for ax in figure.axes for bar in ax.patches]
    assert widths == sorted(widths, reverse=True)
    assert words(figure).splitlines().count("n/a") == 1


@pytest.mark.parametrize("classes", [2, 10, 25, 26, 100])
def test_class_names_do_not_overlap(classes: int) -> None:
    figure = plot_per_class(make_report(1500, classes=classes))
    figure.canvas.draw()
    for ax in figure.axes:
        boxes = sorted((t.get_window_extent() for t in ax.get_yticklabels()), key=lambda box: box.y0)
        assert all(a.y1 <= b.y0 + 1 for a, b in pairwise(boxes))
        assert all(box.x0 >= 0 for box in boxes)


def test_nothing_is_drawn_outside_the_figure() -> None:
    report = make_report()
    figures = [plot_frontier(report), plot_contrastive(report), plot_risk(report), plot_reliability(report)]
    figures += [plot_history(make_history()), plot_samples(report, make_images(600, 3))]
    for figure in figures:
        assert figure is not None
        figure.canvas.draw()
        box = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert box.x0 >= -0.01
        assert box.y0 >= -0.01
        assert box.x1 <= width + 0.01
        assert box.y1 <= height + 0.01


def test_reliability_states_the_calibration_errors_and_is_none_without_heads() -> None:
    report = make_report()
    figure = plot_reliability(report)
    assert figure is not None
    for name, error in report.ece.items():
        assert name in words(figure)
        assert f"ECE {error:.3f}" in words(figure)
    counts = sum(bar.get_height() for bar in figure.axes[1].patches)
    assert counts == 2 * len(report.y)
    assert plot_reliability(make_report(heads=False)) is None


def test_gallery_shows_images_from_their_side_and_the_same_for_the_same_seed() -> None:
    report = make_report(200, rate=0.3)
    # The first pixel of an image says whether it was sent.
    images = np.zeros((200, 1, 8, 8), dtype=np.uint8)
    images[report.remote] = 200
    figure = plot_samples(report, images, per_side=5)
    again = plot_samples(report, images, per_side=5)
    assert figure is not None
    assert again is not None
    shades = [int(ax.images[0].get_array()[0, 0, 0]) for ax in figure.axes]  # type: ignore[index]
    assert shades == [0] * 5 + [200] * 5
    assert words(figure) == words(again)
    assert all(word in words(figure) for word in ("truth: ", "client: ", "server: ", "kept (LOCAL)"))


def test_gallery_without_images_or_with_an_empty_side() -> None:
    report = make_report(20, rate=1.0)
    assert plot_samples(report, None) is None
    figure = plot_samples(report, make_images(20, 3))
    assert figure is not None
    assert "kept (LOCAL), 0.0% of the inputs: none" in words(figure)


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((20, 3, 8, 8), dtype=np.float32),
        np.zeros((20, 8, 8, 3), dtype=np.uint8),
        np.zeros((19, 3, 8, 8), dtype=np.uint8),
    ],
    ids=["floats", "channels last", "one too few"],
)
def test_wrong_images_are_refused_by_name(images: Any) -> None:
    with pytest.raises(DataError, match="images"):
        plot_samples(make_report(20), images)


def test_folds_share_a_panel_and_there_are_never_more_than_six() -> None:
    folds = plot_history(make_history(("server", *(f"server fold {k}" for k in range(1, 6)), "rejector")))
    assert folds is not None
    assert [ax.get_title(loc="left") for ax in folds.axes if ax.axison] == ["server (6 curves)", "rejector"]
    stages = tuple(f"{letter} stage" for letter in "abcdefghijk")
    many = plot_history(make_history(stages))
    assert many is not None
    assert len([ax for ax in many.axes if ax.axison]) == 6
    # Every stage has a training curve, all but the last a held-out one.
    assert sum(len(ax.lines) for ax in many.axes) == 2 * len(stages) - 1


def test_history_reads_what_a_csv_file_holds() -> None:
    rows = [{k: str(v) for k, v in row.items()} for row in make_history(("server",))]
    figure = plot_history(rows)
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert line.get_ydata() == pytest.approx([float(row["train_loss"]) for row in rows])
    assert plot_history([]) is None
    assert plot_history([{"stage": "s", "epoch": 1, "train_loss": "", "held_out_loss": ""}]) is None
