"""A quantised rejector is kept only where it is faster and no worse, and never changes the client's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from bundle_maker import TABLE_CAL, digits

from l2h import Costs, HelpSystem
from l2h.bundle import DeviceBundle, Manifest, ServerBundle
from l2h.costs import generalized_loss
from l2h.decision import Judgement
from l2h.errors import DataError
from l2h.export import quantising
from l2h.export.models import export_models
from l2h.export.quantising import quantise

Systems = Callable[[str], HelpSystem]
Bundles = Callable[[str], Path]
Once = Callable[[str, Callable[[Path], None]], Path]


def outputs(folder: Path, X: np.ndarray) -> dict[str, np.ndarray]:
    """What ``rejector.onnx`` says, without our code between."""
    session = ort.InferenceSession(folder / "rejector.onnx", providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": X}), strict=True))


@pytest.fixture(scope="session")
def int8(once: Once, systems: Systems) -> Path:
    """The fused system with an int8 rejector, kept whatever the measurement says."""

    def make(folder: Path) -> None:
        system = systems("fused")
        client, module = system.client.fingerprint(), system.client.module
        modes, drawn = [m.training for m in module.modules()], torch.random.get_rng_state()
        weights = {name: tensor.clone() for name, tensor in system.fitted.rejectors.state_dict().items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quantising, "KEEP_BELOW", np.inf)
            patch.setattr(quantising, "STANDARD_ERRORS", np.inf)
            system.export(folder, int8=digits()[1])
        assert system.client.fingerprint() == client, "exporting changes nothing of the system"
        assert [m.training for m in module.modules()] == modes
        assert torch.equal(torch.random.get_rng_state(), drawn)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in system.fitted.rejectors.state_dict().items())

    return once("int8", make)


def test_the_clients_answers_do_not_change_by_a_bit(int8: Path, bundles: Bundles) -> None:
    X = digits()[2][0]
    ours, floats = outputs(int8, X), outputs(bundles("fused"), X)
    np.testing.assert_array_equal(ours["log_probability"], floats["log_probability"])
    assert (int8 / "client.onnx").read_bytes() == (bundles("fused") / "client.onnx").read_bytes()
    difference = np.abs(ours["scores"] - floats["scores"])
    assert 0 < difference.max() < 0.2 * np.abs(floats["scores"]).max(), "the rejector's do, a little"


def test_the_manifest_records_what_was_measured(int8: Path, bundles: Bundles) -> None:
    manifest = Manifest.read(int8)
    measured = manifest.rejector.int8_measured
    assert manifest.rejector.int8
    assert measured["kept"]
    assert measured["method"] in ("static", "dynamic")
    assert measured["ratio"] > 0
    X, y = digits()[1]
    assert measured["samples"] == len(y)
    server_right = ServerBundle(int8).run(X).argmax(axis=1) == y
    losses = []
    for folder in (int8, bundles("fused")):
        label, judgement = DeviceBundle(folder).judge(X)
        losses.append(generalized_loss(label == y, server_right, judgement.remote(manifest.costs), manifest.costs))
    difference = losses[0] - losses[1]
    assert measured["risk_difference"] == pytest.approx(difference.mean(), abs=1e-12)
    assert measured["standard_error"] == pytest.approx(difference.std(ddof=1) / len(y) ** 0.5, abs=1e-12)


def test_an_int8_bundle_decides_nearly_as_the_float_one(int8: Path, bundles: Bundles) -> None:
    X = digits()[2][0]
    ours, floats = DeviceBundle(int8).judge(X), DeviceBundle(bundles("fused")).judge(X)
    np.testing.assert_array_equal(ours[0], floats[0])
    for costs in (Costs(c_e=0.05), Costs(c_e=0.1), Costs(c_e=0.3)):
        assert (ours[1].remote(costs) == floats[1].remote(costs)).mean() > 0.95


@pytest.mark.long
def test_with_a_second_opinion_the_student_is_measured_too(systems: Systems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "KEEP_BELOW", np.inf)
    monkeypatch.setattr(quantising, "STANDARD_ERRORS", np.inf)
    fitted = replace(systems("fused").fitted, second_opinion=True)
    X, y = digits()[1]
    models = export_models(fitted, [0])
    quantised, measured = quantising.int8_rejector(fitted, models, [0], Costs(c_e=0.1), X, y)
    said = []
    for model in (quantised, models.on_device(models.rejector)):
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        said.append(dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": X}), strict=True)))
    wrong = [(outputs["student"][:, 0] != y).mean() for outputs in said]
    assert measured.also["student"] == pytest.approx(wrong[0] - wrong[1], abs=1e-12)
    # Without the student's column the decision is that of the same heads between client and server.
    server_right = np.asarray(fitted.server_log_probability(X).argmax(axis=1) == y)
    client_right = said[0]["log_probability"].argmax(axis=1) == y
    losses = []
    for outputs in said:
        two = Judgement.from_heads(outputs["scores"][:, 0, [0, 2]], fitted.calibration.platt[0])
        losses.append(generalized_loss(client_right, server_right, two.remote(Costs(c_e=0.1)), Costs(c_e=0.1)).mean())
    assert measured.also["two_ways"] == pytest.approx(losses[0] - losses[1], abs=1e-9)
    assert "without the student's answers" in measured.why


# The bounds, on a rejector of its own.


@pytest.fixture
def rejector(bundles: Bundles) -> Any:
    return onnx.load(bundles("separate") / "rejector.onnx")


def no_loss(outputs: dict[str, np.ndarray]) -> np.ndarray:
    return np.zeros(len(outputs["scores"]))


FEEDS = {"x": TABLE_CAL[0]}


def test_what_is_not_faster_is_not_kept(rejector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "KEEP_BELOW", 1e-6)
    quantised, measured = quantise(rejector, lambda graph: graph, FEEDS, no_loss)
    assert quantised is None
    assert not measured.kept
    assert "not faster" in measured.why
    assert measured.ratio > 1e-6
    assert measured.risk_difference == 0


def test_what_is_worse_is_not_kept_however_fast(rejector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "KEEP_BELOW", np.inf)
    exact = ort.InferenceSession(rejector.SerializeToString()).run(["scores"], FEEDS)[0]

    def loss(outputs: dict[str, np.ndarray]) -> np.ndarray:
        """Every sample whose scores moved costs a little."""
        return 0.01 * np.any(outputs["scores"] != exact, axis=(1, 2))

    quantised, measured = quantise(rejector, lambda graph: graph, FEEDS, loss)
    assert quantised is None
    assert "worse" in measured.why
    assert measured.risk_difference > measured.standard_error
    monkeypatch.setattr(quantising, "STANDARD_ERRORS", np.inf)
    quantised, measured = quantise(rejector, lambda graph: graph, FEEDS, loss)
    assert measured.kept
    assert quantised is not None


def test_a_risk_within_its_standard_error_is_no_worse(rejector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "KEEP_BELOW", np.inf)
    calls = iter([np.zeros(300), *[np.eye(1, 300, 7)[0]] * 2])
    quantised, measured = quantise(rejector, lambda graph: graph, FEEDS, lambda outputs: next(calls))
    assert measured.risk_difference == pytest.approx(1 / 300)
    assert measured.risk_difference == pytest.approx(measured.standard_error)
    assert measured.kept
    assert quantised is not None


def test_a_graph_that_changes_the_client_is_never_kept(rejector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantising, "KEEP_BELOW", np.inf)

    def with_inner(graph: Any) -> Any:
        """A second output that is not the rejector's own, as a client inside would have."""
        copy = onnx.ModelProto()
        copy.CopyFrom(graph)
        node = onnx.helper.make_node("Identity", ["scores"], ["log_probability"])
        copy.graph.node.append(node)
        copy.graph.output.append(onnx.helper.make_tensor_value_info("log_probability", 1, None))
        return copy

    quantised, measured = quantise(rejector, with_inner, FEEDS, no_loss)
    assert quantised is None
    assert (measured.method, measured.kept) == (None, False)
    assert "client's answers" in measured.why


def test_samples_that_do_not_fit_are_refused(systems: Systems, tmp_path: Path) -> None:
    X, y = digits()[1]
    for samples, words in (((X[:, :, :7], y), "shape"), ((X, y[:-1]), "rows"), ((X, y + 5), "label")):
        with pytest.raises(DataError, match=words):
            systems("fused").export(tmp_path / "bundle", int8=samples)
    assert not list(tmp_path.iterdir())
