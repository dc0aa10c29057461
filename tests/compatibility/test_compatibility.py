"""What version 0.1 wrote still loads, and answers as version 0.1 answered: :mod:`answers` says how both were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import FIELDS, answers_of, numbers_of, pack, reports_of
from this_platform import VERSION_0_1 as HERE
from this_platform import assert_near, same_platform

import l2h
from l2h.bundle import DeviceBundle

KINDS = ("priced", "paper")
WRITTEN: dict[str, Any] = json.loads((HERE / "answers.json").read_text())
#: There every number is the same to the last bit. Elsewhere float32 adds up in another order: a number of a network
#: moves by about 1e-6, and what is counted stays, unless a tie falls to the other side.
SAME_PLATFORM = same_platform()
NEAR = 0.0 if SAME_PLATFORM else 1e-5
#: A system keeps these limiters from call to call. Version 0.1 went on by what it remembered of the prices before, and
#: picked worse after a change of prices than a new one; so only the first price of each system is compared.
KEPT_LIMITS = ("system, 30%/20", "system, 7/1h")


def test_every_answer_is_that_of_version_0_1() -> None:
    answers = pack(answers_of(HERE))
    with np.load(HERE / "answers.npz", allow_pickle=False) as before:
        assert answers["name"].tolist() == before["name"].tolist()
        seen: set[tuple[str, str]] = set()
        for row, name in enumerate(answers["name"]):
            limiter = next(((name.split()[0], kept) for kept in KEPT_LIMITS if name.endswith(kept)), None)
            if limiter in seen:
                continue
            seen |= {limiter} if limiter else set()
            for field in FIELDS:
                np.testing.assert_array_equal(answers[field][row], before[field][row], err_msg=f"{field}: {name}")


def test_every_number_behind_them_is_that_of_version_0_1() -> None:
    numbers = numbers_of(HERE)
    with np.load(HERE / "answers.npz", allow_pickle=False) as before:
        assert set(numbers) == set(before) - {"name", *FIELDS}
        for name, values in numbers.items():
            assert values.dtype == before[name].dtype
            np.testing.assert_allclose(values, before[name], rtol=NEAR, atol=NEAR, err_msg=name)


def test_every_report_is_that_of_version_0_1() -> None:
    reports = reports_of(HERE)
    assert reports.keys() == WRITTEN["reports"].keys()
    for name, now in reports.items():
        before = WRITTEN["reports"][name]
        assert now.keys() - before.keys() <= {"answerers", "bound", "compute", "student", "three_ways"}
        same = {key: now[key] for key in before}
        if "bound" in now:  # its baselines keep to the limit, those of version 0.1 did not
            kept = ("system", "all_local")
            same, before = ({**one, "risk": {key: one["risk"][key] for key in kept}} for one in (same, before))
        assert_near(same, before, NEAR, name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_saved_again_has_the_same_files(kind: str, tmp_path: Path) -> None:
    l2h.load(HERE / kind).save(tmp_path)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (HERE / kind, tmp_path))
    assert after["schema"] == before["schema"]
    for config in (before, after):  # of the estimator in memory then, of its file now
        del config["system"]["client"]["fingerprint"]
    after["system"]["multiply_adds"].pop("client")  # which version 0.1 did not count
    assert after["system"] == before["system"]
    names = sorted(path.name for path in (HERE / kind / "checkpoints").iterdir())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names
    for name in names:
        assert (tmp_path / "checkpoints" / name).read_bytes() == (HERE / kind / "checkpoints" / name).read_bytes(), name


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.skipif(not SAME_PLATFORM, reason="another version of torch or onnx writes other graphs")
def test_a_run_that_is_exported_again_has_the_same_files_but_for_a_leaner_rejector(kind: str, tmp_path: Path) -> None:
    l2h.load(HERE / kind).export(tmp_path / "bundle", costs=l2h.Costs(c_e=0.1))
    folders = HERE / f"{kind}-bundle", tmp_path / "bundle"
    before, after = (json.loads((folder / "manifest.json").read_text()) for folder in folders)
    for manifest in (before, after):
        for changing in ("created", "digest", "l2h", "version"):
            del manifest[changing]
        del manifest["files"]["rejector.onnx"], manifest["agreement"]["rejector.onnx"]
    assert after == before
    X = l2h.load_dataset("digits").X_test[:100]
    (label, judgement), (other, again) = (DeviceBundle(folder).judge(X) for folder in folders)
    np.testing.assert_array_equal(label, other)
    np.testing.assert_allclose(judgement.scores, again.scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bundles_are_whole(kind: str) -> None:
    assert DeviceBundle(HERE / f"{kind}-bundle").manifest.l2h == "0.1.0"
