"""What samples and labels are accepted, and what is said of those that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from l2h.data.dataset import check_arrays, check_inputs
from l2h.errors import DataError
from l2h.labels import LabelCodec

GOOD = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, np.int64, np.int8, np.uint16, np.bool_, np.uint8]
)
def test_every_number_type_of_a_table_becomes_float32_of_the_same_values(dtype: Any) -> None:
    X = GOOD.astype(dtype)
    checked = check_inputs(X)
    assert checked.dtype == np.float32
    np.testing.assert_array_equal(checked, X.astype(np.float64))


def test_images_stay_uint8_without_a_copy(images: Any) -> None:
    checked = check_inputs(images)
    assert checked.dtype == np.uint8
    assert np.shares_memory(checked, images)


@pytest.mark.parametrize("labels", [[0, 1, 1], np.array([0, 1, 1], np.uint8), np.array([False, True, True])])
def test_integer_and_boolean_labels_become_int64(labels: Any) -> None:
    _, y = check_arrays(GOOD, labels, LabelCodec.numbered(2))
    assert y.dtype == np.int64
    assert y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([1.0, 2.0], r"shape \(2,\).*X\.reshape"),
        (5.0, r"shape \(\)"),
        (np.empty((0, 3)), r"empty, of shape \(0, 3\)"),
        (np.empty((3, 0)), r"empty, of shape \(3, 0\)"),
        (np.array([["a", "b"]]), r"dtype <U1.*plain numbers"),
        (np.array([[1, None]], dtype=object), r"dtype object.*plain numbers"),
        (np.array([[1j]]), r"dtype complex128"),
        ([[1.0, 2.0], [3.0]], r"X is not an array of numbers"),
        ([[0.0, 1.0], [np.nan, 1.0], [np.inf, np.nan]], r"3 values of X are NaN or infinite.*first in row 1"),
        ([[0.0], [1e300]], r"1 value of X is NaN or infinite as float32, the first in row 1"),
    ],
)
def test_inputs_that_cannot_be_used_are_refused(X: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_inputs(X)
    with pytest.raises(DataError, match=message):
        check_arrays(X, [0, 1, 0])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1], r"X has 3 rows and y has 2"),
        ([], r"y is empty"),
        (None, r"y is None.*labels are needed"),
        ([0.0, 1.5, 1.0], r"row 1 has the label 1\.5, which is no whole number"),
        ([0.0, 1.0, np.nan], r"row 2 has no label \(NaN\)"),
        (["a", "b", "a"], r"label 'a' in row 0 is not in 0\.\.2"),
        (["a", None, "b"], r"row 1 has no label \(None\)"),
        (["a", "b", 3], r"the label 3 in row 2 is int: use one kind, as in row 0 'a'"),
        (np.array([b"a", b"b", b"a"]), r"dtype \|S1, but labels are text, integers or booleans"),
        ([[0], [1], [1]], r"shape \(3, 1\).*y\.ravel\(\)"),
        ([0, 1, -1], r"label -1 in row 2"),
        ([0, 5, 9], r"label 5 in row 1 is not in 0\.\.2"),
        ([2, 2, 2], r"every label is 2: at least two classes are needed"),
        (np.array([0, 1, 2**63], np.uint64), r"9223372036854775808"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_arrays(GOOD, y, LabelCodec.numbered(3))


def test_a_number_to_predict_is_not_taken_for_a_class() -> None:
    with pytest.raises(DataError, match="3 different values in 3 rows, such as 120"):
        check_arrays(GOOD, [310, 120, 205])


def test_one_class_is_accepted_where_the_caller_says_so() -> None:
    _, y = check_arrays(GOOD, [2, 2, 2], LabelCodec.numbered(3), allow_one_class=True)
    assert y.tolist() == [2, 2, 2]


def test_messages_name_the_data() -> None:
    with pytest.raises(DataError, match=r"^the calibration set: "):
        check_inputs([1.0], what="the calibration set")
