"""``l2h frontier``: its rows and means agree, rows that are there are kept, files are joined, bad input is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Result, assert_told, call, execute

from l2h.experiments.frontier.rows import FIELDS, GRID

WAYS = ("two-ways", "three-ways", "student", "replaced")
RIVALS = ("selective-query", "appealnet")


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of noisy images of 8 by 8 pixels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    X = rng.normal(110, 60, size=(len(y), 1, 8, 8))
    X[y == 1, :, 2:5, 2:5] += 60
    path = tmp_path_factory.mktemp("data") / "images.npz"
    X = X.clip(0, 255).astype(np.uint8)
    np.savez(path, X_train=X[:300], y_train=y[:300], X_test=X[300:], y_test=y[300:])
    return path


def arguments(images: Path, out: Path, *more: object, seeds: int = 2) -> list[object]:
    quick = ("--set", "server.epochs=4", "--set", "rejector.epochs=2", "--set", "folds=2", "--server", "lenet5")
    some = ("--budget", "0", "--budget", "40k", "--rivals", "40k", "--client", "tree")
    return ["frontier", "--data", images, *quick, *some, "--seeds", seeds, "--out", out, *more]


@pytest.fixture(scope="module")
def measured(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("frontier") / "two seeds"
    result = execute(*arguments(images, folder, "--json"))
    assert result.status == 0, result.err
    return folder, result


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "frontier.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_there_is_a_row_for_every_seed_budget_and_way(measured: tuple[Path, Result]) -> None:
    folder, result = measured
    rows = rows_of(folder)
    wanted = {("0", "confidence"), *((b, w) for b in ("0", "40k") for w in WAYS), *(("40k", r) for r in RIVALS)}
    for seed in ("0", "1"):
        own = [row for row in rows if row["seed"] == seed]
        assert {(row["budget"], row["method"]) for row in own} == wanted
        assert len(own) == len(wanted)
    assert tuple(rows[0]) == FIELDS
    summary = json.loads(result.out)
    assert summary == json.loads((folder / "frontier.json").read_text())
    assert (folder / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert summary["part"] == "validation"
    assert summary["samples"] == 30


def test_the_figures_of_a_row_follow_from_each_other(measured: tuple[Path, Result]) -> None:
    folder, _ = measured
    for row in rows_of(folder):
        if row["budget"] == "0" and row["method"] in ("three-ways", "student", "replaced"):
            assert row["risk_mean"] == ""  # no student without a trunk, and a tree has no multiply-adds
            continue
        risk, accuracy, sent = (float(row[name]) for name in ("risk_1_0.1", "accuracy", "remote_1_0.1"))
        # At c_1 = 1 a wrong answer costs 1, whoever gives it, and a request 0.1.
        assert risk == pytest.approx(1 - accuracy + 0.1 * sent, abs=1e-4)
        if row["method"] in ("confidence", "two-ways", *RIVALS):
            assert float(row["oracle_1_0.1"]) <= risk + 1e-6  # of client and server
        if row["method"] in ("student", "replaced"):
            assert (sent, row["gain"]) == (0.0, "")
        if row["budget"] == "40k":
            assert 0 < float(row["multiply_adds"]) <= 40_000
        assert float(row["microseconds"]) > 0 or row["method"] == "confidence"


def test_the_summary_has_the_means_over_seeds(measured: tuple[Path, Result]) -> None:
    folder, result = measured
    summary: dict[str, Any] = json.loads(result.out)
    for row in summary["rows"]:
        own = [r for r in rows_of(folder) if (r["budget"], r["method"]) == (row["budget"], row["method"])]
        values = np.array([float(r["risk_mean"]) for r in own])
        assert row["seeds"] == len(values) == 2
        assert row["risk_mean"]["mean"] == pytest.approx(values.mean())
        assert row["risk_mean"]["sem"] == pytest.approx(values.std(ddof=1) / 2**0.5)
    assert len(summary["prices"]["mean"]) == len(GRID) == 9


def test_rows_that_are_there_are_kept_and_the_others_come_out_the_same(
    images: Path, measured: tuple[Path, Result], tmp_path: Path
) -> None:
    """A file that ends in the middle of a seed is completed; nothing that a net draws depends on the others."""
    folder = tmp_path / "broken"
    shutil.copytree(measured[0], folder)
    whole = rows_of(folder)
    kept = [row for row in whole if row["seed"] == "0" and row["method"] not in (*RIVALS, "replaced")]
    with (folder / "frontier.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    assert call(*arguments(images, folder, seeds=1)).status == 0
    times = ("seconds", "microseconds", "client_microseconds")
    after = {(r["budget"], r["method"]): {k: v for k, v in r.items() if k not in times} for r in rows_of(folder)}
    before = {
        (r["budget"], r["method"]): {k: v for k, v in r.items() if k not in times} for r in whole if r["seed"] == "0"
    }
    assert after == before
    assert rows_of(folder)[: len(kept)] == kept


def test_a_finished_frontier_is_shown_and_not_measured_again(images: Path, measured: tuple[Path, Result]) -> None:
    before = (measured[0] / "frontier.csv").read_bytes()
    again = call(*arguments(images, measured[0]))
    assert again.status == 0
    assert "who answers" in again.out
    assert (measured[0] / "frontier.csv").read_bytes() == before


def test_the_rows_of_several_files_make_one_table(measured: tuple[Path, Result], tmp_path: Path) -> None:
    folder, result = measured
    lines = (folder / "frontier.csv").read_text().splitlines(keepends=True)
    for seed in ("0", "1"):
        own = [line for line in lines[1:] if line.split(",")[3] == seed]
        (tmp_path / f"{seed}.csv").write_text("".join([lines[0], *own]))
    parts = ["--rows", tmp_path / "0.csv", "--rows", tmp_path / "1.csv"]
    joined = call("frontier", *parts, "--out", tmp_path / "both", "--json")
    assert joined.status == 0, joined.err
    first, second = json.loads(joined.out), json.loads(result.out)
    assert first["rows"] == second["rows"]
    assert (tmp_path / "both" / "frontier.png").exists()


def test_bad_input_is_told_in_a_line(images: Path, measured: tuple[Path, Result], tmp_path: Path) -> None:
    folder, _ = measured
    for status, more, told in (
        (2, ["--test-part", "train"], "validation, test"),
        (2, ["--budget", "0"], "each once"),
        (2, ["--budget", "much"], "budget='much' is none"),
        (1, ["--test-part", "test", "--out", folder], "--force replaces it"),
    ):
        assert_told(call(*arguments(images, tmp_path / "x", *more)), status, told)
    (tmp_path / "no.csv").write_text("a,b\n1,2\n")
    assert_told(call("frontier", "--rows", tmp_path / "no.csv", "--out", tmp_path / "y"), 1, "other columns")
    assert_told(call("frontier", "--rows", tmp_path / "none.csv", "--out", tmp_path / "y"), 1, "cannot be read")
