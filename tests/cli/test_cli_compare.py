"""``l2h compare``: its files agree, finished seeds are kept, a broken comparison goes on, and bad input is refused."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from commands import Result, assert_told, call, command, environment, files_of, one_line, start
from waiting import stop_when, until

from l2h import methods
from l2h.costs import Costs, generalized_loss
from l2h.experiments import runs
from l2h.experiments.compare.seed import SeedResult
from l2h.experiments.runs import kept_alone

#: The comparison that all share is drawn; what the others draw is not looked at here.
pytestmark = pytest.mark.usefixtures("no_pictures")
#: Seconds a seed, with every part of a real one.
QUICK = [
    *("--client", "tree", "--client-share", "0.3", "--server", "mlp", "--calibration", "0.2"),
    *("--set", "server.epochs=2", "--set", "rejector.epochs=2", "--set", "folds=2"),
    *("--option", "rejector.width=0.25"),
]
FEW = [part for name in ("all-local", "confidence", "lwa-separate", "priced-attached", "oracle")
       for part in ("--method", name)]  # fmt: skip
PRICES = ["--c-1", "1", "--c-e", "0.05", "--c-e", "0.2"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten overlapping clouds, named 0 to 9."""
    rng = np.random.default_rng(0)
    y = np.concatenate([np.arange(10).repeat(60), rng.integers(0, 10, 200)])
    X = (rng.normal(size=(10, 6))[y] * 1.5 + rng.normal(size=(len(y), 6))).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "clouds.npz"
    np.savez(path, X_train=X[:600], y_train=y[:600], X_test=X[600:], y_test=y[600:])
    return path


def few(table: Path, out: Path, *more: object, seeds: int = 2, jobs: int = 1) -> list[object]:
    return ["compare", "--data", table, *QUICK, *FEW, *PRICES, "--seeds", seeds, "--jobs", jobs, "--out", out, *more]


@pytest.fixture(scope="module")
def compared(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A finished comparison of a few methods over two seeds, with JSON on stdout."""
    folder = tmp_path_factory.mktemp("compare") / "few"
    result = call(*few(table, folder, "--json"))
    assert result.status == 0, result.err
    return folder, result


def comparison(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "comparison.json").read_text())


def assert_same_comparison(one: Path, other: Path) -> None:
    """The same but for the command that was typed, seed by seed to the bit."""
    first, second = comparison(one), comparison(other)
    assert first.pop("command") != second.pop("command"), "they name their folders"
    assert first == second
    assert (one / "comparison.csv").read_bytes() == (other / "comparison.csv").read_bytes()
    for seed in first["seeds"]:
        a, b = (SeedResult.load(folder / "seeds" / f"seed-{seed}.npz") for folder in (one, other))
        for name in SeedResult.__dataclass_fields__:
            left, right = getattr(a, name), getattr(b, name)
            assert np.array_equal(left, right, equal_nan=True) if name in ("gain", "curve") else np.all(left == right)


# What it writes.


def test_the_folder_holds_all_that_is_promised(compared: tuple[Path, Result]) -> None:
    folder, _ = compared
    names = set(files_of(folder))
    plots = {f"plots/{name}.png" for name in ("frontiers", "risk", "pairs")}
    seeds = {"seeds/seed-0.npz", "seeds/seed-1.npz"}
    assert names == {"config.json", "comparison.json", "comparison.csv", "rows.csv", "report.html", *plots, *seeds}
    assert all((folder / name).read_bytes().startswith(b"\x89PNG\r\n") for name in plots)


def test_json_is_all_there_is_on_stdout_and_is_the_file(compared: tuple[Path, Result]) -> None:
    folder, result = compared
    assert result.json() == comparison(folder)
    assert result.json()["command"].startswith("l2h compare --data ")


def test_the_figures_follow_from_what_the_seeds_decided(compared: tuple[Path, Result]) -> None:
    """Risk, rate and accuracy of every cell, counted again from the seeds' own files."""
    folder, _ = compared
    found = comparison(folder)
    seeds = [SeedResult.load(folder / "seeds" / f"seed-{seed}.npz") for seed in found["seeds"]]
    assert [seed.seed for seed in seeds] == [0, 1]
    prices = [Costs(c_e=0.05), Costs(c_e=0.2)]
    assert found["costs"] == [{"c_e": c.c_e, "c_1": c.c_1} for c in prices]
    cells = {(cell["method"], cell["c_e"]): cell for cell in found["cells"]}
    assert len(cells) == len(seeds[0].names) * len(prices) == len(found["cells"])
    for m, name in enumerate(seeds[0].names):
        for c, costs in enumerate(prices):
            sides = [(seed.client_correct, seed.server_correct, seed.remote[m, c]) for seed in seeds]
            cell = cells[name, costs.c_e]
            assert cell["risk"]["mean"] == pytest.approx(np.mean([generalized_loss(*s, costs).mean() for s in sides]))
            assert cell["reject_rate"]["mean"] == pytest.approx(np.mean([sent.mean() for _, _, sent in sides]))
            right = [np.where(sent, server, client).mean() for client, server, sent in sides]
            assert cell["accuracy"]["mean"] == pytest.approx(np.mean(right))
    for c_e in (0.05, 0.2):
        assert cells["all-local", c_e]["risk"]["mean"] == pytest.approx(1 - found["accuracy"]["client"]["mean"])
        lowest = cells["oracle", c_e]["risk"]["mean"]
        assert all(lowest <= cell["risk"]["mean"] for cell in found["cells"] if cell["c_e"] == c_e)


def test_the_table_for_spreadsheets_has_the_same_figures(compared: tuple[Path, Result]) -> None:
    folder, _ = compared
    found = comparison(folder)
    with (folder / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found["cells"])
    against = {(one["method"], one["c_e"]): one for one in found["against_default"]}
    for row, cell in zip(rows, found["cells"], strict=True):
        assert (row["method"], float(row["c_1"]), float(row["c_e"])) == (cell["method"], cell["c_1"], cell["c_e"])
        for figure in ("risk", "reject_rate", "accuracy", "gain", "risk_as_published"):
            for part in ("mean", "sem"):
                text = row[f"{figure}_{part}"]
                value = None if cell[figure] is None else cell[figure][part]
                assert (text == "") if value is None else float(text) == value
        versus = against.get((cell["method"], cell["c_e"]))
        assert (row["difference"] == "") == (versus is None) == (cell["method"] == found["default"])
        if versus is not None:
            assert float(row["difference"]) == versus["difference"]


def test_every_figure_and_interval_follows_from_the_rows_alone(compared: tuple[Path, Result], tmp_path: Path) -> None:
    folder, found = compared[0], comparison(compared[0])
    head, *lines = (folder / "rows.csv").read_text().splitlines()
    for seed in (0, 1):
        own = [line for line in lines if line.split(",")[5] == str(seed)]
        (tmp_path / f"{seed}.csv").write_text("\n".join([head, *own]) + "\n")
    files = ["--rows", tmp_path / "0.csv", "--rows", tmp_path / "1.csv"]
    result = call("compare", *files, "--json", "--out", tmp_path / "again")
    assert result.status == 0, result.err
    again = result.json()
    apart = {"command", "frontiers", "settings", "skipped"}
    assert {key: again[key] for key in again.keys() - apart} == {key: found[key] for key in found.keys() - apart}
    assert (tmp_path / "again" / "report.html").exists()
    risks = {(c["method"], c["c_e"]): c["risk"]["mean"] for c in found["cells"]}
    for row in found["against_default"]:
        expected = risks[row["method"], row["c_e"]] - risks[found["default"], row["c_e"]]
        assert row["difference"] == pytest.approx(expected, abs=1e-5)
        assert row["low"] <= row["difference"] <= row["high"]
    assert all(row["risk"]["sampling"] > 0 for row in found["overall"] if row["method"] != "oracle")
    assert_told(call("compare", *files[:2], "--rows", folder / "comparison.csv"), [1], "comparison.csv")
    (tmp_path / "half.csv").write_text("\n".join([head, *lines[:-1]]) + "\n")
    assert_told(call("compare", "--rows", tmp_path / "half.csv"), [1], "1 rows are missing")


def test_the_page_shows_every_method_and_is_whole(compared: tuple[Path, Result]) -> None:
    folder, _ = compared
    page, found = (folder / "report.html").read_text(), comparison(folder)
    assert page.rstrip().endswith("</html>")
    for row in found["overall"]:
        assert row["method"] in page
        assert f"{row['risk']['mean']:.4f}" in page
    assert page.count("data-hover=") == 3
    assert not re.search(r"""(src|href)=["']https?://""", page), "nothing is fetched"


def test_for_a_person_there_are_tables_and_sentences(compared: tuple[Path, Result], table: Path) -> None:
    """Nothing is left to run: the same command tells what is there."""
    folder, _ = compared
    result = call(*few(table, folder))
    assert result.status == 0
    found = comparison(folder)
    assert all(row["method"] in result.out for row in found["overall"])
    assert all(f"{row['risk']['mean']:.4f}" in result.out for row in found["overall"])
    properties = result.out[result.out.index("separate") :]
    assert re.search(r"lwa-separate +yes +yes +no +–", properties)  # noqa: RUF001
    assert "Over 2 prices, 2 seeds, the mean risk of priced-attached is" in one_line(result.out)
    assert "report.html" in result.err
    assert "Left out" not in result.out


def test_config_says_what_was_compared(compared: tuple[Path, Result], table: Path) -> None:
    config = json.loads((compared[0] / "config.json").read_text())
    asked = config["comparison"]
    assert asked["methods"] == ["all-local", "confidence", "lwa-separate", "priced-attached", "oracle"]
    assert asked["training"]["data"] == str(table)
    assert asked["training"]["settings"]["folds"] == 2
    assert asked["training"]["rejector_options"] == {"width": 0.25}


# Seeds that are there are kept.


def written(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "seeds").iterdir()}


def test_finished_seeds_are_kept_and_more_are_added(compared: tuple[Path, Result], table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grown"
    assert call(*few(table, folder, seeds=1)).status == 0
    first = written(folder)
    assert list(first) == ["seed-0.npz"]
    result = call(*few(table, folder, seeds=2))
    assert result.status == 0
    assert "holds seed 0 already: not run again" in result.err
    assert "seed 1: server done" in result.err
    assert "seed 0: " not in result.err
    second = written(folder)
    assert second["seed-0.npz"] == first["seed-0.npz"]
    assert_same_comparison(folder, compared[0])
    assert call(*few(table, folder, seeds=2)).status == 0
    assert written(folder) == second
    assert call(*few(table, folder, seeds=1)).status == 0
    assert comparison(folder)["seeds"] == [0], "what was asked for, of what is there"
    assert written(folder) == second


def test_how_many_processes_there_are_is_of_no_account_to_what_is_there(
    compared: tuple[Path, Result], table: Path, tmp_path: Path
) -> None:
    """Else more ``--seeds``, for which there are more processes by default, could not be added."""
    folder = tmp_path / "run"
    shutil.copytree(compared[0], folder)
    before = written(folder)
    result = call(*few(table, folder, jobs=2))
    assert result.status == 0, result.err
    assert written(folder) == before


def test_seeds_may_begin_anywhere(table: Path, tmp_path: Path) -> None:
    arguments = ["compare", "--data", table, *QUICK, "--method", "all-local", *PRICES, "--jobs", 1]
    result = call(*arguments, "--seeds", 2, "--first-seed", 5, "--json", "--out", tmp_path / "run")
    assert result.status == 0
    assert result.json()["seeds"] == [5, 6]
    assert set(written(tmp_path / "run")) == {"seed-5.npz", "seed-6.npz"}


@pytest.mark.long
def test_a_killed_comparison_goes_on_and_ends_as_an_unbroken_one(
    compared: tuple[Path, Result], table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    arguments = few(table, folder)
    process = subprocess.Popen(
        command(*arguments), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    first = folder / "seeds" / "seed-0.npz"
    assert stop_when(first.exists, process, signal.SIGKILL) == -signal.SIGKILL
    assert not (folder / "comparison.json").exists(), "it was killed before its end"
    before = written(folder)
    assert list(before) == ["seed-0.npz"]
    result = call(*arguments)
    assert result.status == 0, result.err
    assert written(folder)["seed-0.npz"] == before["seed-0.npz"]
    assert_same_comparison(folder, compared[0])
    assert not [name for name in files_of(folder) if name.endswith(".tmp")]


@pytest.mark.long
def test_a_killed_comparison_leaves_nobody_at_work(table: Path, tmp_path: Path) -> None:
    with start(*few(table, tmp_path / "run", jobs=2)) as process:
        workers = until(lambda: spawned(process))
        process.kill()
    until(lambda: not any(works(worker) for worker in workers))


def works(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def spawned(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of a comparison, once it has one for the queue and two for seeds."""
    found = [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())]
    return found if len(found) > 2 else []


def test_two_comparisons_in_one_folder_are_one_too_many(table: Path, tmp_path: Path) -> None:
    with kept_alone(tmp_path):
        assert_told(call(*few(table, tmp_path)), 1, f"another command works in {tmp_path}", "--out")


@pytest.mark.long
def test_seeds_side_by_side_give_what_they_give_one_after_the_other(
    compared: tuple[Path, Result], table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "side-by-side"
    result = call(*few(table, folder, jobs=2))
    assert result.status == 0, result.err
    one, other = comparison(folder), comparison(compared[0])
    for found in (one, other):
        found["settings"]["settings"].pop("threads")  # how it was computed, not what
    for name in one.keys() - {"command"}:
        assert one[name] == other[name], name
    for seed in (0, 1):
        a, b = (SeedResult.load(run / "seeds" / f"seed-{seed}.npz") for run in (folder, compared[0]))
        assert np.array_equal(a.remote, b.remote)
    done = re.findall(r"seed (\d): ([\w-]+) done", result.err)
    assert sorted(done) == sorted((str(s), what) for s in (0, 1) for what in ("server", *one_names(one)))


def one_names(found: dict[str, Any]) -> list[str]:
    return [method["name"] for method in found["methods"]]


def test_a_damaged_seed_is_told_and_run_again_once_removed(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["compare", "--data", table, *QUICK, "--method", "all-local", *PRICES, "--seeds", 1, "--out", folder]
    assert call(*arguments).status == 0
    path, before = folder / "seeds" / "seed-0.npz", comparison(folder)
    path.write_bytes(path.read_bytes()[:100])
    assert_told(call(*arguments), [1], str(path), "damaged", "remove it")
    path.unlink()
    assert call(*arguments).status == 0
    assert comparison(folder) == before


# A folder that holds something else.


def test_other_settings_in_the_same_folder_are_refused_by_name_and_force_replaces(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["compare", "--data", table, *QUICK, "--method", "all-local", "--method", "confidence", "--jobs", 1]
    first = [*arguments, *PRICES, "--seeds", 2, "--out", folder]
    assert call(*first).status == 0
    before = files_of(folder)
    other = [*arguments, "--c-1", "1", "--c-e", "0.3", "--set", "rejector.epochs=1", "--seeds", 1, "--out", folder]
    told = call(*other)
    assert_told(told, [1], "another comparison", "--force")
    assert "training.c_e was [0.05, 0.2], is [0.3]" in told.err
    assert "training.settings.rejector.epochs was 2, is 1" in told.err
    assert "folds" not in told.err
    assert_told(call(*first, "--method", "margin"), [1], "methods was ['all-local', 'confidence']", "margin")
    assert files_of(folder) == before
    assert call(*other, "--force").status == 0
    after = comparison(folder)
    assert (after["costs"], after["seeds"]) == ([{"c_e": 0.3, "c_1": 1.0}], [0])
    assert set(written(folder)) == {"seed-0.npz"}, "the seeds of the other comparison are gone"


def test_force_runs_the_same_comparison_anew(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["compare", "--data", table, *QUICK, "--method", "all-local", *PRICES, "--seeds", 1, "--out", folder]
    assert call(*arguments).status == 0
    before, found = written(folder), comparison(folder)
    result = call(*arguments, "--force")
    assert result.status == 0
    assert "not run again" not in result.err
    assert written(folder)["seed-0.npz"] > before["seed-0.npz"]
    assert comparison(folder) == {**found, "command": f"{found['command']} --force"}


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_a_folder_with_files_of_others_is_refused_and_left_as_it_is(
    more: list[str], table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "letters"
    (folder / "seeds").mkdir(parents=True)
    (folder / "seeds" / "sunflower.txt").write_text("mine")
    arguments = ["compare", "--data", table, *QUICK, "--method", "all-local", "--seeds", 1, "--out", folder, *more]
    assert_told(call(*arguments), [1], str(folder), "not empty", "--out")
    assert files_of(folder) == {"seeds/sunflower.txt": b"mine"}


def test_a_file_is_no_folder(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("mine")
    arguments = ["compare", "--data", table, *QUICK, "--method", "all-local", "--seeds", 1]
    assert_told(call(*arguments, "--out", path), [1], str(path), "is a file")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_the_folder_of_a_run_is_no_comparison(more: list[str], table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    runs.RunTarget(folder).prepare({"data": "digits"})
    before = files_of(folder)
    assert before
    arguments = ["compare", "--data", table, *QUICK, "--method", "all-local", "--seeds", 1, "--out", folder, *more]
    assert_told(call(*arguments), [1], str(folder), "not a comparison")
    assert files_of(folder) == before


# Which methods.


def test_without_names_all_that_fit_are_compared_and_what_does_not_is_said(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["compare", "--data", table, *QUICK, *PRICES, "--seeds", 1, "--out", folder]
    result = call(*arguments)
    assert result.status == 0, result.err
    found = comparison(folder)
    assert [method["name"] for method in found["methods"]] == [n for n in methods.known() if n != "binary-l2h"]
    assert found["skipped"] == [{"method": "binary-l2h", "why": "it is for 2 classes"}]
    assert "Left out: binary-l2h (it is for 2 classes)." in one_line(result.out)
    assert found["default"] == methods.DEFAULT
    assert found["classes"] == 10


def test_a_named_method_that_cannot_take_the_data_is_left_out_with_the_reason(table: Path, tmp_path: Path) -> None:
    chosen = ["--method", "binary-l2h", "--method", "confidence"]
    result = call(
        "compare", "--data", table, *QUICK, *chosen, *PRICES, "--seeds", 1, "--json", "--out", tmp_path / "run"
    )
    assert result.status == 0, result.err
    found = result.json()
    assert one_names(found) == ["confidence"]
    assert found["skipped"] == [{"method": "binary-l2h", "why": "it is for 2 classes"}]


def test_two_classes_run_the_method_for_two(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    chosen = ["--method", "binary-l2h", "--method", "confidence"]
    arguments = ["compare", "--data", table, "--classes", "3,8", *QUICK, *chosen, *PRICES, "--seeds", 1, "--json"]
    result = call(*arguments, "--out", folder)
    assert result.status == 0, result.err
    found = result.json()
    assert one_names(found) == ["confidence", "binary-l2h"]
    assert (found["classes"], found["skipped"]) == (2, [])
    assert "3 or 8" in found["dataset"]
    with np.load(table) as file:
        assert found["samples"] == int(np.isin(file["y_test"], (3, 8)).sum())
    cell = found["cells"][-1]
    assert 0 <= cell["risk"]["mean"] <= 1.2
    assert cell["risk_as_published"] is not None


def test_with_a_budget_every_net_costs_the_same(tmp_path: Path) -> None:
    short = ["--set", "server.epochs=1", "--set", "rejector.epochs=1", "--set", "folds=2", "--set", "copies=0"]
    chosen = ["--method", "priced-attached", "--method", "priced-separate", "--method", "ova-l2d"]
    result = call("compare", "--limit", "200", *short, *chosen, "--budget", "20k", "--seeds", 1, "--out", tmp_path)
    assert result.status == 0, result.err
    work = [method["multiply_adds"] for method in comparison(tmp_path)["methods"]]
    assert all(15_000 < own <= 20_000 for own in work)
    assert "student alone" in result.out
    several = ["compare", "--budget", "1", "--budget", "0.3", "--out", tmp_path / "two"]
    assert_told(call(*several), [2], "one at a time", "--crossed")
    assert not (tmp_path / "two").exists()


def test_the_digits_have_a_plan_of_their_own(tmp_path: Path) -> None:
    short = ["--set", "server.epochs=1", "--set", "rejector.epochs=1", "--set", "folds=2", "--set", "copies=0"]
    arguments = ["compare", "--limit", "200", *short, "--option", "server.width=1", "--method", "priced-separate"]
    result = call(*arguments, "--seeds", 1, "--json", "--out", tmp_path / "run")
    assert result.status == 0, result.err
    found = result.json()
    assert (found["dataset"], found["classes"], found["samples"]) == ("digits", 10, 200)
    training = found["settings"]
    assert (training["client"], training["server"], training["client_share"]) == ("tree", "lenet5", 0.3)
    assert training["server_options"] == {"width": 1}
    assert training["settings"]["augment"] == "shift"
    assert len(found["costs"]) == 8, "the grid of prices"


# Refusals, before anything is written.


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (["--method", "softmax"], ["'softmax'", *methods.known()]),
        (["--method", "margin", "--method", "margin"], ["'margin' is named twice"]),
        (["--method", "binary-l2h"], ["'binary-l2h' is for 2 classes, the data have 10", "--classes"]),
        (["--c-e", "0.1", "--c-e", "0.1"], ["c_e twice"]),
        (["--c-1", "1", "--c-1", "1.0"], ["c_1 twice"]),
        (["--c-e", "-0.1"], ["c_e=-0.1"]),
        (["--c-1", "nan"], ["c_1=nan"]),
        (["--seeds", "0"], ["--seeds 0"]),
        (["--seeds", "-3"], ["--seeds -3"]),
        (["--set", "rejector.epochs=0"], ["epochs=0"]),
        (["--set", "color=red"], ["color"]),
        (["--server", "resnet"], ["resnet", "lenet5"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_bad_usage(bad: list[str], words: list[str], table: Path, tmp_path: Path) -> None:
    assert_told(call("compare", "--data", table, *bad, "--out", tmp_path / "run"), [2], *words)
    assert not (tmp_path / "run").exists()


def test_bad_usage_is_one_line(table: Path, tmp_path: Path) -> None:
    result = call("compare", "--data", table, "--method", "softmax", "--out", tmp_path / "run")
    assert_told(result, [2], "unknown method 'softmax'", *methods.known())
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("classes", "words"),
    [("3,x", ["no class 'x'", "0, 1, 2"]), ("3", ["two or more"]), ("3,3", ["each once"]), ("3, 8", ["' 8'"])],
)
def test_classes_that_are_not_there(classes: str, words: list[str], table: Path, tmp_path: Path) -> None:
    result = call("compare", "--data", table, "--classes", classes, "--out", tmp_path / "run")
    assert_told(result, [1], *words)
    assert not (tmp_path / "run").exists()


def test_missing_data_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.npz"
    assert_told(call("compare", "--data", missing, "--out", tmp_path / "run"), [1], str(missing))
    assert not (tmp_path / "run").exists()


def test_none_is_a_value_of_a_setting_that_knows_it(table: Path, tmp_path: Path) -> None:
    """``honest=none`` is the paper's way: the rejector learns from the server's own samples."""
    arguments = ["compare", "--data", table, *QUICK, "--set", "honest=none", "--method", "all-local", *PRICES]
    result = call(*arguments, "--seeds", 1, "--json", "--out", tmp_path / "run")
    assert result.status == 0, result.err
    assert result.json()["settings"]["settings"]["honest"] == "none"


def test_too_few_samples(table: Path, tmp_path: Path) -> None:
    arguments = ["compare", "--data", table, *QUICK, "--set", "folds=30", "--limit", "40", "--method", "all-local"]
    assert_told(call(*arguments, "--seeds", 1, "--out", tmp_path / "run"), [1], "too few")


def test_help_shows_examples() -> None:
    result = call("compare", "--help")
    assert result.status == 0
    said = one_line(re.sub(r"\x1b\[[0-9;]*m", "", result.out))
    assert "Example: l2h compare --dataset digits --seeds 5" in said
    assert all(flag in said for flag in ("--method", "--seeds", "--classes", "--jobs", "--force", "--json"))
