"""``l2h paper --quick``: its files, its figures counted again, what is kept and made again, and bad input."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Result, assert_told, files_of
from paper_runner import (
    Array,
    Kept,
    assert_same_passes,
    call,
    execute,
    number,
    rows_of,
    start,
    write_images,
    written,
)
from safetensors.torch import save_file
from waiting import stop_when

from l2h.experiments.paper.grid import ASYNC, QUICK
from l2h.experiments.paper.repeating import EXPERIMENTS
from l2h.models import ViT

DIGITS = ["--data", "digits", "--quick", "--seeds", "1", "--out", "all"]
#: The recipes as the tables call them: which pass has it, and by which loss.
RECIPES = {
    "paper's recipe": ("published", "paper"),
    "paper's recipe, released loss": ("published", "released"),
    "paper's recipe, bounded loss": ("published", "shifted"),
    "our recipe": ("ours", "priced"),
}
#: The client and the server beside which a recipe is judged.
OWN = {"paper's recipe": "published", "our recipe": "ours"}
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """All experiments, by a real process."""
    home = tmp_path_factory.mktemp("paper")
    result = execute(home, "all", *DIGITS)
    assert result.status == 0, result.err
    return home / "all", result


@pytest.fixture
def copied(finished: tuple[Path, Result], tmp_path: Path) -> Path:
    """A copy of it, under the same name, that a test may change."""
    shutil.copytree(finished[0], tmp_path / "all")
    return tmp_path / "all"


def kept(folder: Path, recipe: str, missing: bool = False) -> Kept:
    return Kept.read(folder / "passes" / f"digits-{recipe}{'-missing' if missing else ''}-0.npz")


def experiment(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name / "experiment.json").read_text())


def tables(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [section for section in found["sections"] if section["kind"] == "table"]


def assert_figure(text: str, value: float | None) -> None:
    """A field of a CSV file is this number, or empty where there is none."""
    found = number(text)
    assert (found is None) == (value is None)
    assert value is None or found == pytest.approx(value, abs=1e-12)


# What it writes.


@pytest.mark.long
def test_every_experiment_has_its_page_its_values_its_tables_and_its_plots(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    names = set(files_of(folder))
    expected = {"index.html", "RESULTS.md"}
    for name in EXPERIMENTS:
        found = experiment(folder, name)
        assert (found["name"], found["datasets"], found["seeds"], found["quick"]) == (name, ["digits"], [0], True)
        plots = [section["file"] for section in found["sections"] if section["kind"] == "plot"]
        csvs = [f"{table['name']}.csv" for table in tables(found)]
        assert plots or csvs
        expected |= {f"{name}/{file}" for file in ("report.html", "experiment.json", *plots, *csvs)}
        assert all((folder / name / plot).read_bytes().startswith(PNG) for plot in plots)
        page = (folder / name / "report.html").read_text()
        assert page.rstrip().endswith("</html>")
        assert page.count("data-hover=") == len(plots)
        assert not re.search(r"""(src|href)=["']https?://""", page), "nothing is fetched"
    expected.add("reproduce/rows-digits-0.csv")  # what it was measured from
    assert {name for name in names if not name.startswith("passes/")} == expected
    assert not [name for name in names if name.endswith(".tmp")]
    recipes = {f"digits-{recipe}-0.npz" for recipe in ("published", "ours", "published-missing", "ours-missing")}
    assert recipes <= set(written(folder))


@pytest.mark.long
def test_the_overview_leads_to_every_experiment(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    index, markdown = (folder / "index.html").read_text(), (folder / "RESULTS.md").read_text()
    for name in EXPERIMENTS:
        found = experiment(folder, name)
        assert f"{name}/report.html" in index
        assert f"## {found['title']}" in markdown
        assert f"all/{name}/report.html" in result.err
        assert found["command"] == "l2h paper all --data digits --quick --seeds 1 --out all"
        for table in tables(found):
            assert table["title"] in markdown


# Its figures, counted again from what the rejectors decided.


@pytest.mark.long
def test_the_trade_off_follows_from_the_passes(finished: tuple[Path, Result]) -> None:
    """Every price and recipe; never and always asking are those of each recipe's own client and server."""
    folder, _ = finished
    rows = rows_of(folder / "tradeoff" / "tradeoff-digits.csv")
    assert [(float(row["c_1"]), float(row["c_e"])) for row in rows] == [(c.c_1, c.c_e) for c in QUICK.tradeoff]
    for row in rows:
        c_1, c_e = float(row["c_1"]), float(row["c_e"])
        for recipe, (which, loss) in RECIPES.items():
            found = kept(folder, which).figures(loss, c_e, c_1)
            for figure, value in found.items():
                assert_figure(row[f"{figure}, {recipe}_mean"], value)
                assert row[f"{figure}, {recipe}_sem"] == "", "one seed has no spread"
        for recipe, which in OWN.items():
            assert_figure(row[f"risk, never ask, {recipe}_mean"], kept(folder, which).never())
            assert_figure(row[f"risk, always ask, {recipe}_mean"], kept(folder, which).always(c_e, c_1))


@pytest.mark.long
def test_the_risks_at_the_main_prices_follow_from_the_passes(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    rows = {row["recipe"]: row for row in rows_of(folder / "contrastive" / "risk-digits.csv")}
    assert set(rows) == set(RECIPES)
    for recipe, (which, loss) in RECIPES.items():
        one, row = kept(folder, which), rows[recipe]
        found = one.figures(loss, 0.25, 1.25)
        assert_figure(row["risk_mean"], found["risk"])
        assert_figure(row["sent_mean"], found["sent"])
        rate, never, always = found["sent"], one.never(), one.always(0.25, 1.25)
        assert_figure(row["never ask_mean"], never)
        assert_figure(row["always ask_mean"], always)
        assert_figure(row["random, same rate_mean"], None if rate is None else rate * always + (1 - rate) * never)
        # The oracle asks where that is cheaper than the client's outcome.
        cheaper = np.minimum(np.where(one.client, 0, 1), np.where(one.server, 0.25, 1.5)).mean()
        assert_figure(row["oracle_mean"], float(cheaper))
        if rate is None:
            continue
        assert number(row["oracle_mean"]) <= min(never, always, found["risk"])  # type: ignore[type-var]


def sides(one: Kept, sent: Array | None) -> dict[str, dict[str, float | None]]:
    """The contrastive table: an empty side has no accuracies."""
    out = {}
    for side in ("local", "remote"):
        empty: dict[str, float | None] = dict.fromkeys(("share", "client", "server", "difference", "joint accuracy"))
        if sent is not None:
            here = sent if side == "remote" else ~sent
            empty |= {"share": here.sum() / here.size, "joint accuracy": np.where(sent, one.server, one.client).mean()}
            if here.any():
                m, e = one.client[here].mean(), one.server[here].mean()
                empty |= {"client": m, "server": e, "difference": e - m}
        out[side] = empty
    return out


@pytest.mark.long
def test_both_sides_at_the_main_prices_follow_from_the_passes(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    rows = rows_of(folder / "contrastive" / "contrastive-digits.csv")
    assert len(rows) == 2 * len(RECIPES)
    for row in rows:
        which, loss = RECIPES[row["recipe"]]
        one = kept(folder, which)
        for figure, value in sides(one, one.sent(loss, 0.25, 1.25))[row["decision"]].items():
            assert_figure(row[f"{figure}_mean"], value)


@pytest.mark.long
def test_every_sync_interval_follows_from_the_passes(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    one = kept(folder, "published")
    names = {"paper": "paper's L2", "released": "released L2", "shifted": "bounded loss"}
    cells = [(costs.c_1, costs.c_e, sync) for costs in ASYNC for sync in QUICK.syncs]
    risks = rows_of(folder / "async" / "async-risk-digits.csv")
    assert [(float(row["c_1"]), float(row["c_e"]), row["S"]) for row in risks] == cells
    for row, (c_1, c_e, sync) in zip(risks, cells, strict=True):
        for loss, label in names.items():
            assert_figure(row[f"risk, {label}_mean"], one.figures(loss, c_e, c_1, sync)["risk"])
        assert_figure(row["never ask_mean"], one.never())
        assert_figure(row["always ask_mean"], one.always(c_e, c_1))
    rows = rows_of(folder / "async" / "async-digits.csv")
    assert len(rows) == 2 * len(cells)
    for row in rows:
        c_1, c_e = float(row["c_1"]), float(row["c_e"])
        assert row["client, paper_mean"] == row["server, paper_mean"] == "", "the paper prints nothing of the digits"
        for loss, label in names.items():
            found = sides(one, one.sent(loss, c_e, c_1, row["S"]))[row["decision"]]
            for figure in ("share", "client", "server"):
                assert_figure(row[f"{figure}, {label}_mean"], found[figure])


@pytest.mark.long
def test_every_price_of_the_vit_follows_from_the_passes(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    passes = {which: Kept.read(folder / "passes" / f"digits-vit-{which}-0.npz") for which in ("published", "ours")}
    risks, shares = (rows_of(folder / "cifar100-vit" / f"cifar100-vit{part}.csv") for part in ("-risk", ""))
    assert len(risks) == len(shares) == 28
    lost = worse = 0
    for risk, share in zip(risks, shares, strict=True):
        c_1, c_e = float(risk["c_1"]), float(risk["c_e"])
        assert (float(share["c_1"]), float(share["c_e"])) == (c_1, c_e)
        for label, (which, loss) in RECIPES.items():
            found = passes[which].figures(loss, c_e, c_1)
            # A column that is empty throughout has no spread beside it.
            assert_figure(risk.get(f"{label}_mean", ""), found["risk"])
            assert_figure(share.get(f"sent, {label}_mean", ""), found["sent"])
            assert_figure(share.get(f"joint, {label}_mean", ""), found["accuracy"])
            lost += label == "paper's recipe" and found["risk"] is None
        never, always = passes["ours"].never(), passes["ours"].always(c_e, c_1)
        assert_figure(risk["never ask_mean"], never)
        assert_figure(risk["always ask_mean"], always)
        worse += passes["ours"].figures("priced", c_e, c_1)["risk"] > min(never, always)
    findings = experiment(folder, "cifar100-vit")["findings"]
    assert f"By our recipe {worse} of 28 prices" in findings[0]
    assert findings[1] == f"Of 28 rejectors by the paper's L2 {lost} diverged."


@pytest.mark.long
def test_the_missing_class_follows_from_the_passes(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    rows = rows_of(folder / "missing-class" / "missing-digits.csv")
    assert len(rows) == 4 * (len(RECIPES) + 1)
    for row in rows:
        bounded = row["recipe"] == "our recipe, at most 50% sent"
        which, loss = RECIPES["our recipe" if bounded else row["recipe"]]
        one = kept(folder, which, missing=True)
        sent = one.most(0.5) if bounded else one.sent(loss, 0.25, 1.25)
        parts = {"missing": one.y == 9, "other": one.y != 9, "all": one.y == one.y}
        for part, rows_of_part in parts.items():
            name = f"{part} {'class' if part == 'missing' else 'classes'}"
            values = {"only local": one.client, "only remote": one.server}.get(row["figure"])
            if values is None and sent is not None:
                values = {"joint": np.where(sent, one.server, one.client), "reject rate": sent}[row["figure"]]
            assert_figure(row[f"{name}_mean"], None if values is None else values[rows_of_part].mean())


@pytest.mark.long
def test_the_client_never_answers_the_class_it_never_saw_and_the_server_does(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    for recipe in ("published", "ours"):
        without, whole = kept(folder, recipe, missing=True), kept(folder, recipe)
        assert 9 not in without.arrays["test_client_label"]
        gone = without.y == 9
        assert gone.any()
        assert without.client[gone].mean() == 0
        assert without.server[gone].mean() > 0.5
        assert np.array_equal(without.arrays["test_server_label"], whole.arrays["test_server_label"]), (
            "the server's loss does not know of the client"
        )


@pytest.mark.long
def test_accuracy_under_a_bound_follows_from_the_passes(finished: tuple[Path, Result]) -> None:
    """Averaged over the bounds.

    Random asking has a formula. The stochastic rule is compared with its expectation: a bound's accuracy over n test
    samples has a standard deviation of at most sqrt(1/(4n)), the mean over B bounds no more, of which four are
    allowed. The threshold sends what is above a quantile of the calibration set, for whose ties one sample in n is
    allowed at each bound.
    """
    folder, _ = finished
    found = {row["rule"]: float(row["mean accuracy_mean"]) for row in rows_of(folder / "brr" / "brr-digits.csv")}
    bounds = np.array(QUICK.bounds)
    for label, which in OWN.items():
        one = kept(folder, which)
        random = bounds * one.server.mean() + (1 - bounds) * one.client.mean()
        assert found.pop(f"random, {label}") == pytest.approx(random.mean(), abs=1e-12)
    names = {"paper's recipe": ("published", "shifted"), "our recipe": ("ours", "priced")}
    for label, (which, loss) in names.items():
        one = kept(folder, which)
        sent, held = one.sent(loss, 0.25, 1.12), one.sent(loss, 0.25, 1.12, part="calibration")
        assert sent is not None
        assert held is not None
        q1 = held.mean()
        expected, above = [], []
        place = one.place(loss, 0.25, 1.12)
        score, calibration = (
            np.subtract(*one.arrays[f"{part}_scores"][place].astype(np.float64).T[::-1])
            for part in ("test", "calibration")
        )
        for q in bounds:
            # Probability that a sample which the rejector sends, or keeps, goes.
            goes, stays = (q / q1, 0.0) if q < q1 else (1.0, (q - q1) / (1 - q1) if q1 < 1 else 0.0)
            share = np.where(sent, goes, stays) if 0 < q < 1 else np.full(len(sent), q)
            expected.append((share * one.server + (1 - share) * one.client).mean())
            highest = np.sort(calibration)[::-1][: round(q * len(calibration))]
            go = np.full(len(score), q == 1) if not len(highest) or q == 1 else score >= highest[-1]
            above.append(np.where(go, one.server, one.client).mean())
        n = len(one.y)
        assert found.pop(f"stochastic, {label}") == pytest.approx(np.mean(expected), abs=4 * np.sqrt(1 / (4 * n)))
        assert found.pop(f"threshold, {label}") == pytest.approx(np.mean(above), abs=1.5 / n)
    assert not found


# A rejector that diverged.


@pytest.mark.long
def test_a_rejector_that_diverged_is_na_wherever_its_cell_is_shown(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    one = kept(folder, "published")
    prices = [(costs.c_1, costs.c_e) for costs in QUICK.tradeoff]
    lost = {(c_1, c_e) for c_1, c_e in prices if one.sent("paper", c_e, c_1) is None}
    assert (1.25, 0.25) in lost
    assert all(one.sent("shifted", c_e, c_1) is not None for c_1, c_e in prices), "the bounded form has a minimum"
    found = experiment(folder, "tradeoff")
    assert f"of {len(prices)} rejectors by the paper's L2 {len(lost)} diverged" in found["findings"][0]
    (table,) = tables(found)
    ours = [table["columns"].index(f"{what}, paper's recipe") for what in ("sent", "accuracy", "risk")]
    markdown, page = (folder / "RESULTS.md").read_text(), (folder / "tradeoff" / "report.html").read_text()
    assert page.count(">n/a<") == 3 * len(lost), "in cells; an inlined picture may hold any letters"
    lines = markdown[markdown.index(f"### {table['title']}") :].splitlines()[4:]  # after title, heads and rule
    for row, line in zip(table["rows"], lines, strict=False):
        gone = (float(row[0]), float(row[1])) in lost
        shown = [field.strip() for field in line.strip("| ").split("|")]
        assert shown[:2] == row[:2]
        assert [row[j]["mean"] is None for j in ours] == [shown[j] == "n/a" for j in ours] == [gone] * 3
        assert shown.count("n/a") == 3 * gone
    assert not re.search(r"\b(nan|inf)\b", result.out + markdown, re.IGNORECASE)
    for name in EXPERIMENTS:
        assert not re.search("NaN|Infinity", (folder / name / "experiment.json").read_text())


@pytest.mark.long
def test_where_the_main_cell_diverged_the_paper_s_recipe_has_what_needs_no_rejector_and_nothing_else(
    finished: tuple[Path, Result],
) -> None:
    folder, _ = finished
    alone = {"never ask", "always ask", "oracle"}, {"only local", "only remote"}
    for name, missing in (("contrastive", False), ("missing-class", True)):
        assert kept(folder, "published", missing).sent("paper", 0.25, 1.25) is None
        for table in tables(experiment(folder, name)):
            words = 1 + (table["columns"][1] in ("decision", "figure"))
            rows = [row for row in table["rows"] if row[0] == "paper's recipe"]
            assert rows
            for row in rows:
                for column, cell in list(zip(table["columns"], row, strict=True))[words:]:
                    lost = column not in alone[0] and row[words - 1] not in alone[1]
                    assert (cell["mean"] is None) == lost, (column, row)
    page = (folder / "missing-class" / "report.html").read_text()
    assert "n/a" in page


# What is kept, and what is made again.


@pytest.mark.long
def test_the_same_command_trains_nothing_and_writes_the_same(
    finished: tuple[Path, Result], copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = written(copied)
    monkeypatch.chdir(copied.parent)
    result = call("all", *DIGITS)
    assert result.status == 0, result.err
    assert written(copied) == before
    assert "epoch" not in result.err
    assert result.out == finished[1].out
    assert files_of(copied) == files_of(finished[0])


@pytest.mark.long
def test_only_what_was_removed_is_trained_again(
    finished: tuple[Path, Result], copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "digits-ours-missing-0.npz"
    before = written(copied)
    (copied / "passes" / gone).unlink()
    monkeypatch.chdir(copied.parent)
    result = call("missing-class", *DIGITS)
    assert result.status == 0, result.err
    after = written(copied)
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {gone}
    assert "by recipe published is there already" in result.err
    assert "by recipe ours is there already" not in result.err
    assert_same_passes(copied, finished[0], [gone])
    assert same_but_the_command(copied, finished[0], "missing-class")


def same_but_the_command(one: Path, other: Path, name: str) -> bool:
    """Values, tables and plots of an experiment that ran alone and among all."""
    first, second = (experiment(folder, name) for folder in (one, other))
    assert first.pop("command") == second.pop("command").replace("paper all", f"paper {name}")
    files = [files_of(folder / name) for folder in (one, other)]
    for found in files:
        del found["experiment.json"], found["report.html"]
    return first == second and files[0] == files[1]


@pytest.mark.long
def test_a_killed_experiment_goes_on_and_ends_as_an_unbroken_one(finished: tuple[Path, Result], tmp_path: Path) -> None:
    folder = tmp_path / "all"
    process = start(tmp_path, "missing-class", *DIGITS)
    first = folder / "passes" / "digits-published-missing-0.npz"  # the second of the first pass
    assert stop_when(first.exists, process, signal.SIGKILL) == -signal.SIGKILL
    assert not (folder / "missing-class" / "experiment.json").exists(), "it was killed before its end"
    before = written(folder)
    assert sorted(before) == ["digits-published-0.npz", first.name]
    result = execute(tmp_path, "missing-class", *DIGITS)
    assert result.status == 0, result.err
    assert written(folder)[first.name] == before[first.name]
    assert_same_passes(folder, finished[0], [first.name, "digits-ours-missing-0.npz"])
    assert same_but_the_command(folder, finished[0], "missing-class")
    assert not [name for name in files_of(folder) if name.endswith(".tmp")]


@pytest.mark.long
@pytest.mark.parametrize("length", [0, 100])
def test_a_damaged_pass_is_told_in_one_line(length: int, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copied / "passes" / "digits-ours-0.npz"
    path.write_bytes(path.read_bytes()[:length])
    monkeypatch.chdir(copied.parent)
    result = call("contrastive", *DIGITS)
    assert_told(result, 1, "digits-ours-0.npz", "damaged", "remove it")
    assert path.stat().st_size == length, "what is damaged is left to the user"


# Images of one's own in place of the paper's.


@pytest.mark.long
@pytest.mark.usefixtures("no_pictures")
def test_a_folder_of_images_stands_for_both_data_sets(tmp_path: Path) -> None:
    for seed, name in enumerate(("cifar10", "svhn")):
        write_images(tmp_path / "data" / f"{name}.npz", seed)
    out = tmp_path / "out"
    result = call("missing-class", "--data", tmp_path / "data", "--quick", "--seeds", "1", "--out", out)
    assert result.status == 0, result.err
    found = experiment(out, "missing-class")
    assert found["datasets"] == ["cifar10", "svhn"]
    assert [table["name"] for table in tables(found)] == ["missing-cifar10", "missing-svhn"]
    recipes = ("published", "published-missing", "ours", "ours-missing")  # both clients stand around one server
    assert set(written(out)) == {f"{name}-{recipe}-0.npz" for name in ("cifar10", "svhn") for recipe in recipes}
    for name in ("cifar10", "svhn"):
        printed = [row for row in rows_of(out / "missing-class" / f"missing-{name}.csv") if "figure" in row["recipe"]]
        assert len(printed) == 4, "the paper's own figures stand beside"
    one, other = (Kept.read(out / "passes" / f"{name}-ours-missing-0.npz") for name in ("cifar10", "svhn"))
    assert len(one.y) == len(other.y) == 200
    assert not np.array_equal(one.arrays["test_scores"], other.arrays["test_scores"])


@pytest.mark.long
@pytest.mark.usefixtures("no_pictures")
def test_the_vit_starts_from_a_file_and_needs_cifar100_alone(tmp_path: Path) -> None:
    """Other weights to start from are another training; a file that does not fit is told in one line."""
    write_images(tmp_path / "data" / "cifar100.npz", 0)
    where = ("cifar100-vit", "--data", tmp_path / "data", "--quick", "--seeds", "1", "--out", tmp_path / "out")
    result = call(*where)
    assert result.status == 0, result.err
    scratch = Kept.read(tmp_path / "out" / "passes" / "cifar100-vit-ours-0.npz").arrays["test_server_label"]
    torch.manual_seed(1)
    weights = tmp_path / "vit.safetensors"
    save_file(ViT((3, 32, 32), 10, size=16, width=128, depth=1, heads=2).state_dict(), weights)
    result = call(*where, "--vit-weights", weights)
    assert result.status == 0, result.err
    page = (tmp_path / "out" / "cifar100-vit" / "report.html").read_text()
    assert "vit.safetensors" in page
    assert "width 128, depth 1, heads 2" in page
    started = Kept.read(tmp_path / "out" / "passes" / "cifar100-vit-ours-0.npz").arrays["test_server_label"]
    assert not np.array_equal(scratch, started)
    save_file({"foreign": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    assert_told(call(*where, "--vit-weights", tmp_path / "foreign.safetensors"), 1, "foreign.safetensors", "missing")


# Refusals, before anything is trained.


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (["tradeof", "--data", "digits", "--quick"], ["'tradeof'", *EXPERIMENTS, "all"]),
        (["all", "--data", "digits", "--quick", "--seeds", "0"], ["--seeds 0"]),
        (["all", "--data", "digits", "--quick", "--seeds", "-2"], ["--seeds -2"]),
        (["all", "--data", "digits"], ["digits", "--quick"]),
        (["brr", "--data", "anywhere", "--quick", "--dataset", "mnist"], ["'mnist'", "cifar10", "svhn"]),
        (["brr", "--data", "anywhere", "--quick", "--dataset", "digits"], ["'digits'", "cifar10", "svhn"]),
        (["missing-class", "--data", "digits", "--quick", "--dataset", "mnist"], ["mnist"]),
        (["missing-class", "--data", "digits", "--quick", "--device", "abacus"], ["abacus"]),
        (["missing-class", "--data", "digits", "--quick", "--precision", "fp3"], ["'fp3'", "fp32", "bf16"]),
    ],
    ids=lambda value: " ".join(value) if "--data" in value else "",
)
def test_bad_usage(bad: list[str], words: list[str], tmp_path: Path) -> None:
    seeds = [] if "--seeds" in bad else ["--seeds", "1"]
    assert_told(call(*bad, *seeds, "--out", tmp_path / "out"), 2, *words)
    assert not (tmp_path / "out").exists()


def test_a_data_set_named_twice_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    write_images(tmp_path / "data" / "svhn.npz", 0, train=40, test=40)
    twice = ["--dataset", "svhn", "--dataset", "svhn", "--seeds", "1"]
    result = call("missing-class", "--data", tmp_path / "data", "--quick", *twice, "--out", tmp_path / "out")
    assert_told(result, 2, "svhn", "twice")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("there", "lacks", "words"),
    [
        (["cifar10"], "svhn", ["svhn-train.parquet", "svhn-test.parquet", "train_32x32.mat", "svhn.npz"]),
        (["svhn"], "cifar10", ["cifar10-train.parquet", "cifar-10-batches-py", "cifar-10-python.tar.gz"]),
        ([], "cifar10", ["cifar10-test.parquet", "cifar10.npz", "--data digits"]),
        (["cifar10", "svhn"], "cifar100", ["cifar100-train.parquet", "cifar-100-python", "cifar100.npz"]),
    ],
)
def test_a_folder_that_lacks_a_set_is_told_before_anything_is_trained(
    there: list[str], lacks: str, words: list[str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in there:
        write_images(data / f"{name}.npz", 0, train=40, test=40)
    result = call("all", "--data", data, "--quick", "--seeds", "1", "--out", tmp_path / "out")
    assert_told(result, 1, str(data), f"has no {lacks}", *words)
    assert "epoch" not in result.err
    assert not (tmp_path / "out").exists()


def test_only_the_sets_asked_for_need_be_there(tmp_path: Path) -> None:
    """The folder has no such set, so the one that is missing is the one named."""
    write_images(tmp_path / "cifar10.npz", 0, train=40, test=40)
    result = call("gallery", "--data", tmp_path, "--quick", "--dataset", "svhn", "--out", tmp_path / "out")
    assert_told(result, 1, "has no svhn")


def test_a_file_is_no_folder_for_the_results(tmp_path: Path) -> None:
    path = tmp_path / "note.txt"
    path.write_text("mine")
    result = call("missing-class", "--data", "digits", "--quick", "--seeds", "1", "--out", path)
    assert_told(result, 1, str(path))
    assert path.read_text() == "mine"
