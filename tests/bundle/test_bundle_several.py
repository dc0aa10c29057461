"""A bundle of several servers, with and without a second opinion, answers as its system and is read as strictly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from bundle_maker import copied, edit
from clouds import CLASSES
from two_servers import CALIBRATION, PRICES, TEST, make

from l2h import Costs, EdgeClient, HelpSystem
from l2h.bundle import BundleError, DeviceBundle, Manifest, ServerBundle
from l2h.bundle.manifest import read_files
from l2h.errors import CostError, SettingsError

X, Y = TEST
KINDS = pytest.mark.parametrize("kind", ["servers", "opinion"])
SERVERS = ("box", "cloud")


@pytest.fixture(scope="session")
def several() -> dict[str, HelpSystem]:
    return {"servers": make(), "opinion": make(second_opinion=True)}


@pytest.fixture(scope="session")
def folders(
    several: dict[str, HelpSystem], once: Callable[[str, Callable[[Path], object]], Path]
) -> Callable[[str], Path]:
    def exported(kind: str) -> Path:
        return once(f"two-{kind}", lambda folder: several[kind].export(folder, name="clouds", costs=PRICES))

    return exported


@KINDS
@pytest.mark.parametrize("limit", [None, "20%", {"cloud": "10%", "all": "40%"}])
def test_the_bundle_answers_as_the_system(kind: str, limit: Any, several: Any, folders: Any) -> None:
    folder = folders(kind)
    functions = {name: ServerBundle(folder, server=name).run for name in SERVERS}
    with EdgeClient(folder, functions, deadline=20.0, costs=PRICES, limit=limit) as edge:
        ours, theirs = edge.predict(X), several[kind].predict(X, PRICES, limit=limit)
        assert edge.costs == PRICES
        assert edge.stats().answerers == dict(zip(*np.unique(ours.by, return_counts=True), strict=True))
    # Float32 adds up in another order there: two answerers that cost the same may change places.
    assert (ours.by == theirs.by).mean() > 0.99
    same = ours.by == theirs.by
    for name in ("label", "source", "reason", "cost"):
        np.testing.assert_array_equal(getattr(ours, name)[same], getattr(theirs, name)[same])
    if limit is None:
        local = "student" if kind == "opinion" else "client"
        assert {local, "box", "cloud"} <= set(ours.by), "or some answerer is not tested"


@KINDS
def test_one_input_is_answered_as_in_a_batch(kind: str, folders: Any) -> None:
    functions = {name: ServerBundle(folders(kind), server=name).run for name in SERVERS}
    with EdgeClient(folders(kind), functions, deadline=20.0) as edge:
        together, alone = edge.predict(X[:80]), [edge.predict(x)[0] for x in X[:80]]
    assert [answer.by for answer in alone] == together.by.tolist()
    assert [answer.label for answer in alone] == together.label.tolist()
    assert [answer.cost for answer in alone] == together.cost.tolist()


def test_each_server_is_a_half_of_its_own(several: Any, folders: Any, tmp_path: Path) -> None:
    whole = folders("opinion")
    manifest = Manifest.read(whole)
    assert json.loads((whole / "manifest.json").read_text())["schema"] == 3
    assert (manifest.costs, [manifest.model_of(name) for name in SERVERS]) == (PRICES, ["clouds-box", "clouds-cloud"])
    for number, name in enumerate(SERVERS):
        half = tmp_path / name
        half.mkdir()
        for file in ("manifest.json", f"server-{name}.onnx"):
            shutil.copy(whole / file, half / file)
        server = ServerBundle(half, server=name)
        read_files(half, manifest, "server", name)
        expected = several["opinion"].fitted.server_log_probability(X, number)
        assert server.name == f"clouds-{name}"
        np.testing.assert_array_equal(server.run(X).argmax(axis=1), expected.argmax(axis=1))
        with pytest.raises(BundleError, match="is missing"):
            read_files(half, manifest, "server")
    with pytest.raises(BundleError, match="several servers: say which, of box, cloud"):
        ServerBundle(whole)
    with pytest.raises(BundleError, match="no server 'moon'; it has: box, cloud"):
        ServerBundle(whole, server="moon")


def test_a_manifest_of_several_servers_reads_back_as_it_was_written(folders: Any, tmp_path: Path) -> None:
    for kind in ("servers", "opinion"):
        manifest = Manifest.read(folders(kind))
        manifest.write(tmp_path)
        assert Manifest.read(tmp_path) == manifest
        assert (tmp_path / "manifest.json").read_bytes() == (folders(kind) / "manifest.json").read_bytes()


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "'prices' are those of box, and 'servers' are box, cloud": lambda v: v["prices"].pop("cloud"),
    "'prices' are those of box, cloud, moon": lambda v: v["prices"].update(moon={"c_e": 0.1, "c_1": 1.0}),
    "'servers' is missing": lambda v: v.pop("servers"),
    "'prices' is missing": lambda v: v.pop("prices"),
    "unknown key 'server'": lambda v: v.update(server=v["servers"]["box"]),
    "unknown key 'servers'": lambda v: v.update(schema=2),
    "name of an answerer on the device": lambda v: (
        v["servers"].update(student=v["servers"].pop("box")),
        v["prices"].update(student=v["prices"].pop("box")),
    ),
    "expected one pair for each of 4 answerers": lambda v: v["rejector"]["platt"][0].pop(),
    "expected one pair for each of 3 answerers": lambda v: v.update(second_opinion=False),
    "servers, 'box' is damaged: .*input": lambda v: v["servers"]["box"].pop("input"),
    "prices, 'box' is damaged": lambda v: v["prices"]["box"].update(c_e=-1),
    "not among the files of the server": lambda v: v["servers"]["box"].update(file="rejector.onnx"),
    "second_opinion": lambda v: v.update(second_opinion="yes"),
}


@pytest.mark.parametrize("words", CHANGES)
def test_what_does_not_fit_together_is_named(words: str, folders: Any, tmp_path: Path) -> None:
    folder = copied(folders("opinion"), tmp_path / "bundle")
    edit(folder, CHANGES[words])
    with pytest.raises(BundleError, match=words):
        Manifest.read(folder)


def test_prices_and_names_are_checked_before_anything_is_written(several: Any, tmp_path: Path) -> None:
    for costs in ({"box": Costs(0.1)}, {**PRICES, "moon": Costs(0.1)}):
        with pytest.raises(CostError, match="the servers are box, cloud"):
            several["servers"].export(tmp_path / "bundle", costs=costs)
    with pytest.raises(SettingsError, match="too long together"):
        several["servers"].export(tmp_path / "bundle", name="a" * 124)
    assert not (tmp_path / "bundle").exists()


def test_the_command_takes_prices_by_name_and_lets_the_student_answer_or_not(several: Any, tmp_path: Path) -> None:
    several["opinion"].save(tmp_path / "run")
    arguments = ["--out", tmp_path / "bundle", "--price", "cloud=0.2:1.5", "--no-second-opinion"]
    status, out, err = commands.call("export", tmp_path / "run", *arguments)
    assert status == 0, err
    manifest = Manifest.read(tmp_path / "bundle")
    assert [answerer.name for answerer in manifest.answerers] == ["client", "box", "cloud"]
    assert manifest.prices["cloud"] == Costs(c_e=0.2, c_1=1.5)
    for name in SERVERS:
        assert f"--server {name}" in out
    status, _, err = commands.call("export", tmp_path / "run", "--out", tmp_path / "other", "--price", "moon=0.1")
    assert status in (1, 2)
    assert "the servers are box, cloud" in err


def test_a_student_that_names_no_class_is_refused(folders: Any, tmp_path: Path) -> None:
    """A rejector whose student's labels are one too large."""
    import onnx

    folder = copied(folders("opinion"), tmp_path / "bundle")
    model = onnx.load(folder / "rejector.onnx")
    node = next(node for node in model.graph.node if "student" in node.output)
    node.output[list(node.output).index("student")] = "before"
    shift = onnx.numpy_helper.from_array(np.array([CLASSES]), "one_too_many")
    model.graph.initializer.append(shift)
    model.graph.node.append(onnx.helper.make_node("Add", ["before", "one_too_many"], ["student"]))
    data = model.SerializeToString()
    (folder / "rejector.onnx").write_bytes(data)
    from hashlib import sha256

    entry = {"sha256": sha256(data).hexdigest(), "bytes": len(data)}
    edit(folder, lambda values: values["files"]["rejector.onnx"].update(entry))
    with pytest.raises(BundleError, match="no labels"):
        DeviceBundle(folder).examine(X[:3])


@pytest.mark.long
@KINDS
def test_the_risk_of_int8_is_that_of_the_answers(
    kind: str, several: Any, folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("l2h.export.quantising.KEEP_BELOW", np.inf)
    monkeypatch.setattr("l2h.export.quantising.STANDARD_ERRORS", np.inf)
    manifest = several[kind].export(tmp_path / "int8", name="clouds", costs=PRICES, int8=CALIBRATION)
    measured = manifest.rejector.int8_measured
    assert measured["kept"]
    before, after = (risk(folder, manifest, *CALIBRATION) for folder in (folders(kind), tmp_path / "int8"))
    assert measured["risk_difference"] == pytest.approx(after - before, abs=1e-9)


def risk(folder: Path, manifest: Manifest, X: np.ndarray, y: np.ndarray) -> float:
    """What the answers of a bundle cost on average."""
    functions = {name: ServerBundle(folder, server=name).run for name in SERVERS}
    with EdgeClient(folder, functions, deadline=20.0) as edge:
        answers = edge.predict(X)
    lost = {"client": 1.0, "student": 1.0, **{name: costs.c_1 for name, costs in manifest.prices.items()}}
    wrong = (answers.label != y) * np.array([lost[name] for name in answers.by])
    return float((answers.cost + wrong).mean())
