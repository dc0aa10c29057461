"""The file of answers: of every kind, by several writers, and damaged."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from l2h.remote import AnswerCache
from l2h.remote.cache import FILE, CacheError


def test_answers_of_every_kind_come_back_as_they_were(tmp_path: Path) -> None:
    answers = {b"a": np.array([0.1, 1 / 3, -1e300]), b"b": 3, b"c": "Übel", b"d": 0.1}
    for folder in (None, tmp_path / "kept"):
        cache = AnswerCache(folder)
        assert (cache.read([b"a"]), cache.counts()) == ({}, (0, 0))
        cache.add(answers, "somebody", "1")
        for again in (cache, *([AnswerCache(folder)] if folder else [])):
            found = again.read([*answers, b"none"])
            assert found.keys() == answers.keys()
            np.testing.assert_array_equal(found.pop(b"a"), answers[b"a"])
            assert found == {key: value for key, value in answers.items() if key != b"a"}
            assert again.counts() == (1, 4)
    memory = AnswerCache()
    memory.add({b"e": 5}, "somebody", "1")
    memory.keep_in(tmp_path / "kept")
    assert AnswerCache(tmp_path / "kept").read([b"b", b"e"]) == {b"b": 3, b"e": 5}
    assert AnswerCache(tmp_path / "kept").counts() == (2, 5)


def test_several_writers_share_a_file(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        cache = AnswerCache(tmp_path)
        for i in range(10):
            cache.add({bytes([writer, i]): writer}, "somebody", "")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert AnswerCache(tmp_path).counts() == (40, 40)


def test_a_file_that_can_only_be_read_is_read(tmp_path: Path) -> None:
    AnswerCache(tmp_path).add({b"a": 1}, "somebody", "")
    (tmp_path / FILE).chmod(0o400)
    assert AnswerCache(tmp_path).read([b"a"]) == {b"a": 1}


@pytest.mark.parametrize("damage", ["garbage", "scores", "tables"])
def test_a_damaged_file_is_told_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / FILE
    if damage == "garbage":
        path.write_bytes(b"no database" * 100)
    else:
        with sqlite3.connect(path) as db:
            columns = "input, output" if damage == "scores" else "other"
            db.execute(f"CREATE TABLE answers ({columns})")
            if damage == "scores":
                db.execute("INSERT INTO answers VALUES (?, ?)", (b"a", b"13 bytes long"))
        db.close()
    with pytest.raises(CacheError, match=rf"the answers in {path} cannot be used") as told:
        AnswerCache(tmp_path).read([b"a"])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "stranger",
    [
        "CREATE VIEW answers AS WITH RECURSIVE r(input) AS (SELECT 1 UNION ALL SELECT input + 1 FROM r) "
        "SELECT input, 1 AS output FROM r",
        "CREATE TABLE calls (inputs); CREATE TRIGGER t AFTER INSERT ON calls BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE answers USING fts5(input, output)",
    ],
)
def test_a_file_that_computes_is_refused_before_it_does(tmp_path: Path, stranger: str) -> None:
    with sqlite3.connect(tmp_path / FILE) as db:
        db.executescript(stranger)
    db.close()
    for use in (lambda cache: cache.read([b"a"]), lambda cache: cache.counts()):
        with pytest.raises(CacheError, match="it holds more than plain tables"):
            use(AnswerCache(tmp_path))
