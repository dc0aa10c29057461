"""``l2h tune`` in a real Ray: trials, their early end, what fails, what goes on, and what it never looks at."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import QUICK, assert_told, call, execute, files_of, one_line, start
from sklearn.datasets import load_digits
from waiting import STUCK, until

import l2h.report
from l2h.experiments.runs import kept_alone


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same training samples with two test parts: of the second, inputs and labels make no sense."""
    X, y = load_digits(return_X_y=True)
    images = (X.reshape(-1, 1, 8, 8) * 15).astype(np.uint8)
    folder, rng = tmp_path_factory.mktemp("tune"), np.random.default_rng(0)
    tests = [(images[600:700], y[600:700]), (rng.integers(0, 256, (100, 1, 8, 8), dtype=np.uint8), y[600:700][::-1])]
    paths = [folder / "digits.npz", folder / "other" / "digits.npz"]
    for path, (X_test, y_test) in zip(paths, tests, strict=True):
        path.parent.mkdir(exist_ok=True)
        np.savez(path, X_train=images[:600], y_train=y[:600], X_test=X_test, y_test=y_test)
    return paths


def arguments(path: Path, out: Path, *more: object) -> list[object]:
    client = ["--client", "tree", "--client-share", "0.3", "--server", "lenet5"]
    return ["tune", "--data", path, *client, *QUICK, "--set", "server.epochs=6", "--at-once", 1, *more, "--out", out]


RATES = ("--try", "server.lr=0.003,0.01,0.0000001")


@pytest.fixture(scope="module")
def tuned(data: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "tune"
    found = execute(*arguments(data[0], out, *RATES, "--trials", 3))
    assert found.status == 0, found.err
    assert "Trials by validation risk" in found.out
    assert "best.json" in found.out
    assert len(re.findall(r"trial \d \(.*\): (finished|stopped)", found.err)) == 3
    return out


def trials_of(folder: Path) -> list[dict]:
    return json.loads((folder / "tuning.json").read_text())["trials"]


@pytest.mark.long
def test_the_best_settings_are_those_of_the_lowest_risk_and_train_takes_them(
    tuned: Path, data: list[Path], tmp_path: Path
) -> None:
    trials, summary = trials_of(tuned), json.loads((tuned / "tuning.json").read_text())
    assert [trial["number"] for trial in trials] == [0, 1, 2]
    whole = [trial for trial in trials if trial["state"] == "finished"]
    best = min(whole, key=lambda trial: trial["risk"])
    assert json.loads((tuned / "best.json").read_text()) == best["values"]
    assert summary["best"] == best["number"]
    assert summary["samples"] == 60, "a tenth of the training samples"
    for trial in trials:
        shares = [share for share, _ in trial["curve"]]
        assert shares == sorted(shares)
        assert (shares[-1] == 100) == (trial["state"] == "finished")
    (tmp_path / "best.json").write_text(json.dumps({"server.lr": 0.004, "rejector.width": 0.5, "folds": 3}))
    model = ["--client", "tree", "--client-share", "0.3", "--server", "lenet5", *QUICK, "--set", "folds=2"]
    given = ["train", "--data", data[0], *model, "--settings", tmp_path / "best.json"]
    assert call(*given, "--out", tmp_path / "run").status == 0
    training = json.loads((tmp_path / "run" / "config.json").read_text())["training"]
    assert training["settings"]["server"]["lr"] == 0.004
    assert training["settings"]["folds"] == 2, "what is given by hand goes before the file"
    assert training["rejector_options"] == {"width": 1}


@pytest.mark.long
def test_a_trial_that_falls_behind_is_stopped_and_one_that_cannot_be_trained_is_told(
    tuned: Path, data: list[Path], tmp_path: Path
) -> None:
    """More trials add to those of the folder: the rate that learns nothing and the one that learns too much."""
    before = files_of(tuned / "trials")
    again = execute(*arguments(data[0], tuned, *RATES, "--trials", 4, "--json"))
    assert again.status == 0, again.err
    assert "holds 3 trials already" in again.err
    assert {name: files_of(tuned / "trials")[name] for name in before} == before
    trials = json.loads(again.out)["trials"]
    assert trials[0]["state"] == "finished", "the settings as given are never stopped"
    (slow,) = [trial for trial in trials if trial["values"].get("server.lr") == 1e-07]
    assert slow["state"] == "stopped"
    assert slow["curve"][-1][0] < 50
    lost = execute(*arguments(data[0], tmp_path / "lost", "--try", "server.lr=1e20,1e21", "--trials", 2, "--json"))
    assert lost.status == 0, lost.err
    assert [trial["state"] for trial in json.loads(lost.out)["trials"]] == ["finished", "failed"]
    assert "lower lr" in json.loads(lost.out)["trials"][1]["why"]
    page = (tmp_path / "lost" / "report.html").read_text()
    assert "lower lr" in page


@pytest.mark.long
def test_the_test_part_is_never_looked_at(tuned: Path, data: list[Path], tmp_path: Path) -> None:
    other = execute(*arguments(data[1], tmp_path / "tune", *RATES, "--trials", 3))
    assert other.status == 0, other.err
    for mine, theirs in zip(trials_of(tuned)[:3], trials_of(tmp_path / "tune"), strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.long
def test_no_augmentation_is_a_choice_and_a_trial_that_is_no_better_changes_nothing(
    data: list[Path], tmp_path: Path
) -> None:
    """At these prices nobody asks, so all trials have one risk."""
    given = [*("--augment", "shift"), *("--c-e", 0.9, "--try", "augment=none,shift", "--trials", 3)]
    assert execute(*arguments(data[0], tmp_path / "tune", *given)).status == 0
    summary = json.loads((tmp_path / "tune" / "tuning.json").read_text())
    assert {trial["risk"] for trial in summary["trials"]} == {summary["trials"][0]["never"]}
    assert summary["best"] == 0
    (tmp_path / "none.json").write_text(json.dumps({"augment": None}))
    model = ["--client", "tree", "--client-share", "0.3", "--server", "lenet5", *QUICK]
    words = ["train", "--data", data[0], *model, "--settings", tmp_path / "none.json", "--out", tmp_path / "run"]
    assert call(*words).status == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["training"]["settings"]["augment"] == "none"


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupted_search_goes_on_with_the_same_command(data: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "tune"
    words = arguments(data[0], out, *RATES, "--trials", 3, "--all-to-the-end")
    with start(*words) as process:
        until((out / "trials" / "0000.json").exists)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=STUCK)
    assert process.returncode == 130, err
    assert "the same command" in one_line(err)
    kept = (out / "trials" / "0000.json").stat().st_mtime_ns
    again = execute(*words, "--json")
    assert again.status == 0, again.err
    assert (out / "trials" / "0000.json").stat().st_mtime_ns == kept
    assert [trial["state"] for trial in json.loads(again.out)["trials"]] == ["finished"] * 3
    assert files_of(out / "trials").keys() == {f"000{k}.json" for k in range(3)}, "no run is left"
    another = call(*arguments(data[0], out, "--try", "copies=1,2"))
    assert_told(another, 1, "holds another tuning", "--force")


def test_what_cannot_be_tuned_is_refused_before_ray_is_started(data: list[Path], tmp_path: Path) -> None:
    for more, said in (
        (["--try", "server.speed=1,2"], ["--try server.speed=1,2: ", "speed"]),
        (["--try", "rejector.speed=1,2"], ["--try rejector.speed=1,2: ", "speed"]),
        (["--try", "copies=1,2", "--try", "server.lr=-1,0.1"], ["error: --try server.lr=-1,0.1: ", "lr=-1"]),
        (["--try", "rejector.epochs=0..5", "--try", "copies=1,2"], ["error: --try rejector.epochs=0..5: ", "epochs=0"]),
        (["--try", "augment=none,foo"], ["error: --try augment=none,foo: ", "foo"]),
        ([], ["--try"]),
        (["--try", "copies=1,2", "--settings", tmp_path / "none.json"], ["No such file"]),
        (["--try", "copies=1,2", "--on", "ray://127.0.0.1:9"], ["ray://127.0.0.1:9", "cannot be reached"]),
    ):
        assert_told(call(*arguments(data[0], tmp_path / "tune", "--trials", 60, *more)), (1, 2), *said)
    asked = ["--client", "tree", "--server", "https://host/v2/models/m", "--out", tmp_path / "tune"]
    assert_told(call("tune", "--data", data[0], *asked, "--try", "copies=1,2"), 2, "every trial would ask it again")
    assert not (tmp_path / "tune").exists()


def test_two_searches_in_one_folder_are_one_too_many(data: list[Path], tmp_path: Path) -> None:
    with kept_alone(tmp_path):
        (tmp_path / "config.json").write_text('{"schema": 1, "tuning": {}}')
        told = call(*arguments(data[0], tmp_path, "--try", "copies=1,2"))
    assert_told(told, 1, f"another command works in {tmp_path}", "--out")


def test_the_page_has_every_trial(tmp_path: Path) -> None:
    def trial(number: int, state: str, **more: object) -> dict:
        values = (
            {} if not number else {"server.lr": 0.001 * number, "server.optimizer": "sgd" if number % 2 else "adamw"}
        )
        curve = [[20.0, 0.4], [60.0, 0.3 - number / 100]] if state != "failed" else []
        return {"number": number, "values": values, "state": state, "seconds": 2.0, "curve": curve, **more}

    figures = {"asked": 0.25, "accuracy": 0.9, "never": 0.4}
    trials = [trial(0, "finished", risk=0.2, **figures), trial(1, "stopped", risk=0.29)]
    trials += [trial(2, "failed", why="the loss <is> no longer finite"), trial(3, "finished", risk=0.15, **figures)]
    summary = {
        "dataset": "digits",
        "samples": 60,
        "seed": 0,
        "prices": ["c_1=1, c_e=0.1"],
        "tried": ["server.lr=0.001..0.1", "server.optimizer=sgd,adamw"],
        "by_logarithm": ["server.lr"],
        "best": 3,
        "command": "l2h tune",
        "settings": {"recipe": "default"},
        "trials": trials,
    }
    page = l2h.report.write_tuning(summary, tmp_path).read_text()
    assert page.index("0.1500") < page.index("0.2000") < page.index("0.2900")
    assert "the loss &lt;is&gt; no longer finite" in page
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"curves.png", "settings.png"}
    assert "The lowest validation risk is 0.1500, of trial 3; as given 0.2000." in page
    assert "Never asking" not in page
    in_vain = summary | {"trials": [{**one, "never": 0.15} if "risk" in one else one for one in trials]}
    assert "Never asking has a validation risk of 0.1500" in l2h.report.write_tuning(in_vain, tmp_path).read_text()
    assert "4 trials: 2 finished, 1 stopped early, 1 failed." in page
    alone = summary | {"best": 0, "trials": trials[:1]}
    assert "no others were tried yet" in l2h.report.write_tuning(alone, tmp_path / "alone").read_text()
