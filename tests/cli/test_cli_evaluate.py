"""``l2h evaluate``: the same numbers again, other prices without training, and spread over seeds."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import DIGITS, QUICK, Result, assert_same, assert_schema, assert_told, call, files_of, one_line

import l2h


def test_it_reproduces_the_run_exactly(trained: tuple[Path, Result]) -> None:
    folder, result = trained
    before = files_of(folder)
    again = call("evaluate", folder, "--json")
    assert again.status == 0
    for report, before_report in zip(again.json(), result.json(), strict=True):
        assert_same(report, before_report)
    assert again.json()[0]["risk"] == json.loads((folder / "metrics.json").read_text())["risk"]
    assert files_of(folder) == before, "judging a run does not change it"


def test_data_that_have_changed_since_the_training_are_told(table: Path, tmp_path: Path) -> None:
    """A file without a test part is divided by the number of its rows, so one more row changes both parts."""
    data, run = tmp_path / "clouds.npz", tmp_path / "run"
    with np.load(table) as arrays:
        X, y = arrays["X_train"], arrays["y_train"]
    np.savez(data, X=X[1:], y=y[1:])
    assert call("train", "--data", data, "--client", "tree", "--server", "mlp", *QUICK, "--out", run).status == 0
    assert "no longer holds" not in call("evaluate", run).err
    np.savez(data, X=X, y=y)
    found = call("evaluate", run)
    assert (found.status, "no longer holds the samples" in one_line(found.err)) == (0, True), found.err
    assert "no longer holds" not in call("evaluate", run, "--data", table).err
    np.savez(data, X=X, y=np.where(y == 0, 9, y))
    assert_told(call("evaluate", run), 1, "label 9")


def test_a_file_of_methods_that_a_run_names_is_not_run(trained: tuple[Path, Result], tmp_path: Path) -> None:
    run, ran = shutil.copytree(trained[0], tmp_path / "run"), tmp_path / "ran"
    config, method = json.loads((run / "config.json").read_text()), tmp_path / "method.py"
    method.write_text(f"open({str(ran)!r}, 'w')")
    config["training"]["method_files"] = [str(method)]
    (run / "config.json").write_text(json.dumps(config))
    for command in ("evaluate", "calibrate"):
        assert call(command, run).status == 0
    assert not ran.exists()


def test_other_prices_need_no_training(trained: tuple[Path, Result]) -> None:
    folder, _ = trained
    before = files_of(folder)
    grid = ["--c-e", 0, "--c-e", 0.05, "--c-e", 0.2, "--c-e", 0.9, "--c-1", 1, "--c-1", 1.5]
    reports = call("evaluate", folder, *grid, "--json").json()
    assert [(r["costs"]["c_1"], r["costs"]["c_e"]) for r in reports] == [
        (c_1, c_e) for c_1 in (1, 1.5) for c_e in (0, 0.05, 0.2, 0.9)
    ]
    for report in reports:
        assert_schema(report)
    for c_1 in (1, 1.5):
        rates = [r["reject_rate"] for r in reports if r["costs"]["c_1"] == c_1]
        assert rates == sorted(rates, reverse=True), "a dearer server is asked less"
    assert files_of(folder) == before
    system, data = l2h.load(folder), l2h.load_dataset("digits", limit=300)
    direct = system.evaluate(data.X_test, data.y_test, l2h.Costs(c_e=0.05, c_1=1.5)).as_dict()
    assert_same(reports[5], json.loads(json.dumps(direct)))


def test_tables_for_a_person(trained: tuple[Path, Result]) -> None:
    result = call("evaluate", trained[0], "--c-e", "0.1", "--c-e", "0.2")
    assert result.status == 0
    said = one_line(result.out)
    for words in ("kept (LOCAL)", "sent (REMOTE)", "never ask", "always ask", "confidence", "oracle", "every price"):
        assert words in said


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for key, below in value.items() for k, v in leaves(below, (*path, key)).items()}


def test_several_runs_give_mean_and_spread(seeds: list[Path]) -> None:
    prices = ["--c-e", "0.02", "--c-e", "0.1"]
    merged = call("evaluate", *seeds, *prices, "--json").json()
    each = [call("evaluate", folder, *prices, "--json").json() for folder in seeds]
    assert len(merged) == 2
    for price, spread in enumerate(merged):
        figures = leaves(spread)
        for group in ("accuracy", "risk", "frontier"):
            for name in each[0][price][group]:
                values = [reports[price][group][name] for reports in each]
                assert figures[group, name, "mean"] == pytest.approx(statistics.mean(values))
                assert figures[group, name, "std"] == pytest.approx(statistics.stdev(values))
                assert figures[group, name, "sem"] == pytest.approx(statistics.stdev(values) / len(values) ** 0.5)
                assert figures[group, name, "n"] == 3
    assert merged[0]["risk"]["system"]["std"] > 0, "the seeds differ"


def test_several_runs_as_tables(seeds: list[Path]) -> None:
    result = call("evaluate", *seeds, "--c-e", "0.1", "--c-e", "0.2")
    assert result.status == 0
    assert "3 seeds" in result.out
    assert "±" in result.out


@pytest.mark.usefixtures("no_pictures")
def test_runs_of_other_prices_are_not_averaged(seeds: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert call("train", *DIGITS, *QUICK, "--seed", "9", "--c-e", "0.4", "--out", other).status == 0
    assert_told(call("evaluate", seeds[0], other, "--json"), [1], "other prices", "--c-e")
    assert len(call("evaluate", seeds[0], other, "--c-e", "0.4", "--c-1", "1", "--json").json()) == 1


@pytest.mark.usefixtures("no_pictures")
def test_a_mean_over_runs_is_a_mean_over_seeds(seeds: list[Path], tmp_path: Path) -> None:
    assert_told(call("evaluate", seeds[0], seeds[0]), [1], "different seeds")
    other = tmp_path / "other"
    assert call("train", *DIGITS, *QUICK, "--seed", "9", "--calibration", "0.2", "--out", other).status == 0
    assert_told(call("evaluate", seeds[0], other), [1], "no other seed", "calibration")


@pytest.mark.long
def test_out_writes_metrics_pictures_and_page(trained: tuple[Path, Result], tmp_path: Path) -> None:
    folder, out = trained[0], tmp_path / "judged"
    (report,) = call("evaluate", folder, "--c-e", "0.2", "--out", out, "--json").json()
    assert json.loads((out / "metrics.json").read_text()).items() >= report.items()
    assert list((out / "plots").glob("*.png"))
    assert (out / "report.html").exists()
    before = files_of(out)
    assert_told(call("evaluate", folder, "--c-e", "0.3", "--out", out), [1], str(out), "--force")
    assert files_of(out) == before
    assert call("evaluate", folder, "--c-e", "0.3", "--out", out, "--force").status == 0
    assert json.loads((out / "metrics.json").read_text())["costs"]["c_e"] == 0.3


def test_out_goes_with_one_run(seeds: list[Path], tmp_path: Path) -> None:
    result = call("evaluate", *seeds, "--out", tmp_path / "judged")
    assert result.status == 2
    assert not (tmp_path / "judged").exists()


def test_other_data_of_the_same_shape(trained: tuple[Path, Result], tmp_path: Path) -> None:
    data = l2h.load_dataset("digits", seed=5)
    half = {"X_train": data.X_train, "y_train": data.y_train, "X_test": data.X_test[:200], "y_test": data.y_test[:200]}
    np.savez(tmp_path / "half.npz", **half)
    (report,) = call("evaluate", trained[0], "--data", tmp_path / "half.npz", "--c-e", "0.1", "--json").json()
    assert (report["samples"], report["dataset"]) == (200, "half")
    np.savez(tmp_path / "whole.npz", X=half["X_test"], y=half["y_test"])
    (whole,) = call("evaluate", trained[0], "--data", tmp_path / "whole.npz", "--c-e", "0.1", "--json").json()
    assert (whole["samples"], whole["risk"]) == (200, report["risk"]), "no test part: every row is one"
    assert call("evaluate", trained[0], "--test", tmp_path / "whole.npz").status == 2
    np.savez(tmp_path / "table.npz", X=np.zeros((40, 3), dtype=np.float32), y=np.arange(40) % 10)
    assert_told(call("evaluate", trained[0], "--data", tmp_path / "table.npz"), [1], "(3,)", "(1, 8, 8)")


def test_a_bad_price_is_bad_usage(trained: tuple[Path, Result]) -> None:
    assert_told(call("evaluate", trained[0], "--c-e", "-1"), [2], "c_e=-1")


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    assert_told(call("evaluate", tmp_path / "nowhere"), [1], "nowhere", "config.json")
    (tmp_path / "config.json").write_text("{")
    assert_told(call("evaluate", tmp_path), [1], "config.json", "damaged")
    (tmp_path / "config.json").write_text('{"schema": 99}')
    assert_told(call("evaluate", tmp_path), [1], "99", "update l2h")
    (tmp_path / "config.json").write_text('{"schema": 1, "training": {}}')
    assert_told(call("evaluate", tmp_path), [1], "not finished")
