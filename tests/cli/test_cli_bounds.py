"""``l2h calibrate``, and ``l2h evaluate --limit --rule``."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import Result, assert_schema, assert_told, call, files_of, one_line, undrawn
from scipy.stats import binom

import l2h
from l2h.experiments.carry_out import divide
from l2h.experiments.plan import plan_of
from l2h.experiments.runs import read_config
from l2h.training.checkpoint import load_checkpoint

ROWS, TEST = 2000, 2000
QUICK = [
    *("--client", "tree", "--client-share", "0.2", "--option", "client.max_depth=2", "--server", "mlp"),
    *("--device", "cpu", "--calibration", "0.25", "--c-e", "0.1", "--c-1", "1.25", "--set", "server.epochs=3"),
]
KINDS = {
    "priced": ["--set", "rejector.epochs=3", "--set", "folds=2", "--option", "rejector.width=1"],
    "paper": ["--recipe", "paper", "--loss", "shifted", "--set", "server.batch=32", "--set", "server.lr=0.05"],
}
CALIBRATION = "checkpoints/calibration.safetensors"


def save_clouds(path: Path, seed: int, shift: float = 0.0) -> Path:
    centres = np.random.default_rng(5).normal(size=(3, 6)) * 1.2
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, ROWS + TEST)
    X = (centres[y] + shift + rng.normal(size=(len(y), 6))).astype(np.float32)
    np.savez(path, X_train=X[:ROWS], y_train=y[:ROWS], X_test=X[ROWS:], y_test=y[ROWS:])
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind, and its data beside it."""
    folder = tmp_path_factory.mktemp("bounds")
    data = save_clouds(folder / "clouds.npz", 0)
    with undrawn():
        for kind, flags in KINDS.items():
            result = call("train", "--data", data, *QUICK, *flags, "--out", folder / kind)
            assert result.status == 0, result.err
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, finished: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a run, to be changed."""
    return Path(shutil.copytree(finished[request.param], tmp_path / "run"))


@pytest.fixture
def priced(finished: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished["priced"], tmp_path / "run"))


def calibration_scores(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """The rejector on the run's calibration part: what it sends, and what it ranks by; from the definitions."""
    training = read_config(run)["training"]
    X, _ = divide(l2h.load_dataset(training["data"]), plan_of(training)).calibration
    judged = l2h.load(run).judge(X)
    if judged.probability is None:
        return judged.scores[:, 1] >= judged.scores[:, 0], (judged.scores[:, 1] - judged.scores[:, 0]).astype(float)
    local, remote = 1 - judged.probability[:, 0], 0.1 + 1.25 * (1 - judged.probability[:, 1])
    return local >= remote, local - remote


def test_calibrate_measures_q1_and_the_thresholds(run: Path) -> None:
    result = call("calibrate", run, "--limit", "20%", "--limit", "20%@95%", "--json")
    assert result.status == 0, result.err
    found = result.json()
    assert found.keys() == {"samples", "costs", "q1", "thresholds"}
    sends, saving = calibration_scores(run)
    n = len(saving)
    assert found["samples"] == n == pytest.approx(ROWS / 4, abs=3)
    assert (found["costs"]["c_e"], found["costs"]["c_1"]) == pytest.approx((0.1, 1.25))
    assert found["q1"] == pytest.approx(sends.mean(), abs=1e-12)
    assert 0 < found["q1"] < 1
    assert found["thresholds"].keys() == {"20%", "20%@95%"}
    cut, sure = found["thresholds"]["20%"], found["thresholds"]["20%@95%"]
    near = 1e-9  # the same numbers in another order of adding
    above, ties = (saving > cut["value"] + near).mean(), (np.abs(saving - cut["value"]) <= near).mean()
    assert ties > 0, "the cut is one of the scores"
    assert above + cut["tie_share"] * ties == pytest.approx(0.2, abs=1e-12)
    assert cut["above"] == above
    assert (cut["q"], cut["samples"], cut["confidence"]) == (0.2, n, None)
    j = max(k for k in range(1, n) if binom.cdf(k - 1, n, 0.2) <= 0.05)
    assert sure["value"] == pytest.approx(np.sort(saving)[n - j], abs=near)
    assert (sure["tie_share"], sure["confidence"]) == (0.0, 0.95)
    assert sure["value"] > cut["value"]


def test_calibrate_on_the_runs_own_part_changes_nothing(run: Path) -> None:
    before = files_of(run)
    saved = load_checkpoint(run / CALIBRATION).tensors
    assert call("calibrate", run).status == 0
    after = files_of(run)
    assert {name: data for name, data in after.items() if name not in (CALIBRATION, "config.json")} == {
        name: data for name, data in before.items() if name not in (CALIBRATION, "config.json")
    }
    again = load_checkpoint(run / CALIBRATION).tensors
    for name, tensor in saved.items():
        # A tree from its file states its shares in single precision.
        assert np.allclose(tensor.numpy(), again[name].numpy(), rtol=1e-3, atol=1e-4), name


def test_calibrate_on_other_data_changes_the_calibration_and_nothing_else(run: Path, tmp_path: Path) -> None:
    assert call("calibrate", run).status == 0
    before = files_of(run)
    drifted = save_clouds(tmp_path / "drifted.npz", 7, shift=0.7)
    result = call("calibrate", run, "--data", drifted, "--json")
    assert result.status == 0, result.err
    assert result.json()["samples"] == ROWS, "all of the training part of what was given"
    after = files_of(run)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {CALIBRATION}
    system, data = l2h.load(run), l2h.load_dataset(str(drifted))
    direct = l2h.load(run).calibrate(data.X_train, data.y_train)
    assert system.calibrated_rate() == direct.calibrated_rate()
    assert np.array_equal(system.fitted.calibration.platt, direct.fitted.calibration.platt)


def test_calibrate_never_reads_the_test_part(run: Path, tmp_path: Path) -> None:
    """Other test samples with other labels beside the same training samples give the same calibration."""
    arrays = dict(np.load(save_clouds(tmp_path / "one.npz", 8)))
    arrays["X_test"], arrays["y_test"] = arrays["X_test"] * 100, (arrays["y_test"] + 1) % 3
    np.savez(tmp_path / "two.npz", **arrays)
    found = []
    for name in ("one", "two"):
        assert call("calibrate", run, "--data", tmp_path / f"{name}.npz").status == 0
        found.append((run / CALIBRATION).read_bytes())
    assert found[0] == found[1]
    system = l2h.load(run)
    assert len(system.fitted.calibration.held_out.client_correct) == ROWS


def test_calibrate_for_a_person(priced: Path) -> None:
    result = call("calibrate", priced, "--limit", "20%", "--limit", "0%", "--limit", "100%")
    assert result.status == 0, result.err
    said = one_line(result.out)
    for words in ("calibrated on", "reject rate q1 at", "threshold for 20%", "threshold for 0%", "inf"):
        assert words in said


def test_calibrate_at_other_prices(priced: Path) -> None:
    rates = [call("calibrate", priced, "--c-e", c_e, "--json").json()["q1"] for c_e in (0, 0.1, 0.3, 2)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1] == 0


BAD = [
    ("200%", "outside [0, 1]"),
    ("20", "outside [0, 1]"),
    ("-5%", "outside [0, 1]"),
    ("many", "cannot read the limit 'many'"),
    ("", "cannot read the limit ''"),
    ("20%@100%", "confidence=1 is outside (0, 1)"),
    ("20%/0", "window=0 is zero"),
    ("1%/10", "give a window of 100 or more"),
    ("5/0s", "no window"),
    ("-5/1h", "negative"),
    ("2.5/1h", "not a whole number"),
]


@pytest.mark.parametrize(("limit", "words"), BAD)
@pytest.mark.parametrize("command", ["calibrate", "evaluate"])
def test_a_bad_limit_is_bad_usage(finished: dict[str, Path], command: str, limit: str, words: str) -> None:
    before = files_of(finished["priced"])
    assert_told(call(command, finished["priced"], f"--limit={limit}"), [2], words)
    assert files_of(finished["priced"]) == before


@pytest.mark.parametrize("limit", ["100/1h", "20%/1000"])
def test_a_cap_has_no_threshold_to_calibrate(finished: dict[str, Path], limit: str) -> None:
    result = call("calibrate", finished["priced"], "--limit", limit)
    assert result.status == 2
    assert "is kept at run time and has no calibrated threshold" in one_line(result.err)


def test_a_guarantee_out_of_reach_says_how_many_samples_it_needs_and_changes_nothing(
    priced: Path, tmp_path: Path
) -> None:
    before = files_of(priced)
    needed = math.ceil(math.log(1 - 0.9999) / math.log(1 - 0.001))
    told = call("calibrate", priced, "--data", save_clouds(tmp_path / "new.npz", 9), "--limit", "0.1%@99.99%")
    assert_told(told, [2], f"needs at least {needed} calibration samples, got {ROWS}")
    assert files_of(priced) == before
    assert_told(call("evaluate", priced, "--limit", "0.1%@99.99%"), [2], f"needs at least {needed}")


def test_calibrate_needs_a_finished_run_and_data_that_fits(priced: Path, tmp_path: Path) -> None:
    assert_told(call("calibrate", tmp_path / "none"), [1], "holds no run")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "other.npz", X=rng.normal(size=(50, 5)).astype(np.float32), y=rng.integers(0, 3, 50))
    assert_told(call("calibrate", priced, "--data", tmp_path / "other.npz"), [1], "shape (5,)", "(6,)")


def rates(result: Result) -> list[float]:
    assert result.status == 0, result.err
    return [report["reject_rate"] for report in result.json()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["threshold", "stochastic"])
def test_evaluate_meets_each_bound(finished: dict[str, Path], kind: str, rule: str) -> None:
    """Within four standard errors of the test's and the calibration's samples; without a price all of it is used."""
    bounds = [0.0, 0.1, 0.35, 0.6, 0.9, 1.0]
    limits = [flag for q in bounds for flag in ("--limit", f"{100 * q:g}%")]
    result = call("evaluate", finished[kind], *limits, "--rule", rule, "--json")
    for q, rate in zip(bounds, rates(result), strict=True):
        assert abs(rate - q) <= 4 * math.sqrt(q * (1 - q) * (1 / TEST + 4 / ROWS)) + 1e-12, q
    for q, report in zip(bounds, result.json(), strict=True):
        assert_schema(report)
        allowed = math.floor(round(q * TEST, 9)) / TEST
        assert report["bound"] == {"limit": f"{100 * q:g}%", "rule": rule, "allowed": allowed}
    assert call("evaluate", finished[kind], "--json").json()[0]["bound"] is None


def test_evaluate_is_what_the_library_says(finished: dict[str, Path]) -> None:
    (report,) = call("evaluate", finished["priced"], "--limit", "20%@90%", "--json").json()
    assert report["bound"]["limit"] == "20%@90%"
    data = l2h.load_dataset(read_config(finished["priced"])["training"]["data"])
    limit = l2h.RateLimit(fraction=0.2, confidence=0.9)
    direct = l2h.load(finished["priced"]).evaluate(data.X_test, data.y_test, limit=limit).as_dict()
    assert {k: report[k] for k in ("reject_rate", "accuracy", "risk")} == {
        k: direct[k] for k in ("reject_rate", "accuracy", "risk")
    }


def test_evaluate_with_a_price_sends_no_more_than_pays(finished: dict[str, Path]) -> None:
    prices = ["--c-e", "0.05", "--c-e", "0.2"]
    free = rates(call("evaluate", finished["priced"], *prices, "--json"))
    bounded = rates(call("evaluate", finished["priced"], *prices, "--limit", "95%", "--limit", "1%", "--json"))
    assert bounded[0] == pytest.approx(min(free[0], 0.95), abs=0.03)
    assert bounded[2] == free[1], "less pays than the bound allows"
    assert max(bounded[1], bounded[3]) <= 0.01 + 4 * math.sqrt(0.01 * 0.99 * (1 / TEST + 4 / ROWS))


def test_a_cap_is_the_same_for_every_price(finished: dict[str, Path]) -> None:
    """Each row is judged with a window of its own, not with what the row before it left over."""
    flags = ["--c-e", "0", "--c-e", "0.001", "--limit", "40/1h", "--json"]
    found = rates(call("evaluate", finished["priced"], *flags))
    assert all(0 < rate <= 40 / TEST for rate in found)


def test_tables_name_the_bound(finished: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    result = call("evaluate", finished["priced"], "--limit", "10%", "--limit", "20%/1000")
    assert result.status == 0, result.err
    said = one_line(result.out)
    assert "bound" in said
    assert "10%" in said
    assert "20%/1000" in said


def test_rules_asked_for_wrongly(finished: dict[str, Path]) -> None:
    alone = call("evaluate", finished["priced"], "--rule", "threshold")
    assert alone.status == 2
    assert "--rule goes with --limit" in one_line(alone.err)
    unknown = call("evaluate", finished["priced"], "--limit", "20%", "--rule", "best")
    assert_told(unknown, [2], "rule='best' is unknown", "threshold, guaranteed, stochastic")
    cap = call("evaluate", finished["priced"], "--limit", "40/1h", "--rule", "stochastic")
    assert_told(cap, [2], "rule='stochastic' is for a share", "40/1h")
