"""The user's own labels, from training to a served bundle: every answer and report speaks of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import commands
import httpx
import numpy as np
import pandas as pd
import pytest
from clouds import CLASSES, FEATURES, X_TEST, Y_TEST, Counting, make, probabilities, samples
from serving_process import Server
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import l2h
from l2h import Costs, HelpSystem
from l2h.bundle.sessions import exported_client, file_run
from l2h.errors import ClientError, DataError
from l2h.export.classifiers import export_client
from l2h.labels import LabelCodec

pytestmark = pytest.mark.long

X, NUMBERS = samples(240, 1)
#: By kind: the labels of the three clouds. Sorted they come in another order.
KINDS = {"text": ("dog", "ant", "cat"), "integers": (7, -2, 30)}
ALL = Costs(c_e=0.0, c_1=0.0)


def named(numbers: np.ndarray, kind: str) -> np.ndarray:
    return np.array(KINDS[kind])[numbers]


def tree(y: np.ndarray, rows: slice = slice(60)) -> Any:
    return DecisionTreeClassifier(max_depth=3, random_state=0).fit(X[rows], y[rows])


@pytest.fixture(scope="session", params=["text", "integers"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def system(kind: str) -> HelpSystem:
    y = named(NUMBERS, kind)
    given = {"server_options": {"hidden": (16,)}, "dataset": "clouds"}
    return make(tree(y), given=given).fit(X, pd.Series(y)).calibrate(X[:100], y[:100])


@pytest.fixture(scope="session")
def bundle(system: HelpSystem, kind: str, once: Any) -> Path:
    return once(f"labels-{kind}", system.export)


def test_the_labels_are_only_names(system: HelpSystem, kind: str) -> None:
    """The same system with class numbers in the order of the sorted labels decides and answers the same."""
    places = np.argsort(np.argsort(KINDS[kind]))
    plain = make(tree(places[NUMBERS]), given={"server_options": {"hidden": (16,)}}).fit(X, places[NUMBERS])
    plain.calibrate(X[:100], places[NUMBERS][:100])
    ours, theirs = system.predict(X_TEST), plain.predict(X_TEST)
    np.testing.assert_array_equal(ours.label, np.sort(KINDS[kind])[theirs.label])
    np.testing.assert_array_equal(ours.source, theirs.source)
    report, other = system.evaluate(X_TEST, named(Y_TEST, kind)), plain.evaluate(X_TEST, places[Y_TEST])
    assert report.risk == other.risk
    np.testing.assert_array_equal(report.y, named(Y_TEST, kind))
    np.testing.assert_array_equal(report.client_label, np.sort(KINDS[kind])[other.client_label])
    assert list(report.as_dict()["reject_rate_per_class"]) == [str(value) for value in sorted(KINDS[kind])]
    assert report.as_dict()["accuracy"]["server"] == np.mean(report.server_label == named(Y_TEST, kind))


def test_a_saved_system_has_the_same_labels(system: HelpSystem, kind: str, tmp_path: Path) -> None:
    system.save(tmp_path)
    saved, again = json.loads((tmp_path / "config.json").read_text())["system"], l2h.load(tmp_path)
    assert saved["labels"] == sorted(KINDS[kind])
    np.testing.assert_array_equal(again.predict(X_TEST).label, system.predict(X_TEST).label)
    assert type(again.predict(X_TEST)[0].label) is type(KINDS[kind][0])
    with pytest.raises(DataError, match=r"label .* in row 1 is none of the 3 classes"):
        again.evaluate(X_TEST[:2], [KINDS[kind][0], "owl" if kind == "text" else 31])


def test_a_device_and_its_server_answer_with_the_labels(
    system: HelpSystem, kind: str, bundle: Path, tmp_path: Path
) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert (manifest["schema"], manifest["labels"]) == (2, sorted(KINDS[kind]))
    expected = system.predict(X_TEST, ALL)
    np.save(tmp_path / "x.npy", X_TEST[:3])
    with Server(bundle, tmp_path / "server") as server:
        for options in ({}, {"output_name": "label"}, {"output_name": "label", "binary": False}):
            with l2h.EdgeClient(bundle, server.url, deadline=20.0, costs=ALL, **options) as edge:
                edge.check()
                answers = edge.predict(X_TEST)
                assert set(answers.source) == {"remote"}
                np.testing.assert_array_equal(answers.label, expected.label)
                assert type(answers[0].label) is type(KINDS[kind][0])
        status, out, err = commands.call("ask", bundle, tmp_path / "x.npy", "-s", server.url, "--deadline", 20,
                                         "--c-e", 0, "--c-1", 0, "--json")  # fmt: skip
        assert status == 0, err
        rows = json.loads(out)["answers"]
        assert [row["label"] for row in rows] == expected.label[:3].tolist()
        assert [row["class"] for row in rows] == [str(label) for label in expected.label[:3]]
        model = f"{server.url}/v2/models/clouds"
        metadata = httpx.get(model).json()
        assert metadata["parameters"]["labels"] == sorted(KINDS[kind])
        assert metadata["outputs"][1]["datatype"] == {"text": "BYTES", "integers": "INT64"}[kind]
        tensor = {"name": "x", "datatype": "FP32", "shape": [2, FEATURES], "data": X_TEST[:2].ravel().tolist()}
        said = httpx.post(f"{model}/infer", json={"inputs": [tensor], "outputs": [{"name": "label"}]}).json()
        assert said["outputs"][0]["data"] == expected.label[:2].tolist()
        assert [one["name"] for one in httpx.post(f"{model}/infer", json={"inputs": [tensor]}).json()["outputs"]] == [
            "scores"
        ]
    with l2h.EdgeClient(bundle) as edge:
        assert edge.class_names == system.class_names == tuple(str(value) for value in sorted(KINDS[kind]))
        assert [edge.bundle.labels.name(value) for value in sorted(KINDS[kind])] == list(edge.class_names)
        local = edge.predict(X_TEST, costs=Costs(c_e=5.0))
        np.testing.assert_array_equal(local.label, system.predict(X_TEST, Costs(c_e=5.0)).label)


def test_booleans_come_back_as_booleans(tmp_path: Path) -> None:
    y = NUMBERS == 1
    system = make(lambda X: X[:, 0] > 0).fit(X, y)
    assert system.predict(X_TEST)[0].label in (True, False)
    assert system.predict(X_TEST).label.dtype == np.bool_
    system.save(tmp_path)
    assert l2h.load(tmp_path, client=lambda X: X[:, 0] > 0).predict(X_TEST).label.dtype == np.bool_


def test_a_client_is_matched_by_value_whatever_it_knows_and_in_whatever_order(kind: str, tmp_path: Path) -> None:
    y = named(NUMBERS, kind)
    some = y != KINDS[kind][1]
    subset = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X[some], y[some])
    order = {value: str(value) for value in KINDS[kind]}  # not sorted
    server = Counting(lambda X: probabilities(X)[:, [0, 1, 2]])
    system = make(subset, server, given={"class_names": order}).fit(X, y)
    kept = system.predict(X_TEST, Costs(c_e=5.0)).label
    np.testing.assert_array_equal(kept, subset.predict(X_TEST))
    asked = system.predict(X_TEST, ALL).label
    np.testing.assert_array_equal(asked, named(probabilities(X_TEST).argmax(axis=1), kind))
    system.save(tmp_path)
    again = l2h.load(tmp_path, server=server)
    np.testing.assert_array_equal(again.predict(X_TEST, Costs(c_e=5.0)).label, kept)
    labels = make(subset.predict, given={"class_names": order}).fit(X, y)
    np.testing.assert_array_equal(labels.predict(X_TEST, Costs(c_e=5.0)).label, kept)
    with pytest.raises(ClientError, match=r"the estimator knows class .* none of the 2 classes .* class_names="):
        make(tree(y)).fit(X[some], y[some])


def test_files_that_answer_with_labels_are_matched_by_value(kind: str, tmp_path: Path) -> None:
    """An ONNX file of scikit-learn with dictionaries, and one with labels alone."""
    from skl2onnx import to_onnx as convert

    y = named(NUMBERS, kind)
    client = tree(y)
    (tmp_path / "maps.onnx").write_bytes(convert(client, X[:1]).SerializeToString())
    system = make(tmp_path / "maps.onnx").fit(X, y)
    np.testing.assert_array_equal(system.predict(X_TEST, Costs(c_e=5.0)).label, client.predict(X_TEST))
    only = l2h.classifiers.OnnxClassifier(tmp_path / "maps.onnx", scores="output_label")
    assert_same_on_a_device(only, y, client.predict(X_TEST))


def test_the_columns_of_a_file_are_those_that_its_own_labels_say(tmp_path: Path) -> None:
    """Of scikit-learn's text classes without dictionaries, where class_names have another order."""
    from skl2onnx import to_onnx as convert

    y = named(NUMBERS, "text")
    client, order = tree(y), sorted(set(y), reverse=True)
    path = tmp_path / "matrix.onnx"
    path.write_bytes(convert(client, X[:1], options={"zipmap": False}).SerializeToString())
    system = make(path, given={"class_names": order}).fit(X, y)
    expected = client.predict(X_TEST)
    np.testing.assert_array_equal(system.predict(X_TEST, Costs(c_e=5.0)).label, expected)
    again = l2h.load(system.save(tmp_path / "run"))
    np.testing.assert_array_equal(again.predict(X_TEST, Costs(c_e=5.0)).label, expected)
    assert_same_on_a_device(l2h.as_client(path), y, expected, LabelCodec.find(y, order))


def assert_same_on_a_device(client: Any, y: np.ndarray, expected: np.ndarray, labels: LabelCodec | None = None) -> None:
    """The file of a client gives these labels, read as a device reads it."""
    labels = labels or LabelCodec.find(y)
    exported = export_client(client.with_labels(labels), CLASSES, False, [X[:1], X[:3], X[:17]])
    assert exported.data is not None
    run = file_run(exported.data, exported.part)
    numbers = exported_client(run, exported.part, CLASSES, labels)(X_TEST)[0]
    np.testing.assert_array_equal(labels.decode(numbers), expected)


class Largest(nn.Module):
    """A module that answers with a label: one of the integers."""

    def forward(self, x: Any) -> Any:
        import torch

        return torch.tensor(KINDS["integers"])[x[:, :CLASSES].argmax(dim=1)]


def test_labels_that_come_as_floats_are_not_silently_taken_for_logits() -> None:
    right = X[:, 0] > 0
    for low, high in ((5, 7), (-1, 1)):
        client = l2h.as_client(lambda x, low=low, high=high: np.where(x[:, 0] > 0, float(high), float(low)))
        client = client.with_labels(LabelCodec((str(low), str(high)), (low, high)))
        if low > 0:  # two logits above 0 would both mean the second class
            with pytest.raises(ClientError, match="5 and the like: labels must be integers"):
                client.answers(X, 2)
        else:
            np.testing.assert_array_equal(client.answers(X, 2).label, right)


def test_a_module_of_labels_keeps_them_on_a_device() -> None:
    expected = named(X_TEST[:, :CLASSES].argmax(axis=1), "integers")
    assert_same_on_a_device(l2h.as_client(Largest()), named(NUMBERS, "integers"), expected)


def test_a_training_by_the_command_speaks_of_the_labels(kind: str, tmp_path: Path) -> None:
    """Text in an .npz, through training, the run folder, evaluation on other data and a dataset's own form."""
    y = named(NUMBERS, kind)
    np.savez(tmp_path / "mine.npz", X_train=X, y_train=y, X_test=X_TEST, y_test=named(Y_TEST, kind))
    np.savez(tmp_path / "other.npz", X=X_TEST, y=named(Y_TEST, kind))
    data = l2h.load_dataset(tmp_path / "mine.npz")
    np.testing.assert_array_equal(data.y_train, y)
    assert data.class_names == tuple(str(value) for value in sorted(KINDS[kind]))
    for client in ("tree", "mlp"):
        with commands.undrawn():
            quick = [text for name in ("server.epochs=1", "rejector.epochs=1", "folds=2") for text in ("--set", name)]
            source = ["--data", tmp_path / "mine.npz", "--client", client, "--server", "mlp"]
            train = commands.call("train", *source, *quick, "--json", "--out", tmp_path / client)
        assert train.status == 0, train.err
        assert set(l2h.load(tmp_path / client).predict(X_TEST).label.tolist()) <= set(KINDS[kind])
        per_class = commands.call("evaluate", tmp_path / client, "--data", tmp_path / "other.npz", "--json").json()
        assert set(per_class[0]["reject_rate_per_class"]) == {str(value) for value in KINDS[kind]}


def test_class_numbers_leave_no_trace(systems: Any, bundles: Any, tmp_path: Path) -> None:
    systems("sklearn").save(tmp_path)
    assert "labels" not in json.loads((tmp_path / "config.json").read_text())["system"]
    manifest = json.loads((bundles("sklearn") / "manifest.json").read_text())
    assert manifest["schema"] == 1
    assert "labels" not in manifest
