"""A server that takes columns by their names is exported, and finds them in the numbers that go over the wire."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas
import pytest
from commands import call
from customers import customers, old_pipeline
from manifest_digest import with_digest
from serving_process import Server
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import l2h
from l2h.bundle import BundleError, ServerBundle
from l2h.bundle.sessions import file_run
from l2h.columns import encode_inputs
from l2h.errors import L2HWarning
from l2h.export.classifiers import export_client, export_fixed_server

ALL = l2h.Costs(c_e=0.0, c_1=0.0)
STAGE = l2h.StageSettings(epochs=1, batch=64)
QUICK = l2h.Settings(server=STAGE, rejector=STAGE, folds=2, threads=1)


def rule(rows: pandas.DataFrame) -> Any:
    return (rows["hours per-week"] > 30).to_numpy()


def by_names(*more: Any) -> Any:
    """A pipeline of numbers, some missing, and of categories, of which one refuses those that it does not know."""
    plan = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    parts = [(plan, ["plan"]), (OneHotEncoder(), ["region"]), (SimpleImputer(), ["age", "hours per-week"]), *more]
    return make_pipeline(make_column_transformer(*parts), HistGradientBoostingClassifier(max_iter=20))


@pytest.fixture(scope="module")
def system() -> l2h.HelpSystem:
    frame, left = customers(400)
    # Declared and never seen: the encoder of regions would refuse it, and the server must start all the same.
    regions = pandas.Categorical(frame["region"], categories=["mars", "north", "south", "west"])
    return l2h.HelpSystem(rule, by_names(), settings=QUICK).fit(frame.assign(region=regions), left)


@pytest.fixture(scope="module")
def bundle(system: l2h.HelpSystem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named") / "bundle"
    with warnings.catch_warnings():
        warnings.simplefilter("error", L2HWarning)
        manifest = system.export(folder, name="customers")
    assert (manifest.servers["server"].file, manifest.servers["server"].feed) == ("server.onnx", "columns")
    return folder


def test_a_trained_pipeline_answers_over_the_wire(system: l2h.HelpSystem, bundle: Path, tmp_path: Path) -> None:
    frame, _ = customers(60, seed=1)
    expected = system.predict(frame, ALL).label.tolist()
    assert len(set(expected)) == 2
    with Server(bundle, tmp_path / "server") as server:
        with l2h.EdgeClient(bundle, server.url, client=rule, costs=ALL, deadline=20.0) as edge:
            edge.check()
            asked = edge.predict(frame)
            assert set(asked.source) == {"remote"}
            assert asked.label.tolist() == expected
        x = system.require_fitted().check_inputs(frame[:1]).x
        places = [i for i, name in enumerate(system.require_fitted().columns.features) if name.startswith("region=")]
        x[:, places] = 0.0
        message = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}
        refused = httpx.post(f"{server.url}/v2/models/customers/infer", json=message)
        assert refused.status_code == 400
        assert "row 0: the numbers of column 'region' are [0.0, 0.0, 0.0, 0.0]" in refused.json()["error"]


def test_a_file_answers_as_the_original_on_what_is_sent(system: l2h.HelpSystem, bundle: Path) -> None:
    fitted = system.require_fitted()
    rows = fitted.check_inputs(customers(300, seed=2)[0])
    theirs = np.exp(fitted.server_log_probability(rows))
    np.testing.assert_allclose(ServerBundle(bundle).run(rows.x), theirs, atol=1e-5)


@pytest.mark.long
def test_a_fixed_pipeline_by_names_is_asked_from_the_command_line(tmp_path: Path) -> None:
    frame, left = customers(300)
    known = frame[["age", "hours per-week", "plan", "region"]]
    client = HistGradientBoostingClassifier(max_iter=3).fit(known[["age", "hours per-week"]], left)
    server = by_names().fit(known, left)
    system = l2h.HelpSystem(client, server, settings=QUICK).fit(known, left)
    system.save(tmp_path / "run")
    manifest = l2h.load(tmp_path / "run").export(tmp_path / "bundle")
    assert manifest.servers["server"].feed == "columns"
    known[:20].to_csv(tmp_path / "rows.csv", index=False)
    with Server(tmp_path / "bundle", tmp_path / "server") as process:
        said = call("ask", tmp_path / "bundle", tmp_path / "rows.csv", "-s", process.url, "--deadline", 20,
                    "--c-e", 0, "--c-1", 0, "--json")  # fmt: skip
    answers = said.json()["answers"]
    assert {answer["source"] for answer in answers} == {"remote"}
    assert [answer["label"] for answer in answers] == server.predict(known[:20]).tolist()


def test_what_cannot_be_exported_is_told_before_the_training() -> None:
    frame, left = customers(200)
    texts = old_pipeline(frame, left)
    for server in (texts, clone(texts)):
        with pytest.warns(L2HWarning, match="saved, but not exported: it takes column 'note', which holds texts"):
            l2h.HelpSystem(rule, server, settings=QUICK).prepare(frame, left)
    boosting = HistGradientBoostingClassifier(max_iter=20, min_samples_leaf=2)
    ordinal = make_pipeline(make_column_transformer((OrdinalEncoder(), ["plan", "region"])), boosting)
    with pytest.warns(L2HWarning, match="neither saved nor exported: fitted to .* differs as ONNX"):
        l2h.HelpSystem(rule, ordinal, settings=QUICK).prepare(frame, left)


@pytest.mark.parametrize("digits", [0, 2])
def test_trees_that_split_at_scaled_values_of_the_data_are_exported_though_files_round(digits: int) -> None:
    rng = np.random.default_rng(0)
    income = rng.lognormal(10, 0.5, 1200).round(digits)
    frame = pandas.DataFrame({"income": income, "plan": rng.choice(["a", "b"], 1200)})
    left = ((frame["income"] > 22_000) ^ (frame["plan"] == "a") ^ (rng.random(1200) < 0.2)).to_numpy().astype(int)
    columns = make_column_transformer((StandardScaler(), ["income"]), (OneHotEncoder(), ["plan"]))
    model = make_pipeline(columns, HistGradientBoostingClassifier(max_iter=20)).fit(frame[:600], left[:600])
    rows = encode_inputs(frame)
    probes, fresh = [rows[:1], rows[1:4], rows[4:400]], rows[600:]
    expected = model.predict_proba(frame[600:])
    with warnings.catch_warnings():
        warnings.simplefilter("error", L2HWarning)
        client = export_client(l2h.as_client(model), 2, False, probes)
    server, reason = export_fixed_server(l2h.as_client(model), 2, probes)
    assert not reason
    for exported in (client, server):
        assert exported is not None
        assert exported.data is not None
        assert exported.agreement is not None
        assert exported.agreement > 0.01  # on rows of the training that lie at a threshold
        (answers,) = file_run(exported.data, exported.part)(fresh)
        assert (np.abs(answers - expected).max(axis=1) > 1e-5).mean() < 0.01


def test_a_server_whose_answers_are_lost_by_rounding_is_left_out() -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"time": 1.6e9 + 100 * rng.random(200), "weight": rng.random(200)})
    late = (frame["time"] > 1.6e9 + 50).to_numpy().astype(int)
    for model in (LogisticRegression(), HistGradientBoostingClassifier(max_iter=5)):
        columns = make_column_transformer((StandardScaler(), ["time", "weight"]))
        rows = encode_inputs(frame)
        server = l2h.as_client(make_pipeline(columns, model).fit(frame, late))
        exported, reason = export_fixed_server(server, 2, [rows[:1], rows[1:4], rows[4:]])
        assert exported is None
        assert "float32" in reason


def test_a_server_that_needs_more_digits_than_are_sent_is_left_out() -> None:
    frame = pandas.DataFrame({"id": 2**30 + np.arange(40), "plan": ["a", "b"] * 20})
    left = np.arange(40) % 2
    rows = encode_inputs(frame)
    lenient, strict = OneHotEncoder(handle_unknown="ignore"), OneHotEncoder()
    for parts in ([(lenient, ["id"])], [(strict, ["id"]), (strict, ["plan"])]):
        server = make_pipeline(make_column_transformer(*parts), LogisticRegression(C=100)).fit(frame, left)
        exported, reason = export_fixed_server(l2h.as_client(server), 2, [rows[:1], rows[1:4], rows[4:]])
        assert exported is None
        assert "float32" in reason


def test_a_server_by_columns_needs_them_in_the_manifest(bundle: Path, tmp_path: Path) -> None:
    values = json.loads((bundle / "manifest.json").read_text())
    without = {key: value for key, value in values.items() if key != "columns"}
    strange = {**values, "server": {**values["server"], "feed": "rows"}}
    for changed, message in ((without, "takes columns, and 'columns' is missing"), (strange, "'feed' is 'rows'")):
        (tmp_path / "manifest.json").write_text(with_digest(changed))
        with pytest.raises(BundleError, match=message):
            ServerBundle(tmp_path)
