"""``l2h shift``: its figures are those of ``l2h evaluate`` on the same inputs, limits differ, files are joined."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Result, assert_told, call

import l2h
from l2h.data import corrupt
from l2h.experiments.shift.traffic import possible_shifts

SHIFTS = ("blur:3", "contrast:5", "hard-classes:5", "easy-classes:5", "hard-inputs:5")


@pytest.fixture(scope="module")
def measured(seeds: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Two runs under some shifts and limits."""
    folder = tmp_path_factory.mktemp("shift") / "two"
    some = [word for shift in SHIFTS for word in ("--shift", shift)]
    limits = ["--limit", "20%", "--limit", "20%@95%", "--limit", "20%+-50", "--c-e", 0.1]
    result = call("shift", *seeds[:2], *some, *limits, "--out", folder, "--json")
    assert result.status == 0, result.err
    assert "shifts 12 of 12" in result.err
    return folder, result.json()


def row_of(summary: dict[str, Any], shift: str, strength: int, limit: str = "") -> dict[str, Any]:
    key = (shift, strength, limit)
    (row,) = [row for row in summary["rows"] if (row["shift"], row["strength"], row["limit"]) == key]
    return row


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "shift.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_are_those_of_evaluate_on_the_same_inputs(
    measured: tuple[Path, dict[str, Any]], seeds: list[Path], tmp_path: Path
) -> None:
    data = l2h.load_dataset("digits", limit=300)
    np.savez(tmp_path / "blurred.npz", X=corrupt(data.X_test, "blur", 3), y=data.y_test)
    for shift, more in (("none", []), ("blur", ["--data", tmp_path / "blurred.npz"])):
        (report,) = call("evaluate", seeds[0], "--c-e", 0.1, *more, "--json").json()
        own = [row for row in rows_of(measured[0]) if (row["shift"], row["seed"], row["limit"]) == (shift, "0", "")]
        found = {
            name: float(own[0][name]) for name in ("asked", "accuracy", "risk", "never", "always", "client", "server")
        }
        wanted = {
            "asked": report["reject_rate"],
            "risk": report["risk"]["system"],
            "never": report["risk"]["all_local"],
        }
        wanted |= {"always": report["risk"]["all_remote"], "accuracy": report["accuracy"]["system"]}
        wanted |= {name: report["accuracy"][name] for name in ("client", "server")}
        assert found == pytest.approx(wanted, abs=1e-5)


def test_what_could_be_known_only_afterwards_is_no_worse_than_any_fixed_rule(
    measured: tuple[Path, dict[str, Any]],
) -> None:
    for row in rows_of(measured[0]):
        if not row["limit"]:
            assert float(row["best_cut"]) <= min(float(row[name]) for name in ("risk", "never", "always")) + 1e-6
    clean, hard = (row_of(measured[1], *key) for key in (("none", 0), ("hard-classes", 5)))
    easy, unsure = (row_of(measured[1], kind, 5) for kind in ("easy-classes", "hard-inputs"))
    assert hard["client"]["mean"] < clean["client"]["mean"] < easy["client"]["mean"]
    assert unsure["server"]["mean"] < clean["server"]["mean"]


def test_a_tracked_share_holds_where_a_calibrated_one_does_not(measured: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = measured
    tracked = [row for row in rows_of(folder) if row["limit"] == "20%+-50"]
    assert all(abs(float(row["asked"]) - 0.2) <= 50 / 2000 for row in tracked)
    assert {row["broken"] for row in tracked} == {"0"}
    worse = row_of(summary, "contrast", 5, "20%@95%")
    assert abs(worse["asked"]["mean"] - 0.2) > 0.1
    assert worse["alarms"]
    assert not row_of(summary, "none", 0, "20%@95%")["broken"]
    assert not row_of(summary, "none", 0)["alarms"]
    for shares in summary["course"]["limits"]["20%+-50"]["asked"]:
        assert max(abs(share - 0.2) for share in shares[4:]) <= 50 / 200


def test_means_are_over_seeds_and_files_are_joined(measured: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, summary = measured
    for row in summary["rows"]:
        key = row["shift"], str(row["strength"]), row["limit"]
        own = [one for one in rows_of(folder) if (one["shift"], one["strength"], one["limit"]) == key]
        assert len(own) == row["seeds"] == 2
        values = [float(one["risk"]) for one in own]
        assert row["risk"]["mean"] == pytest.approx(statistics.mean(values), abs=1e-5)
        assert row["risk"]["sem"] == pytest.approx(statistics.stdev(values) / 2**0.5, abs=1e-5)
    again = call("shift", "--rows", folder / "shift.csv", "--out", tmp_path / "again", "--json").json()
    assert [row["risk"] for row in again["rows"]] == [pytest.approx(row["risk"], abs=1e-5) for row in summary["rows"]]
    assert (tmp_path / "again" / "shift.csv").read_bytes() == (folder / "shift.csv").read_bytes()
    assert (tmp_path / "again" / "course.csv").read_bytes() == (folder / "course.csv").read_bytes()
    said = call("shift", "--rows", folder / "shift.csv", "--out", tmp_path / "shown")
    assert "contrast:5" in said.out
    assert "20%+-50" in said.out
    assert (tmp_path / "shown" / "shift.png").read_bytes().startswith(b"\x89PNG")


def test_other_data_is_a_shift_of_its_own(seeds: list[Path], tmp_path: Path, no_pictures: None) -> None:
    data = l2h.load_dataset("digits", limit=300)
    other = tmp_path / "mine.npz"
    np.savez(other, X=data.X_test[:100], y=data.y_test[:100])
    result = call("shift", seeds[0], "--shift", "jpeg:1", "--other", other, "--out", tmp_path / "out", "--json")
    assert result.status == 0, result.err
    (row,) = [row for row in result.json()["rows"] if row["shift"] == str(other) and not row["limit"]]
    (report,) = call("evaluate", seeds[0], "--c-e", 0.1, "--data", other, "--json").json()
    assert row["risk"]["mean"] == pytest.approx(report["risk"]["system"])


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["RUN", "--shift", "fog"], 2, "--shift 'fog': write KIND:STRENGTH, such as blur:3"),
        (["RUN", "--shift", "blur:6"], 2, "--shift 'blur:6'"),
        (["RUN", "--limit", "100/1h"], 2, "--limit 100/1h: a number in a time"),
        (["RUN", "--course", "blur"], 2, "give one strength"),
        ([], 2, "name run folders, or --rows FILE"),
        (["RUN", "--rows", "shift.csv"], 2, "name run folders, or --rows FILE"),
        (["--rows", "missing.csv"], 1, "missing.csv cannot be read"),
    ],
)
def test_bad_input_is_told(words: list[str], status: int, says: str, seeds: list[Path], tmp_path: Path) -> None:
    result: Result = call("shift", *(seeds[0] if word == "RUN" else word for word in words), "--out", tmp_path / "out")
    assert_told(result, status, says)
    assert not (tmp_path / "out").exists()


def test_inputs_that_are_no_images_change_their_mix_only() -> None:
    images = np.zeros((4, 3, 8, 8), np.uint8)
    mixes = {"hard-classes", "easy-classes", "hard-inputs"}
    assert {shift.kind for shift in possible_shifts(images, False)} == {"noise", "blur", "contrast", "jpeg", *mixes}
    assert {shift.kind for shift in possible_shifts(images, True)} == mixes, "nobody's API is asked unless told to"
    assert {shift.kind for shift in possible_shifts(images.astype(np.float32), False)} == mixes
