"""``l2h compare --crossed``: a row per loss, net, samples, rate and price; kept rows; tables from rows alone."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Result, assert_told, call, one_line

from l2h.experiments.crossed.seed import SeedCrossing

QUICK = [
    *("--client", "tree", "--client-share", "0.3", "--server", "mlp", "--calibration", "0.2", "--c-1", "1"),
    *("--set", "server.epochs=2", "--set", "rejector.epochs=1", "--set", "folds=2", "--budget", "20k"),
    *("--c-e", "0.05", "--c-e", "0.2", "--method", "priced-attached", "--method", "ova-l2d"),
    *("--method", "two-stage-confidence", "--method", "binary-l2h"),
]
LOSSES = ("ova-l2d", "two-stage-confidence", "priced")
ARMS = set(itertools.product(("separate", "attached", "student"), ("outcomes", "softmax")))


def run(table: Path, out: Path, *more: object) -> Result:
    return call("compare", "--crossed", "--data", table, *QUICK, "--out", out, *more)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    with (folder / "crossed.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def crossed(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("crossed") / "two seeds"
    result = run(table, folder, "--seeds", 2, "--json")
    assert result.status == 0, result.err
    return folder, result


def test_every_loss_is_in_every_arm_and_the_means_follow_from_the_rows(crossed: tuple[Path, Result]) -> None:
    folder, result = crossed
    summary, rows = result.json(), rows_of(folder)
    assert summary == json.loads((folder / "crossed.json").read_text())
    trained = [row for row in rows if row["trunk"]]
    keys = {(r["seed"], r["loss"], r["trunk"], r["learned_from"], r["rate"], r["c_e"]) for r in trained}
    assert len(keys) == len(trained) == 2 * len(LOSSES) * len(ARMS) * 2 * 2
    assert {(row["trunk"], row["learned_from"]) for row in trained} == ARMS
    assert all(int(row["multiply_adds"]) <= 20_000 for row in trained)
    assert all((row["student"] == "") == (row["trunk"] != "student") for row in trained)
    cells = {(c["loss"], c["trunk"], c["learned_from"]): c for c in summary["cells"]}
    assert cells.keys() == {(loss, *arm) for loss in LOSSES for arm in ARMS} | {("confidence", "", "")}
    for (loss, trunk, learned_from), cell in cells.items():
        own = [r for r in rows if (r["loss"], r["trunk"], r["learned_from"]) == (loss, trunk, learned_from)]
        chosen = []
        for seed in ("0", "1"):
            rates = {r["rate"]: [] for r in own}  # type: ignore[var-annotated]
            for row in own:
                if row["seed"] == seed:
                    rates[row["rate"]].append((float(row["validation"]), float(row["risk"])))
            means = [np.mean(pairs, axis=0) for pairs in rates.values()]
            chosen.append(min(means, key=lambda pair: pair[0])[1])  # of equals the first
        assert cell["risk"]["mean"] == pytest.approx(np.mean(chosen), abs=1e-9)
    assert summary["skipped"] == [{"method": "binary-l2h", "why": "it is for 2 classes"}]


def test_effects_are_differences_of_cells(crossed: tuple[Path, Result]) -> None:
    summary = crossed[1].json()
    risk = {(c["loss"], c["trunk"], c["learned_from"]): c["risk"]["mean"] for c in summary["cells"]}
    effects = {(e["factor"], e["of"]): e for e in summary["effects"]}
    more = [risk[loss, "student", of] - risk[loss, "attached", of] for loss in LOSSES for of in ("outcomes", "softmax")]
    found = effects["trunk", "student instead of attached"]
    assert found["difference"] == pytest.approx(np.mean(more), abs=1e-4)
    assert found["low"] < found["difference"] < found["high"]
    assert found["p"] <= found["p_holm"] <= 1
    full = effects["loss, with everything", "ova-l2d"]["difference"]
    assert full == pytest.approx(risk["ova-l2d", "student", "softmax"] - risk["priced", "student", "softmax"], abs=1e-4)


def test_rows_that_are_there_are_kept_and_more_are_added(
    table: Path, crossed: tuple[Path, Result], tmp_path: Path
) -> None:
    folder, before = crossed[0], (crossed[0] / "crossed.csv").read_bytes()
    again = run(table, folder, "--seeds", 2)
    assert again.status == 0
    assert "holds seed 1 already" in again.err
    assert (folder / "crossed.csv").read_bytes() == before
    text = one_line(again.out)
    assert "priced has a mean risk of" in text
    summary = crossed[1].json()
    assert f"Never asking: {1 - summary['client']['mean']:.4f}" in text
    assert f"always: {0.125 + 1 - summary['server']['mean']:.4f}" in text, "c_e is 0.05 and 0.2"
    (student,) = (c["student"] for c in summary["cells"] if list(c.values())[1:4] == ["priced", "student", "softmax"])
    assert f"alone: {1 - student['mean']:.4f}" in text
    assert "Left out: binary-l2h (it is for 2 classes)." in text
    assert_told(run(table, folder, "--c-e", "0.3"), [1], "--force")


def test_the_rows_of_several_files_make_the_same_table(crossed: tuple[Path, Result], tmp_path: Path) -> None:
    folder, result = crossed
    head, *lines = (folder / "crossed.csv").read_text().splitlines()
    for seed in ("0", "1"):
        own = [line for line in lines if line.split(",")[4] == seed]
        (tmp_path / f"{seed}.csv").write_text("\n".join([head, *own]) + "\n")
    joined = call(
        "compare", "--rows", tmp_path / "0.csv", "--rows", tmp_path / "1.csv", "--json", "--out", tmp_path / "both"
    )
    assert joined.status == 0, joined.err
    apart = ("command", "skipped")
    assert {k: v for k, v in joined.json().items() if k not in apart} == {
        k: v for k, v in result.json().items() if k not in apart
    }


def test_a_seed_with_fewer_losses_joins_the_means_of_those_that_it_has(
    crossed: tuple[Path, Result], tmp_path: Path
) -> None:
    folder, result = crossed
    head, *lines = (folder / "crossed.csv").read_text().splitlines()
    cells = [(line, [line.split(",")[column] for column in (4, 6, 7)]) for line in lines]
    gone = (["1", "ova-l2d"], ["1", "two-stage-confidence", "separate"])
    left = [line for line, cell in cells if not any(cell[: len(one)] == one for one in gone)]
    (tmp_path / "rows.csv").write_text("\n".join([head, *left]) + "\n")
    joined = call("compare", "--rows", tmp_path / "rows.csv", "--json", "--out", tmp_path / "shown").json()
    effects, whole = ({(e["factor"], e["of"]): e for e in each["effects"]} for each in (joined, result.json()))
    found = effects["trunk", "student instead of attached"]
    assert (found["seeds"], found["pairs"]) == ([0, 1], 2 * (len(LOSSES) - 1)), "of the losses that both seeds have"
    same, other = ("loss, with everything", "two-stage-confidence"), ("loss, with everything", "ova-l2d")
    assert effects[same]["difference"] == whole[same]["difference"]
    assert effects[other]["seeds"] == [0]
    shown = one_line(call("compare", "--rows", tmp_path / "rows.csv", "--out", tmp_path / "shown").out)
    assert "ova-l2d (1 seed)" in shown
    assert "two-stage-confidence (4 arms)" in shown, "a mean of fewer arms says so"
    assert "the lowest of those with as many seeds is that of" in shown


@pytest.mark.long
def test_nets_in_a_stack_learn_what_they_learn_alone(
    table: Path, crossed: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SeedCrossing, "stacked", False)
    assert run(table, tmp_path / "alone", "--seeds", 1, "--rate", "0.01").status == 0
    alone = rows_of(tmp_path / "alone")
    there = {
        tuple(r[k] for k in ("seed", "loss", "trunk", "learned_from", "rate", "c_e")): r for r in rows_of(crossed[0])
    }
    assert len(alone) == 2 + len(LOSSES) * len(ARMS) * 2
    for row in alone:
        stacked = there[tuple(row[k] for k in ("seed", "loss", "trunk", "learned_from", "rate", "c_e"))]
        assert float(row["risk"]) == pytest.approx(float(stacked["risk"]), abs=0.01)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (["--budget", "0"], ["--budget 0"]),
        (["--rate", "0.01", "--rate", "0.01"], ["rates", "each once"]),
        (["--method", "margin"], ["'margin' has no loss to cross"]),
        (["--server", "a=mlp", "--server", "b=mlp"], ["--crossed is for one server"]),
        (["--set", "recipe=paper"], ["recipe"]),
    ],
)
def test_bad_input_is_told_in_a_line(bad: list[str], words: list[str], table: Path, tmp_path: Path) -> None:
    quick = [part for part in QUICK if part not in ("--budget", "20k")]
    assert_told(call("compare", "--crossed", "--data", table, *quick, *bad, "--out", tmp_path / "run"), [2], *words)
    assert not (tmp_path / "run").exists()


def test_rows_of_something_else_are_refused(tmp_path: Path, crossed: tuple[Path, Result]) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert_told(call("compare", "--rows", other, "--out", tmp_path / "x"), [1], str(other))
    text = (crossed[0] / "crossed.csv").read_text().splitlines()
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join([text[0], text[1].replace("[", "{", 1)]) + "\n")
    assert_told(call("compare", "--rows", broken, "--out", tmp_path / "x"), [1], "broken.csv, line 2")
