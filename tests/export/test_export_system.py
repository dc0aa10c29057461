"""Exported files are compared with their originals, and refused where they differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from bundle_maker import SPECS, TABLE, TABLE_TEST, TRAINED_FOR, assert_answers_as, on_table, onnx_file, settings, tree
from clouds import CLASSES, FEATURES, NetWithFeatures, samples, scores
from torch import Tensor, nn

import l2h
from l2h import Costs, HelpSystem
from l2h.bundle import BundleError, DeviceBundle, ServerBundle
from l2h.bundle.sessions import exported_client, file_run
from l2h.decision import RejectorSpec
from l2h.errors import L2HWarning, NotFittedError, SettingsError
from l2h.export import ExportError
from l2h.export.classifiers import export_client, export_fixed_server
from l2h.export.models import can_fuse, fuse, run_model
from l2h.export.system import held_out_scores

Systems = Callable[[str], HelpSystem]
WEIGHTS = np.random.default_rng(4).normal(size=(FEATURES, CLASSES)).astype(np.float32)


# Clients.


class Labels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ torch.from_numpy(WEIGHTS)).argmax(dim=1)


class Softmax(NetWithFeatures):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(dim=1)


class Margin(nn.Module):
    """One number per sample, for two classes."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ torch.from_numpy(WEIGHTS))[:, :1]


def scripted() -> Any:
    return torch.jit.script(NetWithFeatures().eval())


def program() -> Any:
    batch = torch.export.Dim("batch", min=1, max=1_000_000)
    return torch.export.export(
        NetWithFeatures().eval(), (torch.from_numpy(TABLE[0][:5]),), dynamic_shapes=({0: batch},)
    )


def sparse() -> Any:
    """A tree that has never seen class 1."""
    from sklearn.tree import DecisionTreeClassifier

    X, y = samples(60, 5)
    return DecisionTreeClassifier(max_depth=2, random_state=0).fit(X[y != 1], y[y != 1])


def lines() -> Any:
    """Without probabilities: its decision function is read as logits."""
    from sklearn.linear_model import RidgeClassifier

    return RidgeClassifier().fit(*samples(60, 5))


def dictionaries() -> Any:
    """What skl2onnx makes of an estimator unless it is told not to."""
    from skl2onnx import to_onnx

    path = Path(tempfile.mkdtemp()) / "legacy.onnx"
    path.write_bytes(to_onnx(tree(), TABLE[0][:1], target_opset=18).SerializeToString())
    return path


CLIENTS: dict[str, Callable[[], Any]] = {
    "TorchScript": scripted,
    "exported program": program,
    "a layer's features": lambda: l2h.as_client(NetWithFeatures(), feature_layer="body.2"),
    "labels": Labels,
    "probabilities": Softmax,
    "margin": Margin,
    "sparse tree": sparse,
    "no probabilities": lines,
    "a dictionary per sample": dictionaries,
}
BATCHES = [TABLE_TEST[0][:n] for n in (1, 3, 17)]


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_of_every_form_keep_their_answers(name: str) -> None:
    client = l2h.as_client(CLIENTS[name]())
    X, classes = TABLE_TEST[0], 2 if name == "margin" else CLASSES
    answers = client.answers(X, classes)
    exported = export_client(client, classes, answers.embedding is not None, BATCHES)
    assert exported.agreement <= 1e-5
    label, log_p, embedding = exported_client(file_run(exported.data, exported.part), exported.part, classes)(X)
    np.testing.assert_array_equal(label, answers.label)
    np.testing.assert_allclose(np.exp(log_p), np.exp(answers.log_probability), atol=1e-5)
    assert (embedding is None) == (answers.embedding is None)
    if answers.embedding is not None:
        np.testing.assert_allclose(embedding, answers.embedding, atol=1e-5)


@pytest.mark.parametrize("make", [scripted, program])
def test_every_torch_program_can_be_fused_and_answers_as_its_halves(
    make: Callable[[], Any], bundles: Callable[[str], Path]
) -> None:
    client = export_client(l2h.as_client(make()), CLASSES, False, BATCHES)
    rejector = onnx.load(bundles("callable") / "rejector.onnx")
    assert can_fuse(client.graph, rejector)
    X = TABLE_TEST[0]
    (alone,) = run_model(client.graph, "client", ["log_probability"], {"x": X})
    (apart,) = run_model(rejector, "rejector", ["scores"], {"x": X, "log_probability": alone})
    log_p, together = run_model(fuse(client.graph, rejector), "both", ["log_probability", "scores"], {"x": X})
    np.testing.assert_allclose(log_p, alone, atol=1e-6)
    np.testing.assert_allclose(together, apart, atol=1e-5)


class Odd(nn.Linear):
    """It takes another branch while it is exported, so that its file differs from it."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores * 1.001 if torch.compiler.is_compiling() else scores


def test_a_file_that_answers_differently_is_never_written(tmp_path: Path) -> None:
    for name, system in (
        ("client", on_table(Odd(), "separate")),
        ("server", on_table(scores, "separate", server=Odd())),
    ):
        with pytest.raises(ExportError, match=rf"{name}\.onnx differs from the original by .* not written"):
            system.export(tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


class Stubborn(nn.Module):
    """No exporter can look into it: it leaves torch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() @ WEIGHTS)


def test_a_client_that_cannot_be_exported_is_left_out_with_a_warning() -> None:
    client = l2h.as_client(Stubborn())
    client.answers(TABLE[0], CLASSES)
    with pytest.warns(L2HWarning, match=r"torch module.*must be given to it with client="):
        exported = export_client(client, CLASSES, False, BATCHES)
    assert exported.data is None
    assert (exported.part.file, exported.part.kind, exported.part.gives) == (None, "given", "logits")


# Rejectors.


class Own(nn.Module):
    """The user's own rejector, which reads the client."""

    uses_client = True

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(FEATURES + 3 + 3 + 2 * CLASSES, 2)

    def forward(self, x: Tensor, view: Tensor) -> Tensor:
        return self.layer(torch.cat([x, view], dim=1))


def test_a_rejector_of_the_users_and_one_without_a_trunk(tmp_path: Path) -> None:
    own = HelpSystem(scores, tree(), Own(), settings=settings()).fit(*TABLE)
    bare = HelpSystem(tree(), tree(), rejector_options={"width": 0}, settings=settings()).fit(*TABLE)
    for name, system, client in (("own", own, scores), ("bare", bare, None)):
        manifest = system.export(tmp_path / name)
        assert manifest.rejector.kind == ("given" if name == "own" else "attached")
        device = DeviceBundle(tmp_path / name, client=client)
        assert_answers_as(system, device, ServerBundle(tmp_path / name), TABLE_TEST[0], Costs(c_e=0.1))


@pytest.mark.long
def test_one_of_several_rejectors_can_be_exported_alone(tmp_path: Path) -> None:
    twice = [*SPECS, RejectorSpec("shifted", TRAINED_FOR[0], seed=5)]
    system, target = on_table(scores, "separate", loss="shifted", specs=twice), tmp_path / "bundle"
    with pytest.raises(SettingsError, match="several rejectors fit"):
        system.export(target)
    manifest = system.export(target, which=2)
    assert [(spec.seed, spec.costs) for spec in manifest.rejector.specs] == [(5, TRAINED_FOR[0])]
    assert manifest.costs == TRAINED_FOR[0]
    device = DeviceBundle(target, client=scores)
    np.testing.assert_array_equal(device.held_out().scores, system.fitted.held_out_judgement(2).scores)
    np.testing.assert_allclose(
        device.judge(TABLE_TEST[0])[1].scores, system.judge(TABLE_TEST[0], which=2).scores, atol=1e-5
    )
    with pytest.raises(SettingsError, match="no rejector was trained for"):
        device.which(TRAINED_FOR[1])


def test_what_cannot_be_exported_is_refused_before_anything_is_written(systems: Systems, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with pytest.raises(NotFittedError, match="fit"):
        HelpSystem(scores, "mlp", settings=settings()).export(target)
    several = systems("several")
    with pytest.raises(SettingsError, match="which=7"):
        several.export(target, which=7)
    with pytest.raises(SettingsError, match="trained for"):
        several.export(target, costs=Costs(c_e=0.9))
    for name in ("", "a/b", "../x", "-x", "a b", "x" * 129):
        with pytest.raises(SettingsError, match="address"):
            several.export(target, name=name)
    assert not list(tmp_path.iterdir())


# Servers.


def test_fixed_servers_are_copied_where_they_take_raw_samples(tmp_path: Path) -> None:
    path = onnx_file(tmp_path)
    system = HelpSystem(scores, str(path), "separate", settings=settings()).fit(*TABLE)
    manifest = system.export(tmp_path / "onnx")
    assert (tmp_path / "onnx" / "server.onnx").read_bytes() == path.read_bytes()
    assert (manifest.servers["server"].input, manifest.servers["server"].output) == ("X", "probabilities")
    device, server = DeviceBundle(tmp_path / "onnx", client=scores), ServerBundle(tmp_path / "onnx")
    assert_answers_as(system, device, server, TABLE_TEST[0], Costs(c_e=0.1))


def test_a_torch_server_that_is_kept_is_exported_with_its_scaling() -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (n, 1, 2, 2)).astype(np.uint8) for n in (1, 3, 17)]
    server = l2h.as_client(nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES)))
    exported, _ = export_fixed_server(server, CLASSES, images)
    assert (exported.part.input, exported.part.feed, exported.part.output) == ("x", "as_is", "scores")
    assert exported.agreement <= 1e-5


@pytest.mark.parametrize(
    ("server", "shape", "why"),
    [
        (dictionaries, (FEATURES,), "scores"),
        (lambda: lambda X: X @ WEIGHTS, (FEATURES,), "no file"),
    ],
)
def test_a_server_that_does_not_fit_is_left_out_with_the_reason(
    server: Callable[[], Any], shape: tuple[int, ...], why: str
) -> None:
    exported, reason = export_fixed_server(
        l2h.as_client(server()), CLASSES, [X.reshape(len(X), *shape) for X in BATCHES]
    )
    assert exported is None
    assert why in reason


def test_a_server_that_is_somebodys_stays_where_it_is(tmp_path: Path) -> None:
    system = HelpSystem(scores, lambda X: X @ WEIGHTS, "separate", settings=settings()).fit(*TABLE)
    with pytest.warns(L2HWarning, match="the server is not in the bundle: a remote server is no file"):
        manifest = system.export(tmp_path / "bundle")
    assert manifest.servers["server"].file is None
    DeviceBundle(tmp_path / "bundle", client=scores).judge(TABLE_TEST[0])
    with pytest.raises(BundleError, match="holds no server"):
        ServerBundle(tmp_path / "bundle")


# Calibration.


def test_without_calibration_there_are_no_held_out_scores(tmp_path: Path) -> None:
    paper = settings(recipe="paper", loss="shifted")
    options = {"server_options": {"hidden": (8,)}, "dataset": "../my data/set (2)"}
    system = HelpSystem(scores, "mlp", "separate", settings=paper, **options).fit(*TABLE, costs=Costs(c_e=0.2))
    manifest = system.export(tmp_path / "bundle")
    assert manifest.name == "my-data-set-2"
    assert manifest.calibration is None
    assert not (tmp_path / "bundle" / "calibration.npz").exists()
    device = DeviceBundle(tmp_path / "bundle", client=scores)
    assert device.held_out() is None
    assert_answers_as(system, device, ServerBundle(tmp_path / "bundle"), TABLE_TEST[0], Costs(c_e=0.2))


def test_at_most_two_thousand_held_out_scores_are_kept_drawn_evenly() -> None:
    system = on_table(scores, "separate").calibrate(*samples(5000, 9))
    kept, everything = held_out_scores(system.fitted, [0]), system.fitted.calibration.held_out.scores
    assert kept.shape == (1, 2000, 2)
    assert {tuple(row) for row in kept[0]} <= {tuple(row) for row in everything[0]}
    np.testing.assert_array_equal(kept[0, [0, -1]], everything[0, [0, -1]])
    for share in (0.1, 0.5, 0.9):
        gain = [values[0, :, 1] - values[0, :, 0] for values in (kept, everything)]
        assert abs((gain[0] > np.quantile(gain[1], share)).mean() - (1 - share)) < 0.03
