"""``l2h paper reproduce``: the variants, their rows as files, and their distance from the printed tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from l2h.costs import Costs
from l2h.decision import RejectorSpec
from l2h.errors import DataError
from l2h.experiments.paper import lab as lab_module
from l2h.experiments.paper.grid import ASYNC, FULL, MAIN, QUICK
from l2h.experiments.paper.lab import EVERYTHING, Lab
from l2h.experiments.paper.passes import Pass, PassOutcomes
from l2h.experiments.paper.repeating import make_study
from l2h.experiments.paper.reproduce import about_intervals, conclusions, printed_cells, rank
from l2h.experiments.paper.variants import SIDES, Row, Variant, measure, outcome, read_rows, variants_of, write_rows
from l2h.training import Context, pick_device

TINY = replace(QUICK, limit=160, client_epochs=1, epochs=2, syncs=("1", "3"), server_options={"width": 1})
FEW = [Variant("printed", "printed loss", start=1), Variant("fitted", "fitted", fitted=True, team=EVERYTHING)]
JOINT = Variant("released-joint", "released loss, joint step", "released", joint=True, dropout=True)


def digits(folder: Path) -> Lab:
    return Lab("digits", "digits", 0, TINY, folder, device="cpu")


def row(variant: str, key: tuple[Costs, str], seed: int = 0, **figures: Any) -> Row:
    none = dict.fromkeys((*SIDES, "risk", "never", "always", "oracle", "server_right", "seconds"))
    costs, sync = key
    cell = {"c_1": costs.c_1, "c_e": costs.c_e, "sync": sync, "diverged": not figures}
    return {"settings": "x", "variant": variant, "seed": seed, "hardware": "a CPU", **cell, **none, **figures}


# The variants.


def test_each_deviation_stands_beside_both_losses_alone() -> None:
    by_name = {variant.name: variant for variant in variants_of(FULL)}
    assert len(by_name) == len(variants_of(FULL))
    for loss in ("printed", "released"):
        base = by_name[loss]
        assert base.loss == ("paper" if loss == "printed" else "released")
        changed = {"4": "start", "dropout": "dropout", "all": "team", "joint": "joint"}
        for end, field in changed.items():
            other = by_name[f"{loss}-{end}"]
            differs = {name for name in vars(base) if getattr(base, name) != getattr(other, name)}
            assert differs - {"name", "title", "all_syncs"} == {field}
    assert {by_name[f"printed-{epochs}"].start for epochs in (1, 4, 10)} == {1, 4, 10}


def test_the_cells_are_those_of_the_papers_tables() -> None:
    cells = variants_of(FULL)[0].cells(FULL)
    assert {(costs, sync) for costs, sync, _ in cells} == set(printed_cells("cifar10")) == set(printed_cells("svhn"))
    assert all(
        spec == RejectorSpec("paper", costs, sync=int(sync) if sync != "epoch" else sync) for costs, sync, spec in cells
    )
    fitted = next(variant for variant in variants_of(FULL) if variant.fitted)
    assert [(spec.costs, costs) for costs, _, spec in fitted.cells(FULL)] == [(Costs(c.c_e, 0.0), c) for c in ASYNC]


def test_a_client_for_all_images_is_fitted_to_all_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []
    monkeypatch.setattr(lab_module, "train_client", lambda dataset, rows, *rest: seen.append(len(rows)))
    lab = digits(tmp_path)
    context = Context(TINY.published_settings(0, "cpu"), pick_device("cpu"))
    for team in (None, EVERYTHING):
        lab.client(context, team)
    n = len(lab.dataset.y_train)
    assert seen == [pytest.approx(0.72 * n, abs=12), n]


# Rows.


def test_figures_of_a_rejector_are_counted_from_its_decisions() -> None:
    y = np.array([0, 1, 2, 3])
    scores = np.array([[[1, 0], [1, 0], [0, 1], [0, 1]], [[np.nan, 0]] * 4], dtype=np.float32)
    test = PassOutcomes(y, np.array([0, 9, 2, 9]), np.array([0, 1, 9, 3]), scores)
    facts = {"server_right": [0.9, 0.8], "seconds": {}, "hardware": "a CPU"}
    one = Pass((RejectorSpec("paper", MAIN),) * 2, test, test, np.zeros((1, 2)), facts)
    found = outcome(one, 0, MAIN)
    assert [found[figure] for figure in SIDES] == [0.5, 0.5, 1.0, 0.5, 0.5]
    assert found["risk"] == pytest.approx((0 + 1 + 1.5 + 0.25) / 4)
    assert (found["server_right"], found["diverged"]) == (0.9, False)
    lost = outcome(one, 1, MAIN)
    assert lost["diverged"]
    assert {lost[figure] for figure in (*SIDES, "risk")} == {None}


def test_what_is_there_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real training of two servers and seven rejectors; then none, also where one of the two passes is missing."""
    lab = digits(tmp_path)
    rows = measure(lab, [*FEW, JOINT], tmp_path)
    path = tmp_path / "rows-digits-0.csv"
    assert [(r["variant"], r["c_1"], r["c_e"], r["sync"]) for r in rows] == [
        (variant.name, costs.c_1, costs.c_e, "1") for variant in (*FEW, JOINT) for costs in ASYNC
    ]
    again = read_rows(path)
    for a, b in zip(rows, again, strict=True):
        assert {k: v for k, v in a.items() if not isinstance(v, float)} == {
            k: b[k] for k in a if not isinstance(a[k], float)
        }
        assert all(b[k] == pytest.approx(v, abs=1e-5) for k, v in a.items() if isinstance(v, float))
    asked: list[bool] = []

    def beside(self: Lab, teams: Any, **changes: Any) -> Any:
        asked.append(changes["joint"])
        raise RuntimeError("a training")

    monkeypatch.setattr(Lab, "beside", beside)
    assert measure(lab, [*FEW, JOINT], tmp_path) == again
    write_rows(path, [r for r in again if r["variant"] != JOINT.name])
    with pytest.raises(RuntimeError, match="a training"):
        measure(lab, [*FEW, JOINT], tmp_path)
    assert asked == [True]


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "settings,variant,seed\nx,y,many\n"], ids=["empty", "foreign", "words"]
)
def test_a_file_that_holds_no_rows_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows-digits-0.csv"
    path.write_text(text)
    if not text:
        assert read_rows(path) == []
        return
    with pytest.raises(DataError, match=r"rows-digits-0\.csv does not hold the rows of l2h paper reproduce"):
        read_rows(path)


# The distance.


def test_the_printed_cells_are_the_papers() -> None:
    cells = printed_cells("cifar10")
    printed = {"client_kept": 73.9, "server_kept": 81.9, "client_sent": 54.5, "server_sent": 67.7, "kept": 44.11}
    assert {figure: 100 * share for figure, share in cells[MAIN, "1"].items()} == pytest.approx(printed)
    assert printed_cells("svhn")[Costs(0.0, 1.25), "epoch"]["server_sent"] == pytest.approx(0.909)
    assert sum("kept" in cell for cell in cells.values()) == 1
    assert printed_cells("digits") == {}


def test_variants_are_ranked_by_their_distance_and_the_diverged_are_last() -> None:
    """One that is the table itself, one that keeps 10 points too few in two seeds of three, one without numbers."""
    theirs = printed_cells("cifar10")
    variants = [Variant(name, name, all_syncs=True) for name in ("lost", "off", "exact")]
    rows = []
    for seed, shift in enumerate((0.1, 0.2, 0.0)):
        for key, cell in theirs.items():
            own = {"kept": 0.5, **cell}
            rows += [row("exact", key, seed, **own), row("lost", key, seed)]
            rows.append(
                row("off", key, seed, **{**own, "kept": own["kept"] - shift, "server_sent": own["server_sent"] + shift})
            )
    ranked = rank(variants, rows, theirs)
    assert [one.variant.name for one in ranked] == ["exact", "off", "lost"]
    exact, off, lost = ranked
    assert exact.distance == pytest.approx(0, abs=1e-9)
    # Two of five figures are ten points away, and one of the four of each cell.
    assert off.contrastive == pytest.approx(10 * math.sqrt(2 / 5))
    assert off.asynchronous == pytest.approx(10 * math.sqrt(1 / 4))
    assert off.distance == pytest.approx(10 * math.sqrt((2 / 5 + 1 / 4) / 2))
    assert (lost.distance, lost.lost) == (None, len(lost.rows))


def test_the_words_say_which_is_nearest_and_what_the_interval_does() -> None:
    theirs = printed_cells("cifar10")
    variants = [Variant(name, f"{name} loss", all_syncs=True) for name in ("printed", "released", "fitted")]
    rows = [row("printed", key) for key in theirs]
    for (costs, sync), cell in theirs.items():
        better = {"server_right": 0.9 if sync == "1" else 0.8, "risk": 0.5 if sync == "1" else 0.4}
        rows.append(row("released", (costs, sync), **{"kept": 0.3, **cell, **better}))
        rows.append(row("fitted", (costs, sync), **{**cell, "kept": 0.1, **better}))
    ranked = rank(variants, rows, theirs)
    told = " ".join(conclusions(ranked, theirs))
    assert "12 of 12 rejectors diverged" in told
    assert 'nearest to the printed tables is "released loss", 0.0 points away.' in told
    assert "keeps 10.0%, the table 44.1%" in told
    (about, _) = about_intervals(ranked, FULL.syncs)
    assert "at S = 1 L2 takes the server to be right on 90.0%" in about
    assert "at S = 100 on 80.0%" in about
    assert conclusions(ranked, {})[-1].endswith("none is ranked.")


# The command.


def test_a_data_set_may_be_named_by_itself(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    _, study = make_study("reproduce", str(tmp_path / "cifar10"), [], 1, tmp_path / "out", quick=True, device="cpu")
    assert (study.data, study.sets) == (str(tmp_path), ("cifar10",))
