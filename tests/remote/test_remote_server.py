"""Somebody's API as the server: whatever fails, each input is paid for once, and what was paid for is kept."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import numpy as np
import pandas
import pytest
from api_process import Api, hashed, post
from clouds import X_TEST, Y_TEST, X, Y, make, samples, scores, tree
from commands import call, start
from customers import QUICK, customers, old_pipeline
from rough_server import RoughServer
from scripts import python
from serving_maker import linear, write_bundle
from serving_process import Server, make_key
from waiting import free_port, stop_when, until

import l2h
from l2h import RemoteServer
from l2h.columns import encode_inputs
from l2h.errors import L2HWarning, SettingsError
from l2h.labels import LabelCodec
from l2h.remote import RemoteError
from l2h.serving.errors import ServingError
from l2h.serving.model.function import FunctionModel, ModelSource, copy_function
from l2h.serving.model.model import load_model

ADAPTER = """
import sys, time
sys.path.append({support!r})
from api_process import post
def ask(X):
    with open(__file__ + ".calls", "a") as calls:
        calls.write("x")
        if calls.tell() == 6:
            time.sleep(10_000)
    return post({url!r}, X)
"""


#: A function for a file that is served.
SERVED: list[Any] = []


def asker(api: Api) -> Any:
    def ask(inputs: np.ndarray) -> np.ndarray:
        return post(api.url, inputs)

    return ask


def raised(error: Exception) -> Any:
    raise error


def assert_paid_once(api: Api, *parts: np.ndarray) -> None:
    rows = [hashed(row) for part in parts for row in part]
    assert api.paid == dict.fromkeys(rows, 1)


def test_an_api_that_fails_half_way_and_comes_back_is_paid_once_and_in_order(api: Api, tmp_path: Path) -> None:
    remote = {"batch": 32, "cache": tmp_path / "kept", "retries": 0, "version": "1"}
    api.do("3 down")
    with pytest.raises(RemoteError, match=r"HTTP Error 503.* 96 of 240 inputs are answered and kept in .*answers\.db"):
        make(scores, RemoteServer(asker(api), **remote)).fit(X, Y)
    assert len(api.calls) == 3
    api.do("up")
    told: list[tuple[int, int]] = []
    server = RemoteServer(asker(api), **remote)
    server.progress = lambda *done: told.append(done)
    system = make(scores, server)
    system.prepare(X, Y)
    assert server.answers(X, 3).label.shape == (240,)
    assert [len(rows) for rows in api.calls] == [32] * 7 + [16]
    assert [row for rows in api.calls for row in rows] == [hashed(row) for row in X]
    assert (server.calls, server.paid, told[-1]) == (5, 144, (144, 144))
    system.fit(X, Y).evaluate(X_TEST, Y_TEST)
    assert_paid_once(api, X, X_TEST)
    assert server.cache.counts() == (8 + 5, 240 + 150)


def test_a_call_that_fails_is_repeated_until_the_api_is_back(api: Api) -> None:
    api.do("down")
    threading.Timer(0.3, api.do, ["up"]).start()
    server = RemoteServer(asker(api), batch=240)
    begun = time.monotonic()
    server.answers(X, 3)
    assert time.monotonic() - begun >= 0.3  # it was down for so long
    assert_paid_once(api, X)


def test_another_version_is_asked_anew(api: Api, tmp_path: Path) -> None:
    for version, paid in (("1", 1), ("2", 2), ("1", 2)):
        RemoteServer(asker(api), batch=240, version=version, cache=tmp_path).answers(X, 3)
        assert set(api.paid.values()) == {paid}


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: np.where(np.arange(3) == 1, np.nan, np.ones((len(x), 3))), r"input 0 is not finite"),
        (lambda x: np.ones((len(x), 4)), r"4 scores per input, the labels have 3 classes"),
        (lambda x: np.ones((len(x) + 1, 3)), r"float64 \(33, 3\) for 32 inputs"),
        (lambda x: x.no_such_thing, r"fails on inputs of shape \(32, 4\): AttributeError"),
        (lambda x: raised(ValueError("no such model")), r"fails on inputs .*: ValueError: no such model"),
        (lambda x: raised(HTTPError("u", 400, "bad", None, None)), r"HTTP Error 400: bad"),
        (lambda x: [7] * len(x), r"the remote server answered class 7, the labels have 3 classes"),
        (lambda x: np.full((len(x), 1), -1), r"answered class -1"),
        (lambda x: [2**70] * len(x), r"it gives object \(32,\) for 32 inputs"),
        (lambda x: ["zebra"] * len(x), r"returned <U5 of shape \(32,\)"),
        (lambda x: np.full(len(x), 0.5), r"returned float64 of shape \(32,\)"),
        (lambda x: [None] * len(x), r"it gives object \(32,\)"),
    ],
)
def test_an_answer_that_cannot_be_used_ends_it_before_more_is_paid(function: Any, told: str) -> None:
    calls = []

    def counted(inputs: np.ndarray) -> Any:
        calls.append(len(inputs))
        return function(inputs)

    server = RemoteServer(counted, batch=32)
    with pytest.raises(RemoteError, match=told + r".* 0 of 240 inputs are answered"):
        server.answers(X, 3)
    assert calls == [32]
    function = scores  # it is mended, and nothing that was of no use is left
    assert server.answers(X, 3).label.shape == (240,)
    assert server.cache.counts() == (8, 240)


@pytest.mark.parametrize("form", [np.asarray, lambda p: p[:, None], lambda p: p.astype(object)])
def test_one_number_per_input_is_refused_in_the_first_call_until_somebody_says_what_it_is(form: Any) -> None:
    server = RemoteServer(lambda x: form(1 / (1 + np.exp(-x[:, 0].astype(float)))), batch=32)
    with pytest.raises(RemoteError, match="say what they are"):
        server.answers(X, 2)
    assert server.cache.counts() == (0, 0)
    server.probabilities = True
    np.testing.assert_array_equal(server.answers(X, 2).label, X[:, 0] > 0)


def test_numbers_that_are_no_probabilities_in_one_call_are_logits_in_all() -> None:
    X_sorted = X[np.argsort(-np.abs(X[:, 0]))]
    server = RemoteServer(lambda x: x[:, 0], batch=32)
    np.testing.assert_array_equal(server.answers(X_sorted, 2).label, X_sorted[:, 0] > 0)


@pytest.mark.parametrize("kind", [object, bool, "uint8"])
def test_labels_of_any_type_are_labels(kind: Any) -> None:
    label = (X[:, 0] > 0).astype(int)
    np.testing.assert_array_equal(
        RemoteServer(lambda x: (x[:, 0] > 0).astype(int).astype(kind)).answers(X, 2).label, label
    )


class Pluggable:
    def __init__(self, place: int) -> None:
        self.place = place

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.full(len(x), self.place)

    def ask(self, x: np.ndarray) -> np.ndarray:
        return self(x)


def constant(x: np.ndarray, place: int = 0) -> np.ndarray:
    return np.full(len(x), place)


@pytest.mark.parametrize(
    "make_function",
    [lambda k: lambda x: constant(x, k), lambda k: partial(constant, place=k), Pluggable, lambda k: Pluggable(k).ask],
    ids=["lambda", "partial", "object", "method"],
)
def test_functions_whose_name_is_not_their_own_share_no_answers(
    make_function: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SettingsError, match=r"cannot be kept in cache=.*give version="):
        RemoteServer(make_function(0), cache=tmp_path)
    for k in range(2):
        server = RemoteServer(make_function(k), cache=tmp_path, version=str(k))
        assert set(server.answers(X[:9], 2).label) == {k}
    RemoteServer(constant, cache=tmp_path).answers(X[:9], 2)
    unnamed = RemoteServer(make_function(1))
    unnamed.cache.keep_in(tmp_path / "run")
    assert unnamed.answers(X[:9], 2).label[0] == 1
    assert not caplog.records
    second = RemoteServer(make_function(0))
    second.cache.keep_in(tmp_path / "run")
    second.answers(X[:9], 2)
    assert "9 answers of a function of this name are taken from" in caplog.text


def test_whole_numbers_that_no_float_tells_apart_are_different_inputs() -> None:
    numbers = [2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3, -(2**53) - 1, 7]
    server = RemoteServer(lambda rows: (rows["id"] % 2).to_numpy())
    assert server.answers(encode_inputs(pandas.DataFrame({"id": numbers})), 2).label.tolist() == [0, 1, 0, 1, 1, 1]
    server.answers(encode_inputs(pandas.DataFrame({"id": [7.0]})), 2)
    assert server.paid == 6


def test_a_file_may_have_the_name_of_a_module(tmp_path: Path) -> None:
    import random

    path = tmp_path / "random.py"
    path.write_text("def ask(X):\n    return X[:, :3]\n")
    assert RemoteServer(f"{path}:ask").answers(X[:5], 3).label.shape == (5,)
    assert sys.modules["random"] is random
    path.write_text("1 / 0")
    with pytest.raises(SettingsError, match="ZeroDivisionError"):
        RemoteServer(f"{path}:ask")


class BusyError(Exception):
    passing, retry_in = True, 0.0


@pytest.mark.parametrize(
    "error",
    [TimeoutError("slow"), httpx.ConnectError("gone"), HTTPError("u", 429, "", None, None), BusyError()],
    ids=["timeout", "network", "status", "marked"],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_may_pass_is_repeated(error: Exception, wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l2h.remote.server._PAUSE", 0.01)
    failures = [error]

    def ask(x: np.ndarray) -> np.ndarray:
        if not failures:
            return x[:, :3]
        if wrapped:
            raise RuntimeError("the API failed") from failures.pop()
        raise failures.pop()

    assert RemoteServer(ask).answers(X, 3).label.shape == (240,)


def test_a_server_is_asked_again_when_it_says_or_the_user_is_told_when(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("l2h.remote.server.time.sleep", slept.append)
    names = {"name": "clouds", "shape": (4,), "datatype": "FP32", "classes": 3}
    with RoughServer(scores, **names) as server:
        remote = RemoteServer(f"{server.url}/v2/models/clouds")
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
        server.follow(["status:429,3600", f"status:503,{date}"])
        remote.answers(X[:5], 3)
        assert slept == [3600.0, pytest.approx(599, abs=2)]
        assert "asked again in 3600.0 s" in caplog.text
        server.follow(["status:429,90000"])
        with pytest.raises(RemoteError, match=r"is to be asked again at 20..-..-.. ..:..:.. UTC, in 90000 s"):
            remote.answers(X[:9], 3)
        assert len(server.asked) == 4
    slept.clear()
    headers = Message()
    headers["Retry-After"] = "120"
    failures = [HTTPError("u", 429, "", headers, None)]
    RemoteServer(lambda x: raised(failures.pop()) if failures else x[:, :3]).answers(X, 3)
    assert slept == [120.0]


@pytest.mark.parametrize(
    ("target", "options", "told"),
    [
        ("no_such_module_here:f", {}, "there is no module no_such_module_here"),
        ("nowhere.py:f", {}, "there is no file nowhere.py"),
        ("json:nothing", {}, "has no attribute 'nothing'"),
        ("lenet", {}, "neither an address"),
        ("https://u:p@host", {}, "without a question mark or a password"),
        (scores, {"batch": 0}, "batch=0 must be a whole number of 1 or more"),
        (3, {}, "server=3 cannot be asked"),
    ],
)
def test_targets_that_cannot_be_asked_are_refused_at_once(target: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        RemoteServer(target, **options)


def test_a_saved_system_needs_the_network_only_for_inputs_that_are_new(tmp_path: Path) -> None:
    calls: list[int] = []

    def ask(inputs: np.ndarray) -> np.ndarray:
        calls.append(len(inputs))
        return inputs[:, :3]

    system = make(scores, RemoteServer(ask, version="v1")).fit(X, Y)
    before = system.evaluate(X_TEST, Y_TEST).as_dict()
    folder = system.save(tmp_path / "run")
    described = json.loads((folder / "config.json").read_text())["system"]["server"]
    assert {"kind": "remote", "version": "v1", "inputs": 390, "cache": None}.items() <= described.items()
    calls.clear()
    again = l2h.load(folder, client=scores)
    assert again.evaluate(X_TEST, Y_TEST).as_dict() == before
    new = samples(7, 50)
    with pytest.raises(RemoteError, match=r"never asked about these inputs.*l2h\.load\(folder, server=...\)$"):
        again.evaluate(*new)
    l2h.load(folder, client=scores, server=ask).evaluate(*new)
    assert calls == [7]
    l2h.load(folder, client=scores).evaluate(*new)


def test_our_own_server_is_an_api_and_charges_once_even_where_the_cache_is_lost(tmp_path: Path) -> None:
    write_bundle(
        tmp_path / "bundle", linear(shape=(4,), classes=3, dtype="float32"), shape=(4,), classes=3, dtype="float32"
    )
    keys, _, key = make_key(tmp_path)
    with Server(tmp_path / "bundle", tmp_path / "server", keys=str(keys)) as server:
        with pytest.raises(RemoteError, match=r"status 401.* the key is that of l2h\.RemoteServer"):
            RemoteServer(server.url).answers(X, 3)
        for address in (server.url, f"{server.url}/v2/models/digits"):
            remote = RemoteServer(address, key=key, batch=50)
            system = make(scores, remote).fit(X, Y)
            assert remote.calls == 5
        assert sum(inputs for (inputs,) in server.rows("inputs")) == len(X)
        folder = system.save(tmp_path / "run")
        with pytest.raises(RemoteError, match=r"its input 'x' has shape \[-1, 4\], the data's is \[-1, 2\]"):
            RemoteServer(server.url, key=key).answers(X[:, :2], 3)
        with pytest.raises(RemoteError, match=r"has 2 classes|the data has 2 classes"):
            RemoteServer(server.url, key=key).answers(X, 2)
        with pytest.raises(RemoteError, match="it has no model 'other'"):
            RemoteServer(f"{server.url}/v2/models/other", key=key).answers(X, 3)
    assert key not in "".join(path.read_text() for path in folder.rglob("*.json"))
    loaded = l2h.load(folder, client=scores)
    assert loaded.servers[0].fixed.answers(X, 3).label.shape == (240,)
    loaded.servers[0].fixed.retries = 0
    with pytest.raises(RemoteError, match=rf"{server.url}.*refused"):
        loaded.evaluate(X_TEST, Y_TEST)


@pytest.mark.parametrize("mode", ["drip_head", "drip_body", "early", "silent"])
def test_a_call_of_an_address_takes_no_longer_than_its_timeout(mode: str) -> None:
    names = {"name": "clouds", "shape": (4,), "datatype": "FP32", "classes": 3}
    with RoughServer(scores, **names) as server:
        remote = RemoteServer(f"{server.url}/v2/models/clouds", retries=0, timeout=0.25)
        server.mode = mode
        begun = time.monotonic()
        with pytest.raises(RemoteError, match=r"no whole answer within 0\.25 s|timed out"):
            remote.answers(X, 3)
        assert time.monotonic() - begun < 2.0
        server.mode = "answer"
        remote.answers(X, 3)


def test_the_timeout_of_one_thread_does_not_cut_the_call_of_another() -> None:
    names = {"name": "clouds", "shape": (4,), "datatype": "FP32", "classes": 3}
    with RoughServer(scores, **names) as server, ThreadPoolExecutor(1) as thread:
        remote = RemoteServer(f"{server.url}/v2/models/clouds", retries=0, timeout=0.6, batch=40)
        remote.answers(X[:1], 3)
        server.mode = "drip_body"
        late = thread.submit(remote.answers, X[1:100], 3)
        until(lambda: len(server.asked) == 2)
        server.mode = "slow:0.2"
        np.testing.assert_array_equal(remote.answers(X_TEST, 3).label, scores(X_TEST).argmax(axis=1))
        with pytest.raises(RemoteError, match=r"no whole answer within 0\.6 s"):
            late.result()


def test_an_address_may_answer_with_a_column_of_names() -> None:
    names = {"name": "clouds", "shape": (4,), "datatype": "FP32", "classes": 3}
    with RoughServer(scores, **names) as server:
        server.metadata["outputs"] = [{"name": "scores", "datatype": "BYTES", "shape": [-1, 1]}]
        server.mode = "names:abc"
        remote = RemoteServer(f"{server.url}/v2/models/clouds").with_labels(LabelCodec(tuple("abc"), tuple("abc")))
        np.testing.assert_array_equal(remote.answers(X, 3).label, scores(X).argmax(axis=1))


def test_an_answer_without_an_end_is_cut_off() -> None:
    names = {"name": "clouds", "shape": (4,), "datatype": "FP32", "classes": 3}
    with RoughServer(scores, **names) as server:
        remote = RemoteServer(f"{server.url}/v2/models/clouds", retries=0)
        remote.answers(X[:5], 3)
        for mode, told in (("huge", "longer than 67108864 bytes"), ("wrong:nan", "input 5 is not finite")):
            server.mode = mode
            with pytest.raises(RemoteError, match=told):
                remote.answers(X[:9], 3)


@pytest.mark.long
def test_a_training_that_is_killed_goes_on_and_pays_for_nothing_twice(api: Api, tmp_path: Path) -> None:
    """The whole path on the command line: train, kill -9, resume, evaluate from the cache, evaluate on new inputs."""
    adapter = tmp_path / "adapter.py"
    adapter.write_text(ADAPTER.format(url=api.url, support=str(Path(__file__).parents[1] / "support")))
    (X_cal, Y_cal), (X_new, Y_new) = samples(60, 8), samples(40, 9)
    train = np.concatenate([X, X_cal]), np.concatenate([Y, Y_cal])
    np.savez(tmp_path / "data.npz", X_train=train[0], y_train=train[1], X_test=X_TEST, y_test=Y_TEST)
    np.savez(tmp_path / "new.npz", X_train=X_new, y_train=Y_new, X_test=X_new, y_test=Y_new)
    run, server = tmp_path / "run", f"{adapter}:ask"
    words = ["train", "--data", tmp_path / "data.npz", "--client", "tree", "--server", server, "--server-batch", 20]
    words += ["--set", "rejector.epochs=2", "--set", "threads=1", "--out", run]
    begun = Path(f"{adapter}.calls")
    with start(*words) as process:  # its sixth call, which begins when the answers of the fifth are kept, hangs
        stop_when(lambda: begun.exists() and begun.stat().st_size == 6, process, signal.SIGKILL)
    done = call(*words, "--resume", "--json")
    assert done.status == 0, done.err
    assert "170 of 270 inputs asked now" in done.err
    assert_paid_once(api, train[0], X_TEST)
    evaluated = call("evaluate", run, "--c-e", 0.05, "--c-e", 0.1, "--json")
    assert evaluated.status == 0, evaluated.err
    assert evaluated.err.count("nothing is asked: all 150 inputs are in") == 1
    assert [row["accuracy"] for row in evaluated.json()][1] == done.json()[0]["accuracy"]
    refused = call("evaluate", run, "--data", tmp_path / "new.npz")
    assert (refused.status, f"--server {server}" in refused.err) == (1, True), refused.err
    assert call("calibrate", run).status == 0
    assert_paid_once(api, train[0], X_TEST)
    other = call("evaluate", run, "--data", tmp_path / "new.npz", "--server", server)
    assert (other.status, "40 of 40 inputs asked now" in other.err) == (0, True), other.err
    assert_paid_once(api, train[0], X_TEST, X_new)


@pytest.mark.filterwarnings("ignore:the server is not in the bundle", "ignore:the client")
def test_a_system_around_an_api_is_deployed_with_the_api(api: Api, tmp_path: Path) -> None:
    ask, prices = asker(api), l2h.Costs(c_e=0.05)
    system = make(tree(), RemoteServer(ask)).fit(X, Y)
    system.export(tmp_path / "bundle", costs=prices)
    with l2h.EdgeClient(tmp_path / "bundle", server=ask, deadline=10.0) as edge:
        answers = edge.predict(X_TEST)
        assert 0 < (answers.source == "remote").sum() < len(X_TEST)
        np.testing.assert_array_equal(answers.label, system.predict(X_TEST, prices).label)
        api.do("down")
        assert set(edge.predict(X_TEST).reason) == {"not_worth_asking", "server_unreachable"}


@pytest.mark.filterwarnings("ignore:the server is not in the bundle", "ignore:the client")
def test_the_device_and_the_server_take_what_training_took(tmp_path: Path) -> None:
    """Booleans, objects, and one number per input, whose meaning the bundle keeps."""
    y, score = (X.sum(axis=1) > 0).astype(int), lambda x: 4 * x.sum(axis=1)
    forms = {
        "bool": lambda x: score(x) > 0,
        "object": lambda x: (score(x) > 0).astype(int).astype(object),
        "column": lambda x: (score(x) > 0).astype(int)[:, None],
        "probability": lambda x: 1 / (1 + np.exp(-score(x))),
        "logit": lambda x: score(x)[:, None],
    }
    first = lambda x: np.stack([-x[:, 0], x[:, 0]], axis=1)  # noqa: E731
    system = make(first, l2h.as_client(forms["probability"], output="probability")).fit(X, y)
    folder = tmp_path / "bundle"
    manifest = system.export(folder, costs=l2h.Costs(c_e=0.0, c_1=0.0))
    assert manifest.servers["server"].gives == "probability"
    expected = score(X_TEST) > 0
    for form, function in forms.items():
        gives = {"probability": "probability", "logit": "logits"}.get(form)
        replace(manifest, servers={"server": replace(manifest.servers["server"], gives=gives)}).write(folder)
        with l2h.EdgeClient(folder, client=first, server=function, deadline=20.0) as edge:
            answers = edge.predict(X_TEST)
        asked = answers.source == "remote"
        assert (asked.any(), set(answers.reason) <= {"worth_asking", "not_worth_asking"}) == (True, True), form
        np.testing.assert_array_equal(answers.label[asked], expected[asked])
        (tmp_path / f"{form}.py").write_text("from test_remote_server import SERVED\nask = SERVED[0]")
        SERVED[:] = [function]
        copy_function(ModelSource(str(folder), f"{tmp_path / form}.py:ask"), tmp_path / f"copy-{form}")
        served = FunctionModel(tmp_path / f"copy-{form}").run(X_TEST)
        np.testing.assert_array_equal(served.argmax(axis=1), expected)


@pytest.mark.long
def test_a_function_gets_a_table_by_its_names_and_each_row_once(tmp_path: Path) -> None:
    frame, left = customers(200)
    asked: list[pandas.DataFrame] = []

    def ask(rows: pandas.DataFrame) -> np.ndarray:
        asked.append(rows)
        return (rows["region"] == "south").to_numpy().astype(int)

    system = l2h.HelpSystem(old_pipeline(frame[:60], left[:60]), ask, settings=QUICK).fit(frame[60:], left[60:])
    together = pandas.concat(asked, ignore_index=True)
    pandas.testing.assert_frame_equal(together, frame[60:].reset_index(drop=True), check_dtype=False)
    before = len(asked)
    report = system.evaluate(frame[60:][frame.columns[::-1]], left[60:])
    assert len(asked) == before
    assert report.accuracy["server"] == pytest.approx(np.mean((frame["region"][60:] == "south") == left[60:]))
    with pytest.warns(L2HWarning, match="the server is not in the bundle") as told:
        system.export(tmp_path / "bundle")
    assert [warning.filename for warning in told if warning.category is L2HWarning] == [__file__]
    # No call waits for pandas, which takes longer to load than a deadline.
    script = "import l2h\nl2h.EdgeClient(sys.argv[1], server=print)\nassert 'pandas' in sys.modules"
    assert (done := python(script, tmp_path / "bundle")).returncode == 0, done.stderr
    fresh = customers(50, seed=1)[0]
    with l2h.EdgeClient(tmp_path / "bundle", server=ask, deadline=20.0) as edge:
        answers = edge.predict(fresh, costs=l2h.Costs(c_e=0.0, c_1=0.0))
    assert set(answers.reason) == {"worth_asking"}
    np.testing.assert_array_equal(answers.label, ask(fresh))
    # Behind a server it gets the columns that can be found in what is sent.
    adapter = tmp_path / "adapter.py"
    adapter.write_text("def ask(rows):\n    return [int(region == 'south') for region in rows['region']]\n")
    with Server(tmp_path / "bundle", tmp_path / "server", function=f"{adapter}:ask") as server:
        with l2h.EdgeClient(tmp_path / "bundle", server.url, deadline=20.0) as edge:
            edge.check()
            answers = edge.predict(fresh, costs=l2h.Costs(c_e=0.0, c_1=0.0))
        assert set(answers.reason) == {"worth_asking"}
        np.testing.assert_array_equal(answers.label, ask(fresh))
        assert '"columns_left_out"' in server.log.read_text()
    adapter.write_text("def ask(rows):\n    return [0 for note in rows['note']]\n")
    copy_function(ModelSource(str(tmp_path / "bundle"), f"{adapter}:ask"), tmp_path / "copy")
    with pytest.raises(ServingError, match="it does not get column 'note', whose texts do not go over the wire"):
        load_model(tmp_path / "copy", None, 1, 8)


def test_an_address_at_which_nobody_answers_is_told_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(RemoteError, match=r"nobody answers there \(.*\): check the address"):
        RemoteServer(f"http://127.0.0.1:{free_port()}").answers(X_TEST, 3)
    assert time.monotonic() - begun < 5  # five repeats take longer


def test_a_key_on_an_open_line_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    for address in ("https://192.0.2.1", "http://127.0.0.1:1"):
        RemoteServer(address, key="s3cret")
    assert not caplog.records
    RemoteServer("http://192.0.2.1", key="s3cret")
    assert "unencrypted" in caplog.text
    assert "s3cret" not in caplog.text
