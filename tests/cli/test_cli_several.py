"""``l2h compare`` with several servers: every method at every price, kept seeds, and bad input in a line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from commands import Result, assert_told, call, execute
from sklearn.tree import DecisionTreeClassifier

import l2h

METHODS = {
    *("all-local", "always box", "always cloud", "priced-attached", "ova-l2d", "two-stage-confidence"),
    *("box alone", "cloud alone", "second-opinion", "cascade"),
}
PRICES = ("--price", "box=0.05", "--price", "cloud=0.1", "--price", "cloud=0.2:1.25")


def arguments(table: Path, out: Path, *more: object) -> list[object]:
    quick = ("--set", "server.epochs=4", "--set", "rejector.epochs=2", "--set", "folds=2", "--client-share", "0.2")
    servers = ("--client", "tree", "--server", "box=mlp", "--server", "cloud=mlp", "--option", "box.dropout=0.8")
    return ["compare", "--data", table, *quick, *servers, "--out", out, *more]


@pytest.fixture(scope="module")
def compared(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("several") / "two seeds"
    result = execute(*arguments(table, folder, *PRICES, "--seeds", 2, "--json"))
    assert result.status == 0, result.err
    return folder, result


@pytest.mark.long
def test_every_method_is_measured_at_every_price(compared: tuple[Path, Result]) -> None:
    folder, result = compared
    summary = json.loads(result.out)
    assert summary == json.loads((folder / "several.json").read_text())
    assert summary["prices"] == ["box=0.05:1 cloud=0.1:1", "box=0.05:1 cloud=0.2:1.25"]
    assert set(summary["methods"]) == METHODS
    with (folder / "several.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * len(METHODS)
    for row in rows:
        shares = json.loads(row["shares"])
        assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
        if row["method"] == "cascade" or row["prices"].endswith("1.25"):
            continue
        # A wrong answer costs 1 whoever gives it, and a request its price.
        asked = 0.05 * shares["box"] + 0.1 * shares["cloud"]
        assert float(row["risk"]) == pytest.approx(1 - float(row["accuracy"]) + asked, abs=1e-4)
        if row["method"] == "box alone":
            assert shares["cloud"] == 0
    for cell in summary["cells"]:
        own = [float(r["risk"]) for r in rows if (r["prices"], r["method"]) == (cell["prices"], cell["method"])]
        assert cell["risk"]["mean"] == pytest.approx(np.mean(own))
        if cell["method"] == "priced-attached":
            assert cell["more"]["mean"] == cell["more"]["error"] == 0


@pytest.mark.long
def test_finished_seeds_are_kept_and_other_prices_need_another_folder(
    table: Path, compared: tuple[Path, Result]
) -> None:
    folder, _ = compared
    before = (folder / "several.csv").read_bytes()
    again = call(*arguments(table, folder, *PRICES, "--seeds", 2))
    assert again.status == 0
    assert "priced-attached against cascade" in again.out
    assert (folder / "several.csv").read_bytes() == before
    assert_told(call(*arguments(table, folder, *PRICES, "--price", "box=0.3")), 1, "--force replaces it")


@pytest.mark.long
def test_the_rows_of_several_files_make_one_table(compared: tuple[Path, Result], tmp_path: Path) -> None:
    folder, result = compared
    lines = (folder / "several.csv").read_text().splitlines(keepends=True)
    for seed in ("0", "1"):
        own = [line for line in lines[1:] if line.split(",")[2] == seed]
        (tmp_path / f"{seed}.csv").write_text("".join([lines[0], *own]))
    parts = ["--rows", tmp_path / "0.csv", "--rows", tmp_path / "1.csv"]
    joined = call("compare", *parts, "--out", tmp_path / "both", "--json")
    assert joined.status == 0, joined.err
    assert json.loads(joined.out)["cells"] == json.loads(result.out)["cells"]
    (tmp_path / "none.csv").write_text(lines[0])
    assert_told(call("compare", "--rows", tmp_path / "none.csv", "--out", tmp_path / "no"), 1, "of no comparison")


def test_bad_input_is_told_in_a_line(table: Path, tmp_path: Path) -> None:
    for more, told in (
        (["--price", "box=0.1"], "no price for cloud"),
        ([*PRICES, "--price", "attic=0.1"], "attic=...: no server is called so"),
        ([*PRICES, "--price", "box=cheap"], "write box=C_E or box=C_E:C_1"),
        ([*PRICES, "--server", "box=mlp"], "given twice"),
        ([*PRICES, "--server", "mlp"], "--server box=... --server cloud=..."),
        ([*PRICES, "--server", "student=mlp"], "cannot be called 'student'"),
        ([*PRICES, "--server", "shed=lenet99", "--price", "shed=1"], "lenet99"),
        ([*PRICES, "--c-e", "0.1"], "--c-e is for one server"),
    ):
        assert_told(call(*arguments(table, tmp_path / "x", *more)), 2, told)


def test_one_vs_all_is_trained_for_several_servers(table: Path) -> None:
    data = l2h.load_dataset(str(table))
    stage = l2h.StageSettings(epochs=2)
    client = DecisionTreeClassifier(max_depth=2).fit(data.X_train, data.y_train)
    system = l2h.HelpSystem(
        client=client,
        servers={"box": "mlp", "cloud": "mlp"},
        method="ova-l2d",
        settings=l2h.Settings(server=stage, rejector=stage, folds=2, threads=1),
    ).fit(data.X_train, data.y_train)
    costs = {"box": l2h.Costs(0.02), "cloud": l2h.Costs(0.3)}
    answers = system.predict(data.X_test, costs=costs)
    assert set(answers.by) <= {"client", "box", "cloud"}
    dearer = system.predict(data.X_test, costs=costs | {"box": l2h.Costs(2.0)})
    assert (dearer.by == "box").sum() < (answers.by == "box").sum()
