"""Rows that are read when they are indexed give what numpy gives, in this process and in others."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from l2h import rows as rows_of_l2h
from l2h.data import Rows, StoredArray, take_rows
from l2h.data.dataset import check_inputs
from l2h.errors import DataError
from l2h.rows import CHUNK_BYTES, batch_rows, chunks, digest, free_memory, moments

INDICES = [
    *(slice(None), slice(3, 9), slice(None, None, -3), slice(50, 60), 5, -1, np.int64(7), []),
    *([4, 4, 2], np.array([39, 0, 1, 2]), np.array([-1, -40]), np.arange(40) % 3 == 0),
]


@pytest.fixture(params=[np.uint8, np.float32, np.dtype(">f8")], ids=str)
def both(request, tmp_path: Path):
    X = np.random.default_rng(0).integers(0, 255, (40, 3, 5, 2)).astype(request.param)
    np.save(tmp_path / "X.npy", X)
    return X, StoredArray(tmp_path / "X.npy")


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_gives_what_numpy_gives(both, index) -> None:
    X, stored = both
    found = stored[index]
    assert found.dtype == X.dtype
    np.testing.assert_array_equal(found, X[index])
    if not isinstance(index, int | np.integer):
        lazy = take_rows(stored, index)
        assert isinstance(lazy, Rows)
        assert lazy.shape == X[index].shape
        np.testing.assert_array_equal(lazy[:], take_rows(X, index))
        np.testing.assert_array_equal(lazy.select(slice(None, None, 2))[:], X[index][::2])


def test_chunks_are_all_rows_in_order_and_bounded(both) -> None:
    X, stored = both
    np.testing.assert_array_equal(np.concatenate(list(chunks(stored, 7))), X)
    assert batch_rows((10**6, 3, 224, 224), 4096) * 3 * 224 * 224 * 4 <= CHUNK_BYTES
    assert batch_rows((10, 3, 10**5, 10**5), 4096) == 1
    assert batch_rows((10, 3), 4096) == 4096


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(500, 3, 8, 6), (500, 7)], ids=str)
def test_moments_and_digest_are_those_of_all_rows_at_once(tmp_path: Path, monkeypatch, dtype, shape) -> None:
    X = np.random.default_rng(0).normal(90, 60, shape).clip(0, 255).astype(dtype)
    np.save(tmp_path / "X.npy", X)
    stored, axes = StoredArray(tmp_path / "X.npy"), (0, *range(2, X.ndim))
    expected = X.mean(axes, dtype=np.float64), X.std(axes, dtype=np.float64)
    whole = digest(X, X[0])
    for found, value in zip(moments(X), expected, strict=True):
        np.testing.assert_array_equal(found.astype(np.float32), value.astype(np.float32))
        assert dtype == np.uint8 or (found == value).all()  # one chunk: numpy's own numbers
    monkeypatch.setattr("l2h.rows.CHUNK_BYTES", X[:40].size * 4)
    assert batch_rows(X.shape, 4096) == 40
    for found, other, value in zip(moments(stored), moments(X), expected, strict=True):
        np.testing.assert_array_equal(found, other)
        np.testing.assert_allclose(found, value, rtol=1e-14)
    assert digest(stored, X[0]) == digest(X, X[0]) == whole


def test_a_function_is_applied_when_rows_are_read(both) -> None:
    X, stored = both
    halved = stored.map(lambda batch: batch[:, :1] / 2, np.float32).select([8, 3])
    assert (halved.shape, halved.dtype) == ((2, 1, 5, 2), np.float32)
    np.testing.assert_array_equal(halved[:], (X[[8, 3], :1] / 2).astype(np.float32))


def test_copies_and_forked_processes_read_the_same(both) -> None:
    X, stored = both
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stored.select([5, 1])))[:], X[[5, 1]])
    children = []
    for child in range(4):  # all read through one open file at the same time
        pid = os.fork()
        if pid == 0:
            rows = np.random.default_rng(child).integers(0, len(X), 2000)
            os._exit(0 if all(np.array_equal(stored[[row]], X[[row]]) for row in rows) else 1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4


@pytest.mark.parametrize("index", [40, -41, [0, 40], [[0]], np.ones(39, bool)], ids=str)
def test_rows_that_do_not_exist_are_refused(both, index) -> None:
    with pytest.raises(IndexError):
        both[1][index]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.write_bytes(b"no array"), "magic"),
        (lambda path: np.save(path, np.asfortranarray(np.eye(3))), "C order"),
        (lambda path: np.save(path, np.array([{}], object), allow_pickle=True), "declared"),
        (lambda path: (np.save(path, np.eye(3)), os.truncate(path, 150)), "22 bytes"),
        (lambda path: path.mkdir(), ""),
        (lambda path: None, "No such file"),
    ],
)
def test_a_file_that_is_no_array_of_rows_is_refused(tmp_path: Path, make, problem: str) -> None:
    make(tmp_path / "X.npy")
    with pytest.raises(DataError, match=f"X.npy.*{problem}"):
        StoredArray(tmp_path / "X.npy")


def test_a_file_that_becomes_shorter_is_noticed(both) -> None:
    _, stored = both
    os.truncate(stored.path, 200)
    with pytest.raises(DataError, match="shorter"):
        stored[:]


def test_an_array_of_all_rows_is_made_only_where_memory_has_room(both) -> None:
    X, stored = both
    np.testing.assert_array_equal(np.asarray(stored), X)
    stored.shape = (2 * free_memory() // stored[:1].nbytes, *stored.shape[1:])
    with pytest.raises(DataError, match="of memory are free"):
        np.asarray(stored)


class Wrong(Rows):
    shape, dtype = (6, 2), np.dtype(np.float32)

    def __init__(self, given) -> None:
        self.given = given

    def read(self, rows):
        return self.given(rows)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda rows: np.zeros((len(rows) + 1, 2), np.float32), r"float32 \(3, 2\)"),
        (lambda rows: np.zeros((len(rows), 3), np.float32), r"float32 \(2, 3\)"),
        (lambda rows: np.zeros((len(rows), 2)), r"float64 \(2, 2\)"),
        (lambda rows: [[0.0, 0.0]] * len(rows), "list"),
    ],
)
def test_a_subclass_that_reads_something_else_is_told(given, said: str) -> None:
    for read in (lambda: Wrong(given)[[0, 1]], lambda: Wrong(given).select([3, 0, 1]).select([0, 1])[:]):
        with pytest.raises(DataError, match=rf"^Wrong\.read gave {said} for 2 rows: float32 \(2, 2\) is due$"):
            read()


@pytest.mark.parametrize("mistake", [{"dtype": "float32"}, {"shape": [6, 2]}])
def test_a_subclass_without_a_type_or_a_shape_is_told(monkeypatch, mistake) -> None:
    for name, value in mistake.items():
        monkeypatch.setattr(Wrong, name, value)
    with pytest.raises(DataError, match="Wrong needs shape, a tuple, and dtype"):
        check_inputs(Wrong(None))


NEW = ("memory.max", "memory.current", "inactive_file")
OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.mark.parametrize("limited", ["pod", "pod/job"])
@pytest.mark.parametrize(("names", "line"), [(NEW, "0::/pod/job"), (OLD, "7:cpu,memory:/pod/job")])
def test_the_limit_of_every_group_around_the_process_counts(
    tmp_path: Path, monkeypatch, names: tuple[str, str, str], line: str, limited: str
) -> None:
    group = tmp_path / "memory" / limited
    group.mkdir(parents=True)
    texts = "3000", "2000", f"inactive_file 7\n{names[2]} 500"
    for name, text in zip((*names[:2], "memory.stat"), texts, strict=True):
        (group / name).write_text(f"{text}\n")
    (tmp_path / "cgroup").write_text(f"3:devices:/other\n{line}\n")
    monkeypatch.setattr(rows_of_l2h, "_GROUPS_OF_PROCESS", tmp_path / "cgroup")
    controllers = "" if names is NEW else "memory"
    monkeypatch.setitem(rows_of_l2h._GROUPS, controllers, (tmp_path / "memory", names[:2]))
    assert free_memory() == 1500
