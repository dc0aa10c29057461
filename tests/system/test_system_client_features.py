"""Tensors inside the client that the rejector reads: by name, chosen, saved, exported; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import QUICK, call, one_line
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import l2h
from l2h import HelpSystem, Settings, StageSettings
from l2h.bundle import DeviceBundle
from l2h.classifiers import as_client
from l2h.errors import ClientError, SettingsError
from l2h.export.onnx import classifier_to_onnx
from l2h.system.client_features import probe_errors

SHORT = StageSettings(epochs=1)
SETTINGS = Settings(server=SHORT, rejector=SHORT, folds=2, copies=0, threads=1, device="cpu")
DATA = l2h.load_dataset("digits", limit=300)
TEST = DATA.X_test[:60]


class Legacy(nn.Module):
    """A small convolutional client with tokens inside, without a method ``embed``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
        self.conv2 = nn.Conv2d(4, 6, 3)
        self.tokens = nn.Linear(6, 5)
        self.head = nn.Linear(5, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.conv2(self.conv1(x))
        scores: torch.Tensor = self.head(self.tokens(maps.flatten(2).transpose(1, 2)).mean(1))
        return scores


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client as an ONNX file, its tensors named as torch's exporter names them."""
    path = tmp_path_factory.mktemp("client") / "legacy.onnx"
    path.write_bytes(classifier_to_onnx(as_client(Legacy()), DATA.X_train[:2], path.name).data or b"")
    return path


def tensor_of(file: Path, size: int) -> str:
    """The name of the first map inside an ONNX file with so many channels."""
    inside = as_client(file).inner_features(DATA.X_train[:3])
    return next(name for name, values in inside.items() if values.shape[1] == size)


def fitted(client: Any, features: str | None) -> HelpSystem:
    system = HelpSystem(client, "lenet5", settings=SETTINGS, budget="20k", client_features=features)
    return system.fit(DATA.X_train, DATA.y_train)


def test_a_tree_has_nothing_inside(tmp_path: Path) -> None:
    X = DATA.X_train.reshape(len(DATA.X_train), -1)
    old = DecisionTreeClassifier(max_depth=4).fit(X, DATA.y_train)
    l2h.export.save_onnx(old, tmp_path / "old.onnx")
    assert as_client(tmp_path / "old.onnx").inner_features(X) == {}


@pytest.mark.parametrize(("layer", "size"), [("conv1", 4), ("conv2", 6), ("tokens", 5), ("head", 10)])
def test_maps_are_averaged_over_the_image_and_tokens_over_the_tokens(layer: str, size: int) -> None:
    net = Legacy()
    kept: list[torch.Tensor] = []
    net.get_submodule(layer).register_forward_hook(lambda _m, _i, out: kept.append(out))
    embedding = as_client(net).with_features(layer).answers(TEST, 10).embedding
    values = kept[0].numpy()
    expected = values.mean(axis={2: (), 3: (1,), 4: (2, 3)}[values.ndim]) if values.ndim > 2 else values
    assert embedding is not None
    assert embedding.shape == (len(TEST), size)
    np.testing.assert_allclose(embedding, expected, atol=1e-6)


def test_an_onnx_file_gives_the_same_features_as_the_module_that_it_came_from(file: Path) -> None:
    module = as_client(Legacy()).inner_features(TEST)
    client = as_client(file)
    inside = client.inner_features(TEST)
    for layer in ("conv1", "conv2", "tokens"):
        expected = module[layer]
        equal = [n for n, v in inside.items() if v.shape == expected.shape and np.allclose(v, expected, atol=1e-5)]
        assert equal, layer
        embedding = client.with_features(equal[-1]).answers(TEST, 10).embedding
        np.testing.assert_allclose(embedding, expected, atol=1e-5)
    assert client.answers(TEST, 10).embedding is None, "the client itself is not changed"


@pytest.mark.parametrize("kind", [pytest.param("torch", marks=pytest.mark.long), "named", "onnx"])
def test_chosen_features_are_saved_and_exported_and_the_client_runs_once(kind: str, file: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    clients = {"torch": Legacy(), "named": l2h.models.build_scaled("lenet5", (1, 8, 8), 10, width=0.5), "onnx": file}
    names = {"torch": "conv2", "named": "net.features.0", "onnx": tensor_of(file, 6)}
    system = fitted(clients[kind], names[kind])
    expected = system.judge(TEST).scores
    system.save(tmp_path / "run")
    again = l2h.load(tmp_path / "run")
    assert again.require_fitted().client_features == system.require_fitted().client_features
    np.testing.assert_allclose(again.judge(TEST).scores, expected, atol=1e-3)
    compute = system.evaluate(DATA.X_test, DATA.y_test).as_dict()["compute"]
    assert compute["client_features"]["name"] == names[kind]
    assert compute["multiply_adds"]["rejector"] <= 20_000
    if kind == "named":  # exported as any torch module
        return
    system.export(tmp_path / "bundle")
    bundle = DeviceBundle(tmp_path / "bundle")
    np.testing.assert_allclose(bundle.judge(TEST)[1].scores, expected, atol=1e-3)
    assert bundle.manifest.rejector.fused == (kind != "onnx")


def test_a_module_that_must_be_given_again_gets_its_features_again(tmp_path: Path) -> None:
    class Own(Legacy):
        """Torch cannot look into its branch, so that it is no file."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1.0 if float(x.sum()) < 1e9 else 2.0)

    system = fitted(Own(), "conv1")
    with pytest.warns(UserWarning, match="must be given to l2h.load"):
        system.save(tmp_path / "run")
    again = l2h.load(tmp_path / "run", client=Own())
    np.testing.assert_allclose(again.judge(TEST).scores, system.judge(TEST).scores, atol=1e-5)


def test_auto_takes_the_tensor_that_says_most_and_none_takes_none() -> None:
    class Telling(Legacy):
        """A client of which one layer says how right it is, and the others nothing new."""

        def __init__(self) -> None:
            super().__init__()
            self.hint = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hint(x.flatten(1)[:, :3])
            return super().forward(x)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 1, 8, 8)).astype(np.float32)
    client = as_client(Telling())
    label = client.answers(X, 10).label
    y = np.where(X.reshape(len(X), -1)[:, 1] > 0, label, (label + 1) % 10)  # right where the hint's second is positive
    errors = probe_errors(client, X, y, 10)
    assert min(errors, key=lambda name: errors[name]) == "hint"
    assert errors["hint"] < 0.7 * errors["none"]
    names = [str(k) for k in range(10)]
    system = HelpSystem(Telling(), "lenet5", settings=SETTINGS, class_names=names, client_features="auto")
    job = system.prepare(X, y)
    assert job.client_features is not None
    assert (job.client_features["asked"], job.client_features["name"], job.embedding_size) == ("auto", "hint", 3)
    shows = l2h.models.build_scaled("lenet5", (1, 8, 8), 10)
    assert HelpSystem(shows, "lenet5").prepare(DATA.X_train, DATA.y_train).embedding_size == 84
    off = HelpSystem(shows, "lenet5", client_features="none").prepare(DATA.X_train, DATA.y_train)
    assert off.embedding_size == 0


def test_a_tensor_that_is_none_is_named_with_those_near_it(file: Path) -> None:
    with pytest.raises(ClientError, match=r"no tensor 'conv3'; near it are conv\d, conv\d"):
        as_client(Legacy()).with_features("conv3")
    with pytest.raises(ClientError, match="no tensor 'nothing like it'; it has"):
        as_client(file).with_features("nothing like it")
    with pytest.raises(ClientError, match="callable has no tensors"):
        fitted(lambda X: X.reshape(len(X), -1)[:, :10].astype(float), "conv1")
    with pytest.raises(SettingsError, match="a separate rejector does not read the client"):
        HelpSystem(Legacy(), "lenet5", "separate", client_features="auto")
    with pytest.raises(ClientError, match="none that can be read by a name: export it as an ONNX file"):
        as_client(torch.jit.script(Legacy())).with_features("conv2")


@pytest.mark.long
def test_the_command_line_chooses_and_tells_it(file: Path, tmp_path: Path) -> None:
    out = call(
        *("train", "--data", "digits", "--limit", "200", "--client", file, "--server", "lenet5", *QUICK),
        *("--client-features", "auto", "--out", tmp_path / "run"),
    )
    assert out.status == 0, out.err
    chosen = json.loads((tmp_path / "run" / "metrics.json").read_text())["compute"]["client_features"]
    assert chosen["asked"] == "auto"
    assert len(chosen["probe"]) > 3
    assert f"features of the client: {chosen['name'] or 'none'}" in one_line(out.out)
    bad = call("train", "--data", "digits", "--client", file, "--client-features", "cnv", "--out", tmp_path / "bad")
    assert bad.status == 1
    assert "no tensor 'cnv'" in one_line(bad.err)
