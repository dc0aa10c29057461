"""Any scikit-learn classifier as the server: trained fold by fold, saved and exported without a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import commands
import numpy as np
import pandas as pd
import pytest
from clouds import X_TEST, Y_TEST, X, Y, make, probabilities, samples
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import LabelSpreading
from sklearn.svm import LinearSVC

import l2h
from l2h import Costs, HelpSystem
from l2h.errors import L2HWarning, ModelError, UnknownNameError

NAMES = np.array(["cat", "ant", "dog"])
ALL = Costs(c_e=0.0, c_1=0.0)


@pytest.fixture(scope="module")
def boosted() -> HelpSystem:
    server = HistGradientBoostingClassifier(max_iter=10)
    return make(probabilities, server, given={"dataset": "clouds"}).fit(X, NAMES[Y])


def test_the_rejector_learns_from_samples_that_the_server_has_not_seen() -> None:
    """One that knows its samples by heart would look perfect on them; what calibration holds is as on new samples."""
    system = make(server=KNeighborsClassifier(1)).fit(X, Y)
    assert (system.fitted.server_log_probability(X).argmax(axis=1) == Y).all()
    held_out = system.fitted.calibration.held_out.server_correct.mean()
    new = system.evaluate(X_TEST, Y_TEST).accuracy["server"]
    assert new < 0.95
    assert abs(held_out - new) < 0.15


def test_the_server_is_fitted_to_all_samples_and_the_user_s_estimator_stays_as_it_was() -> None:
    given = LogisticRegression(C=0.5)
    system = make(server=given).fit(X, Y)
    assert not hasattr(given, "classes_")
    theirs = LogisticRegression(C=0.5).fit(X, Y).predict(X_TEST)
    np.testing.assert_array_equal(system.predict(X_TEST, ALL).label, theirs)


def test_it_is_saved_and_exported_as_onnx(boosted: HelpSystem, tmp_path: Path) -> None:
    expected = boosted.predict(X_TEST, ALL).label
    assert set(expected) <= set(NAMES)
    assert np.mean(expected == NAMES[Y_TEST]) > 0.6
    boosted.save(tmp_path / "run")
    endings = {path.suffix for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert endings <= {".json", ".onnx", ".safetensors"}
    again = l2h.load(tmp_path / "run", client=probabilities)
    np.testing.assert_array_equal(again.predict(X_TEST, ALL).label, expected)
    boosted.export(tmp_path / "bundle")
    server = l2h.bundle.ServerBundle(tmp_path / "bundle")
    np.testing.assert_array_equal(server.labels.decode(server.run(X_TEST).argmax(axis=1)), expected)


def test_two_trainings_are_the_same(boosted: HelpSystem) -> None:
    server = HistGradientBoostingClassifier(max_iter=10)
    again = make(probabilities, server).fit(X, NAMES[Y])
    np.testing.assert_array_equal(again.judge(X_TEST).scores, boosted.judge(X_TEST).scores)


def test_a_pipeline_by_column_names_is_trained_on_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"kind": rng.choice(["a", "b", "c"], 300), "size": rng.normal(size=300)})
    y = np.where((table["kind"] == "a") ^ (table["size"] > 0), "yes", "no")
    columns = make_column_transformer((OneHotEncoder(), ["kind"]), (StandardScaler(), ["size"]))
    client = make_pipeline(columns, LogisticRegression()).fit(table[:60], y[:60])
    server = make_pipeline(columns, KNeighborsClassifier(5))
    system = make(client, server).fit(table[:200], y[:200])
    report = system.evaluate(table[200:][["size", "kind"]], y[200:])
    assert report.accuracy["server"] > report.accuracy["client"]
    boosting = make(client, HistGradientBoostingClassifier(max_iter=10)).fit(table[:200], y[:200])
    for each in (system, boosting):
        each.save(tmp_path / "run")
        again = l2h.load(tmp_path / "run")
        np.testing.assert_array_equal(again.predict(table, ALL).label, each.predict(table, ALL).label)


def test_a_fitted_estimator_stays_as_it_is() -> None:
    fitted = LogisticRegression().fit(*samples(30, 9))
    system = make(server=fitted).fit(X, Y)
    assert system.fitted.servers[0].classifier.estimator is fitted


@pytest.mark.parametrize(
    ("server", "error", "message"),
    [
        (LinearSVC(), ModelError, r"LinearSVC has no predict_proba: use CalibratedClassifierCV\(LinearSVC"),
        ("sklearn:HistGradientBosting", UnknownNameError, "no classifier .* HistGradientBoostingClassifier"),
        ("sklearn:LinearRegression", UnknownNameError, "no classifier 'LinearRegression'"),
        ("sklearn:os.system", UnknownNameError, "no classifier 'os.system'"),
        ("sklearn:StackingClassifier", ModelError, "made of other estimators: give it in Python"),
    ],
)
def test_what_cannot_be_a_server_is_refused(server: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(server=server).fit(X, Y)


def test_a_parameter_that_there_is_not_is_refused_before_anything_is_trained() -> None:
    system = make(server=LogisticRegression(), given={"server_options": {"depth": 3}})
    with pytest.raises(ModelError, match=r"LogisticRegression cannot be made with \{'depth': 3\}"):
        system.fit(X, Y)


def test_one_that_cannot_become_a_file_is_told_before_the_training() -> None:
    system = make(server=LabelSpreading())
    with pytest.warns(L2HWarning, match="neither saved nor exported: LabelSpreading cannot be converted"):
        job = system.prepare(X, Y)
    assert job.servers[0].estimator is not None


def test_the_command_names_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", X_train=X, y_train=Y, X_test=X_TEST, y_test=Y_TEST)
    server = ["--server", "sklearn:HistGradientBoostingClassifier", "--option", "server.max_iter=5"]
    quick = ["--set", "rejector.epochs=1", "--set", "folds=2"]
    with commands.undrawn():
        result = commands.call("train", "--data", tmp_path / "mine.npz", "--client", "tree", *server, *quick, "--json",
                               "--out", tmp_path / "run")  # fmt: skip
    assert result.status == 0, result.err
    measured = result.json()[0]["accuracy"]["server"]
    assert measured > 0.6
    again = commands.call("evaluate", tmp_path / "run", "--json").json()[0]["accuracy"]["server"]
    assert again == measured
