"""``l2h compare --outcomes``: what needs no more than outcomes is compared, the rest is left out with its reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from commands import assert_told, call, one_line

from l2h import methods
from l2h.methods import Learned

pytestmark = pytest.mark.usefixtures("no_pictures")
QUICK = ["--seeds", 1, "--jobs", 1, "--c-1", "1", "--c-e", "0.1", "--set", "rejector.epochs=5", "--budget", "20k"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kinds of questions: the client is bad at one of them, the server good at both."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("outcomes") / "answers.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", "client_right", "server_right"])
        for _ in range(900):
            hard = rng.random() < 0.5
            words = rng.choice(["integral", "proof", "limit"] if hard else ["capital", "river", "country"], 3)
            rows.writerow([" ".join(words), int(rng.random() < (0.2 if hard else 0.95)), int(rng.random() < 0.9)])
    return path


def test_only_what_needs_no_more_than_outcomes_is_compared(answers: Path, tmp_path: Path) -> None:
    result = call("compare", "--outcomes", answers, *QUICK, "--out", tmp_path / "run")
    assert result.status == 0, result.err
    found = json.loads((tmp_path / "run" / "comparison.json").read_text())
    there = {method["name"] for method in found["methods"]}
    separate = {
        method.name
        for method in methods.get(methods.known())
        if isinstance(method, Learned) and method.net == "separate" and method.name != "binary-l2h"
    }
    assert there == separate | {"all-local", "all-remote", "random", "oracle"}
    reasons = {one["method"]: one["why"] for one in found["skipped"]}
    assert there | set(reasons) == set(methods.known())
    assert "the client's scores" in reasons["confidence"]
    assert "the client's scores" in reasons["priced-attached"]
    assert "the server's probabilities" in reasons["label-free"]
    assert "confidence, margin" in one_line(result.out)
    # The kind of a question tells who is right, and the words tell the kind.
    assert found["default"] == "priced-separate"
    risk = {row["method"]: row["risk"]["mean"] for row in found["overall"]}
    assert risk["priced-separate"] < min(risk["all-local"], risk["all-remote"]) - 0.02
    assert found["samples"] == 180


def test_bad_input_is_told_in_a_line(answers: Path, tmp_path: Path) -> None:
    asked = ["compare", "--outcomes", answers, *QUICK, "--out", tmp_path / "run"]
    assert_told(call(*asked, "--client", "tree"), [2], "--outcomes has no client")
    assert_told(call(*asked, "--crossed"), [2], "--crossed needs samples")
    assert_told(call("compare", "--rate", "0.1", "--out", tmp_path / "run"), [2], "--rate goes with --crossed")
    assert_told(call("compare", "--text-column", "a", "--out", tmp_path / "run"), [2], "goes with --outcomes")
    assert_told(call(*asked, "--method", "confidence"), [2], "'confidence'", "the client's scores")
    assert_told(call(*asked, "--text-column", "question"), [1, 2], "question")
    assert not (tmp_path / "run").exists()
