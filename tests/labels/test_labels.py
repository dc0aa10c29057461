"""Labels of any kind: what is a class, in which order, and that every label comes back as it went in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2h.errors import ClientError, DataError
from l2h.labels import LabelCodec

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)  # as numpy holds it
KINDS = st.one_of(
    st.lists(TEXT, min_size=2, max_size=6, unique=True),
    st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=6, unique=True),
    st.just([False, True]),
)


@given(KINDS, st.randoms(use_true_random=False))
def test_every_label_comes_back_with_its_value_and_its_type(values: list[Any], random: Any) -> None:
    y = values * 3
    random.shuffle(y)
    codec = LabelCodec.find(y)
    numbers = codec.encode(y)
    assert numbers.min() >= 0
    assert numbers.max() < len(codec)
    back = codec.decode(numbers).tolist()
    assert back == y
    assert {type(value) for value in back} == {type(value) for value in y}
    assert LabelCodec(codec.names, codec.values).decode(numbers).tolist() == y, "what a file holds is enough"


@pytest.mark.parametrize(
    "y",
    [
        np.array(["b", "a", "b", "a"]),
        np.array(["b", "a", "b", "a"], dtype=object),
        pd.Series(["b", "a", "b", "a"], index=[7, 3, 5, 1]),
        pd.Series(["b", "a", "b", "a"], dtype="string"),
        pd.Series(pd.Categorical(["b", "a", "b", "a"], categories=["b", "a", "never"])),
        ("b", "a", "b", "a"),
    ],
)
def test_labels_may_come_in_any_container(y: Any) -> None:
    codec = LabelCodec.find(y)
    assert codec.values == ("a", "b")
    assert codec.encode(y).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([0, 2, 1, 2], None),  # as they are
        ([0, 3, 1, 3], None),  # class 2 has no sample here
        ([0.0, 1.0, 0.0, 1.0], None),  # whole floats are integers
        ([1, 2, 1, 2], (1, 2)),
        ([-1, 1, -1, 1], (-1, 1)),
        ([0, 255, 0, 255], (0, 255)),
        (pd.Series([7, 9, 7, 9], dtype="Int64"), (7, 9)),
    ],
)
def test_integers_that_count_from_0_are_class_numbers_and_no_others(y: Any, classes: Any) -> None:
    codec = LabelCodec.find(y)
    assert codec.values == classes
    assert codec.decode(codec.encode(y)).tolist() == [int(value) for value in y]


def test_names_decide_the_order_and_the_classes_without_a_sample() -> None:
    codec = LabelCodec.find(["cat", "dog"], ["dog", "owl", "cat"])
    assert codec.encode(["cat", "dog"]).tolist() == [2, 0]
    assert LabelCodec.find([0, 1, 0], ["no", "yes"]).values is None, "integers with names are class numbers"
    named = LabelCodec.find([1, 2], {2: "two", 1: "one"})
    assert (named.names, named.encode([1, 2]).tolist(), named.name(1)) == (("two", "one"), [1, 0], "one")
    yes = LabelCodec.find([True, False], ["no", "yes"])
    assert (yes.decode(np.array([1])).tolist(), yes.name(True)) == ([True], "yes")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["cat", "owl"], "label 'owl' in row 1 is none of the 2 classes 'cat', 'dog'"),
        ([0, 1], "label 0 in row 0 is none of the 2 classes"),
        (pd.Series(["cat", pd.NA]), "row 1 has no label"),
    ],
)
def test_a_label_that_the_training_did_not_have_is_named_with_its_row(y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        LabelCodec.find(["cat", "dog"]).encode(y)


def test_what_a_classifier_answers_is_matched_by_value_and_a_stranger_is_named() -> None:
    text, integers = LabelCodec.find(["a", "b", "a", "b"]), LabelCodec.find([3, 5, 3, 5])
    assert text.numbers(np.array(["b", "a"], dtype=object), "client").tolist() == [1, 0]
    assert text.numbers(np.array([1, 0]), "client").tolist() == [1, 0], "numbers where labels are text: columns"
    assert integers.numbers(np.array([5, 3]), "client").tolist() == [1, 0]
    assert integers.places(np.array([5.0, 3.0]), "estimator").tolist() == [1, 0]
    with pytest.raises(ClientError, match="the client answered 1, which is none of the 2 classes 3, 5"):
        integers.numbers(np.array([3, 1]), "client")
    with pytest.raises(ClientError, match="the estimator knows class 'c', which is none of"):
        text.places(np.array(["a", "c"]), "estimator")


@pytest.mark.parametrize("values", [(10**30, 1), (1.5, 2.5), ([1], 2), (None, "a")])
def test_what_is_no_label_is_refused(values: Any) -> None:
    with pytest.raises(DataError, match=r"is no label: give text, integers of 64 bits or booleans"):
        LabelCodec(("a", "b"), values)


@pytest.mark.parametrize("names", [["a", "a"], {0: "a", 1: "a"}])
def test_no_two_classes_have_one_name(names: Any) -> None:
    with pytest.raises(DataError, match="class_names names 'a' twice"):
        LabelCodec.find([0, 1], names)
