"""What cannot be used is refused with the value and the way out, before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from clouds import CLASSES, FEATURES, X_TEST, Y_TEST, X, Y, labels, make, scores, settings
from torch import nn

from l2h import Costs, HelpSystem, Settings, StageSettings
from l2h.errors import ClientError, CostError, DataError, L2HError, ModelError, SettingsError


def with_value(array: np.ndarray, row: int, value: Any) -> np.ndarray:
    changed = array.astype(np.float64 if isinstance(value, float) else array.dtype)
    changed[row] = value
    return changed


BAD_SAMPLES = {
    "NaN input": (with_value(X, 5, float("nan")), Y, "4 values of X are NaN or infinite.*row 5"),
    "infinite input": (with_value(X, 3, float("-inf")), Y, "row 3"),
    "beyond float32": (with_value(X, 2, 1e300), Y, "row 2"),
    "float labels": (X, Y + 0.5, "row 0 has the label .*which is no whole number"),
    "NaN labels": (X, with_value(Y, 0, float("nan")), r"row 0 has no label \(NaN\)"),
    "labels of several kinds": (X, ["a", *Y[1:].tolist()], "the label . in row 1 is int"),
    "as many labels as rows": (X, [f"row {i}" for i in range(len(X))], "240 different values in 240 rows"),
    "empty": (X[:0], Y[:0], "empty"),
    "one class": (X, np.zeros_like(Y), "at least two classes"),
    "fewer labels": (X, Y[:-1], "240 rows and y has 239"),
    "two columns of labels": (X, np.stack([Y, Y], axis=1), "y.ravel"),
    "one axis": (X[:, 0], Y, "reshape"),
    "text": (np.array([["a", "b"]] * len(Y)), Y, "plain numbers"),
    "ragged": ([[1.0, 2.0], [3.0]], [0, 1], "not an array of numbers"),
    "no labels": (X, None, "labels are needed"),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_fit_refuses_bad_samples(case: str) -> None:
    X_bad, y_bad, told = BAD_SAMPLES[case]
    system = make()
    with pytest.raises(DataError, match=told):
        system.fit(X_bad, y_bad)
    assert system.fitted is None


def test_labels_beyond_the_named_classes_are_refused() -> None:
    system = make(given={"class_names": ["a", "b"]})
    with pytest.raises(DataError, match=r"label 2 in row \d+ is not in 0..1"):
        system.fit(X, Y)


@pytest.fixture(scope="module")
def fitted() -> HelpSystem:
    return make().fit(X, Y)


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (with_value(X_TEST, 5, float("nan")), "NaN or infinite.*row 5"),
        (X_TEST[:0], "empty"),
        (X_TEST[:, :3], r"inputs have shape \(3,\), the system was fitted to \(4,\)"),
        (X_TEST[0], "reshape"),
        (X_TEST.reshape(-1, 2, 2), r"inputs have shape \(2, 2\)"),
        (np.zeros((2, 1, 2, 2), dtype=np.uint8), "shape"),
    ],
    ids=["NaN", "empty", "columns", "one sample", "axes", "images"],
)
def test_every_verb_refuses_bad_inputs(fitted: HelpSystem, inputs: np.ndarray, told: str) -> None:
    for verb in (fitted.predict, fitted.judge):
        with pytest.raises(DataError, match=told):
            verb(inputs)
    for verb in (fitted.evaluate, fitted.calibrate):
        with pytest.raises(DataError, match=told):
            verb(inputs, np.zeros(len(inputs), dtype=int))


@pytest.mark.parametrize(
    ("y", "told"),
    [
        (with_value(Y_TEST, 3, CLASSES), "label 3 in row 3 is not in 0..2"),
        (with_value(Y_TEST, 3, -2), "label -2 in row 3"),
        (Y_TEST[:-1], "one label for each row"),
        (Y_TEST + 0.5, "no whole number"),
    ],
    ids=["beyond", "negative", "fewer", "float"],
)
def test_evaluate_and_calibrate_refuse_bad_labels(fitted: HelpSystem, y: np.ndarray, told: str) -> None:
    for verb in (fitted.evaluate, fitted.calibrate):
        with pytest.raises(DataError, match=told):
            verb(X_TEST, y)


def test_a_test_part_of_one_class_or_one_sample_is_fine(fitted: HelpSystem) -> None:
    one = Y_TEST == 1
    report = fitted.evaluate(X_TEST[one], Y_TEST[one])
    assert report.accuracy["client"] == pytest.approx(np.mean(labels(X_TEST[one]) == 1))
    assert len(fitted.predict(X_TEST[:1])) == 1
    assert fitted.evaluate(X_TEST[:1], Y_TEST[:1]).accuracy["client"] in (0.0, 1.0)


def test_pixels_and_floats_are_not_mixed_up() -> None:
    """A system fitted to uint8 images refuses floats, whose scale is another, and the other way round."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    y = np.arange(60) % 2

    def client(inputs: np.ndarray) -> np.ndarray:
        return (inputs.reshape(len(inputs), -1)[:, 0] > 127).astype(int)

    for first, second, told in ((images, images / 255, "float32.*uint8"), (images / 255, images, "uint8.*float32")):
        system = make(client, "mlp", honest="none").fit(first, y)
        with pytest.raises(DataError, match=told):
            system.predict(second)


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (lambda x: np.zeros((len(x), CLASSES + 1)), "gives 4 scores per sample, the labels have 3 classes"),
        (lambda x: np.zeros((len(x), CLASSES - 1)), "gives 2 scores per sample"),
        (lambda x: np.full(len(x), 7), "answered class 7, the labels have 3 classes"),
        (lambda x: np.full(len(x), -1), "answered class -1"),
        (lambda x: scores(x)[:-1], "for 64 inputs"),
        (lambda x: scores(x) * np.nan, "output for sample 0 is not finite"),
        (lambda x: np.zeros((len(x), CLASSES, 2)), "expected scores"),
        (lambda x: np.array(["cat"] * len(x)), "expected scores"),
        (lambda x: labels(x).astype(float), "expected scores.*or integer labels"),
        (nn.Linear(FEATURES + 2, CLASSES), "failed on inputs of shape"),
    ],
    ids=["more", "fewer", "label", "negative label", "rows", "NaN", "axes", "text", "float labels", "shape"],
)
def test_a_client_whose_answers_do_not_fit_is_refused(client: Any, told: str) -> None:
    with pytest.raises(ClientError, match=told):
        make(client).fit(X, Y)


def test_an_estimator_of_more_classes_than_the_labels_is_refused() -> None:
    from sklearn.tree import DecisionTreeClassifier

    estimator = DecisionTreeClassifier(max_depth=2).fit(X, np.arange(len(X)) % 5)
    with pytest.raises(ClientError, match=r"knows class 3, which is not in 0\.\.2: give class_names="):
        make(estimator).fit(X, Y)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "much", None])
def test_costs_that_are_no_costs_are_refused(fitted: HelpSystem, value: Any) -> None:
    for make_costs in (lambda: Costs(c_e=value), lambda: Costs(c_e=0.1, c_1=value)):
        with pytest.raises(CostError):
            fitted.predict(X_TEST, make_costs())


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ModelError, match="unknown model 'resnet'; known: lenet5, alexnet, vit, mlp"):
        make(scores, "resnet")
    with pytest.raises(ModelError, match="unknown rejector 'sideways'; known: attached, separate"):
        make(scores, "mlp", "sideways")
    with pytest.raises(ModelError, match="unknown rejector 42"):
        make(scores, "mlp", 42)
    with pytest.raises(ModelError, match="mlp has no option depth; known: hidden, dropout"):
        make(scores, "mlp", given={"server_options": {"depth": 3}}).fit(X, Y)
    with pytest.raises(ClientError, match="int cannot be a client"):
        make(scores, 42)
    with pytest.raises(ClientError, match="no ONNX file"):
        make(scores, "server.onnx")


@pytest.mark.parametrize("n", [2, 3, 4, 6, 9])
@pytest.mark.parametrize("server", ["mlp", labels], ids=["trained", "fixed"])
@pytest.mark.parametrize("honest", ["crossfit", "holdout", "none"])
def test_too_few_samples_are_refused_or_enough(n: int, server: Any, honest: str) -> None:
    """Either it fits and answers, or it says that samples are too few; nothing else."""
    X_few, y_few = X[:n], np.arange(n) % 2
    client = lambda x: (x[:, 0] > 0).astype(int)  # noqa: E731
    server = server if server == "mlp" else client
    system = make(client, server, honest=honest)
    try:
        system.fit(X_few, y_few)
    except DataError as error:
        assert "too few" in str(error)  # noqa: PT017 - one of two outcomes is checked, not that it raises
        return
    assert len(system.predict(X_TEST)) == len(X_TEST)


def test_too_few_samples_for_the_folds_name_both_numbers() -> None:
    with pytest.raises(DataError, match=r"6 samples are too few for 5 parts.*give more, fewer folds"):
        make(lambda x: (x[:, 0] > 0).astype(int), "mlp", folds=5).fit(X[:6], np.arange(6) % 2)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"recipe": "best"}, "recipe='best' is unknown; known: default, paper"),
        ({"loss": "hinge"}, "known: priced, shifted, swapped, paper, released"),
        ({"start": 1}, "start=1 goes with recipe 'paper'"),
        ({"recipe": "paper", "loss": "paper", "start": -1}, "start=-1"),
        ({"recipe": "paper", "loss": "paper", "joint": "yes"}, "joint='yes' must be true or false"),
        ({"seed": -1}, "seed=-1"),
        ({"folds": 1}, "folds=1"),
        ({"holdout": 1.0}, r"holdout=1.0 must be a number in \(0, 1\)"),
        ({"distill": float("nan")}, "distill=nan"),
        ({"device": "toaster"}, "device='toaster' cannot be used"),
        ({"recipe": "paper", "loss": "priced"}, "trains a rejector for a price"),
    ],
    ids=lambda v: str(v)[:24],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        HelpSystem(scores, "mlp", settings=Settings(**values))


def test_a_stage_out_of_range_is_refused() -> None:
    for values in ({"epochs": 0}, {"batch": 0}, {"lr": 0.0}, {"lr": float("inf")}, {"momentum": 1.5}, {"patience": 0}):
        with pytest.raises(SettingsError, match=next(iter(values))):
            StageSettings(**values)


def test_a_fixed_server_has_no_place_in_the_paper_recipe() -> None:
    with pytest.raises(L2HError, match="recipe 'paper' trains a network as the server"):
        HelpSystem(scores, labels, settings=settings(recipe="paper", loss="shifted")).fit(X, Y, costs=Costs(c_e=0.1))
