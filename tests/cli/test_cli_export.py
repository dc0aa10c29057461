"""``l2h export``: from a run folder to a bundle, by a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import call, undrawn

import l2h
from l2h import Costs
from l2h.bundle import DeviceBundle, Manifest, ServerBundle

QUICK = [
    *("--data", "digits", "--limit", "300", "--client", "tree", "--client-share", "0.3", "--server", "lenet5"),
    *("--set", "server.epochs=2", "--set", "server.batch=32", "--set", "rejector.epochs=2", "--set", "folds=2"),
    *("--set", "copies=1", "--option", "rejector.width=1", "--option", "server.width=0.5", "--c-e", "0.2"),
]
Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def trained(once: Once) -> Path:
    def train(folder: Path) -> None:
        with undrawn():
            status, _, err = call("train", *QUICK, "--out", folder)
        assert status == 0, err

    return once("run", train)


@pytest.fixture(scope="session")
def exported(once: Once, trained: Path) -> Path:
    """A bundle, the JSON that was printed beside it."""

    def export(folder: Path) -> None:
        status, out, err = call("export", trained, "--out", folder, "--json")
        assert status == 0, err
        folder.with_suffix(".json").write_text(out)

    return once("exported", export)


def test_it_writes_a_bundle_that_answers_as_the_run(exported: Path, trained: Path) -> None:
    said = json.loads(exported.with_suffix(".json").read_text())
    manifest = Manifest.read(exported)
    assert said == {"folder": str(exported), **manifest.as_dict()}
    assert (manifest.name, manifest.costs) == ("digits", Costs(c_e=0.2))
    assert manifest.client.kind == "ONNX model"
    system, X = l2h.load(trained), l2h.load_dataset("digits").X_test
    label, judgement = DeviceBundle(exported).judge(X)
    answers = system.client.answers(X, 10)
    np.testing.assert_array_equal(label, answers.label)
    np.testing.assert_array_equal(
        ServerBundle(exported).run(X).argmax(axis=1), system.fitted.server_log_probability(X).argmax(axis=1)
    )
    # Where two leaves tie, torch's topk marks either of them for the rejector.
    p = np.sort(answers.probability, axis=1)
    clear = p[:, -1] > p[:, -2]
    assert clear.mean() > 0.9
    for costs in (Costs(c_e=0.05), Costs(c_e=0.2), Costs(c_e=0.4, c_1=1.5)):
        remote = system.predict(X, costs).source == "remote"
        np.testing.assert_array_equal(judgement.remote(costs)[clear], remote[clear])


def test_a_person_is_shown_the_files_and_what_comes_next(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    status, shown, err = call(
        "export", trained, "--out", out, "--name", "mine", "--c-e", "0.05", "--c-1", "1.25", "--int8"
    )
    assert status == 0, err
    manifest = DeviceBundle(out).manifest
    assert (manifest.name, manifest.costs) == ("mine", Costs(c_e=0.05, c_1=1.25))
    for name, part in manifest.files.items():
        assert name in shown
        assert part.sha256[:12] in shown
        assert f"{part.bytes:,}" in shown
    assert manifest.version in shown
    assert f"l2h serve {out}" in shown
    assert f"l2h ask {out}" in shown
    measured = manifest.rejector.int8_measured
    assert measured["samples"] == 30, "the run's calibration part"
    assert measured["kept"] == manifest.rejector.int8
    assert "int8: " in shown


def test_refusals_come_before_the_work_and_change_nothing(trained: Path, exported: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    (tmp_path / "empty").mkdir()
    for arguments, statuses, words in (
        ((trained, "--out", exported), [1], "--force"),
        ((trained, "--out", trained), [1], "holds no bundle"),
        ((tmp_path / "empty", "--out", tmp_path / "bundle"), [1], "holds no run"),
        ((trained, "--out", tmp_path / "bundle", "--c-e", "-1"), [2], "negative"),
        ((trained, "--out", tmp_path / "bundle", "--name", "a/b"), [2], "address"),
        ((trained, "--out", tmp_path / "bundle", "--which", "4"), [2], "which=4"),
        ((trained, "--out", tmp_path / "bundle", "--data", "digits"), [2], "--int8"),
        ((trained,), [2], "--out"),
    ):
        status, out, err = call("export", *arguments)
        assert status in statuses, err
        assert words in err
        assert "Traceback" not in err
        assert out == ""
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before
    assert not (tmp_path / "bundle").exists()


def test_help_shows_an_example() -> None:
    status, shown, _ = call("export", "--help")
    assert status == 0
    assert "l2h export runs/demo --out bundles/digits" in shown
    for flag in ("--out", "--name", "--c-e", "--c-1", "--int8", "--data", "--force", "--json"):
        assert flag in shown
