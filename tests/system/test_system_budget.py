"""A budget of the device: how it is written, what the client's work is, and what a sized system is and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import DIGITS, QUICK, call, one_line
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import l2h
from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.budgets import Budget
from l2h.bundle import DeviceBundle
from l2h.classifiers import as_client
from l2h.errors import ModelError, SettingsError
from l2h.export.onnx import classifier_to_onnx
from l2h.models import build_scaled, client_view_size, multiply_adds
from l2h.settings import SEPARABLE_REJECTOR
from l2h.training import Context
from l2h.training.counting import classifier_multiply_adds
from l2h.training.job import stage_settings

SHORT = StageSettings(epochs=2)
SETTINGS = Settings(server=SHORT, rejector=SHORT, folds=2, copies=1, augment="shift", threads=1)
DATA = l2h.load_dataset("digits", limit=400)
SHAPE = DATA.input_shape


@pytest.mark.parametrize(
    ("given", "value", "unit"),
    [
        (1, 1.0, "client"),
        ("0.3", 0.3, "client"),
        ("2x", 2.0, "client"),
        (0, 0.0, "client"),
        ("200k", 2e5, "multiply-adds"),
        ("1.5M", 1.5e6, "multiply-adds"),
        ("50us", 5e-5, "seconds"),
        ("2 ms", 2e-3, "seconds"),
    ],
)
def test_a_budget_is_a_multiple_or_multiply_adds_or_time(given: Any, value: float, unit: str) -> None:
    budget = Budget.parse(given)
    assert budget.unit == unit
    assert budget.value == pytest.approx(value)


@pytest.mark.parametrize("given", ["", "much", "-1", -0.5, "1e999", "nan", True, "3 kg", "0us", "1.2.3", 200_000])
def test_what_is_no_budget_is_refused(given: Any) -> None:
    with pytest.raises(SettingsError, match="budget="):
        Budget.parse(given)


@pytest.mark.parametrize(
    ("name", "options"),
    [("lenet5", {}), ("mlp", {"hidden": [8]}), ("vit", {"size": 8, "patch": 4, "width": 16, "depth": 1, "heads": 2})],
)
def test_a_torch_client_and_its_onnx_file_count_alike(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    client = as_client(build_scaled(name, SHAPE, 10, **options))
    client.answers(DATA.X_test[:2], 10)
    example = np.zeros((2, *SHAPE), dtype=np.float32)
    (tmp_path / "client.onnx").write_bytes(classifier_to_onnx(client, example, "client.onnx").data or b"")
    counted = classifier_multiply_adds(client, SHAPE, "uint8")
    assert counted is not None
    assert counted > 100
    assert classifier_multiply_adds(as_client(tmp_path / "client.onnx"), SHAPE, "uint8") == counted


def test_counting_changes_no_mode_of_a_client() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))
    net[1].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert classifier_multiply_adds(as_client(net), SHAPE, "uint8") == 36 * 18 + 720
    assert net.training
    assert not net[1].training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.fixture(scope="module")
def sized() -> HelpSystem:
    """A system whose rejector may cost a fifth of a client of 66,600 multiply-adds."""
    torch.manual_seed(0)
    client = build_scaled("lenet5", SHAPE, 10)
    system = HelpSystem(client, "lenet5", settings=SETTINGS, budget=0.2)
    return system.fit(DATA.X_train, DATA.y_train).calibrate(DATA.X_test[:80], DATA.y_test[:80])


def test_a_sized_system_keeps_to_its_budget_and_reports_it(sized: HelpSystem) -> None:
    report = sized.evaluate(DATA.X_test, DATA.y_test, Costs(c_e=0.1))
    counts = report.as_dict()["compute"]["multiply_adds"]
    assert counts["client"] == counts["server"] == 66_600
    assert 0.14 * 66_600 <= counts["rejector"] <= 0.2 * 66_600
    assert report.as_dict()["compute"]["budget"]["multiply_adds"] == 13_320
    student = report.as_dict()["student"]
    assert student["risk"] == pytest.approx(1 - student["accuracy"])
    json.dumps(report.as_dict(), allow_nan=False)


@pytest.mark.long
def test_a_sized_system_is_saved_and_exported_as_it_is(sized: HelpSystem, tmp_path: Path) -> None:
    sized.save(tmp_path / "run")
    again = l2h.load(tmp_path / "run")
    assert again.require_fitted().budget == sized.require_fitted().budget
    expected = sized.judge(DATA.X_test).scores
    np.testing.assert_allclose(again.judge(DATA.X_test).scores, expected, atol=1e-5)
    sized.export(tmp_path / "bundle")
    np.testing.assert_allclose(DeviceBundle(tmp_path / "bundle").judge(DATA.X_test)[1].scores, expected, atol=1e-3)


def test_a_rejector_whose_size_nobody_names_may_cost_as_much_as_the_client() -> None:
    client = build_scaled("lenet5", SHAPE, 10)
    job = HelpSystem(client, "lenet5").prepare(DATA.X_train, DATA.y_train)
    assert job.size.budget == {"asked": "1 times the client", "assumed": None, "multiply_adds": 66_600}
    assert stage_settings(job, Context(Settings(), torch.device("cpu")))[1] == SEPARABLE_REJECTOR
    view = torch.zeros(1, client_view_size(10, job.embedding_size))
    count = multiply_adds(job.make_rejector(), torch.zeros(1, *SHAPE), view)
    assert 0.7 * 66_600 <= count <= 66_600
    table = HelpSystem(lambda X: X[:, :2], "mlp").prepare(DATA.X_train.reshape(-1, 64) / 16.0, DATA.y_train % 2)
    assert table.size.budget is not None
    assert stage_settings(table, Context(Settings(), torch.device("cpu")))[1] == SEPARABLE_REJECTOR


def test_the_papers_rejector_and_one_that_is_given_have_no_budget() -> None:
    client = build_scaled("lenet5", SHAPE, 10)
    for given in (
        {"settings": Settings(recipe="paper", loss="shifted")},
        {"rejector_options": {"width": 1}},
        {"rejector": nn.Flatten()},
    ):
        assert HelpSystem(client, "lenet5", **given).budget is None


@pytest.mark.long
def test_a_client_that_cannot_be_counted_counts_as_100k_and_the_report_says_so(tmp_path: Path) -> None:
    out = call("train", *DIGITS, *QUICK[:-2], "--out", tmp_path / "run")
    assert out.status == 0, out.err
    compute = json.loads((tmp_path / "run" / "metrics.json").read_text())["compute"]
    assert compute["budget"]["multiply_adds"] == 100_000
    assert 70_000 <= compute["multiply_adds"]["rejector"] <= 100_000
    assert compute["multiply_adds"]["client"] is None
    assert "a multiple of 100,000" in compute["budget"]["assumed"]
    assert "a multiple of 100,000" in one_line(out.out)
    assert "a multiple of 100,000" in (tmp_path / "run" / "report.html").read_text()


def test_a_budget_of_time_is_met_or_the_smallest_is_named() -> None:
    tree = DecisionTreeClassifier(max_depth=3).fit(DATA.X_train.reshape(len(DATA.X_train), -1), DATA.y_train)
    with pytest.raises(ModelError, match=r"cannot be met: the smallest rejector takes \d+ us"):
        HelpSystem(tree, "lenet5", settings=SETTINGS, budget="0.1us").prepare(DATA.X_train, DATA.y_train)


@pytest.mark.long
def test_a_budget_of_time_gives_a_rejector_that_takes_no_longer() -> None:
    system = HelpSystem(build_scaled("lenet5", SHAPE, 10), "lenet5", settings=SETTINGS, budget="5ms")
    size = system.prepare(DATA.X_train, DATA.y_train).size
    assert size.budget is not None
    assert size.budget["seconds"] <= 5e-3
    assert size.options["width"] > 0


def test_a_budget_beside_another_size_is_refused() -> None:
    tree = DecisionTreeClassifier().fit(DATA.X_train.reshape(len(DATA.X_train), -1), DATA.y_train)
    with pytest.raises(SettingsError, match="leave out width"):
        HelpSystem(tree, "lenet5", budget=1, rejector_options={"width": 2})
    with pytest.raises(SettingsError, match="a rejector of your own"):
        HelpSystem(tree, "lenet5", nn.Flatten(), budget=1)
