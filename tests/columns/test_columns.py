"""A table becomes the same numbers whatever it comes in, and what cannot be used is refused by column and row."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from l2h.columns import TEXT, Columns, encode_inputs
from l2h.errors import DataError, L2HWarning
from l2h.table import Table, as_table

ROWS: dict[str, list[Any]] = {
    "age": [31.5, None, 58.0, 20.25],
    "visits": [3, 0, 12, 1],
    "member": [True, False, True, True],
    "job": ["nurse", "pilot", None, "nurse"],
    "size": ["s", "l", "m", "s"],
}
SIZES = ["s", "m", "l", "xl"]


def as_pandas() -> Any:
    frame = pandas.DataFrame(ROWS)
    return frame.assign(size=pandas.Categorical(frame["size"], categories=SIZES))


def as_polars() -> Any:
    return polars.DataFrame(ROWS, schema_overrides={"size": polars.Enum(SIZES)})


FORMS = {
    "pandas": as_pandas,
    "pandas, nullable types": lambda: as_pandas().convert_dtypes(),
    "polars": as_polars,
    "polars, lazy": lambda: as_polars().lazy(),
    "mapping": lambda: ROWS,
    "rows": lambda: [dict(zip(ROWS, values, strict=True)) for values in zip(*ROWS.values(), strict=True)],
    "pyarrow": lambda: pyarrow.table(ROWS),
}


@pytest.fixture(scope="module")
def columns() -> Columns:
    return Columns.fit(as_table(as_pandas()))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_becomes_the_same_numbers(form: str, columns: Columns) -> None:
    expected = columns.encode(as_pandas())
    encoded = columns.encode(FORMS[form]())
    assert encoded.x.dtype == np.float32
    np.testing.assert_array_equal(encoded.x, expected.x)
    for name, values in expected.table.columns.items():
        assert [str(v) for v in encoded.table.columns[name].tolist()] == [str(v) for v in values.tolist()]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_can_be_fitted(form: str) -> None:
    encoded = encode_inputs(FORMS[form]())
    assert [column.kind for column in encoded.columns] == ["number"] * 3 + ["category"] * 2
    assert encoded.columns.encode(FORMS[form]()).x.tolist() == encoded.x.tolist()


def test_the_numbers_are_those_that_their_names_say(columns: Columns) -> None:
    x = columns.encode(as_pandas()).x
    table = dict(zip(columns.features, x.T.tolist(), strict=True))
    mean = (31.5 + 58.0 + 20.25) / 3
    assert table == {
        "age": [31.5, pytest.approx(mean), 58.0, 20.25],
        "age is missing": [0, 1, 0, 0],
        "visits": [3, 0, 12, 1],
        "member": [1, 0, 1, 1],
        "job=nurse": [1, 0, 0, 1],
        "job=pilot": [0, 1, 0, 0],
        "job is missing": [0, 0, 1, 0],
        "size=s": [1, 0, 0, 1],
        "size=m": [0, 0, 1, 0],
        "size=l": [0, 1, 0, 0],
        "size=xl": [0, 0, 0, 0],
    }
    assert columns.unscaled.tolist() == [name not in ("age", "visits", "member") for name in columns.features]


def test_columns_are_put_in_order_by_name_and_others_are_ignored_with_a_word(columns: Columns) -> None:
    frame = as_pandas()
    # Whatever it holds: dates would be refused in a column that is needed.
    with pytest.warns(L2HWarning, match="'day' was not in the training") as caught:
        shuffled = columns.encode(frame[frame.columns[::-1]].assign(day=pandas.Timestamp("2024-01-31")))
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(shuffled.x, columns.encode(frame).x)
    assert shuffled.table.names == tuple(ROWS)
    with pytest.raises(DataError, match="no column 'age', which the training had; it has day"):
        columns.encode({"day": 3})


def test_columns_survive_json_and_texts_are_as_good_as_numbers(columns: Columns) -> None:
    again = Columns.from_list(columns.as_list())
    assert again == columns
    as_texts = {name: [None if v is None else str(v) for v in values] for name, values in ROWS.items()}
    np.testing.assert_array_equal(again.encode(as_texts).x, columns.encode(ROWS).x)


def test_one_row_is_a_mapping_of_values(columns: Columns) -> None:
    row = {"size": "m", "job": None, "member": False, "visits": 2, "age": 40}
    encoded = columns.encode(row)
    assert encoded.shape == (1, len(columns.features))
    assert dict(zip(columns.features, encoded.x[0].tolist(), strict=True))["age"] == 40


def test_a_row_of_a_pandas_frame_is_a_table_and_a_column_of_it_is_told_in_one_line(columns: Columns) -> None:
    frame = as_pandas()
    np.testing.assert_array_equal(columns.encode(frame.iloc[1]).x, columns.encode(frame[1:2]).x)
    for other in (frame["age"], torch.zeros(2, 2)):
        with pytest.raises(DataError, match="has no named columns: give a data frame") as caught:
            columns.encode(other)
        assert "\n" not in str(caught.value)


def test_rows_of_a_table_stay_beside_their_numbers(columns: Columns) -> None:
    encoded = columns.encode(as_pandas())
    for rows in (slice(1, 3), np.array([3, 0]), np.array([True, False, False, True])):
        part = encoded[rows]
        np.testing.assert_array_equal(columns.encode(part.table).x, encoded.x[rows])
        np.testing.assert_array_equal(np.asarray(part), encoded.x[rows])


def test_a_frame_comes_back_as_it_went_in(columns: Columns) -> None:
    pandas.testing.assert_frame_equal(columns.encode(as_polars()).table.to_frame(), as_pandas(), check_dtype=False)
    assert columns.encode(ROWS).table.to_frame()["size"].dtype == as_pandas()["size"].dtype


def test_texts_are_hashed_alike_however_they_are_batched() -> None:
    texts = [f"parcel number {i} was late, said customer {i % 7}" for i in range(60)]
    encoded = encode_inputs({"note": texts, "age": list(range(60))})
    note = encoded.columns.columns[0]
    assert (note.kind, note.width) == ("text", TEXT.columns)
    one_by_one = np.concatenate([encoded.columns.encode({"note": t, "age": i}).x for i, t in enumerate(texts)])
    np.testing.assert_array_equal(one_by_one, encoded.x)
    assert len(np.unique(encoded.x, axis=0)) == 60
    assert encoded.columns.encode({"note": "words that nobody wrote before", "age": 1}).x[0, :-1].any()


BAD_ROWS = {
    "new category": ({"job": ["nurse", "clown"]}, "row 1: column 'job' is 'clown', a category"),
    "text for a number": ({"visits": ["3", "many"]}, "row 1: column 'visits' is 'many', but a number"),
    "missing where none was": ({"visits": [3, None]}, "row 1: column 'visits' has no value"),
    "infinite": ({"visits": [3, float("inf")]}, "row 1: column 'visits' is infinite"),
    "beyond float32": ({"visits": [3, 1e300]}, "row 1: column 'visits' is infinite"),
    "beyond 64 bits": ({"visits": [3, 10**400]}, "row 1: column 'visits' is"),
    "mixed": ({"visits": [3, "4"]}, "row 1: column 'visits' is '4', but other rows hold numbers"),
    "no value at all": ({"visits": [3, [4]]}, r"row 1: column 'visits' is \[4\]"),
    "lengths": ({"visits": [3]}, "columns of one length"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_value_that_cannot_be_used_is_named_with_its_row_and_column(name: str, columns: Columns) -> None:
    changed, message = BAD_ROWS[name]
    good = {key: [values[0], values[1]] for key, values in ROWS.items()}
    with pytest.raises(DataError, match=message) as caught:
        columns.encode(good | changed)
    assert "\n" not in str(caught.value)


def test_a_missing_column_and_an_array_are_refused_by_name(columns: Columns) -> None:
    frame = as_pandas()
    with pytest.raises(DataError, match="no column 'job', which the training had; it has age, visits"):
        columns.encode(frame.drop(columns="job"))
    with pytest.raises(DataError, match=r"shape \(4, 5\) has no named columns"):
        columns.encode(np.zeros((4, 5)))
    with pytest.raises(DataError, match="two columns 'age'"):
        columns.encode(pandas.concat([frame, frame[["age"]]], axis=1))
    with pytest.raises(DataError, match="no rows"):
        columns.encode(frame[:0])


DATES: dict[str, Any] = {
    "pandas": pandas.DataFrame({"when": pandas.to_datetime(["2024-01-31", "2024-02-01"])}),
    "polars": polars.DataFrame({"when": [datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)]}),
    "texts": {"when": ["2024-01-31 10:00", "2024-02-01"]},
    "objects": {"when": [datetime.datetime(2024, 1, 31), None]},
}


@pytest.mark.parametrize("form", DATES)
def test_dates_are_refused_with_a_hint(form: str) -> None:
    with pytest.raises(DataError, match="column 'when' holds dates: give numbers instead, such as the year"):
        encode_inputs(DATES[form])


def test_a_table_without_columns_or_of_different_lengths_is_refused() -> None:
    with pytest.raises(DataError, match="no columns"):
        as_table(pandas.DataFrame(index=range(3)))
    with pytest.raises(DataError, match="one length"):
        Table({"a": np.zeros(2), "b": np.zeros(3)})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pandas.DataFrame({"e": [np.zeros(3), np.ones(3)]}), "row 0: column 'e' is array"),
        (polars.DataFrame({"e": [[1, 2], [3, 4]]}), "row 0: column 'e' is array"),
        ({"e": [np.zeros(3), np.ones(3)]}, "row 0: column 'e' is array"),
        ({"age": 3, "job": ["a"]}, "column 'age' is 3, and other columns have one value per row"),
        ([{"a": 1}, None], "row 1 is None: give a mapping"),
        (pandas.DataFrame({"a": [1, 2]}).to_dict(), "row 0: column 'a' is {0: 1, 1: 2}"),
        (pandas.DataFrame([[1, 2]], columns=[1, "1"]), "two columns '1'"),
    ],
)
def test_what_is_no_table_of_plain_values_is_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_table(source)


def test_columns_may_be_called_like_attributes_and_a_batch_of_arrow_is_a_table() -> None:
    frame = pandas.DataFrame({"collect": [1, 2], "column_names": ["collect", "table"], "table": ["x", "y"]})
    assert as_table(frame).names == ("collect", "column_names", "table")
    batch = as_table(pyarrow.RecordBatch.from_pydict({"job": ["nurse", None], "age": [3, None]}))
    assert batch.columns["job"].tolist() == ["nurse", None]


def test_declared_numbers_and_booleans_are_found_however_they_are_written() -> None:
    flag, size = pandas.Categorical([True, False]), pandas.Categorical([0.1, 2.0])
    columns = encode_inputs(pandas.DataFrame({"flag": flag, "size": size})).columns
    expected = columns.encode({"flag": [True, False], "size": [0.1, 2.0]}).x
    for flags in (["True", "false"], ["1", "0"], [1, 0]):
        for sizes in (["0.10", "2.0"], np.array([0.1, 2], dtype=np.float32)):
            np.testing.assert_array_equal(columns.encode({"flag": flags, "size": sizes}).x, expected)
    with pytest.raises(DataError, match="row 1: column 'flag' is 'maybe', a category"):
        columns.encode({"flag": ["True", "maybe"], "size": [0.1, 2.0]})


@pytest.mark.parametrize("categories", [("plus", "plus"), (1, "1"), (True, 1)])
def test_no_category_comes_twice(categories: Any) -> None:
    with pytest.raises(DataError, match=r"column 'plan' has the category .* twice"):
        Columns.from_list([{"name": "plan", "kind": "category", "categories": categories}])


CELLS = {
    "number": st.floats(-(2.0**100), 2.0**100, width=32) | st.none(),
    "integer": st.integers(-(2**24), 2**24),
    "flag": st.booleans(),
    "word": st.sampled_from(["a", "b", "nan", "1", "É"]) | st.none(),
    "code": st.sampled_from([3, 7, 11]) | st.none(),
    "truth": st.booleans(),
}


@examples(60)
@given(st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=12))
def test_decoding_is_the_inverse_of_encoding(rows: list[dict[str, Any]]) -> None:
    frame = pandas.DataFrame({name: pandas.Series([row[name] for row in rows], dtype=object) for name in CELLS})
    frame["code"] = pandas.Categorical(frame["code"], categories=[3, 7, 11, 13])
    frame["truth"] = pandas.Categorical(frame["truth"], categories=[True, False])
    encoded = encode_inputs(frame)
    decoded = encoded.columns.decode(encoded.x)
    assert (decoded.names, decoded.declared) == (encoded.table.names, encoded.table.declared)
    for name, values in encoded.table.columns.items():
        found = decoded.columns[name]
        if values.dtype == object:
            assert [(type(v), v) for v in found] == [(type(v), v) for v in values]
        else:
            np.testing.assert_array_equal(found, values.astype(np.float64))
    np.testing.assert_array_equal(encoded.columns.encode(decoded).x, encoded.x)


def test_decoding_leaves_out_texts_and_refuses_what_no_row_becomes(columns: Columns) -> None:
    encoded = encode_inputs({"note": [f"parcel {i}" for i in range(60)], "age": list(range(60))})
    assert encoded.columns.decode(encoded.x).names == ("age",)
    with pytest.raises(DataError, match="all columns are texts"):
        (only := encode_inputs({"note": [f"parcel {i}" for i in range(60)]})).columns.decode(only.x)
    good = columns.encode(as_pandas()).x
    for feature, value, name in (("age is missing", 0.5, "age"), ("job=nurse", 1.0, "job"), ("size=l", 0.0, "size")):
        x = good.copy()
        x[1, columns.features.index(feature)] = value
        with pytest.raises(DataError, match=f"row 1: the numbers of column '{name}' are .*, which no value becomes"):
            columns.decode(x)
