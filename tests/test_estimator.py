"""``HelpClassifier`` is a classifier of scikit-learn, and answers are arrays of labels to whoever expects one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from customers import customers
from scripts import python
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, confusion_matrix
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import l2h
from l2h.errors import ClientError, CostError, DataError, SettingsError

STAGE = l2h.StageSettings(epochs=2, batch=64)
QUICK = l2h.Settings(server=STAGE, rejector=STAGE, folds=2, copies=0, threads=1)
NAMES = np.array(["cat", "dog", "eel"])
GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"
#: What fails of scikit-learn's own checks, and why.
EXEMPT = {
    "check_sample_weight_equivalence_on_dense_data": "rows are drawn by their weights: a weight of 2 is no second "
    "copy, which would be among the samples that a fold's server is fitted to and among those it is judged by",
    "check_sample_weights_not_overwritten": "one of its 16 weights is ten times the others: the rows that are drawn "
    "are too few to train on (that weights stay as they are is tested below)",
}


@pytest.fixture(scope="module")
def data() -> tuple[Any, Any]:
    X, y = make_classification(400, n_informative=6, n_classes=3, class_sep=1.2, random_state=0)
    return X.astype(np.float32), NAMES[y]


@pytest.fixture(scope="module")
def old(data: tuple[Any, Any]) -> FrozenEstimator:
    X, y = data
    return FrozenEstimator(DecisionTreeClassifier(max_depth=2, random_state=0).fit(X[:100], y[:100]))


@pytest.fixture(scope="module")
def fitted(old: FrozenEstimator, data: tuple[Any, Any]) -> l2h.HelpClassifier:
    X, y = data
    return l2h.HelpClassifier(old, LogisticRegression(), settings=QUICK, random_state=0).fit(X[100:300], y[100:300])


@parametrize_with_checks(
    [l2h.HelpClassifier(epochs=2, random_state=0)], expected_failed_checks=lambda _: EXEMPT, xfail_strict=True
)
def test_scikit_learn_agrees_that_it_is_an_estimator(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.long
def test_the_default_passes_the_checks_as_well() -> None:
    check_estimator(l2h.HelpClassifier(random_state=0), expected_failed_checks=EXEMPT, on_skip=None)


# Searches, pipelines, data frames.


def test_a_search_keeps_the_client_and_finds_the_better_server(old: FrozenEstimator, data: tuple[Any, Any]) -> None:
    X, y = data
    model = l2h.HelpClassifier(old, LogisticRegression(), settings=QUICK, random_state=0)
    assert clone(model).client is old
    scaled = make_pipeline(StandardScaler(), l2h.HelpClassifier(settings=QUICK, random_state=0))
    assert cross_val_score(scaled, X, y, cv=2).min() > 0.5
    grid = {"c_e": [0.01, 2.0], "server__C": [1.0]}
    by_accuracy = GridSearchCV(model, grid, cv=2).fit(X, y)
    assert by_accuracy.best_params_ == {"c_e": 0.01, "server__C": 1.0}  # at 2 nobody is asked
    client = by_accuracy.best_estimator_.system_.fitted.client
    assert client.estimator is old.estimator
    assert by_accuracy.best_score_ > old.score(X, y)


def test_a_data_frame_may_have_texts_and_missing_values(tmp_path: Path) -> None:
    frame, left = customers(300)
    model = l2h.HelpClassifier(settings=QUICK, random_state=0).fit(frame[:200], left[:200])
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.n_features_in_ == frame.shape[1]
    assert model.score(frame[200:], left[200:]) > 0.5
    assert (l2h.load(model.system_.save(tmp_path)).predict(frame[200:]).label == model.predict(frame[200:])).all()


def test_an_array_has_the_names_of_the_frame_it_follows(data: tuple[Any, Any]) -> None:
    X, y = data
    frame = pandas.DataFrame(X, columns=[f"f{k}" for k in range(X.shape[1])])
    model = l2h.HelpClassifier(settings=QUICK, random_state=0).fit(frame, pandas.Series(y))
    with pytest.warns(UserWarning, match="valid feature names"):
        assert (model.predict_proba(X) == model.predict_proba(frame)).all()


# What it answers.


def test_probabilities_are_those_of_whoever_answers(fitted: l2h.HelpClassifier, data: tuple[Any, Any]) -> None:
    X = data[0][300:]
    system = fitted.system_
    remote = system.predict(X, l2h.Costs(c_e=0.1)).source == "remote"
    assert 0 < remote.mean() < 1
    assert system.fitted is not None
    server = system.fitted.servers[0].classifier.estimator  # type: ignore[union-attr]
    expected = np.where(remote[:, None], server.predict_proba(X), fitted.client.predict_proba(X))
    np.testing.assert_allclose(fitted.predict_proba(X), expected, atol=1e-5)
    assert (fitted.classes_ == NAMES).all()
    assert (fitted.classes_[fitted.predict_proba(X).argmax(axis=1)] == fitted.predict(X)).all()


def test_the_student_has_probabilities_too(old: FrozenEstimator, data: tuple[Any, Any]) -> None:
    X, y = data
    model = l2h.HelpClassifier(old, c_e=0.4, second_opinion=True, epochs=5, random_state=0).fit(X[:300], y[:300])
    assert "student" in model.system_.predict(X[300:], l2h.Costs(c_e=0.4)).by
    probability = model.predict_proba(X[300:])
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert (model.classes_[probability.argmax(axis=1)] == model.predict(X[300:])).all()


@pytest.mark.parametrize("limit", ["50%", "50%@80%"])
def test_for_a_guarantee_some_samples_are_kept_from_all_training(
    limit: str, old: FrozenEstimator, data: tuple[Any, Any]
) -> None:
    X, y = data
    made = l2h.HelpClassifier(old, LogisticRegression(), limit=limit, settings=QUICK, random_state=0)
    calibration = made.fit(X[100:300], y[100:300]).system_.require_fitted().calibration
    assert calibration is not None
    assert calibration.fresh == ("@" in limit)
    assert not calibration.fresh or len(calibration.held_out.client_correct) == pytest.approx(20, abs=3)
    made.predict(X[300:])  # without a warning


def test_a_limit_bounds_what_is_asked(fitted: l2h.HelpClassifier, data: tuple[Any, Any]) -> None:
    X, y = data
    free = fitted.evaluate(X[300:], y[300:]).reject_rate
    fitted.set_params(limit="10%")
    try:
        assert fitted.evaluate(X[300:], y[300:]).reject_rate < min(free, 0.25)  # 10% of 200 calibration samples
    finally:
        fitted.set_params(limit=None)


@pytest.mark.parametrize("labels", [[3, 7, 9], [0, 1, 2], [0.0, 2.0, 5.0], ["a", "b", "c"]])
def test_labels_come_back_as_they_went_in(labels: list[Any], old: FrozenEstimator, data: tuple[Any, Any]) -> None:
    X, y = data[0][:150], np.array(labels)[np.searchsorted(NAMES, data[1][:150])]
    model = l2h.HelpClassifier(settings=QUICK, random_state=0).fit(X, y)
    said = model.predict(X)
    assert said.dtype == y.dtype
    assert set(said) <= set(labels) == set(model.classes_)


# Weights.


def test_a_row_is_used_as_often_as_its_weight_says(old: FrozenEstimator, data: tuple[Any, Any]) -> None:
    X, y = data
    asked: set[bytes] = set()

    def server(rows: Any) -> Any:
        asked.update(row.tobytes() for row in rows)
        return rows[:, :3]

    weight = np.where(np.arange(len(y)) % 2, 1.0, 0.25)
    before = weight.copy()
    l2h.HelpClassifier(old, server, settings=QUICK, random_state=0).fit(X, y, sample_weight=weight)
    assert (weight == before).all()
    used = np.array([row.tobytes() in asked for row in X])
    assert used[1::2].all()
    assert abs(used[::2].mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 200)


def test_a_weight_of_zero_leaves_the_row_out(data: tuple[Any, Any]) -> None:
    X, y = data
    model = l2h.HelpClassifier(settings=QUICK, random_state=0)
    weighted = clone(model).fit(X, y, sample_weight=np.arange(len(y)) < 200)
    assert (weighted.predict_proba(X) == model.fit(X[:200], y[:200]).predict_proba(X)).all()


# What is refused.


def test_what_does_not_fit_is_one_clear_line(old: FrozenEstimator, data: tuple[Any, Any]) -> None:
    X, y = data
    fresh = clone(l2h.HelpClassifier(old.estimator, settings=QUICK))  # not frozen, so that the clone is not fitted
    with pytest.raises(ClientError, match=r"^the client is not fitted: give client=FrozenEstimator\(fitted\).*$"):
        fresh.fit(X, y)
    model = l2h.HelpClassifier(old, settings=QUICK)
    with pytest.raises(ValueError, match="Invalid parameter 'price' for estimator HelpClassifier"):
        GridSearchCV(model, {"price": [1]}, error_score="raise").fit(X, y)
    with pytest.raises(CostError, match="c_e=-1"):
        clone(model).set_params(c_e=-1).fit(X, y)
    with pytest.raises(SettingsError, match="epochs=0"):
        clone(model).set_params(epochs=0).fit(X, y)
    with pytest.raises(DataError, match=r"sample_weight is -1 in row 2: a weight is 0 or more"):
        model.fit(X, y, sample_weight=[1, 1, -1, *[1] * (len(y) - 3)])
    with pytest.raises(DataError, match="y has one class, 'cat'"):
        model.fit(X[y == "cat"], y[y == "cat"])
    with pytest.raises(DataError, match="2 samples are too few for 2 parts"):  # the stand-in has the third
        l2h.HelpClassifier(random_state=0).fit(X[:3], ["cat", "cat", "dog"])


def test_without_scikit_learn_it_says_what_to_install() -> None:
    done = python("import l2h\nl2h.HelpClassifier", blocked=("sklearn",))
    assert "l2h.HelpClassifier needs the package 'sklearn': pip install" in done.stderr


# Answers as an array.


def test_answers_are_the_array_of_their_labels(fitted: l2h.HelpClassifier, data: tuple[Any, Any]) -> None:
    X, y = data[0][300:], data[1][300:]
    answers = fitted.system_.predict(X)
    assert accuracy_score(y, answers) == np.mean(answers.label == y) == fitted.score(X, y)
    assert confusion_matrix(y, answers).trace() == np.sum(answers.label == y)
    assert np.asarray(answers) is answers.label
    assert np.array(answers) is not answers.label
    assert np.asarray(answers, dtype=object).dtype == object
    assert (pandas.Series(answers.label) == pandas.Series(np.asarray(answers))).all()
    assert isinstance(answers[0], l2h.Answer)
    assert [answer.label for answer in answers] == np.asarray(answers).tolist()


def test_the_example_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    fenced = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [code for code in fenced if "HelpClassifier(" in code]
    exec(compile(example, str(GUIDE), "exec"), {})
    assert capsys.readouterr().out.startswith("{'second_opinion': ")
