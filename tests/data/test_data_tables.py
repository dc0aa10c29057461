"""Tables from files: ``.csv`` and Parquet give what the same data frame gives, and bad files name row and column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import polars
import pytest

import l2h
from l2h.columns import EncodedTable, encode_inputs
from l2h.data.load import read_inputs
from l2h.errors import DataError, L2HWarning

ROWS = 60


@pytest.fixture(scope="module")
def frame() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    return pandas.DataFrame(
        {
            "age": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(40, 10, ROWS).round(2)),
            "visits": rng.integers(0, 9, ROWS),
            "member": rng.random(ROWS) < 0.5,
            "job": rng.choice(["nurse", "pilot, retired", "café"], ROWS),
            "note": [f"call {i}: the customer wrote twice" for i in range(ROWS)],
            "left": rng.integers(0, 2, ROWS),
        }
    )


def encoded(data: l2h.Dataset) -> EncodedTable:
    assert isinstance(data.X_train, EncodedTable)
    return data.X_train


def test_csv_and_parquet_give_what_the_data_frame_gives(frame: pandas.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "calls.csv", index=False)
    frame.to_parquet(tmp_path / "calls.parquet")
    polars.from_pandas(frame).write_csv(tmp_path / "polars.csv")
    frame.to_csv(tmp_path / "semicolons.csv", index=False, sep=";")
    frame.to_csv(tmp_path / "tabs.csv", index=False, sep="\t")
    columns = encode_inputs(frame.drop(columns="left")).columns
    for name in ("calls.csv", "calls.parquet", "polars.csv", "semicolons.csv", "tabs.csv"):
        data = l2h.load_dataset(tmp_path / name, target="left", seed=3)
        assert encoded(data).columns == columns
        assert [column.kind for column in columns] == ["number"] * 3 + ["category", "text"]
        both = np.concatenate([np.asarray(data.X_train), np.asarray(data.X_test)])
        expected = columns.encode(frame.drop(columns="left")).x
        assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, expected.tolist()))
        # A row keeps its label and its own columns.
        note, label = encoded(data).table.columns["note"].tolist(), data.y_train.tolist()
        assert (
            dict(zip(note, label, strict=True)).items() <= dict(zip(frame["note"], frame["left"], strict=True)).items()
        )


def test_a_test_file_and_rows_to_ask_about_are_read_by_the_columns_of_the_training(
    frame: pandas.DataFrame, tmp_path: Path
) -> None:
    frame[:40].to_csv(tmp_path / "calls-train.csv", index=False)
    mixed = frame[40:].assign(visits=frame["visits"].astype(str) + ".0")
    mixed[mixed.columns[::-1]].to_csv(tmp_path / "calls-test.csv", index=False)
    data = l2h.load_dataset(tmp_path / "calls", target="left")
    columns = encoded(data).columns
    np.testing.assert_array_equal(np.asarray(data.X_test), columns.encode(frame[40:].drop(columns="left")).x)
    rows = read_inputs(str(tmp_path / "calls-test.csv"), data.input_shape)
    with pytest.warns(L2HWarning, match="'left' was not in the training"):
        np.testing.assert_array_equal(columns.encode(rows).x, np.asarray(data.X_test))


def test_the_column_of_labels_is_found_or_asked_for(frame: pandas.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    frame.to_csv(path, index=False)
    with pytest.raises(DataError, match="no column called target or label or class or y: name it with --target"):
        l2h.load_dataset(path)
    with pytest.raises(DataError, match="no column 'gone'; its columns are age, visits"):
        l2h.load_dataset(path, target="gone")
    frame.rename(columns={"left": "label"}).to_csv(path, index=False)
    assert l2h.load_dataset(path).num_classes == 2
    with pytest.raises(DataError, match="is no table"):
        l2h.load_dataset(_npz(tmp_path), target="label")


def _npz(folder: Path) -> Path:
    np.savez(folder / "plain.npz", X=np.eye(8), y=np.arange(8) % 2)
    return folder / "plain.npz"


BAD_FILES = {
    "one class": ("a,label\n1,0\n2,0\n3,0\n", "column 'label' of bad.csv is 0 in every row"),
    "no label": ("a,label\n1,0\n2,\n3,1\n", "row 1 of bad.csv: column 'label' holds no label"),
    "too few values": ("a,label\n1,0\n2\n", "row 1 has 1 values, but there are 2 columns"),
    "dates": ("a,label\n2024-01-01,0\n2024-02-01,1\n", "column 'a' holds dates: give numbers instead"),
    "no rows": ("a,label\n", "has no rows"),
    "empty": ("", "has no rows"),
    "two columns of one name": ("a,a,label\n1,2,0\n3,4,1\n", "two columns 'a'"),
    "only labels": ("label\n0\n1\n", "no column beside 'label'"),
    "not text": ("a,label\n\x00\xff,0\n", "bad.csv"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_in_one_line_that_names_the_place(name: str, tmp_path: Path) -> None:
    text, message = BAD_FILES[name]
    (tmp_path / "bad.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message) as caught:
        l2h.load_dataset(tmp_path / "bad.csv")
    assert "\n" not in str(caught.value)


def test_a_test_file_with_a_new_category_or_text_for_a_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t-train.csv").write_text("a,job,label\n" + "1,x,0\n2,y,1\n" * 4)
    (tmp_path / "t-test.csv").write_text("a,job,label\n1,x,0\n2,z,1\n")
    with pytest.raises(
        DataError, match="row 1: column 'job' is 'z', a category that the training did not have; it had"
    ):
        l2h.load_dataset(tmp_path / "t")
    (tmp_path / "t-test.csv").write_text("a,job,label\n1,x,0\nmany,y,1\n")
    with pytest.raises(DataError, match="row 1: column 'a' is 'many', but a number is expected"):
        l2h.load_dataset(tmp_path / "t")


def test_a_few_texts_in_a_column_of_numbers_are_told(tmp_path: Path) -> None:
    lines = [f"{i % 5},{i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["a,label", *lines[:7], "abc,1", *lines[7:]]))
    with pytest.warns(L2HWarning, match="row 7: column 'a' is 'abc', and most of the column are numbers"):
        l2h.load_dataset(tmp_path / "t.csv")


def test_codes_with_a_zero_in_front_stay_what_they_are(tmp_path: Path) -> None:
    rows = "".join(f"{zip_code},{wide},{label}\n" for zip_code, wide, label in zip(
        ["01234", "1234", "20000"] * 6, ["\uff11", "\uff12", "\uff13"] * 6, ["01", "1", "002"] * 6, strict=True
    ))  # fmt: skip
    (tmp_path / "codes.csv").write_text("zip,wide,target\n" + rows)
    data = l2h.load_dataset(tmp_path / "codes.csv")
    assert data.class_names == ("002", "01", "1")
    assert set(data.y_train.tolist()) == {"002", "01", "1"}
    assert encoded(data).columns.columns[0].categories == ("01234", "1234", "20000")
    assert encoded(data).columns.columns[1].kind == "category"


def test_labels_of_a_test_file_are_read_as_those_of_the_training(tmp_path: Path) -> None:
    def write(name: str, labels: list[str]) -> Path:
        text = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
        (tmp_path / name).write_text("age,target\n" + text)
        return tmp_path / name

    train = write("mix-train.csv", ["1", "2", "x"] * 4)
    some = write("mix-test.csv", ["1", "2", "1"])
    data = l2h.load_dataset(train)
    assert data.y_test.tolist() == ["1", "2", "1"]
    alone = l2h.load_dataset(some, train, labels=data.labels)
    assert alone.y_train.tolist() == ["1", "2", "1"], "of a system that has text labels"
    write("mix-train.csv", ["1", "2"] * 4)
    write("mix-test.csv", ["x", "1"])
    with pytest.raises(DataError, match=r"train part of mix has labels such as 1, the test part .* such as 'x'"):
        l2h.load_dataset(train)
