"""Tables of outcomes: every way to bring one gives the same, and what cannot be read is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prompts import made_up, write_csv

from l2h.data.outcomes import check_outcomes, read_outcomes
from l2h.errors import DataError


def test_every_kind_of_table_gives_the_same(tmp_path: Path) -> None:
    texts, client, server = made_up(30)
    columns = {"id": list(range(30)), "prompt": texts, "client_right": client, "server_right": server}
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "t.parquet")
    write_csv(tmp_path / "t.csv", 30)
    frame = pandas.DataFrame(columns)
    frames = (frame.set_index("id"), frame.convert_dtypes(), polars.DataFrame(columns))
    for source in (tmp_path / "t.parquet", str(tmp_path / "t.csv"), table, columns, *frames):
        found = read_outcomes(source)
        assert texts == found.X
        np.testing.assert_array_equal(found.client_right, client)
        np.testing.assert_array_equal(found.server_right, server)


def test_another_column_and_embeddings(tmp_path: Path) -> None:
    assert made_up(5)[0] == read_outcomes(write_csv(tmp_path / "q.csv", 5, text_column="question"), "question").X
    table = pa.table({"e": [[1.0, 2.0], [3.0, 4.0]], "client_right": [0, 1], "server_right": [1, 1]})
    np.testing.assert_array_equal(read_outcomes(table, "e").X, [[1, 2], [3, 4]])


def test_words_for_right_and_wrong_in_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "words.csv"
    path.write_text("prompt,client_right,server_right\na,True,false\nb,0,1\nc,1.0,TRUE\n")
    found = read_outcomes(path)
    assert found.client_right.tolist() == [True, False, True]
    assert found.server_right.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prompt,client_right\na,1\n", "no column 'server_right': its columns are prompt, client_right"),
        ("question,client_right,server_right\na,1,1\n", "no column 'prompt'.*--text-column"),
        ("prompt,client_right,server_right\na,1,1\nb,maybe,1\n", "row 1: client_right is 'maybe'"),
        ("prompt,client_right,server_right\na,1,1\nb,1\n", "row 1: server_right is None"),
        ("prompt,client_right,server_right\na,1,1\nb,1,2\n", "row 1: server_right is '2'"),
        ("prompt,client_right,server_right\n,1,1\n", "row 0: prompt is an empty text"),
        ("prompt,client_right,server_right\n", "no rows"),
        ("", "its columns are none"),
    ],
)
def test_a_table_that_cannot_be_used_names_the_row_or_the_column(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as refused:
        read_outcomes(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_a_frame_that_cannot_be_used_names_the_row_and_the_column(frame: Any) -> None:
    texts, client, server = made_up(200)
    right = client.astype(int).tolist()
    for third in (2, -1, None):
        values = [*right[:150], third, *right[151:]]
        with pytest.raises(DataError, match=r"^row 150: client_right is .*an outcome is 0 .wrong. or 1 .right.$"):
            read_outcomes(frame({"prompt": texts, "client_right": values, "server_right": server}))
    missing = {"prompt": [*texts[:9], None, *texts[10:]], "client_right": right, "server_right": server}
    with pytest.raises(DataError, match=r"^row 9: prompt is (None|nan)"):
        read_outcomes(frame(missing))
    with pytest.raises(DataError, match=r"^the table has no column 'server_right'"):
        read_outcomes(frame({"prompt": texts, "client_right": right}))


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nonsense")
    for path, words in ((tmp_path / "t.parquet", "whole"), (tmp_path / "none.csv", "no file"), (tmp_path, "no table")):
        with pytest.raises(DataError, match=words):
            read_outcomes(path)
    with pytest.raises(DataError, match="no table"):
        read_outcomes(3)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([None, "a"], "row 0: X is None"),
        ([float("nan"), "a"], "row 0: X is nan"),
        ([1.0, "a"], "row 0: X is 1.0"),
        (["a", None], "row 1: X is None"),
        ([[1.0, 2.0], [3.0]], r"row 1: X is \[3.0\]"),
        ([[1.0], [10**400]], "row 1: X is"),
        ([[1.0], None], "row 1: X is None"),
        (None, "X is None"),
        (3, "X is 3"),
    ],
)
def test_a_prompt_that_is_missing_is_named_by_its_row(prompts: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as refused:
        check_outcomes(prompts, [1, 0], [0, 1])
    assert "\n" not in str(refused.value)
