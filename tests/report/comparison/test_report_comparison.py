"""The report on a comparison of methods: its numbers, its words in both directions, and its page."""

from __future__ import annotations

import copy
import csv
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from comparison_maker import DEFAULT, KINDS, make_comparison
from PIL import Image
from report_reader import EVIL, Page, rendered

from l2h.report import (
    comparison_headline,
    comparison_table,
    grid_tables,
    plot_frontiers,
    plot_pairs,
    plot_risk_grid,
    png,
    property_table,
    write_comparison,
)

REFERENCES = [name for name, (family, _, _) in KINDS.items() if family == "reference"]
MANY = (*KINDS, "_underscore", "$dollar$", "a method with a very long name indeed", "[bold]markup")

SHAPES: dict[str, dict[str, Any]] = {
    "one seed": {"seeds": 1},
    "one price": {"c_1": (1.0,), "c_e": (0.1,)},
    "one price, one seed": {"c_1": (1.0,), "c_e": (0.1,), "seeds": 1},
    "one c_1": {"c_1": (1.0,)},
    "one c_e": {"c_e": (0.1,)},
    "four c_1": {"c_1": (0.5, 1.0, 1.25, 2.0), "c_e": (0.1, 0.2)},
    "twenty-one c_e": {"c_1": (1.0,), "c_e": tuple(k / 40 for k in range(21)), "seeds": 1},
    "two methods": {"names": ("confidence", DEFAULT)},
    "the default alone": {"names": (DEFAULT,)},
    "the default and trivial ones": {"names": ("all-local", "all-remote", "random", DEFAULT)},
    "twenty-five methods": {"names": MANY},
}


def best() -> dict[str, Any]:
    """The default sees nearly all, and everybody else little."""
    return make_comparison(noise=dict.fromkeys(KINDS, 2.0) | {DEFAULT: 0.0})


def worst() -> dict[str, Any]:
    """The default sees almost nothing, and everybody else sees well."""
    return make_comparison(noise=dict.fromkeys(KINDS, 0.05) | {DEFAULT: 6.0})


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return make_comparison()


@pytest.fixture(scope="module")
def folder(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_comparison(made, tmp_path_factory.mktemp("comparison") / "run")
    assert path.name == "report.html"
    return path.parent


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page(folder / "report.html")


def test_all_files_are_written_and_nothing_beside_them(made: dict[str, Any], folder: Path) -> None:
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    plots = [f"plots/{name}.png" for name in ("frontiers", "pairs", "risk")]
    assert found == ["comparison.csv", "comparison.json", *plots, "report.html"]
    assert json.loads((folder / "comparison.json").read_text()) == made


def test_csv_holds_every_cell_to_the_last_digit(made: dict[str, Any], folder: Path) -> None:
    with (folder / "comparison.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["method"], float(row["c_1"]), float(row["c_e"])): row for row in csv.DictReader(file)}
    cells = {(cell["method"], cell["c_1"], cell["c_e"]): cell for cell in made["cells"]}
    against = {(row["method"], row["c_1"], row["c_e"]): row for row in made["against_default"]}
    family = {method["name"]: method["family"] for method in made["methods"]}
    assert rows.keys() == cells.keys()
    assert len(rows) == len(made["methods"]) * len(made["costs"])
    for key, row in rows.items():
        assert row["family"] == family[key[0]]
        for name in ("risk", "reject_rate", "accuracy", "gain", "risk_as_published"):
            for part in ("mean", "sem"):
                expected = cells[key][name] and cells[key][name][part]
                text = row[f"{name}_{part}"]
                assert (float(text) if text else None) == expected
        for name in ("difference", "low", "high"):
            assert (float(row[name]) if row[name] else None) == against.get(key, {}).get(name)


def test_headline_says_that_the_default_is_lowest() -> None:
    made = best()
    risks = {row["method"]: row["risk"]["mean"] for row in made["overall"]}
    learned = {m["name"]: risks[m["name"]] for m in made["methods"] if m["family"] == "learned"}
    opening = comparison_headline(made)[0]
    assert min(learned, key=learned.__getitem__) == DEFAULT
    assert f"the lowest of the {len(learned)} learned methods" in opening
    assert f"{risks[DEFAULT]:.4f}" in opening
    second = sorted(learned, key=learned.__getitem__)[1]
    assert f"the next is {second} with {learned[second]:.4f}" in opening


def test_headline_says_the_opposite_when_the_default_is_worst() -> None:
    made = worst()
    risks = {row["method"]: row["risk"]["mean"] for row in made["overall"]}
    learned = {m["name"]: risks[m["name"]] for m in made["methods"] if m["family"] == "learned"}
    assert max(learned, key=learned.__getitem__) == DEFAULT
    best = min(learned, key=learned.__getitem__)
    opening, field, confidence, *_ = sentences = comparison_headline(made)
    assert f"{len(learned) - 1} of the {len(learned) - 1} other learned methods are lower" in opening
    assert f"The lowest is {best} with {learned[best]:.4f}, {learned[DEFAULT] - learned[best]:.4f} less" in opening
    assert "more than its standard error" in opening
    assert "the lowest of the" not in opening.split(";")[0]
    beaten = [p["a"] for p in made["pairs"] if p["b"] == DEFAULT and p["high"] < 0 and p["a"] not in REFERENCES]
    assert f"clearly above {len(beaten)}" in field
    assert all(name in field for name in beaten)
    assert f"at none of the {len(made['costs'])} prices" in confidence
    assert f"above at {len(made['costs'])}" in confidence
    lost = [row for row in made["against_default"] if row["high"] < 0 and row["method"] not in REFERENCES]
    most = min(lost, key=lambda row: row["difference"])
    (told,) = [s for s in sentences if "clearly loses" in s]
    assert f"clearly loses {len(lost)}" in told
    assert f"to {most['method']} at c_1={most['c_1']:g}, c_e={most['c_e']:g} by {-most['difference']:.4f}" in told


@pytest.mark.parametrize("rivals", [("confidence",), ("all-local", "all-remote")])
def test_headline_counts_the_prices_at_which_the_default_is_lower(
    made: dict[str, Any], rivals: tuple[str, ...]
) -> None:
    kept = {DEFAULT, *rivals}
    some = {
        **made,
        "methods": [m for m in made["methods"] if m["name"] in kept],
        "cells": [c for c in made["cells"] if c["method"] in kept],
        "overall": [o for o in made["overall"] if o["method"] in kept],
        "pairs": [p for p in made["pairs"] if {p["a"], p["b"]} <= kept],
        "against_default": [a for a in made["against_default"] if a["method"] in kept],
    }
    risk = {(c["method"], c["c_1"], c["c_e"]): c["risk"]["mean"] for c in made["cells"]}
    prices = [(p["c_1"], p["c_e"]) for p in made["costs"]]
    margins = {p: risk[(DEFAULT, *p)] - min(risk[(name, *p)] for name in rivals) for p in prices}
    below = sum(margin < 0 for margin in margins.values())
    (told,) = [s for s in comparison_headline(some) if s.startswith("It is below")]
    count = (
        f"at every one of the {len(prices)} prices" if below == len(prices) else f"at {below} of {len(prices)} prices"
    )
    assert count in told
    for (c_1, c_e), margin in margins.items():
        assert (f"c_1={c_1:g}, c_e={c_e:g} by {margin:.4f}" in told) == (margin > 0)


def test_page_and_terminal_say_the_same(made: dict[str, Any], page: Page) -> None:
    for sentence in comparison_headline(made):
        assert sentence in page.text


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("comparison", "standing"), [(best, "good"), (worst, "bad")])
def test_page_marks_a_win_and_a_loss_apart(comparison: Any, standing: str, tmp_path: Path) -> None:
    found = Page(write_comparison(comparison(), tmp_path))
    assert [a["class"] for tag, a in found.tags if tag == "div" and (a.get("class") or "").startswith("verdict")] == [
        f"verdict {standing}"
    ]


@pytest.mark.usefixtures("no_pictures")
def test_a_default_that_was_not_run_is_told(made: dict[str, Any], tmp_path: Path) -> None:
    absent = {**made, "default": "absent", "against_default": []}
    (only,) = comparison_headline(absent)
    assert "absent, the default, was not among them" in only
    assert only in Page(write_comparison(absent, tmp_path)).text
    assert rendered(comparison_table(absent))


def test_bold_marks_the_lowest_but_the_references(made: dict[str, Any], page: Page) -> None:
    c_1s = sorted({cell["c_1"] for cell in made["cells"]})
    c_es = sorted({cell["c_e"] for cell in made["cells"]})
    heads = ["method", *(f"c_e = {c_e:g}" for c_e in c_es)]
    grids = [table[1:] for table in page.tables if table[0] == heads][: len(c_1s)]
    risk = {(c["method"], c["c_1"], c["c_e"]): c["risk"]["mean"] for c in made["cells"]}
    for c_1, grid in zip(c_1s, grids, strict=True):
        assert len(grid) == len(made["methods"])
        for k, c_e in enumerate(c_es, start=1):
            usable = [m["name"] for m in made["methods"] if m["family"] != "reference"]
            lowest = min(risk[name, c_1, c_e] for name in usable)
            expected = {name for name in usable if risk[name, c_1, c_e] == pytest.approx(lowest, abs=1e-12)}
            assert {row[0] for row in grid if row[k].endswith("*")} == expected
            for row in grid:
                assert float(row[k].split()[0]) == pytest.approx(risk[row[0], c_1, c_e], abs=5.01e-5)


def test_overall_table_is_in_the_order_of_risk_with_the_references_last(made: dict[str, Any], page: Page) -> None:
    risks = {row["method"]: row["risk"]["mean"] for row in made["overall"]}
    usable = sorted((n for n in risks if n not in REFERENCES), key=risks.__getitem__)
    expected = usable + sorted(REFERENCES, key=risks.__getitem__)
    rows = page.table("method", "risk ± s.e.")
    assert [row[0].partition(" (")[0] for row in rows] == expected
    mark = (
        "best"
        if all(pair["high"] < 0 for pair in made["pairs"] if pair["a"] == usable[0] and pair["b"] in usable)
        else "lowest"
    )
    assert [row[0] for row in rows if row[0].endswith(")")] == [f"{usable[0]} ({mark})"]
    # The same in the terminal, where a row begins with a method's name.
    lines = [line.split() for line in rendered(comparison_table(made))]
    assert [words[0] for words in lines if words and words[0] in risks] == expected


def test_record_counts_the_prices_at_which_the_row_beats_the_default(made: dict[str, Any]) -> None:
    lines = {words[0]: words for line in rendered(comparison_table(made)) if (words := line.split())}
    for name in KINDS:
        if name == DEFAULT:
            continue
        mine = [row for row in made["against_default"] if row["method"] == name]
        wins, losses = sum(row["high"] < 0 for row in mine), sum(row["low"] > 0 for row in mine)
        assert lines[name][-1] == f"{wins}/{len(mine) - wins - losses}/{losses}"


def test_a_missing_gain_is_not_a_number(made: dict[str, Any], page: Page) -> None:
    missing = [row["method"] for row in made["overall"] if row["gain"] is None]
    assert missing == ["all-local", "all-remote"]
    gains = {row[0].partition(" (")[0]: row[4] for row in page.table("method", "risk ± s.e.")}
    assert [name for name, gain in gains.items() if gain == "n/a"] == sorted(missing, key=list(gains).index)
    lines = {words[0]: words for line in rendered(comparison_table(made)) if (words := line.split())}
    assert [name for name in KINDS if "n/a" in lines[name]] == missing


@pytest.mark.long
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_everything_is_drawn_and_fits_at_the_extremes(options: dict[str, Any], tmp_path: Path) -> None:
    made = make_comparison(**{"draws": 20, "samples": 80} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Page(write_comparison(made, tmp_path))
    for path in (tmp_path / "plots").iterdir():
        with Image.open(path) as image:
            assert 600 <= image.width <= 2200
            assert 250 <= image.height <= 2700
    assert "nan" not in found.text.lower().split()
    tables = [comparison_table(made), *grid_tables(made), property_table(made["methods"])]
    # On a wide terminal nothing is shortened, so a table that is not wider there fits into 120 columns whole.
    assert all(rendered(table) == rendered(table, 400) for table in tables)
    shown = [re.findall(r"c_e=[\d.]+", line) for table in grid_tables(made) for line in rendered(table)]
    assert sum(map(len, shown)) == len(made["costs"])


def test_every_method_is_in_every_plot(made: dict[str, Any]) -> None:
    names = set(KINDS)
    for figure in (plot_frontiers(made), plot_risk_grid(made)):
        (legend,) = figure.legends
        assert names <= {text.get_text() for text in legend.get_texts()}
        looks = [
            (line.get_color(), str(line.get_linestyle()), line.get_marker())
            for line, text in zip(legend.get_lines(), legend.get_texts(), strict=True)
            # A group may be called as a method is; its heading has no line.
            if text.get_text() in names and line.get_marker() != "None"
        ]
        assert len(set(looks)) == len(names)
    ax = plot_pairs(made).axes[0]
    assert {label.get_text() for label in ax.get_yticklabels()} == names
    assert len(png(plot_pairs(made))) > 10_000


def test_pairs_are_dotted_where_the_interval_excludes_zero(made: dict[str, Any]) -> None:
    ax = plot_pairs(made).axes[0]
    order = [label.get_text() for label in ax.get_yticklabels()]
    dots = {
        (order[round(line.get_ydata()[0])], order[round(line.get_xdata()[0])])
        for line in ax.lines
        if line.get_marker() == "o"
    }
    assert dots == {(p["a"], p["b"]) for p in made["pairs"] if p["high"] < 0 or p["low"] > 0}


def test_properties_follow_the_traits_and_star_what_the_paper_says_otherwise(made: dict[str, Any], page: Page) -> None:
    rows = {row[0]: row[1:] for row in page.table("method", "separate rejector")}
    lines = {words[0]: words[1:] for line in rendered(property_table(made["methods"])) if (words := line.split())}
    word = {None: "\N{EN DASH}", True: "yes", False: "no"}
    stars = 0
    for method in made["methods"]:
        traits = method["traits"] or dict.fromkeys(("separate", "learns_client", "learns_server", "asynchronous"))
        published = method["published_traits"] or traits
        expected = [word[value] + "*" * (value != published[key]) for key, value in traits.items()]
        stars += sum(answer.endswith("*") for answer in expected)
        assert rows[method["name"]] == expected
        assert lines[method["name"]] == expected
    assert stars > 0
    assert "softmax-l2d, learns from client: no in the paper's table, yes here" in page.text


def test_page_refers_to_nothing_outside(page: Page) -> None:
    assert len(page.plots) == 3
    assert all(link.startswith(("data:", "#")) for link in page.links)
    page.require_own_script()


def test_page_holds_what_a_reader_needs_to_repeat_it(made: dict[str, Any], page: Page) -> None:
    assert made["command"] in page.text
    assert ["server.epochs", "15"] in page.table("setting")
    assert "binary-l2h: two classes only" in page.text
    given = {row[0]: row[1:] for row in page.table("method", "parameters")}
    assert given[DEFAULT][:2] == ["1,234,567", "45,678"]
    assert given["random"] == ["\N{EN DASH}"] * 3
    assert {row[0] for row in page.table("method", "name", "reference")} == set(KINDS)
    published = [t for t in page.tables if t[0][1].startswith("c_e")][len({c["c_1"] for c in made["costs"]}) :]
    assert [{row[0] for row in table[1:]} for table in published] == [{"softmax-l2d", "ova-l2d"}] * 2


def test_names_from_strangers_are_escaped_everywhere(made: dict[str, Any], tmp_path: Path) -> None:
    names = ("confidence", EVIL, '" onload="alert(1)', DEFAULT)
    evil = copy.deepcopy(make_comparison(names, draws=20, samples=60))
    for method in evil["methods"]:
        method |= {"title": EVIL, "reference": EVIL, "equation": EVIL, "change": EVIL}
    evil |= {
        "dataset": EVIL,
        "command": EVIL,
        "settings": {EVIL: {"nested": EVIL}},
        "skipped": [{"method": EVIL, "why": EVIL}],
    }
    found = Page(write_comparison(evil, tmp_path))
    assert found.source.count("<script") == 1
    assert found.text.count(EVIL) > 20
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    # Nor does the terminal take a name for markup.
    marked = make_comparison(("[red]name[/red]", DEFAULT), draws=20, samples=60)
    assert any("[red]name[/red]" in line for line in rendered(comparison_table(marked)))
