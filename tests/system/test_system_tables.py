"""A table with names goes through every verb, and what does not fit is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import polars
import pytest
from customers import QUICK, customers, old_pipeline
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import l2h
from l2h.errors import ClientError, DataError


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
