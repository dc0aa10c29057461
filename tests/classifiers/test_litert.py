"""A LiteRT file is a client: in training, in a run folder, and on a device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from clouds import settings
from litert_maker import write_litert
from model_files import CLASSES, digits, linear, write_onnx

import l2h
from l2h import Costs, HelpSystem, Preprocessing, as_client
from l2h.bundle import BundleError, DeviceBundle
from l2h.classifiers import settle_scale
from l2h.errors import ClientError, MissingExtraError

X, Y, X_TEST, Y_TEST = digits()
MODEL = linear(Preprocessing(scale="0..1", layout="NHWC"))


@pytest.mark.parametrize("batch", [-1, 1, 4])
def test_a_float_file_answers_as_its_weights_say(batch: int, tmp_path: Path) -> None:
    client = as_client(write_litert(tmp_path / "client.tflite", MODEL, batch))
    settle_scale(client, X, Y, CLASSES, "client")
    assert client.preprocessing == Preprocessing(scale="0..1")
    for n in (1, 7, 30):
        scores = MODEL.scores(X_TEST[:n])
        expected = np.exp(scores - scores.max(axis=1, keepdims=True))
        found = client.answers(X_TEST[:n], CLASSES)
        assert np.allclose(found.probability, expected / expected.sum(axis=1, keepdims=True), atol=1e-4)


def test_an_int8_file_is_fed_int8_and_its_answers_are_floats_again(tmp_path: Path) -> None:
    client = as_client(write_litert(tmp_path / "client.tflite", MODEL, 1, quantised=True))
    settle_scale(client, X, Y, CLASSES, "client")
    assert client.preprocessing == Preprocessing(scale="0..1")
    found, _ = client.raw(client.feed(X_TEST.shape[1:]).apply(X_TEST))
    assert found.dtype == np.float32
    # Its sums are whole multiples of 1/4; weights in 127 steps and pixels in 255 add a little.
    assert np.abs(found - MODEL.scores(X_TEST)).max() < 1
    assert np.mean(found.argmax(axis=1) == Y_TEST) > 0.8


def test_it_goes_from_training_to_a_device(tmp_path: Path) -> None:
    path = write_litert(tmp_path / "phone.tflite", MODEL, 1)
    server = str(write_onnx(tmp_path / "server.onnx", linear(Preprocessing(scale="-1..1"))))
    system = HelpSystem(path, server, settings=settings(), rejector_options={"width": 0})
    system.fit(X[400:800], Y[400:800])
    expected = MODEL.scores(X_TEST).argmax(axis=1)
    system.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["system"]["client"]["kind"] == "litert"
    loaded = l2h.load(tmp_path / "run")
    assert np.array_equal(loaded.client.answers(X_TEST, CLASSES).label, expected)
    assert loaded.client.fingerprint() == system.client.fingerprint()
    manifest = loaded.export(tmp_path / "bundle")
    assert manifest.files["client.tflite"].side == "device"
    assert (tmp_path / "bundle" / "client.tflite").read_bytes() == path.read_bytes()
    device = DeviceBundle(tmp_path / "bundle")
    label, judgement = device.judge(X_TEST)
    assert np.array_equal(label, expected)
    costs = Costs(c_e=0.1)
    answers = system.predict(X_TEST, costs)
    clear = np.abs(judgement.saving(costs)) > 1e-5
    assert np.array_equal(judgement.remote(costs)[clear], (answers.source == "remote")[clear])
    (tmp_path / "bundle" / "client.tflite").write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(BundleError, match=r"client\.tflite is damaged: its SHA-256"):
        DeviceBundle(tmp_path / "bundle")


def test_what_is_no_model_and_what_is_not_installed_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_litert(tmp_path / "client.tflite", MODEL, 1)
    damaged = tmp_path / "damaged.tflite"
    damaged.write_bytes(path.read_bytes()[:500])
    for bad, message in ((damaged, "cannot load"), (tmp_path / "none.tflite", "no LiteRT file at")):
        with pytest.raises(ClientError, match=message):
            as_client(bad)
    with pytest.raises(ClientError, match="it has no output 'nose'; known: scores"):
        as_client(path, scores="nose")
    with pytest.raises(ClientError, match=r"client\.tflite failed on inputs of shape"):
        as_client(path).answers(np.zeros((2, 7), np.float32), CLASSES)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[litert\]'"):
        as_client(path)
