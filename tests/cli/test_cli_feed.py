"""``l2h train`` with files that want their images in their own way."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import QUICK, call, undrawn
from model_files import digits, linear, write_onnx

from l2h import Preprocessing


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("feed")
    X, y, X_test, y_test = digits()
    np.savez(folder / "data.npz", X_train=X[400:800], y_train=y[400:800], X_test=X_test, y_test=y_test)
    write_onnx(folder / "client.onnx", linear(Preprocessing(scale="0..1")), 1)
    write_onnx(folder / "server.onnx", linear(Preprocessing(mean=(0.2, 0.3, 0.4), size=12)))
    return folder


def test_what_is_found_out_is_told_stored_and_used_again(files: Path, tmp_path: Path) -> None:
    models = ["--data", files / "data.npz", "--client", files / "client.onnx", "--server", files / "server.onnx"]
    stated = ["--server-mean", "0.2,0.3,0.4", "--client-accuracy", "0.999"]
    with undrawn():
        result = call("train", *models, *stated, *QUICK, "--json", "--out", tmp_path / "run")
    assert result.status == 0, result.err
    told = " ".join(result.err.split())
    assert "the client is fed images scaled to 0..1, which gives" in told
    assert "far below the 99.9% stated" in told
    assert "the server is fed" not in told
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["system"]["client"]["preprocessing"] == {"scale": "0..1"}
    assert config["training"]["server_preprocessing"] == {"mean": [0.2, 0.3, 0.4]}
    assert "client_preprocessing" not in config["training"]
    assert "client_fed" in (tmp_path / "run" / "report.html").read_text()
    _, _, X_test, y_test = digits()
    (report,) = result.json()
    for who, inputs in (
        ("client", Preprocessing(scale="0..1")),
        ("server", Preprocessing(mean=(0.2, 0.3, 0.4), size=12)),
    ):
        right = np.mean(linear(inputs).scores(X_test).argmax(axis=1) == y_test)
        assert report["accuracy"][who] == pytest.approx(right)
    with undrawn():
        again = call("evaluate", tmp_path / "run", "--json")
    assert again.json()[0]["accuracy"] == report["accuracy"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--client-scale", "0..2"], "--client-...: scale='0..2' is none of"),
        (["--client-mean", "dark"], "--client-mean dark: expected a number"),
        (["--client-size", "8x8x8"], "--client-...: size="),
        (["--client-layout", "HWC"], "layout='HWC' is none of NCHW, NHWC"),
        (["--client-output", "odds"], "output='odds' is neither"),
        (["--client-accuracy", "91"], "accuracy=91.0 must be a share"),
        (["--server-scale", "0..1", "--server", "mlp"], "is for a server that is a file, and mlp is none"),
        (["--server-scale", "0..1", "--server", "https://host"], "is for a server that is a file"),
    ],
)
def test_flags_that_make_no_sense_are_refused(options: list[str], message: str, files: Path, tmp_path: Path) -> None:
    models = ["--data", files / "data.npz", "--client", files / "client.onnx"]
    result = call("train", *models, *options, "--out", tmp_path / "run")
    assert result.status == 2
    assert message in " ".join(result.err.split())
