"""What client and server are fed is stored with a run and in its bundle, and done there as in training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_maker import assert_answers_as, copied, edit
from clouds import settings
from model_files import digits, linear, write_onnx
from torch import nn

import l2h
from l2h import Costs, HelpSystem, Preprocessing, as_client
from l2h.bundle import BundleError, DeviceBundle, ServerBundle
from l2h.bundle.sessions import exported_client, file_run
from l2h.errors import L2HWarning, SettingsError
from l2h.export.classifiers import export_client

X, Y, X_TEST, Y_TEST = digits()
X_FIT, Y_FIT = X[400:800], Y[400:800]
#: A rejector without a trunk, which is quickly written as ONNX.
SMALL: dict[str, Any] = {"rejector_options": {"width": 0}}


def same(system: HelpSystem, folder: Path) -> DeviceBundle:
    device = DeviceBundle(folder)
    assert_answers_as(system, device, ServerBundle(folder), X_TEST[:100], Costs(c_e=0.1))
    return device


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[HelpSystem, Path]:
    """A client that takes one image at a time, channels last, in [0, 1]; a server of four 12x12 images at a time."""
    folder = tmp_path_factory.mktemp("files")
    client = write_onnx(folder / "client.onnx", linear(Preprocessing(scale="0..1", layout="NHWC")), 1)
    server = write_onnx(folder / "server.onnx", linear(Preprocessing(scale="imagenet", size=12)), 4, last="Softmax")
    return HelpSystem(client, str(server), settings=settings(), **SMALL).fit(X_FIT, Y_FIT), folder


def test_client_and_server_files_are_fed_alike_in_run_and_bundle(files: tuple[HelpSystem, Path]) -> None:
    system, folder = files
    expected = linear(Preprocessing(scale="0..1", layout="NHWC")).scores(X_TEST).argmax(axis=1)
    assert np.array_equal(system.client.answers(X_TEST, 10).label, expected)
    helped = linear(Preprocessing(scale="imagenet", size=12)).scores(X_TEST).argmax(axis=1)
    assert np.array_equal(system.fitted.server_log_probability(X_TEST).argmax(axis=1), helped)
    manifest = system.export(folder / "bundle", force=True)
    assert manifest.client.inputs == Preprocessing(scale="0..1", layout="NHWC")
    assert manifest.servers["server"].inputs == Preprocessing(scale="imagenet", size=12)
    for name in ("client.onnx", "server.onnx"):
        assert (folder / "bundle" / name).read_bytes() == (folder / name).read_bytes()
    device = same(system, folder / "bundle")
    assert np.array_equal(device.judge(X_TEST)[0], expected)


def test_a_run_folder_keeps_what_was_found_out(files: tuple[HelpSystem, Path], tmp_path: Path) -> None:
    system, _ = files
    system.save(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["system"]
    assert saved["client"]["preprocessing"] == {"scale": "0..1"}
    assert next(iter(saved["client"]["scales_tried"])) == "0..1"
    assert saved["server"]["preprocessing"] == {"scale": "imagenet"}
    loaded = l2h.load(tmp_path)
    costs = Costs(c_e=0.05)
    assert np.array_equal(loaded.predict(X_TEST, costs).label, system.predict(X_TEST, costs).label)
    assert loaded.client.scales_tried == system.client.scales_tried


def module_of(inputs: Preprocessing) -> nn.Module:
    model = linear(inputs)
    module = nn.Sequential(nn.Flatten(), nn.Linear(*model.weights.shape))
    with torch.no_grad():
        module[1].weight[:] = torch.from_numpy(model.weights.T)
        module[1].bias[:] = torch.from_numpy(model.bias)
    return module


@pytest.mark.parametrize("inputs", [Preprocessing(scale="imagenet"), Preprocessing(scale="0..255", size=12)], ids=str)
def test_a_torch_client_takes_its_preprocessing_into_the_graph(inputs: Preprocessing) -> None:
    client = as_client(module_of(inputs), preprocessing=inputs)
    exported = export_client(client, 10, False, [X_TEST[:n] for n in (1, 3, 17)])
    assert exported.part.feed == "as_is"
    label, *_ = exported_client(file_run(exported.data, exported.part), exported.part, 10)(X_TEST)
    assert np.array_equal(label, linear(inputs).scores(X_TEST).argmax(axis=1))


@pytest.mark.long
def test_a_torch_client_with_a_preprocessing_goes_all_the_way(tmp_path: Path) -> None:
    inputs = Preprocessing(mean=(0.2, 0.3, 0.4), std=2, layout="NHWC", size=(12, 5))
    server = str(write_onnx(tmp_path / "server.onnx", linear(Preprocessing(scale="-1..1"))))
    system = HelpSystem(as_client(module_of(inputs), preprocessing=inputs), server, settings=settings(), **SMALL)
    system.fit(X_FIT, Y_FIT)
    expected = linear(inputs).scores(X_TEST[:100]).argmax(axis=1)
    assert np.array_equal(system.client.answers(X_TEST[:100], 10).label, expected)
    assert system.export(tmp_path / "bundle").rejector.fused
    assert np.array_equal(same(system, tmp_path / "bundle").judge(X_TEST[:100])[0], expected)
    system.save(tmp_path / "run")
    assert np.array_equal(l2h.load(tmp_path / "run").client.answers(X_TEST[:100], 10).label, expected)


def test_a_client_that_must_be_given_is_fed_as_in_training(tmp_path: Path) -> None:
    """A sigmoid that is a function: what it gives was said once, in training."""
    model = linear(Preprocessing(scale="0..1"), only=(3, 8))
    two = np.isin(Y, (3, 8))
    inputs, labels = X[two][:200], np.searchsorted((3, 8), Y[two])[:200]

    def probability(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-(x.reshape(len(x), -1) @ model.weights + model.bias)))

    probability_server = as_client(lambda x: np.eye(2)[(probability(x / 255) > 0.5)[:, 0].astype(int)])
    client = as_client(probability, preprocessing=Preprocessing(scale="0..1"), output="probability")
    system = HelpSystem(client, probability_server, settings=settings(), **SMALL).fit(inputs, labels)
    with pytest.warns(L2HWarning, match="the server is not in the bundle"):
        system.export(tmp_path / "bundle")
    device = DeviceBundle(tmp_path / "bundle", client=probability)
    assert np.array_equal(device.judge(inputs[:1])[0], system.client.answers(inputs[:1], 2).label)
    assert np.mean(device.judge(inputs)[0] == labels) > 0.9
    system.save(tmp_path / "run")
    loaded = l2h.load(tmp_path / "run", client=probability, server=probability_server)
    assert np.array_equal(loaded.client.answers(inputs, 2).label, device.judge(inputs)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": "0..2"}, "scale='0..2' is none of"),
        ({"sizes": 3}, "unknown key 'sizes'"),
        ({"size": [99999, 1]}, "whole number up to 16384"),
        ({"mean": "x"}, "preprocessing is damaged"),
        (None, "'preprocessing' is missing"),
    ],
)
def test_a_manifest_with_another_preprocessing_is_refused(
    files: tuple[HelpSystem, Path], change: Any, message: str, tmp_path: Path
) -> None:
    system, folder = files
    if not (folder / "bundle").exists():
        system.export(folder / "bundle")
    copied(folder / "bundle", tmp_path / "bundle")
    edit(tmp_path / "bundle", lambda values: values["client"].update(preprocessing=change))
    with pytest.raises(BundleError, match=message):
        DeviceBundle(tmp_path / "bundle")


def test_a_function_that_is_asked_keeps_what_was_said_of_its_output_and_gets_samples_as_they_are() -> None:
    two = np.isin(Y, (3, 8))
    inputs, labels = X[two][:200], np.searchsorted((3, 8), Y[two])[:200]
    model = linear(Preprocessing(scale="0..1"), only=(3, 8))

    def probability(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-model.scores(x)[:, 0]))

    server = as_client(probability, output="probability")
    system = HelpSystem(model.scores, server, settings=settings(), **SMALL).fit(inputs, labels)
    assert np.mean(system.fitted.server_log_probability(inputs).argmax(axis=1) == labels) > 0.9
    with pytest.raises(SettingsError, match="gets samples as they are: prepare them inside it"):
        HelpSystem(probability, as_client(probability, preprocessing=Preprocessing(scale="0..1")))
