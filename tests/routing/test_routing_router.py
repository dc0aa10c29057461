"""The router: it learns who is right, decides as ``l2h.decision`` does, and comes back from its files."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import pickle
import zipfile
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from first_calls import first_calls
from prompts import made_up
from scripts import HEAVY, python

import l2h
from l2h.errors import DataError, RunError
from l2h.limits import LimitError
from l2h.routing import fit_router

COSTS = l2h.Costs(c_e=0.1)


@pytest.fixture(scope="module")
def router() -> l2h.Router:
    return l2h.HelpSystem.fit_outcomes(*made_up(600), dataset="made up")


@pytest.fixture(scope="module")
def held_out_part() -> tuple[list[str], Any, Any]:
    return made_up(600, seed=1)


def test_it_asks_about_the_topics_that_the_client_fails_on(router: l2h.Router) -> None:
    routes = router.predict(["algebra: what is the answer?", "sports: what is the answer?"], costs=COSTS)
    assert routes.by.tolist() == ["server", "client"]
    assert routes.source.tolist() == ["remote", "local"]
    assert routes.reason.tolist() == ["worth_asking", "not_worth_asking"]
    assert [route.by for route in routes] == ["server", "client"]
    assert routes[0].saving > 0 > routes[1].saving
    assert routes.cost.tolist() == [COSTS.c_e, 0.0]


def test_it_decides_by_the_rule_of_decision(router: l2h.Router, held_out_part: Any) -> None:
    for costs in (COSTS, l2h.Costs(c_e=0.3, c_1=2.0), l2h.Costs(c_e=0.0, c_1=0.5)):
        p = router.judge(held_out_part[0]).probability
        assert p is not None
        asked = costs.c_e + costs.c_1 * (1 - p[:, 1]) <= 1 - p[:, 0]
        np.testing.assert_array_equal(router.predict(held_out_part[0], costs=costs).source == "remote", asked)


def test_one_text_is_decided_as_among_others(router: l2h.Router, held_out_part: Any) -> None:
    together = router.judge(held_out_part[0][:20]).probability
    alone = [router.judge(text).probability[0] for text in held_out_part[0][:20]]  # type: ignore[index]
    np.testing.assert_allclose(alone, together, rtol=1e-9)


def test_its_probabilities_hold_on_new_prompts(router: l2h.Router, held_out_part: Any) -> None:
    report = router.evaluate(*held_out_part, COSTS)
    assert report.ece["client"] < 0.08  # 600 samples: the error of a perfect head is about 0.04
    assert report.ece["server"] < 0.08


def test_it_beats_never_always_and_random(router: l2h.Router, held_out_part: Any) -> None:
    report = router.evaluate(*held_out_part, COSTS)
    assert report.risk.system < min(report.risk.all_local, report.risk.all_remote, report.risk.random)
    assert report.routing is not None
    assert report.routing.apgr > 0.75
    assert report.routing.cpt_50 < report.routing.cpt_80 < 0.8
    assert report.as_dict()["routing"] == report.routing.as_dict()
    assert report.as_dict()["risk"]["confidence"] is None


def test_a_share_is_met_on_new_prompts(router: l2h.Router, held_out_part: Any) -> None:
    sent = np.mean(router.predict(held_out_part[0], limit="20%").source == "remote")
    assert abs(sent - 0.2) < 0.07  # 3.5 standard errors of 600 draws and of 600 calibration rows together
    assert (
        np.mean(router.predict(held_out_part[0], limit=l2h.RateLimit(fraction=0.2, confidence=0.95)).by == "server")
        < 0.25
    )


def test_a_number_in_a_time_is_kept_from_call_to_call(router: l2h.Router) -> None:
    hard = ["algebra: what is the answer?"] * 4
    limit = l2h.RateLimit(3, per="1d")
    sent = sum(int((router.predict(hard, costs=COSTS, limit=limit).source == "remote").sum()) for _ in range(5))
    assert sent <= 3
    assert "over_limit" in router.predict(hard, costs=COSTS, limit=limit).reason


def test_a_number_in_a_time_holds_when_threads_make_the_first_call(
    router: l2h.Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard, fresh = ["algebra: what is the answer?"] * 5, replace(router)
    sent = first_calls(monkeypatch, lambda: int((fresh.predict(hard, limit="3/1h").source == "remote").sum()))
    assert sum(sent) == 3


def test_it_can_be_copied_and_pickled(router: l2h.Router) -> None:
    for again in (copy.deepcopy(replace(router)), pickle.loads(pickle.dumps(replace(router)))):
        assert again.predict("algebra: what is the answer?", COSTS).by.tolist() == ["server"]


@pytest.mark.parametrize("limit", [0.2, 3, ["20%"]])
def test_a_limit_that_is_no_limit_says_how_to_write_one(router: l2h.Router, limit: Any) -> None:
    for verb in (router.predict, lambda X, limit: router.evaluate(X, [1], [1], limit=limit)):
        with pytest.raises(LimitError, match=r"is no limit: write a RateLimit, or a text: '20%'"):
            verb(["a"], limit=limit)


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_data_frames_train_the_router_that_arrays_train(frame: Any) -> None:
    texts, client, server = made_up(200)
    table = frame({"prompt": texts, "client_right": client, "server_right": server})
    expected = fit_router(texts, client, server)
    apart = table["prompt"], table["client_right"], table["server_right"]
    for router in (l2h.HelpSystem.fit_outcomes(table), l2h.HelpSystem.fit_outcomes(*apart)):
        np.testing.assert_array_equal(router.weights, expected.weights)
        report = router.evaluate(table, costs=COSTS)
        assert report.as_dict()["routing"] == expected.evaluate(texts, client, server, COSTS).as_dict()["routing"]


def test_it_is_frozen_and_the_same_training_gives_the_same_router(router: l2h.Router) -> None:
    with pytest.raises(FrozenInstanceError):
        router.seed = 3  # type: ignore[misc]
    again = fit_router(*made_up(600), dataset="made up")
    np.testing.assert_array_equal(again.weights, router.weights)
    np.testing.assert_array_equal(again.calibration, router.calibration)


def test_embeddings_of_the_user() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 8)) * [1, 50, 1, 1, 1, 1, 1, 0] + 3  # other scales, and a column that says nothing
    client = rng.random(500) < 1 / (1 + np.exp(-2 * (X[:, 0] - 3)))
    router = l2h.HelpSystem.fit_outcomes(X, client, rng.random(500) < 0.9)
    report = router.evaluate(X, client, rng.random(500) < 0.9, COSTS)
    assert report.risk.system < min(report.risk.all_local, report.risk.all_remote)
    for wrong, words in ((X[:, :5], "length 5"), (["text"], "embed"), (np.where(X > 100, np.nan, X), "row")):
        with pytest.raises(DataError, match=words):
            router.predict(wrong)


def test_a_share_is_kept_on_new_texts() -> None:
    """Every text has a number of its own: what is counted in training looks otherwise than what is new."""
    starts, chances = (
        ("What is the capital of", "Prove that the sum of", "Translate the word"),
        np.array([0.95, 0.2, 0.7]),
    )
    sent, guaranteed = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        kind = rng.integers(0, 3, 1400)
        ends = rng.choice(["France", "primes", "house", "Peru", "cubes"], 1400)
        texts = [f"{starts[k]} {end} {rng.integers(1000)}?" for k, end in zip(kind, ends, strict=True)]
        client, server = rng.random(1400) < chances[kind], rng.random(1400) < 0.85
        router = fit_router(texts[:400], client[:400], server[:400], seed=seed)
        sent.append((router.predict(texts[400:], limit="20%").source == "remote").mean())
        guaranteed.append((router.predict(texts[400:], limit="20%@95%").source == "remote").mean())
    assert abs(np.mean(sent) - 0.2) < 3 * 0.055 / np.sqrt(5)  # a share of 57 rows has an error of 0.053
    assert np.sum(np.array(guaranteed) > 0.2) <= 1


# Files.


def test_it_comes_back_from_its_files(router: l2h.Router, held_out_part: Any, tmp_path: Path) -> None:
    router.save(tmp_path / "router")
    again = l2h.Router.load(tmp_path / "router")
    np.testing.assert_array_equal(again.judge(held_out_part[0]).probability, router.judge(held_out_part[0]).probability)
    assert (
        again.predict(held_out_part[0], limit="30%").by.tolist()
        == router.predict(held_out_part[0], limit="30%").by.tolist()
    )
    assert (again.ngrams, again.dataset, again.choice) == (router.ngrams, router.dataset, router.choice)
    with pytest.raises(RunError, match=r"Router\.load"):
        l2h.load(tmp_path / "router")


def test_a_device_needs_neither_torch_nor_scikit_learn(router: l2h.Router, held_out_part: Any, tmp_path: Path) -> None:
    router.save(tmp_path / "router")
    done = python(
        """
import json, l2h
router = l2h.Router.load(sys.argv[1])
routes = router.predict(json.loads(sys.argv[2]), costs=l2h.Costs(c_e=0.1))
print(json.dumps([routes.by.tolist(), routes.saving.tolist(), router.predict("algebra", limit="20%").by.tolist()]))
""",
        tmp_path / "router",
        json.dumps(held_out_part[0][:30]),
        blocked=(*HEAVY, "pandas"),
    )
    assert done.returncode == 0, done.stderr
    by, saving, limited = json.loads(done.stdout)
    expected = router.predict(held_out_part[0][:30], costs=COSTS)
    assert by == expected.by.tolist()
    assert saving == pytest.approx(expected.saving.tolist(), abs=1e-12)
    assert limited == router.predict("algebra", limit="20%").by.tolist()


def replaced_arrays(folder: Path, **changes: Any) -> None:
    """Put other arrays into a saved router, with a hash that fits."""
    path = folder / "checkpoints" / "router.npz"
    with np.load(path) as file:
        arrays = dict(file) | changes
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path.write_bytes(buffer.getvalue())
    config = json.loads((folder / "config.json").read_text())
    config["router"]["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": np.zeros((2, 5), dtype=np.float32)}, "weights"),
        ({"bias": np.array([np.nan, 0.0])}, "bias"),
        ({"calibration": np.array([["a", "b"], ["c", "d"]])}, "calibration"),
        (
            {"held_out": np.zeros((20_000_000, 2), dtype=np.float32)},
            "its arrays take 16[0-9]{7} bytes, more than 134217728;",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    router: l2h.Router, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    router.save(tmp_path)
    replaced_arrays(tmp_path, **changes)
    with pytest.raises(RunError, match=words):
        l2h.Router.load(tmp_path)


def test_damaged_and_missing_files_are_refused(router: l2h.Router, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        l2h.Router.load(tmp_path)
    router.save(tmp_path)
    path = tmp_path / "checkpoints" / "router.npz"
    whole = path.read_bytes()
    assert zipfile.is_zipfile(path)
    path.write_bytes(whole[:-100])
    with pytest.raises(RunError, match="sha256"):
        l2h.Router.load(tmp_path)
    path.unlink()
    with pytest.raises(RunError, match="missing"):
        l2h.Router.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    path.write_bytes(whole)
    for changed in (
        {"ngrams": {"words": [1, 2], "characters": [2, 5], "bits": 60}},
        {"ngrams": "x"},
        {"choice": 3},
        {"choice": {"C": np.inf}},
        {"seed": np.inf},
        {"ngrams": None, "columns": np.inf},
    ):
        text = json.dumps(config | {"router": config["router"] | changed}).replace("Infinity", "1e999")
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RunError, match="damaged"):
            l2h.Router.load(tmp_path)


def test_an_array_that_declares_more_than_its_file_holds_is_refused(router: l2h.Router, tmp_path: Path) -> None:
    router.save(tmp_path)
    path = tmp_path / "checkpoints" / "router.npz"
    buffer, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**14, 2)})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, header.getvalue() + bytes(64) if name == "held_out.npy" else old.read(name))
    path.write_bytes(buffer.getvalue())
    config = json.loads((tmp_path / "config.json").read_text())
    config["router"]["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="is declared as"):
        l2h.Router.load(tmp_path)


@pytest.mark.parametrize("kind", ["device", "pipe", "long"])
def test_a_device_a_pipe_and_a_file_that_is_too_long_are_not_read(
    router: l2h.Router, tmp_path: Path, kind: str
) -> None:
    router.save(tmp_path)
    path = tmp_path / "checkpoints" / "router.npz"
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(10 * 2**40)
    with pytest.raises(RunError, match="at most" if kind == "long" else "no regular file"):
        l2h.Router.load(tmp_path)


# Bad input.


@pytest.mark.parametrize(
    ("X", "client", "server", "words"),
    [
        (["a"] * 20, [0, 1] * 9 + [0, 2], [1, 0] * 10, "row 19: client_right is 2"),
        (["a"] * 20, [0, 1] * 10, [1, 0] * 9 + [1, None], "row 19: server_right is None"),
        (["a"] * 20, [1] * 20, [1, 0] * 10, "client_right is 1 in all 20 rows"),
        (["a"] * 20, [1] * 19 + [0], [1, 0] * 10, "client_right is 0 in only 1 of 20 rows"),
        (["a"] * 19 + [" "], [0, 1] * 10, [1, 0] * 10, "row 19: X is an empty text"),
        (["a"] * 19 + [7], [0, 1] * 10, [1, 0] * 10, "row 19: X is 7"),
        (["a"] * 19, [0, 1] * 10, [1, 0] * 10, "19 inputs, 20 of client_right"),
        ([[1.0, 2.0]] * 19 + [["x", 2.0]], [0, 1] * 10, [1, 0] * 10, "row 19"),
        ([[1.0, 2.0]] * 19 + [[1.0]], [0, 1] * 10, [1, 0] * 10, "row 19"),
        ([[1.0, 2.0]] * 19 + [[np.nan, 2.0]], [0, 1] * 10, [1, 0] * 10, "row 19: X has a number that is not finite"),
        ([1.0] * 20, [0, 1] * 10, [1, 0] * 10, "shape"),
    ],
)
def test_outcomes_that_cannot_be_used_name_the_row(X: Any, client: Any, server: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as refused:
        l2h.HelpSystem.fit_outcomes(X, client, server)
    assert "\n" not in str(refused.value)


def test_a_text_router_refuses_numbers_and_empty_texts(router: l2h.Router) -> None:
    for wrong, words in (
        (np.eye(3), "trained on texts"),
        (["fine", ""], "row 1"),
        ([], "shape"),
        ([None, "a"], "row 0"),
    ):
        with pytest.raises(DataError, match=words):
            router.predict(wrong)
