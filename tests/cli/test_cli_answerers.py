"""Several servers and a second opinion from the command line: trained, evaluated, calibrated, listed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import QUICK, assert_same, assert_told, call, files_of, one_line, undrawn

import l2h

pytestmark = pytest.mark.long

DIGITS = ["--data", "digits", "--limit", "300", "--client", "tree", "--client-share", "0.3"]
TWO = [*DIGITS, "--server", "box=mlp", "--server", "cloud=lenet5"]
PRICES = ["--price", "box=0.05", "--price", "cloud=0.1:1.25"]
COSTS = {"box": l2h.Costs(c_e=0.05), "cloud": l2h.Costs(c_e=0.1, c_1=1.25)}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of a run with two servers, each at its own price; the first with its page."""
    folders = [tmp_path_factory.mktemp("answerers") / f"seed-{seed}" for seed in range(2)]
    assert call("train", *TWO, *PRICES, *QUICK, "--out", folders[0]).status == 0
    with undrawn():
        assert call("train", *TWO, *PRICES, *QUICK, "--seed", "1", "--out", folders[1]).status == 0
    return folders


@pytest.fixture(scope="module")
def plain(runs: list[Path]) -> dict[str, Any]:
    """What ``l2h evaluate`` says of the first."""
    (report,) = call("evaluate", runs[0], "--json").json()
    return dict(report)


def test_a_run_folder_has_the_servers_and_their_prices(runs: list[Path], plain: dict[str, Any]) -> None:
    training = json.loads((runs[0] / "config.json").read_text())["training"]
    assert training["servers"] == {"box": "mlp", "cloud": "lenet5"}
    assert training["prices"] == plain["prices"] == {name: costs.as_dict() for name, costs in COSTS.items()}
    assert not {"server", "second_opinion"} & set(training)
    assert_same(plain, json.loads((runs[0] / "metrics.json").read_text()))
    assert list(plain["answerers"]) == ["client", "box", "cloud"]
    assert set(plain["risk"]["by_server"]) == set(plain["single_server"]) == {"box", "cloud"}
    assert plain["three_ways"].keys() == {"risk", "reject_rate", "accuracy", "by_student"}
    page = (runs[0] / "report.html").read_text()
    assert "Who answers" in page
    assert "asking cloud alone" in page


def test_python_and_the_command_agree(runs: list[Path], plain: dict[str, Any]) -> None:
    data = l2h.load_dataset("digits", limit=300)
    report = l2h.load(runs[0]).evaluate(data.X_test, data.y_test, COSTS)
    assert_same(json.loads(json.dumps(report.as_dict())), plain)
    answers = l2h.load(runs[0]).predict(data.X_test, COSTS)
    for name, figures in plain["answerers"].items():
        assert figures["share"] == np.mean(answers.by == name)


def test_three_ways_beside_two_are_those_of_the_other_system(runs: list[Path], plain: dict[str, Any]) -> None:
    before = files_of(runs[0])
    (three,) = call("evaluate", runs[0], "--second-opinion", "--json").json()
    assert list(three["answerers"]) == ["client", "student", "box", "cloud"]
    figures = {"risk": three["risk"]["system"], "reject_rate": three["reject_rate"]}
    figures |= {"accuracy": three["accuracy"]["system"], "by_student": three["answerers"]["student"]["share"]}
    assert plain["three_ways"] == figures
    assert three["two_ways"]["risk"] == plain["risk"]["system"]
    assert three["two_ways"]["by_student"] == 0
    assert three["student"] == plain["student"]
    (two,) = call("evaluate", runs[0], "--no-second-opinion", "--json").json()
    assert_same(two, plain)
    assert files_of(runs[0]) == before


def test_a_server_alone_is_one_whose_rival_nobody_can_afford(runs: list[Path], plain: dict[str, Any]) -> None:
    for name, other in (("box", "cloud"), ("cloud", "box")):
        (alone,) = call("evaluate", runs[0], "--price", f"{other}=1000", "--json").json()
        assert alone["prices"][name] == plain["prices"][name], "the run's own, where none is given"
        assert alone["risk"]["system"] == plain["single_server"][name]["risk"]
        assert alone["reject_rate"] == plain["single_server"][name]["reject_rate"]


def test_one_price_for_all_servers_makes_a_grid(runs: list[Path]) -> None:
    reports = call("evaluate", runs[0], "--c-e", "0.05", "--c-e", "0.2", "--json").json()
    assert [report["costs"]["c_e"] for report in reports] == [0.05, 0.2]
    assert all(report["prices"]["box"] == report["prices"]["cloud"] == report["costs"] for report in reports)
    said = one_line(call("evaluate", runs[0], "--c-e", "0.05", "--c-e", "0.2").out)
    for words in ("who answers", "every price", "answered by cloud", "asking box alone", "always ask cloud"):
        assert words in said


def test_limits_with_names_hold_together(runs: list[Path]) -> None:
    bounds = ["--limit", "cloud=10%", "--limit", "all=30%"]
    (report,) = call("evaluate", runs[0], *PRICES, *bounds, "--json").json()
    assert report["bound"]["limit"] == "cloud=10%, all=30%"
    data = l2h.load_dataset("digits", limit=300)
    answers = l2h.load(runs[0]).predict(data.X_test, COSTS, limit={"cloud": "10%", "all": "30%"})
    assert {name: figures["share"] for name, figures in report["answerers"].items()} == {
        name: np.mean(answers.by == name) for name in ("client", "box", "cloud")
    }
    said = one_line(call("evaluate", runs[0], *PRICES, *bounds).out)
    assert "box=0.05:1 cloud=0.1:1.25 cloud=10%, all=30%" in said


def test_several_seeds_have_a_spread_per_answerer(runs: list[Path], plain: dict[str, Any]) -> None:
    (merged,) = call("evaluate", *runs, "--json").json()
    (other,) = call("evaluate", runs[1], "--json").json()
    for path in (("answerers", "box", "share"), ("risk", "by_server", "cloud"), ("three_ways", "risk")):
        values, found = [], merged
        for name in path:
            found = found[name]
        for report in (plain, other):
            value = report
            for name in path:
                value = value[name]
            values.append(value)
        assert found["mean"] == pytest.approx(np.mean(values))
    said = one_line(call("evaluate", *runs).out)
    assert "2 seeds at box c_1=1, c_e=0.05; cloud c_1=1.25, c_e=0.1" in said
    assert "answered by box" in said
    assert call("evaluate", *runs, "--c-e", "0.1", "--c-e", "0.2").status == 0
    assert_told(call("evaluate", *runs, "--price", "sky=1"), [2], "sky", "box, cloud")


def test_calibrating_turns_the_second_opinion_on_for_good(runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    found = call("calibrate", folder, "--second-opinion", "--limit", "cloud=5%", "--limit", "box=10%", "--json").json()
    assert set(found["shares"]) == {"client", "student", "box", "cloud"}
    assert set(found["thresholds"]["cloud=5%, box=10%"]["added_prices"]) == {"box", "cloud"}
    assert found["prices"] == {name: costs.as_dict() for name, costs in COSTS.items()}
    (report,) = call("evaluate", folder, "--json").json()
    assert "student" in report["answerers"]
    assert_told(call("evaluate", folder, runs[1]), [1], "other answerers", "--second-opinion")
    said = one_line(call("calibrate", folder, "--no-second-opinion", "--limit", "20%", "--limit", "30%").out)
    assert "answered by cloud" in said
    assert "threshold for 20%" in said
    assert not l2h.load(folder).require_fitted().second_opinion


@pytest.mark.usefixtures("no_pictures")
def test_a_second_opinion_is_trained_for(tmp_path: Path) -> None:
    folder = tmp_path / "three"
    train = ("train", *DIGITS, "--server", "mlp", "--second-opinion", *QUICK, "--out", folder)
    (report,) = call(*train, "--json").json()
    assert list(report["answerers"]) == ["client", "student", "server"]
    assert report["costs"] == {"c_e": 0.1, "c_1": 1.0}
    assert "two_ways" in report
    assert json.loads((folder / "config.json").read_text())["training"]["second_opinion"] is True
    system, data = l2h.load(folder), l2h.load_dataset("digits", limit=300)
    system.fitted = replace(system.require_fitted(), second_opinion=False)
    two = system.evaluate(data.X_test, data.y_test).as_dict()
    assert report["two_ways"]["risk"] == two["risk"]["system"]
    assert two["three_ways"]["risk"] == report["risk"]["system"]


@pytest.mark.usefixtures("no_pictures")
def test_one_server_with_a_name_is_a_system_of_two_answerers(tmp_path: Path) -> None:
    train = ("train", *DIGITS, "--server", "box=mlp", "--price", "box=0.3", *QUICK, "--out", tmp_path / "one")
    (report,) = call(*train, "--json").json()
    assert list(report["answerers"]) == ["client", "box"]
    assert report["costs"] == {"c_e": 0.3, "c_1": 1.0}
    assert not {"prices", "single_server"} & set(report)
    assert report["compute"]["multiply_adds"]["box"] > 0


def test_runs_lists_every_server(runs: list[Path]) -> None:
    rows = call("runs", runs[0].parent, "--json").json()
    assert rows[0]["server"] == {"box": "mlp", "cloud": "lenet5"}
    assert rows[0]["prices"]["cloud"]["c_1"] == 1.25
    said = one_line(call("runs", runs[0].parent).out)
    assert "1/1.25" in said
    assert "cloud=lenet5" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--server", "box=mlp", "--server", "box=lenet5"], ["--server", "box", "twice"]),
        (["--server", "box=mlp", "--server", "lenet5"], ["lenet5", "NAME=VALUE"]),
        (["--server", "mlp", "--server", "lenet5"], ["--server mlp", "--server box=... --server cloud=..."]),
        (["--server", "all=mlp", "--server", "box=lenet5"], ["all", "called"]),
        (["--server", "box=mlp", "--server", "cloud=lenett"], ["cloud", "lenett", "alexnet"]),
        ([*TWO[8:], "--price", "box=0.1"], ["no price for cloud", "--price cloud="]),
        ([*TWO[8:], *PRICES, "--price", "sky=1"], ["sky", "box, cloud"]),
        ([*TWO[8:], *PRICES, "--c-e", "0.1"], ["--price", "--c-e"]),
        ([*TWO[8:], "--price", "box=cheap", "--price", "cloud=1"], ["--price", "cheap"]),
        ([*TWO[8:], "--loss", "shifted"], ["one server", "priced"]),
        ([*TWO[8:], "--recipe", "paper"], ["one server"]),
        ([*TWO[8:], "--option", "server.width=2"], ["box.NAME", "cloud.NAME"]),
        (["--second-opinion", "--budget", "0"], ["the smallest rejector with a student", "needs"]),
        (["--second-opinion", "--rejector", "separate"], ["student", "attached"]),
        (["--second-opinion", "--loss", "swapped"], ["student", "every price"]),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_written(
    options: list[str], words: list[str], tmp_path: Path
) -> None:
    assert_told(call("train", *DIGITS, *options, "--out", tmp_path / "run"), [2], *words)
    assert not (tmp_path / "run").exists()


def test_bounds_and_servers_that_do_not_exist_are_told(runs: list[Path]) -> None:
    assert_told(call("evaluate", runs[0], "--limit", "sky=10%"), [1, 2], "sky", "box, cloud")
    assert_told(call("evaluate", runs[0], "--limit", "cloud=10%", "--limit", "20%"), [2], "20%", "NAME")
    assert_told(call("evaluate", runs[0], "--server", "box=https://nowhere"), [1], "box", "--server")
    assert_told(call("evaluate", runs[0], *PRICES, "--c-e", "0.1"), [2], "--price", "--c-e")
    result = call("calibrate", runs[0], "--limit", "cloud=5/1h")
    assert result.status == 2
    assert "run time" in one_line(result.err)
