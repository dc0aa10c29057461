"""A table with names goes through every verb, and what does not fit is refused in one line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from commands import call
from customers import QUICK, customers, old_pipeline
from manifest_digest import with_digest
from serving_process import Server
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import l2h
from l2h.bundle import BundleError, ServerBundle
from l2h.columns import Columns
from l2h.errors import ClientError, DataError, RunError


@pytest.fixture(scope="module")
def system() -> l2h.HelpSystem:
    frame, left = customers(700)
    client = old_pipeline(frame[:150], left[:150])
    system = l2h.HelpSystem(client, "mlp", settings=QUICK).fit(frame[150:550], left[150:550])
    return system.calibrate(frame[550:], left[550:])


@pytest.fixture(scope="module")
def fresh() -> tuple[pandas.DataFrame, Any]:
    return customers(300, seed=1)


def labels(system: l2h.HelpSystem, X: Any) -> list[Any]:
    return list(system.predict(X, costs=l2h.Costs(c_e=0.1)).label)


def test_the_server_learns_what_the_old_pipeline_cannot_know(system: l2h.HelpSystem, fresh: Any) -> None:
    report = system.evaluate(*fresh, costs=l2h.Costs(c_e=0.1))
    assert report.accuracy["server"] > report.accuracy["client"] + 0.1
    assert report.risk.system < min(report.risk.all_local, report.risk.all_remote)


def test_polars_other_orders_and_single_rows_get_the_answers_of_the_data_frame(
    system: l2h.HelpSystem, fresh: Any
) -> None:
    frame, _ = fresh
    expected = labels(system, frame)
    assert labels(system, polars.from_pandas(frame)) == expected
    assert labels(system, frame[frame.columns[::-1]]) == expected
    rows = frame[:5].to_dict("records")
    assert [labels(system, row)[0] for row in rows] == expected[:5]


def test_the_client_in_the_system_answers_as_it_does_by_itself(system: l2h.HelpSystem, fresh: Any) -> None:
    frame, _ = fresh
    alone = old_pipeline(*(part[:150] for part in customers(700))).predict_proba(
        frame[["age", "hours per-week", "plan", "note"]]
    )
    fitted = system.require_fitted()
    answers = fitted.client.answers(fitted.check_inputs(frame), 2)
    np.testing.assert_allclose(answers.probability, alone, atol=1e-4)


BAD = {
    "new category": (lambda f: f.assign(region="mars"), "row 0: column 'region' is 'mars', a category"),
    "missing column": (lambda f: f.drop(columns="plan"), "no column 'plan', which the training had"),
    "text for numbers": (lambda f: f.assign(age="old"), "row 0: column 'age' is 'old', but a number is expected"),
    "missing value": (lambda f: f.assign(region=None), "row 0: column 'region' has no value"),
    "dates": (lambda f: f.assign(age=pandas.Timestamp("2024-01-01")), "column 'age' holds dates"),
    "an array": (lambda f: np.zeros((3, 5)), r"shape \(3, 5\) has no named columns"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused_in_one_line(name: str, system: l2h.HelpSystem, fresh: Any) -> None:
    change, message = BAD[name]
    with pytest.raises(DataError, match=message) as caught:
        system.predict(change(fresh[0][:3]))
    assert "\n" not in str(caught.value)


def test_a_target_of_one_class_and_a_client_of_other_columns_are_refused(system: l2h.HelpSystem) -> None:
    frame, left = customers(60)
    pipeline = old_pipeline(frame, left)
    with pytest.raises(DataError, match="every label is 1"):
        l2h.HelpSystem(pipeline, "mlp", settings=QUICK).fit(frame, np.ones(60, dtype=int))
    with pytest.raises(ClientError, match="takes a column 'plan', which the table does not have; it has age"):
        l2h.HelpSystem(pipeline, "mlp", settings=QUICK).fit(frame.drop(columns="plan"), left)
    client = LogisticRegression().fit(np.random.default_rng(0).normal(size=(60, 2)), left)
    with pytest.raises(ClientError, match="takes 2 numbers per row, but the table has 5 columns"):
        l2h.HelpSystem(client, "mlp", settings=QUICK).fit(frame, left)


def test_missing_numbers_reach_a_client_that_takes_them_and_are_refused_by_one_that_does_not() -> None:
    frame, left = customers(200)
    numbers = frame[["age", "hours per-week"]]
    client = HistGradientBoostingClassifier(max_iter=5).fit(numbers.to_numpy(), left)
    system = l2h.HelpSystem(client, "mlp", settings=QUICK).fit(numbers, left)
    fitted = system.require_fitted()
    np.testing.assert_allclose(
        fitted.client.answers(fitted.check_inputs(numbers), 2).probability,
        client.predict_proba(numbers.to_numpy()),
        atol=1e-4,
    )
    strict = LogisticRegression().fit(numbers.fillna(0), left)
    with pytest.raises(ClientError, match=r"failed on inputs of shape .*NaN"):
        l2h.HelpSystem(strict, "mlp", settings=QUICK).fit(numbers, left)


def test_a_function_gets_a_data_frame() -> None:
    frame, left = customers(200)
    seen: list[Any] = []

    def rule(rows: pandas.DataFrame) -> Any:
        seen.append(rows)
        return (rows["hours per-week"] > 30).to_numpy()

    l2h.HelpSystem(rule, "mlp", settings=QUICK).fit(frame, left)
    pandas.testing.assert_frame_equal(seen[-1].reset_index(drop=True), frame[: len(seen[-1])], check_dtype=False)


def test_a_saved_system_answers_the_same(system: l2h.HelpSystem, fresh: Any, tmp_path: Path) -> None:
    again = l2h.load(system.save(tmp_path / "run"))
    assert labels(again, fresh[0]) == labels(system, fresh[0])
    with pytest.raises(DataError, match="no column 'plan'"):
        again.predict(fresh[0].drop(columns="plan"))


@pytest.fixture(scope="module")
def bundle(system: l2h.HelpSystem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "bundle"
    manifest = system.export(folder, name="customers")
    assert (manifest.client.file, manifest.client.feed) == ("client.onnx", "columns")
    return folder


def test_the_pipeline_answers_the_same_on_a_device_without_pandas(
    system: l2h.HelpSystem, bundle: Path, fresh: Any
) -> None:
    frame, _ = fresh
    edge = l2h.EdgeClient(bundle)
    expected = system.require_fitted()
    answers = expected.client.answers(expected.check_inputs(frame), 2)
    assert edge.bundle.judge(frame)[0].tolist() == answers.label.tolist()
    ours, theirs = edge.judge(frame), system.judge(frame)
    np.testing.assert_allclose(ours.saving(edge.costs), theirs.saving(edge.costs), atol=1e-3)
    row = frame[:1].to_dict("records")[0]
    code = (
        "import sys, l2h, json; X = json.loads(sys.argv[2]); print(l2h.EdgeClient(sys.argv[1]).predict(X)[0].label); "
    )
    code += "assert not {'pandas', 'torch', 'sklearn', 'pyarrow'} & set(sys.modules)"
    run = [sys.executable, "-c", code, str(bundle), json.dumps(row)]
    said = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert said.strip() == str(answers.label[0])


def test_a_served_table_is_answered_and_its_columns_are_told(
    system: l2h.HelpSystem, bundle: Path, fresh: Any, tmp_path: Path
) -> None:
    frame, _ = fresh
    with Server(bundle, tmp_path) as server:
        with l2h.EdgeClient(bundle, server.url, costs=l2h.Costs(c_e=0.0, c_1=0.0), deadline=10.0) as edge:
            edge.check()
            asked = edge.predict(polars.from_pandas(frame[:40]))
            assert set(asked.source) == {"remote"}
            fitted = system.require_fitted()
            expected = fitted.server_log_probability(fitted.check_inputs(frame[:40])).argmax(axis=1)
            assert asked.label.tolist() == expected.tolist()
            with pytest.raises(BundleError, match="row 0: column 'region' is 'mars', a category"):
                edge.predict(frame[:1].assign(region="mars"))
        told = json.loads(server.get("/v2/models/customers")[1])
        assert told["parameters"]["columns"] == Columns.from_list(_manifest(bundle)["columns"]).features


def test_rows_of_a_file_are_asked_about_from_the_command_line(
    system: l2h.HelpSystem, bundle: Path, fresh: Any, tmp_path: Path
) -> None:
    frame, _ = fresh
    frame[:6].to_csv(tmp_path / "rows.csv", index=False)
    said = call("ask", bundle, tmp_path / "rows.csv", "--json")
    answers = [answer["label"] for answer in said.json()["answers"]]
    assert answers == l2h.EdgeClient(bundle).predict(frame[:6]).label.tolist()
    run = system.save(tmp_path / "run")
    asked = call("ask", run, tmp_path / "rows.csv", "--json", "--index", 4, "--index", 2, "--c-e", 0.1).json()[
        "answers"
    ]
    expected = system.predict(frame[:6], costs=l2h.Costs(c_e=0.1))
    assert [(row["index"], row["label"], row["source"]) for row in asked] == [
        (i, expected.label[i], expected.source[i]) for i in (4, 2)
    ]
    refused = call("ask", run, tmp_path / "rows.csv", "--index", 9)
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    assert "there is no input 9" in refused.err


def test_a_manifest_whose_columns_do_not_fit_is_refused(bundle: Path, tmp_path: Path) -> None:
    for change, message in (
        (lambda columns: columns[:-1], "its columns become"),
        (lambda columns: [columns[0], *columns], "names that differ"),
        (lambda columns: [{**columns[0], "kind": "date"}, *columns[1:]], "'kind' is 'date'"),
        (lambda columns: [{**column, "categories": ["plus", "plus"]} for column in columns], "'plus' twice"),
    ):
        folder = tmp_path / message.replace(" ", "-").replace("'", "")
        shutil.copytree(bundle, folder)
        values = _manifest(bundle)
        (folder / "manifest.json").write_text(with_digest({**values, "columns": change(values["columns"])}))
        with pytest.raises(BundleError, match=message):
            l2h.EdgeClient(folder)


def test_a_manifest_that_names_an_input_the_file_has_not_is_refused(bundle: Path, tmp_path: Path) -> None:
    folder, values = tmp_path / "bundle", _manifest(bundle)
    shutil.copytree(bundle, folder)
    client = {**values["client"], "input": "zzz"}
    (folder / "manifest.json").write_text(with_digest({**values, "client": client}))
    with pytest.raises(BundleError, match="expected zzz and"):
        l2h.EdgeClient(folder)


DAMAGE: dict[str, Any] = {
    "kind of a column": lambda s: s["columns"][0].update(kind="evil"),
    "unknown key of a column": lambda s: s["columns"][0].update(evil=1),
    "no categories": lambda s: s["columns"][0].update(categories=None),
    "text for a fill": lambda s: s["columns"][0].update(fill="x"),
    "columns that are none": lambda s: s.update(columns="abc"),
    "a column too few": lambda s: s["columns"].pop(),
    "labels in lists": lambda s: s.update(labels=[[1], 2]),
    "labels that are none": lambda s: s.update(labels=5),
    "labels that are no whole numbers": lambda s: s.update(labels=[1.5, 2.5]),
    "preprocessing of another kind": lambda s: s["client"].update(preprocessing={"foo": 1}),
    "preprocessing that is none": lambda s: s["client"].update(preprocessing="abc"),
    "scale that is none": lambda s: s["client"].update(preprocessing={"scale": {}}),
    "scales tried": lambda s: s["client"].update(scales_tried=5),
    "a server without its answers": lambda s: s.update(server={"kind": "remote", "target": "a:b"}),
    "answers nowhere": lambda s: s.update(server={"kind": "remote", "target": "a:b", "cache": 5}),
    "a client that is none": lambda s: s.update(client=3),
    "no settings": lambda s: s.pop("settings"),
    "unknown settings": lambda s: s["settings"].update(evil=1),
    "no rejectors": lambda s: s["specs"].clear(),
    "a loss that is none": lambda s: s["specs"][0].update(loss=5),
    "samples of another type": lambda s: s.update(input_dtype="abc"),
    "scores of no kind": lambda s: s["client"].update(probabilities="abc"),
}


@pytest.fixture(scope="module")
def saved(system: l2h.HelpSystem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return system.save(tmp_path_factory.mktemp("saved") / "run")


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_folder_is_told_in_one_line(name: str, saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "run")
    values = json.loads((folder / "config.json").read_text())
    DAMAGE[name](values["system"])
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(RunError, match=r"config.json.* is damaged: ") as told:
        l2h.load(folder)
    assert "\n" not in str(told.value)


def _manifest(bundle: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())
    return values


def test_an_estimator_that_learned_what_a_table_becomes_is_served(fresh: Any, tmp_path: Path) -> None:
    frame, left = customers(300)
    client = old_pipeline(frame[:100], left[:100])
    system = l2h.HelpSystem(client, RandomForestClassifier(11), settings=QUICK).fit(frame[100:], left[100:])
    system.export(tmp_path / "bundle")
    fitted = system.require_fitted()
    rows = fitted.check_inputs(fresh[0])
    served = ServerBundle(tmp_path / "bundle").run(rows.x).argmax(axis=1)
    assert served.tolist() == fitted.server_log_probability(rows).argmax(axis=1).tolist()
