"""Datasets from arrays: the class itself, the bundled digits, and .npz files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from l2h.data import Dataset, digits, load_dataset
from l2h.errors import DataError, MissingExtraError


@pytest.fixture
def table(rng: np.random.Generator) -> dict[str, Any]:
    return {"X": rng.normal(size=(40, 3)), "y": np.arange(40) % 4}


def test_importing_needs_numpy_alone() -> None:
    heavy = ["torch", "sklearn", "scipy", "pyarrow", "PIL", "pandas"]
    code = f"import sys, l2h.data; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_digits_are_the_published_ones_brought_to_a_byte() -> None:
    from sklearn.datasets import load_digits

    data, published = digits(), load_digits()
    assert (data.input_shape, data.num_classes, data.augment) == ((1, 8, 8), 10, "shift")
    assert data.class_names == tuple("0123456789")
    assert len(data.y_test) == round(0.3 * 1797)
    X, y = np.concatenate([data.X_train, data.X_test]), np.concatenate([data.y_train, data.y_test])
    assert X.dtype == np.uint8
    ours = sorted((label, image.tobytes()) for label, image in zip(y, X, strict=True))
    theirs = np.rint(published.images * 255 / 16).astype(np.uint8)
    assert ours == sorted((label, image.tobytes()) for label, image in zip(published.target, theirs, strict=True))


def test_digits_depend_on_the_seed_alone() -> None:
    assert np.array_equal(load_dataset("digits", seed=4).X_test, digits(seed=4).X_test)
    assert not np.array_equal(digits(seed=5).X_test, digits(seed=4).X_test)


def test_limit_keeps_so_many_rows_and_the_same_for_the_same_seed() -> None:
    whole, some = digits(seed=2), load_dataset("digits", seed=2, limit=50)
    assert (len(some.y_train), len(some.y_test)) == (50, 50)
    assert {image.tobytes() for image in some.X_train} <= {image.tobytes() for image in whole.X_train}
    assert np.array_equal(some.X_train, load_dataset("digits", seed=2, limit=50).X_train)
    assert len(load_dataset("digits", limit=10_000).y_train) == len(whole.y_train)
    with pytest.raises(DataError, match="limit=0"):
        load_dataset("digits", limit=0)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"scikit-learn.*pip install -e '.*\[train\]'"):
        digits()


def test_npz_of_four_arrays_is_read_as_it_is(tmp_path: Path, table: dict[str, Any]) -> None:
    X, y = table["X"], table["y"]
    np.savez(tmp_path / "t.npz", X_train=X, y_train=y, X_test=X[:9], y_test=y[:9], class_names=list("abcd"))
    data = load_dataset(tmp_path / "t.npz")
    assert (data.name, data.class_names, data.augment) == ("t", tuple("abcd"), "none")
    np.testing.assert_array_equal(data.X_train, X.astype(np.float32))
    np.testing.assert_array_equal(data.X_test, X[:9].astype(np.float32))
    assert data.y_train.tolist() == y.tolist()
    assert data.y_test.tolist() == y[:9].tolist()


def test_npz_of_two_arrays_is_split_or_goes_with_another(tmp_path: Path, table: dict[str, Any]) -> None:
    np.savez_compressed(tmp_path / "one.npz", **table)
    np.savez(tmp_path / "two.npz", X=table["X"][:8], y=table["y"][:8])
    alone = load_dataset(tmp_path / "one.npz", test_share=0.25)
    assert (len(alone.y_train), len(alone.y_test)) == (30, 10)
    assert set(np.bincount(alone.y_test).tolist()) == {2, 3}
    rows = np.concatenate([alone.X_train, alone.X_test])
    assert sorted(rows.tolist()) == sorted(table["X"].astype(np.float32).tolist())
    pair = load_dataset(tmp_path / "one.npz", tmp_path / "two.npz")
    assert (len(pair.y_train), len(pair.y_test)) == (40, 8)
    assert pair.class_names == ("0", "1", "2", "3")


def test_npz_images_end_as_channels_first(tmp_path: Path, images: Any) -> None:
    y = np.arange(12) % 2
    np.savez(tmp_path / "last.npz", X=images.transpose(0, 2, 3, 1), y=y)
    np.savez(tmp_path / "first.npz", X=images, y=y)
    np.savez(tmp_path / "grey.npz", X=images[:, 0], y=y)
    last, first, grey = (load_dataset(tmp_path / f"{name}.npz") for name in ("last", "first", "grey"))
    np.testing.assert_array_equal(last.X_train, first.X_train)
    np.testing.assert_array_equal(grey.X_train, first.X_train[:, :1])
    assert (first.X_train.dtype, first.augment) == (np.uint8, "shift")


def test_npz_files_that_cannot_be_used_are_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    X, y = table["X"], table["y"]

    def refused(message: str, test: Path | None = None, **arrays: Any) -> None:
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(DataError, match=message):
            load_dataset(tmp_path / "bad.npz", test)

    refused(r"bad\.npz' has y_train, X: give it X_train, y_train, X_test, y_test, or X and y", X=X, y_train=y)
    refused(r"none of the arrays", features=X)
    refused(r"plain arrays", X=X.astype(object), y=y)
    refused(r"class_names.*dtype int64.*dtype=str", X=X, y=y, class_names=np.arange(4))
    refused(r"label 3 in row \d+ is not in 0\.\.2", X=X, y=y, class_names=list("abc"))
    refused(r"class_names names 'a' twice", X=X, y=y, class_names=list("abca"))
    refused(r"X has 40 rows and y has 39", X=X, y=y[:-1])
    refused(r"has its own test part", tmp_path, X_train=X, y_train=y, X_test=X, y_test=y)
    refused(
        r"train sample is \(3,\) of float32, a test sample \(2,\)",
        X_train=X,
        y_train=y,
        X_test=X[:, :2],
        y_test=y,
    )


def test_damaged_and_missing_npz(tmp_path: Path, table: dict[str, Any]) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **table)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"t\.npz' is not a whole \.npz"):
        load_dataset(path)
    np.save(tmp_path / "array.npy", table["X"])
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with pytest.raises(DataError, match=r"array\.npz' is not a whole \.npz"):
        load_dataset(tmp_path / "array.npz")
    with pytest.raises(DataError, match=r"no file or folder .*gone\.npz"):
        load_dataset(tmp_path / "gone.npz")


@pytest.mark.parametrize("share", [0.0, 1.5, -0.5, float("nan")])
def test_test_share_out_of_range_is_refused(tmp_path: Path, table: dict[str, Any], share: float) -> None:
    np.savez(tmp_path / "t.npz", **table)
    with pytest.raises(DataError, match=r"test_share=.* above 0 and at most 1"):
        load_dataset(tmp_path / "t.npz", test_share=share)


def test_a_split_that_leaves_a_part_empty_is_refused(tmp_path: Path, table: dict[str, Any]) -> None:
    np.savez(tmp_path / "t.npz", **table)
    with pytest.raises(DataError, match=r"test_share=0\.001 of 40 rows of t leaves a part empty"):
        load_dataset(tmp_path / "t.npz", test_share=0.001)


def test_an_unknown_source_is_told_what_is_accepted(tmp_path: Path, table: dict[str, Any]) -> None:
    (tmp_path / "table.tsv").write_text("a,b\n")
    (tmp_path / "empty").mkdir()
    for source, problem in (
        ("table.tsv", "no known format"),
        ("empty", "no known format"),
        ("gone", "does not exist"),
    ):
        with pytest.raises(DataError, match=problem) as caught:
            load_dataset(tmp_path / source)
        assert all(word in str(caught.value) for word in ("digits", ".npz", ".parquet", "cifar-10-batches-py", ".mat"))
    with pytest.raises(DataError, match=r"source is a ndarray.*l2h\.Dataset"):
        load_dataset(table["X"])
    with pytest.raises(DataError, match="workers=0"):
        load_dataset("digits", workers=0)
    with pytest.raises(DataError, match="digits has its own test part"):
        load_dataset("digits", tmp_path)


def test_a_dataset_that_does_not_fit_together_is_refused(images: Any) -> None:
    y = np.arange(12) % 2

    def refused(message: str, **changes: Any) -> None:
        fields = {"X_train": images, "y_train": y, "X_test": images, "y_test": y, "class_names": ("a", "b")}
        with pytest.raises(DataError, match=message):
            Dataset("toy", **(fields | changes))

    refused("the train part of toy: label 2 in row 0", y_train=y + 2)
    refused("the test part of toy: X has 11 rows", X_test=images[1:])
    refused("the parts of toy differ", X_test=images[:, :1])
    refused("the parts of toy differ.*uint8.*float32", X_test=images / 255)
    refused("augment='rotate'.*none, shift, flip", augment="rotate")
    refused("augment='shift' needs images", X_train=np.eye(12), X_test=np.eye(12), augment="shift")
    refused("class_names of toy has 1", class_names=("a",))
