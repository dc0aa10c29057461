"""A Python function behind the server: described by a bundle or by flags, reloaded when its file changes."""

from __future__ import annotations

import http.client
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import call
from serving_maker import CLASSES, SHAPE, linear, write_bundle
from serving_process import Client, Server, make_key
from waiting import STUCK, until

from l2h.bundle import ServerPart

MODULE = """
import time
import numpy as np
SIGN = {sign}

def scores(X):
    print("asked about", len(X))
    return SIGN * X.reshape(len(X), -1)[:, :5].astype(float)

def labels(X):
    return scores(X).argmax(axis=1)

def names(X):
    return [str(k) for k in labels(X)]

def wrong(X):
    return np.ones((len(X), 7))

def fails(X):
    return 1 / 0

def hangs(X):
    while X[0, 0, 0, 0] == 255:
        time.sleep(0.01)
    return scores(X)
"""
ALONE = {"shape": SHAPE, "dtype": "uint8", "classes": [str(k) for k in range(CLASSES)]}


def write_module(folder: Path, sign: int = 1, text: str = MODULE) -> Path:
    path = folder / "mymodel.py"
    path.write_text(text.format(sign=sign) if "{sign}" in text else text)
    return path


def expected(x: np.ndarray, sign: int = 1) -> np.ndarray:
    return sign * x.reshape(len(x), -1)[:, :CLASSES].astype(np.float32)


@pytest.fixture
def serverless(tmp_path: Path) -> Path:
    """A bundle whose server was no file."""
    folder = tmp_path / "bundle"
    manifest = write_bundle(folder, linear())
    (folder / "server.onnx").unlink()
    files = {name: part for name, part in manifest.files.items() if part.side == "device"}
    replace(manifest, servers={"server": ServerPart(None, "x", "scores")}, files=files).write(folder)
    return folder


def test_a_bundle_without_a_server_says_how_to_serve_one(serverless: Path, tmp_path: Path) -> None:
    with Server(serverless, tmp_path / "server", wait=False) as server:
        assert server.process.wait(STUCK) == 1
        assert server.events("server_failed")[0]["error"].startswith(f"{serverless} holds no server")
        assert f"l2h serve MODULE:FUNCTION --bundle {serverless}" in server.log.read_text()


def test_a_function_is_served_for_a_bundle_that_has_no_server(serverless: Path, tmp_path: Path, x: np.ndarray) -> None:
    write_module(tmp_path)
    keys, _, key = make_key(tmp_path)
    settings = {"function": "mymodel:scores", "keys": str(keys), "workers": 2, "cwd": tmp_path}
    with Server(serverless, tmp_path / "server", **settings) as server:
        model = json.loads(server.get("/v2/models/digits")[1])
        assert (model["platform"], model["parameters"]["classes"]) == ("python", ALONE["classes"])
        assert Client(server).ask(x).status == 401
        for _ in range(4):
            np.testing.assert_array_equal(Client(server, key).ask(x).scores, expected(x))
        assert server.rows("sum(inputs), max(version)") == [(12, server.version)]
        assert server.stop() == 0
        assert {event["text"] for event in server.events("printed")} >= {"asked about 3"}


@pytest.mark.parametrize("form", ["labels", "names"])
def test_labels_are_served_as_scores_of_one_and_zero(tmp_path: Path, x: np.ndarray, form: str) -> None:
    function = f"{write_module(tmp_path)}:{form}"
    with Server("", tmp_path / "server", function=function, **ALONE) as server:
        scores = Client(server, name=form).ask(x).scores
    np.testing.assert_array_equal(scores, np.eye(CLASSES)[expected(x).argmax(axis=1)])


@pytest.mark.long
def test_a_changed_file_is_taken_over_and_one_that_fails_is_refused(tmp_path: Path, x: np.ndarray) -> None:
    path = write_module(tmp_path)
    with Server("", tmp_path / "server", function=f"{path}:scores", **ALONE) as server:
        client = Client(server, name="scores")
        np.testing.assert_array_equal(client.ask(x).scores, expected(x))
        write_module(tmp_path, sign=-1)
        until(lambda: client.ask(x).scores[0, 0] <= 0)
        np.testing.assert_array_equal(client.ask(x).scores, expected(x, -1))
        for refused, text in enumerate(["def scores(X) return 1", "scores = 3", "def scores(X): return X"], 1):
            write_module(tmp_path, text=text)
            until(lambda n=refused: len(server.events("bundle_refused")) == n)
        assert "SyntaxError" in server.events("bundle_refused")[0]["error"]
        (worker,) = server.workers
        os.kill(worker, signal.SIGKILL)  # its successor loads what was accepted, not what lies in the file
        until(lambda: server.events("worker_replaced"))
        np.testing.assert_array_equal(Client(server, name="scores").ask(x).scores, expected(x, -1))


def test_a_worker_whose_function_hangs_is_replaced(tmp_path: Path, x: np.ndarray) -> None:
    text = f"{write_module(tmp_path)}:hangs"
    with Server("", tmp_path / "server", function=text, load_timeout=1.0, **ALONE) as server:
        with pytest.raises((OSError, http.client.HTTPException)):
            Client(server, name="hangs").ask(np.full_like(x, 255))
        assert server.events("model_stuck")[0]["seconds"] >= 1.0
        until(lambda: server.events("worker_replaced"))
        np.testing.assert_array_equal(Client(server, name="hangs").ask(x).scores, expected(x))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("wrong", r"gives float64 (1, 7) for 1 inputs: expected scores (1, 5) or labels (1,)"),
        ("fails", "cannot be run: ZeroDivisionError"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_a_function_that_cannot_be_served_ends_the_start(tmp_path: Path, function: str, told: str) -> None:
    text = f"{write_module(tmp_path)}:{function}"
    with Server("", tmp_path / "server", function=text, wait=False, **ALONE) as server:
        assert server.process.wait(STUCK) == 1
        assert told in server.log.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mymodel:f"], "say what it takes and gives"),
        (["mymodel:f", "--shape", "4", "--classes", "1"], "say what it takes and gives"),
        (["mymodel:f", "--shape", "four", "--classes", "3"], "is no shape"),
        (["mymodel:f", "--shape", "4", "--classes", "3", "--dtype", "int8"], "uint8 or float32"),
        (["bundle", "--shape", "4"], "go with a function"),
        (["bundle", "--bundle", "bundle"], "write module:function"),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], told: str) -> None:
    result = call("serve", *words, "--print-config")
    assert (result.status, told in " ".join(result.err.split())) == (2, True), result.err
