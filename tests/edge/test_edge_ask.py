"""``l2h ask``: inputs from files, a table or JSON, the key from a file or the environment."""

from __future__ import annotations

import json
import os

import commands
import numpy as np
import pytest
from clouds import CLASSES, FEATURES
from edge_maker import KEY, X_TEST
from scripts import python
from waiting import free_port

import l2h
from l2h.bundle import DeviceBundle
from l2h.edge.options import EdgeSettingsError, read_key
from l2h.errors import DataError, L2HWarning
from l2h.table import as_table


def call(*arguments):
    """``l2h ask`` in this process."""
    return commands.call("ask", *arguments)


def asked(*arguments):
    status, out, err = call(*arguments, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.fixture
def inputs(tmp_path):
    np.save(tmp_path / "many.npy", X_TEST)
    return tmp_path / "many.npy"


def test_the_answers_are_those_of_the_system(folder, inputs, server, system):
    said = asked(folder, inputs, "--server", server.url, "--deadline", 5, "--c-e", 0.2, "--c-1", 1.5)
    expected = system.predict(X_TEST, costs=l2h.Costs(c_e=0.2, c_1=1.5))
    assert [row["label"] for row in said["answers"]] == expected.label.tolist()
    assert [row["reason"] for row in said["answers"]] == expected.reason.tolist()
    saving = system.judge(X_TEST).saving(l2h.Costs(c_e=0.2, c_1=1.5))
    assert [row["expected_saving"] for row in said["answers"]] == pytest.approx(saving.tolist(), abs=1e-4)
    assert [row["class"] for row in said["answers"]] == [str(label) for label in expected.label]
    assert all(0 < row["latency"] < 5 for row in said["answers"])
    summary = said["summary"]
    assert summary["answers"] == len(X_TEST)
    assert summary["remote"] == (expected.source == "remote").sum() == len(server.asked)
    assert summary["cost"] == pytest.approx(expected.cost.sum())


def test_some_inputs_many_at_a_time_and_under_a_limit(folder, inputs, server):
    said = asked(folder, inputs, "-s", server.url, "--deadline", 5, "-i", 3, "-i", 7, "--c-e", 0, "--c-1", 0)
    assert [row["index"] for row in said["answers"]] == [3, 7]
    assert np.array_equal(np.concatenate([a.inputs() for a in server.asked]), X_TEST[[3, 7]])
    server.asked.clear()
    said = asked(folder, inputs, "--server", server.url, "--deadline", 5, "--limit", "20%", "--batch", 64)
    assert len(server.asked) == 3
    assert set(said["summary"]["reasons"]) <= {"worth_asking", "within_limit", "over_limit", "not_worth_asking"}
    assert 0.1 < said["summary"]["remote"] / len(X_TEST) < 0.3


def test_nobody_is_asked_where_that_is_said(folder, inputs, server, bundle):
    for more in (["--local-only", "--server", server.url], []):
        said = asked(folder, inputs, *more)
        assert [row["label"] for row in said["answers"]] == bundle.judge(X_TEST)[0].tolist()
        assert set(said["summary"]["reasons"]) == {"no_server", "not_worth_asking"}
    assert server.connections == 0


def test_a_person_sees_a_table_and_a_summary(folder, inputs, server):
    status, out, _ = call(folder, inputs, "--server", server.url, "--deadline", 5)
    assert status == 0
    for word in ("expected saving", "latency", "class", "worth_asking", "20 of 150", "by server", "median"):
        assert word in out
    nobody = f"http://127.0.0.1:{free_port()}"
    status, out, _ = call(folder, inputs, "--server", nobody, "--deadline", 30, "--index", 0, "--c-e", 0)
    assert status == 0
    assert "server_unreachable" in out


def test_without_an_input_the_server_is_checked(folder, server):
    status, out, _ = call(folder, "--server", server.url)
    assert (status, "is ready" in out) == (0, True)
    assert "no names" in out
    said = asked(folder, "--server", server.url)
    assert (said["fits"], said["classes_compared"]) == (True, False)
    server.metadata["parameters"] = {"classes": [str(i) for i in range(CLASSES)]}
    status, out, _ = call(folder, "--server", server.url)
    assert (status, "its model fits the bundle" in out, "no names" in out) == (0, True, False)
    assert asked(folder, "--server", server.url)["classes_compared"] is True
    bundle = DeviceBundle(folder)
    for versions, words in (([bundle.manifest.version], "its model is that of the bundle"), (["other"], "other there")):
        server.metadata["versions"] = versions
        status, out, _ = call(folder, "--server", server.url)
        assert (status, words in out) == (0, True)
        assert asked(folder, "--server", server.url)["server_versions"] == versions
    server.key = "l2h_a_b"
    status, _, err = call(folder, "--server", server.url)
    assert (status, "wants a key" in err) == (1, True)
    server.key = None
    server.metadata["parameters"] = {"classes": ["0", "dog", "2"]}
    status, out, err = call(folder, "--server", server.url)
    assert (status, out) == (1, "")
    assert "'dog'" in err
    server.metadata["name"] = "other"
    status, out, err = call(folder, "--server", server.url)
    assert status == 1
    assert out == ""
    assert "other" in err
    assert call(folder)[0] == 2


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        (["--index", "150"], 2, "0..149"),
        (["--server", "host:80"], 2, "no server's address"),
        (["--deadline", "0"], 2, "deadline"),
        (["--c-e", "-1"], 2, "negative"),
        (["--limit", "many"], 2, "limit"),
        (["--key-file", "/nowhere/key"], 2, "cannot read the key file"),
        (["--batch", "0"], 2, "batch"),
    ],
)
def test_bad_usage_ends_with_one_sentence(folder, inputs, more, status, words):
    ended, out, err = call(folder, inputs, *more)
    assert ended == status
    assert out == ""
    assert words in " ".join(err.split())
    assert "Traceback" not in err


def test_what_is_no_bundle_or_no_input_is_told(folder, inputs, tmp_path):
    assert call(tmp_path, inputs)[0] == 1
    assert call(folder, tmp_path / "missing.npy")[0] == 1
    np.save(tmp_path / "wide.npy", np.zeros((2, FEATURES + 3), np.float32))
    status, _, err = call(folder, tmp_path / "wide.npy")
    assert status == 1
    assert "shape" in err


# The key.


def test_a_table_for_a_bundle_of_arrays_is_told(folder, tmp_path, system):
    (tmp_path / "rows.csv").write_text("age,job\n31,nurse\n")
    status, _, err = call(folder, tmp_path / "rows.csv")
    assert status == 1
    assert "the inputs are a table, and this bundle takes arrays of shape" in err
    with pytest.raises(DataError, match="the inputs are a table, the system was fitted to arrays of shape"):
        system.predict(as_table({"age": [31]}))


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch, folder, inputs, server):
    monkeypatch.delenv("L2H_KEY", raising=False)
    assert read_key() is None
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    assert read_key(file) == KEY
    common = [folder, inputs, "-s", server.url, "--deadline", 5, "-i", 0, "--c-e", 0, "--c-1", 0]
    asked(*common, "--key-file", file)
    monkeypatch.setenv("L2H_KEY", "from-the-environment")
    asked(*common)
    sent = [request.headers["authorization"] for request in server.asked]
    assert sent == [f"Bearer {KEY}", "Bearer from-the-environment"]


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_file_that_others_can_read_is_warned_about(tmp_path, mode):
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(mode)
    with pytest.warns(L2HWarning, match="others can read") as warned:
        assert read_key(file) == KEY
    assert KEY not in str(warned[0].message)


@pytest.mark.parametrize("held", [b"", b"two words", b"\xff\xfe", b"line\nline", b"a" * 5000])
def test_a_file_that_holds_no_key_is_refused_without_showing_it(tmp_path, held):
    file = tmp_path / "key"
    file.write_bytes(held)
    file.chmod(0o600)
    with pytest.raises(EdgeSettingsError, match="holds no key") as refused:
        read_key(file)
    assert "words" not in str(refused.value)


def test_the_command_itself_needs_no_torch(folder, inputs):
    script = f"""
import typer
from l2h.cli.ask import ask
app = typer.Typer()
app.command()(ask)
app([{str(folder)!r}, {str(inputs)!r}, "--index", "1", "--json"])
"""
    done = python(script, blocked=("torch", "sklearn", "starlette"))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["answers"]
    assert row["label"] == DeviceBundle(folder).judge(X_TEST[1])[0][0]
    assert row["class"] in [str(i) for i in range(CLASSES)]
