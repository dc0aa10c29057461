"""The report on the paper's experiments: its numbers in every form, its pages, its Markdown and its plots."""

from __future__ import annotations

import copy
import csv
import json
import math
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from paper_maker import (
    CLASSES,
    make_bounds,
    make_classes,
    make_curves,
    make_drawings,
    make_experiment,
    make_losses,
    make_scaling,
)
from report_reader import EVIL, Page, rendered

from l2h.errors import DataError
from l2h.report import experiment_tables, png, write_experiment, write_overview
from l2h.report.common.figure import DPI
from l2h.report.paper.plots import (
    plot_bounds,
    plot_class_rates,
    plot_losses,
    plot_reproduction,
    plot_risk_curves,
    plot_tradeoff,
)

C_E = (0.0, 0.1, 0.25, 0.5)
NAN = float("nan")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(scope="module")
def made(root: Path) -> dict[str, Any]:
    return make_experiment(c_e=C_E)


@pytest.fixture(scope="module")
def page(made: dict[str, Any], root: Path) -> Page:
    path = write_experiment(made, root / "tradeoff", make_drawings(c_e=C_E))
    assert path == root / "tradeoff" / "report.html"
    return Page(path)


@pytest.fixture(scope="module")
def overview(made: dict[str, Any], root: Path) -> tuple[Page, str]:
    other = {**made, "name": "other", "title": "Another one", "quick": True}
    index, results = write_overview([made, other], root)
    assert (index, results) == (root / "index.html", root / "RESULTS.md")
    return Page(index), results.read_text(encoding="utf-8")


def tables(experiment: dict[str, Any]) -> list[dict[str, Any]]:
    return [section for section in experiment["sections"] if section["kind"] == "table"]


def with_table(made: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same experiment with one table only."""
    table = {**{"kind": "table", "title": "One", "name": "one", "note": None, "best": None}, **changes}
    return {**made, "sections": [table]}


def shown(made: dict[str, Any], cell: Any) -> str:
    """What stands in the terminal for a cell."""
    (table,) = experiment_tables(with_table(made, columns=["a", "b"], rows=[["x", cell]]))
    (line,) = [line for line in rendered(table) if line.split()[:1] == ["x"]]
    return line.split(maxsplit=1)[1].strip()


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def markdown_rows(text: str) -> list[list[str]]:
    """Cells of all lines of Markdown tables; an escaped pipe parts nothing."""
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]


# Files.


def test_all_files_are_written_and_nothing_beside_them(made: dict[str, Any], page: Page, root: Path) -> None:
    found = sorted(path.name for path in (root / "tradeoff").iterdir())
    expected = ["contrastive.csv", "experiment.json", "report.html", "risk-cifar10.csv", "risk-svhn.csv"]
    assert found == sorted([*expected, "tradeoff-all.png"])
    assert json.loads((root / "tradeoff" / "experiment.json").read_text()) == made


def test_csv_holds_every_number_to_the_last_digit(made: dict[str, Any], page: Page, root: Path) -> None:
    for table in tables(made):
        with (root / "tradeoff" / f"{table['name']}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(table["rows"])
        for row, cells in zip(rows, table["rows"], strict=True):
            for column, cell in zip(table["columns"], cells, strict=True):
                # A column with a spread anywhere has two fields in every row.
                first = row.get(column, row.get(f"{column}_mean"))
                mean = cell["mean"] if isinstance(cell, dict) else cell
                assert first == str(mean) if isinstance(mean, str) else (float(first) if first else None) == mean
                if f"{column}_sem" in row:
                    sem = row[f"{column}_sem"]
                    assert (float(sem) if sem else None) == (cell["sem"] if isinstance(cell, dict) else None)


def test_numbers_that_are_not_finite_are_written_as_missing(made: dict[str, Any], tmp_path: Path) -> None:
    rows = [[NAN, {"mean": math.inf, "sem": NAN}, {"mean": 0.5, "sem": NAN, "percent": True}]]
    found = Page(write_experiment(with_table(made, columns=["a", "b", "c"], rows=rows), tmp_path))
    assert found.table("a") == [["n/a", "n/a", "50.0%"]]
    written = json.loads((tmp_path / "experiment.json").read_text())["sections"][0]["rows"]
    assert written == [[None, {"mean": None, "sem": None}, {"mean": 0.5, "sem": None, "percent": True}]]
    assert (tmp_path / "one.csv").read_text().splitlines() == ["a,b_mean,b_sem,c_mean,c_sem", ",,,0.5,"]


def test_an_experiment_of_another_schema_is_refused(made: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="schema 2"):
        write_experiment({**made, "schema": 2}, tmp_path)
    assert not (tmp_path / "report.html").exists()


# Cells.


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "n/a"),
        ({"mean": None, "sem": None, "percent": True}, "n/a"),
        ({"mean": 0.123449, "sem": 0.00117}, "0.1234 ± 0.0012"),
        ({"mean": 0.123449, "sem": None}, "0.1234"),
        ({"mean": 0.123449}, "0.1234"),
        ({"mean": 0.1234, "sem": 0.0041, "percent": True}, "12.3% ± 0.4"),
        ({"mean": 1.0, "sem": 0.0, "percent": True}, "100.0% ± 0.0"),
        ({"mean": 0.5, "sem": None, "n": 3}, "0.5000"),
        ({"mean": 0.5, "sem": None, "n": 2}, "0.5000 (n=2)"),
        ({"mean": 0.5, "sem": None, "mark": "bad"}, "0.5000 ✗"),
        ({"mean": 123.456, "sem": 1.26}, "123.5 ± 1.3"),
        (1.25, "1.25"),
        (1.0, "1"),
        (0.0, "0"),
        (1e-4, "0.0001"),
        ("published", "published"),
    ],
)
def test_a_cell_reads_as_people_write_it(made: dict[str, Any], cell: Any, text: str) -> None:
    assert shown(made, cell) == text


def test_the_terminal_and_the_page_say_why_a_cell_is_missing(made: dict[str, Any], tmp_path: Path) -> None:
    lost, never = ({"mean": None, "sem": None, "why": why} for why in ("it diverged", "nobody printed it"))
    experiment = with_table(made, columns=["a", "b"], rows=[["x", lost], ["y", never], ["z", lost]], note="Means.")
    said = "Means. n/a: it diverged; or nobody printed it."
    assert said in " ".join(" ".join(rendered(experiment_tables(experiment)[0])).split())
    page = write_experiment(experiment, tmp_path)
    assert said in page.read_text()
    assert Page(page).table("a") == [["x", "n/a"], ["y", "n/a"], ["z", "n/a"]]


def test_one_form_of_a_number_everywhere(made: dict[str, Any], page: Page, overview: tuple[Page, str]) -> None:
    lines = [cell.strip().strip("*") for row in markdown_rows(overview[1]) for cell in row]
    printed = "\n".join(line for table in experiment_tables(made) for line in rendered(table))
    texts = [cell.rstrip("*") for table in page.tables[:3] for row in table[1:] for cell in row]
    assert sum("±" in text for text in texts) > 20
    for text in texts:
        assert text in printed
        assert text.replace("|", r"\|") in lines


# The terminal.


def test_tables_fit_into_120_columns_whole(made: dict[str, Any]) -> None:
    wide = [{"mean": 0.1234, "sem": 0.0012}] * 14
    many = with_table(
        made,
        columns=["data set", "c_1", *(f"c_e = {k / 10}" for k in range(14)), "a remark in words"],
        rows=[["cifar10", 1.25, *wide, "word " * 60]] * 3,
        note="Seven words that stand below the table.",
    )
    for experiment in (made, many):
        found = experiment_tables(experiment)
        assert all(rendered(table) == rendered(table, 400) for table in found)
        assert all(len(line) <= 120 for table in found for line in rendered(table))
    text = "\n".join(line for table in experiment_tables(many) for line in rendered(table))
    # Every part says which of how many it is and repeats the columns before the first measured one.
    parts = re.findall(r"One \((\d) of (\d)\)", text)
    assert parts == [(str(k), str(len(parts))) for k in range(1, len(parts) + 1)]
    assert len(parts) > 1
    assert text.count("c_1") == len(parts)
    assert sum(len(re.findall(r"0\.1234 ± 0\.0012", line)) for line in text.splitlines()) == 3 * len(wide)
    assert [f"{k / 10}" for k in range(14)] == re.findall(r"c_e = (\d\.\d)", text)


# The page.


def test_findings_come_first_then_sections_errata_settings_and_command(made: dict[str, Any], page: Page) -> None:
    plain = [text.replace("`", "") for text in (*made["findings"], "First paragraph, on two lines.")]
    plain += ["Risk on cifar10", "Who is right where", made["errata"][0].replace("`", "")]
    places = [page.text.index(text) for text in plain]
    places += [page.text.index("client.epochs"), page.text.rindex(made["command"])]
    assert places == sorted(places)
    assert ["client.lr", "0.001"] in page.table("setting")
    assert made["question"] in page.text
    assert "2 CPU cores" in page.text


def test_page_refers_to_nothing_outside(page: Page, overview: tuple[Page, str]) -> None:
    for found, links in ((page, []), (overview[0], ["RESULTS.md", "tradeoff/report.html", "other/report.html"])):
        assert [link for link in found.links if not link.startswith(("data:", "#"))] == links
        found.require_own_script()
        assert sum(tag == "h1" for tag, _ in found.tags) == 1
        for table in found.tables:
            assert len({len(row) for row in table}) == 1
    assert [plot["aria-label"] for plot in page.plots] == ["Accuracy against reject rate"]


def test_a_bad_cell_is_marked(page: Page) -> None:
    (bad,) = [attributes for _, attributes in page.tags if "bad" in (attributes.get("class") or "")]
    assert bad["class"] == "bad"


def test_long_tables_are_folded(made: dict[str, Any], tmp_path: Path) -> None:
    for rows, folded in ((5, False), (60, True)):
        experiment = with_table(made, columns=["a"], rows=[[k] for k in range(rows)])
        found = Page(write_experiment({**experiment, "settings": {}}, tmp_path))
        assert ("details" in {tag for tag, _ in found.tags}) == folded
        assert len(found.table("a")) == rows
        text = write_overview([experiment], tmp_path)[1].read_text()
        assert ("(tradeoff/one.csv)" in text) == folded
        assert len(markdown_rows(text)) == (0 if folded else rows + 2)


@pytest.mark.parametrize("quick", [True, False])
def test_a_quick_run_says_so(made: dict[str, Any], quick: bool, tmp_path: Path) -> None:
    experiment = {**made, "sections": [], "quick": quick}
    pages = [write_experiment(experiment, tmp_path), *write_overview([experiment], tmp_path)]
    assert all(("quick run" in path.read_text()) == quick for path in pages)


def test_an_experiment_with_nothing_in_it_is_a_page(made: dict[str, Any], tmp_path: Path) -> None:
    empty = {**made, "findings": [], "errata": [], "sections": [], "settings": {}, "seeds": [0]}
    found = Page(write_experiment(empty, tmp_path))
    assert "1 seed (0)" in found.text
    assert "got wrong" not in found.text
    assert experiment_tables(empty) == []
    assert len(write_overview([], tmp_path)) == 2


# The overview.


def test_overview_tells_every_experiment(made: dict[str, Any], overview: tuple[Page, str]) -> None:
    index, text = overview
    for finding in made["findings"]:
        assert index.text.count(finding.replace("`", "")) == 2
        assert text.count(f"- {finding}\n") + text.count(f"- {finding}") >= 2
    assert [line for line in text.splitlines() if line.startswith("## ")] == [f"## {made['title']}", "## Another one"]
    assert "![Accuracy against reject rate](tradeoff/tradeoff-all.png)" in text
    assert f"```\n{made['command']}\n```" in text
    assert f"- {made['errata'][0]}" in text


def test_markdown_tables_have_one_number_of_columns(made: dict[str, Any], overview: tuple[Page, str]) -> None:
    text = overview[1]
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 2 * len(tables(made))
    for block, table in zip(blocks, tables(made) * 2, strict=True):
        rows = markdown_rows(block)
        assert {len(row) for row in rows} == {len(table["columns"])}
        assert len(rows) == len(table["rows"]) + 2
        assert all(re.fullmatch(r" :?--:? ", cell) for cell in rows[1])
    assert r"a \| b" in text


def test_names_from_strangers_are_escaped_everywhere(made: dict[str, Any], tmp_path: Path) -> None:
    nasty = (EVIL, '" onload="alert(1)', "a | b\n| c", "*bold* _it_ [x](y) `c|d`", "\N{BOM}\ud800", "# head", "$x$ ~y~")
    rows = [[name, {"mean": 0.5, "sem": None}] for name in nasty]
    evil = copy.deepcopy(with_table(made, title=EVIL, columns=["|", EVIL], rows=rows, note=EVIL))
    evil["sections"] += [
        {"kind": "text", "text": EVIL},
        {"kind": "plot", "title": EVIL, "file": "p.png", "alt": f'" onload="x {EVIL}]', "note": EVIL},
    ]
    evil |= {"title": EVIL, "question": EVIL, "datasets": [EVIL], "hardware": EVIL, "settings": {EVIL: EVIL}}
    evil |= {"findings": [EVIL, EVIL], "errata": [EVIL], "command": f"l2h ``` {EVIL}"}
    folder = tmp_path / "tradeoff"
    drawing = make_drawings(c_e=C_E)["tradeoff-all.png"]
    drawing.data["curves"][0]["label"] = EVIL
    # JSON and CSV hold any text, but for what cannot be encoded.
    found = Page(write_experiment(evil, folder, {"p.png": drawing}))
    index, results = write_overview([evil], tmp_path)
    for page in (found, Page(index)):
        assert page.source.count("<script") == 1
        assert page.text.count(EVIL) >= 4
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    text = results.read_text(encoding="utf-8")
    blocks = re.split(r"^`{4,}$", text, flags=re.M)
    assert len(blocks) == 3
    assert "<script" not in blocks[0] + blocks[2]
    assert {len(row) for row in markdown_rows(text)} == {2}
    assert r"\*bold\* \_it\_ [x\](y) `c\|d`" in text
    assert not re.search(r"^# head", text, re.M)
    # Nor does the terminal take a name for markup or for a command.
    marked = with_table(made, columns=["[red]a[/red]"], rows=[["[bold]b"], ["\x1b[31mred"]])
    lines = rendered(experiment_tables(marked)[0])
    assert any("[red]a[/red]" in line for line in lines)
    assert any("[bold]b" in line for line in lines)
    assert "\x1b" not in "".join(lines)


# Plots.


def gaps(curve: dict[str, Any], places: tuple[int, ...]) -> dict[str, Any]:
    """The same curve of a rejector that diverged at some prices."""
    out = copy.deepcopy(curve)
    for key in ("rate", "accuracy", "risk"):
        for place in places:
            out[key]["mean"][place] = NAN if place % 2 else None
            if out[key]["sem"] is not None:
                out[key]["sem"][place] = NAN
    return out


def constant(curve: dict[str, Any]) -> dict[str, Any]:
    n = len(curve["c_e"])
    same = {"mean": [1.0] * n, "sem": [0.0] * n}
    return curve | {"rate": same, "accuracy": {"mean": [0.8] * n, "sem": None}, "risk": same}


ODD: dict[str, dict[str, Any]] = {
    "many seeds": {},
    "one seed": {"seeds": 1},
    "a single point": {"c_e": (0.25,), "c_1": (1.25,)},
    "a single point and seed": {"c_e": (0.25,), "seeds": 1, "recipes": ("ours",)},
    "four c_1": {"c_1": (0.5, 1.0, 1.25, 2.0), "datasets": ("$a$ _b_",)},
}


@pytest.mark.parametrize(
    ("options", "change"),
    [
        (ODD["a single point and seed"], "none"),
        (ODD["four c_1"], "none"),
        *((ODD["a single point"], change) for change in ("all gaps", "constant")),
        (ODD["one seed"], "gaps"),
        *(
            pytest.param(ODD[name], change, marks=pytest.mark.long)
            for name, change in (
                *((name, "none") for name in ("many seeds", "one seed", "a single point")),
                *(("many seeds", change) for change in ("all gaps", "constant", "gaps")),
            )
        ),
    ],
)
def test_curves_are_drawn_at_the_extremes(options: dict[str, Any], change: str) -> None:
    curves, alone, trivial = make_curves(**{"datasets": ("svhn",), "c_e": C_E, "samples": 60} | options)
    n = len(curves[0]["c_e"])
    changed = {
        "none": lambda curve: curve,
        "gaps": lambda curve: gaps(curve, tuple(range(1, n, 2))),
        "all gaps": lambda curve: gaps(curve, tuple(range(n))),
        "constant": constant,
    }[change]
    curves[0] = changed(curves[0])
    name = curves[0]["dataset"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures = [plot_tradeoff(some, alone["client"][name]) for some in (curves, curves[:1])]
        figures.append(plot_risk_curves(curves, trivial[name]))
        images = [png(figure) for figure in figures]
    assert all(len(image) > 5_000 for image in images)
    (legend,) = figures[0].legends
    labels = {text.get_text() for text in legend.get_texts()}
    assert {curve["label"] for curve in curves} <= labels
    assert {f"c_1 = {curve['c_1']:g}" for curve in curves} <= labels


def test_tradeoff_draws_every_point_of_both_rows_and_leaves_gaps() -> None:
    curves, alone, _ = make_curves(("cifar10",), samples=60)
    curves[1] = gaps(curves[1], (3, 4))
    figure = plot_tradeoff(curves, alone["client"]["cifar10"])
    top, bottom = figure.axes
    for curve in curves:
        rate, accuracy = (np.array(curve[key]["mean"], dtype=float) for key in ("rate", "accuracy"))
        for ax, x, y in ((top, rate, accuracy), (bottom, np.array(curve["c_e"]), rate)):
            lines = [np.asarray(line.get_xydata()) for line in ax.lines]
            expected = np.column_stack([x, y])
            assert any(xy.shape == expected.shape and np.allclose(xy, expected, equal_nan=True) for xy in lines)
    assert f"client alone {alone['client']['cifar10']:.1%}" in words(figure)


def test_points_on_one_place_grow_with_their_number() -> None:
    curves, _, _ = make_curves(("cifar10",), c_1=(1.0,), recipes=("published recipe",), samples=60)
    sizes = []
    for count in (1, 5, 21):
        same = constant(curves[0])
        cut = {key: {"mean": same[key]["mean"][:count], "sem": None} for key in ("rate", "accuracy")}
        top = plot_tradeoff([same | cut | {"c_e": same["c_e"][:count]}], 0.7).axes[0]
        (marker,) = [line for line in top.lines if line.get_marker() == "s"]
        assert marker.get_xydata().tolist() == [[1.0, 0.8]]
        sizes.append(marker.get_markersize())
    assert sizes == sorted(set(sizes))


def test_recipes_differ_by_colour_and_c_1_by_line() -> None:
    curves, _, _ = make_curves(("cifar10",), c_e=C_E, samples=60)
    bottom = plot_tradeoff(curves, 0.7).axes[1]
    looks = [(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in bottom.lines]
    assert len(looks) == len(set(looks)) == len(curves)
    by_colour = {curve["label"]: look[0] for curve, look in zip(curves, looks, strict=False)}
    assert len(set(by_colour.values())) == 3


def test_risk_curves_stand_beside_never_and_always_asking() -> None:
    curves, _, trivial = make_curves(("cifar10",), c_e=C_E, samples=60)
    figure = plot_risk_curves(curves, trivial["cifar10"])
    for ax, (c_1, rule) in zip(figure.axes, trivial["cifar10"].items(), strict=True):
        lines = [np.asarray(line.get_ydata()) for line in ax.lines]
        expected = [rule["all_local"], rule["all_remote"]]
        expected += [curve["risk"]["mean"] for curve in curves if curve["c_1"] == c_1]
        assert len(lines) == len(expected)
        assert all(np.allclose(a, b) for a, b in zip(lines, expected, strict=True))


@pytest.mark.parametrize(("panels", "seeds", "epochs"), [(1, 1, 1), (1, 3, 15), (4, 1, 2), (6, 3, 30)])
def test_losses_are_drawn_a_line_for_each_link(panels: int, seeds: int, epochs: int) -> None:
    curves = make_losses(panels, seeds, epochs)
    curves[0]["mean"][-1] = NAN
    curves[1]["mean"] = [1.0] * epochs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plot_losses(curves)
        png(figure)
    assert sum(ax.axison for ax in figure.axes) == panels
    drawn = [np.asarray(line.get_ydata(), dtype=float) for ax in figure.axes for line in ax.lines]
    for curve in curves:
        mean = np.array(curve["mean"], dtype=float)
        assert any(len(y) == len(mean) and np.allclose(y, mean, equal_nan=True) for y in drawn)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["S = 1", "S = 100", "S = 1000", "S = epoch"]


@pytest.mark.parametrize(("seeds", "points"), [(1, 1), (1, 21), (3, 21)])
def test_bounds_show_accuracy_and_what_was_sent_over_the_bound(seeds: int, points: int) -> None:
    curves = make_bounds(seeds, points)
    if points > 1:
        curves[0]["accuracy"]["mean"][4] = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plot_bounds(curves)
        png(figure)
    left, right = figure.axes
    for curve, line, over in zip(curves, left.lines, right.lines, strict=False):
        assert np.allclose(line.get_ydata(), np.array(curve["accuracy"]["mean"], dtype=float), equal_nan=True)
        assert np.allclose(over.get_ydata(), np.subtract(curve["rate"]["mean"], curve["bound"]))
    assert {curve["label"] for curve in curves} <= set(words(figure).splitlines())


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_missing_class_is_set_apart(seeds: int) -> None:
    ours, paper = make_classes(seeds), make_classes(seeds, lift=0.3)
    paper[2] |= {"mean": None, "sem": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone, both = (plot_class_rates(rows) for rows in ({"ours": ours}, {"published recipe": paper, "ours": ours}))
        png(alone)
        png(both)
    (ax,) = alone.axes
    bars = ax.containers[0].patches
    assert [bar.get_width() for bar in bars] == [row["mean"] for row in ours]
    assert [bar.get_alpha() == 1.0 for bar in bars] == [row["missing"] for row in ours]
    assert [label.get_fontweight() == "bold" for label in ax.get_yticklabels()] == [row["missing"] for row in ours]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(CLASSES)
    assert "n/a" in words(both)
    assert [text.get_text() for text in both.legends[0].get_texts()] == ["published recipe", "ours"]


@pytest.mark.parametrize("counts", [(1,), (200,), (1, 2, 5, 10, 20, 42, 84, 126, 200), tuple(range(1, 41))])
def test_scaling_draws_what_was_measured(counts: tuple[int, ...]) -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "onepass.py"
    plot_scaling = runpy.run_path(str(script), run_name="onepass")["plot_scaling"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plot_scaling(list(reversed(make_scaling(counts))), 1.6)
        png(figure)
    left, right = figure.axes
    assert left.lines[0].get_xdata().tolist() == sorted(counts)
    assert np.allclose(left.lines[1].get_ydata(), 1.6 * np.array(counts))
    assert right.get_ylim()[0] == 0
    ratio = 1.6 * 200 / (1.9 + 0.021 * 200)
    assert (f"{ratio:.0f} times less" in words(figure)) == (max(counts) == 200)


def test_the_variants_are_drawn_in_their_order_beside_what_is_printed() -> None:
    none = {"mean": None, "sem": None}
    names = ("kept", "client_kept", "client_sent")
    rows = [
        {"label": "near", "distance": 1.234, **{name: {"mean": 0.5, "sem": 0.01} for name in names}},
        {"label": "all sent", "distance": None, "kept": {"mean": 0.0, "sem": None}, "client_kept": none}
        | {"client_sent": {"mean": 0.6, "sem": None}},
        {"label": "lost", "distance": None, **dict.fromkeys(names, none)},
    ]
    figure = plot_reproduction(rows, {"kept": 0.44, "client_kept": 0.739, "server_kept": 0.8})
    png(figure)
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["near (1.2)", "all sent", "lost"]
    assert words(figure).count("diverged") == 1
    levels = [
        line.get_xdata()[0]
        for line in ax.lines
        if len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]
    ]
    assert levels == [0.44, 0.739]


def test_plots_are_of_a_size_for_a_page() -> None:
    curves, alone, trivial = make_curves(("svhn",), c_e=C_E, samples=60)
    figures = [plot_tradeoff(curves, alone["client"]["svhn"]), plot_risk_curves(curves, trivial["svhn"])]
    figures += [plot_losses(make_losses(k)) for k in (1, 3, 6)]
    figures += [plot_bounds(make_bounds()), plot_class_rates({"ours": make_classes()})]
    figures.append(plot_class_rates({name: make_classes(names=[f"class {k}" for k in range(20)]) for name in "ab"}))
    for figure in figures:
        width, height = DPI * figure.get_size_inches()
        assert 600 <= width <= 2200
        assert 250 <= height <= 2200
