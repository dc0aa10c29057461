"""CIFAR and SVHN as they are published, and pickles that are not what they say."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.io import savemat

from l2h.data import load_dataset
from l2h.data.published import restricted_load
from l2h.errors import DataError

NAMES10 = [f"kind{i}" for i in range(10)]


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes byte strings as Python 2 did, which is how CIFAR was published."""

    dispatch: ClassVar[Any] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: bytes | str) -> None:
        data = value.encode("latin-1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def dump_python2(value: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def dump_python3(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


DUMPS = pytest.mark.parametrize("dump", [dump_python2, dump_python3])


def cifar10(folder: Path, dump: Any, rows: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    X = rng.integers(0, 256, (6 * rows, 3, 32, 32), dtype=np.uint8)
    y = rng.permutation(np.arange(6 * rows) % 10)
    for i, file in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        part = slice(i * rows, (i + 1) * rows)
        batch = {
            b"batch_label": b"one of them",
            b"labels": y[part].tolist(),
            b"data": X[part].reshape(rows, -1),
            b"filenames": [b"a.png"] * rows,
        }
        (folder / file).write_bytes(dump(batch))
    (folder / "batches.meta").write_bytes(dump({b"label_names": [n.encode() for n in NAMES10], b"num_vis": 3072}))
    return X, y


def cifar100(folder: Path, dump: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    X = rng.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
    y = np.arange(92, 100)
    for file, part in (("train", slice(0, 6)), ("test", slice(6, 8))):
        batch = {b"fine_labels": y[part].tolist(), b"coarse_labels": [0], b"data": X[part].reshape(-1, 3072)}
        (folder / file).write_bytes(dump(batch))
    names = [f"fine{i}".encode() for i in range(100)]
    (folder / "meta").write_bytes(dump({b"fine_label_names": names, b"coarse_label_names": [b"c"]}))
    return X, y


def pack(folder: Path) -> Path:
    path = folder.parent / "published.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, folder.name)
    return path


@DUMPS
def test_cifar10_from_its_folder_and_from_its_archive(tmp_path: Path, dump: Any) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    X, y = cifar10(folder, dump)
    archive = pack(folder)
    before = sorted(tmp_path.rglob("*"))
    for source in (folder, archive):
        data = load_dataset(source)
        assert (data.name, data.class_names, data.augment) == ("cifar10", tuple(NAMES10), "flip+shift")
        np.testing.assert_array_equal(data.X_train, X[:20])
        np.testing.assert_array_equal(data.X_test, X[20:])
        assert data.y_train.tolist() == y[:20].tolist()
        assert data.y_test.tolist() == y[20:].tolist()
    assert sorted(tmp_path.rglob("*")) == before


@DUMPS
def test_cifar100_has_the_fine_labels(tmp_path: Path, dump: Any) -> None:
    folder = tmp_path / "cifar-100-python"
    X, y = cifar100(folder, dump)
    for source in (folder, pack(folder)):
        data = load_dataset(source)
        assert (data.name, data.num_classes, data.augment) == ("cifar100", 100, "flip+shift")
        assert data.class_names[99] == "fine99"
        np.testing.assert_array_equal(data.X_train, X[:6])
        assert data.y_test.tolist() == y[6:].tolist()


class Attack:
    """Makes a file when it is unpickled."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made-by-the-attack"
    folder = tmp_path / "cifar-10-batches-py"
    cifar10(folder, dump_python3)
    for call, arguments, name in (
        (os.mkdir, (str(target),), r"\w+\.mkdir"),
        (os.system, (f"touch {target}",), r"\w+\.system"),
        (eval, (f"open({str(target)!r}, 'w')",), r"builtins\.eval|__builtin__\.eval"),
    ):
        attack = pickle.dumps({b"data": Attack(call, *arguments)}, protocol=protocol)
        (folder / "data_batch_3").write_bytes(attack)
        for source in (folder, pack(folder)):
            with pytest.raises(DataError, match=rf"data_batch_3': the pickle asks for ({name})"):
                load_dataset(source)
        assert not target.exists()
    pickle.loads(attack)
    assert target.exists(), "the attack must be one that works on an unpickler without restrictions"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"cnumpy.core.multiarray\nscalar\n.", "numpy.core.multiarray.scalar"),
        (b"cnumpy\nload\n.", "numpy.load"),
        (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "numpy.ndarray.tofile"),
        (b"c_codecs\ndecode\n.", "_codecs.decode"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.", "rot13"),
    ],
)
def test_only_what_cifar_needs_is_permitted(data: bytes, name: str) -> None:
    with pytest.raises(DataError, match=name):
        restricted_load(data)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_damaged_cifar_is_refused(tmp_path: Path, keep: float) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    cifar10(folder, dump_python2)
    archive = pack(folder)
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * keep)])
    with pytest.raises(DataError, match=r"published\.tar\.gz' is not a whole \.tar\.gz"):
        load_dataset(archive)
    batch = folder / "data_batch_2"
    batch.write_bytes(batch.read_bytes()[: int(batch.stat().st_size * keep)])
    with pytest.raises(DataError, match=r"data_batch_2' is not a whole pickle"):
        load_dataset(folder)


def test_cifar_that_is_not_laid_out_as_published_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    cifar10(folder, dump_python3)
    batch = folder / "data_batch_1"

    def refused(message: str, content: Any) -> None:
        batch.write_bytes(dump_python3(content))
        with pytest.raises(DataError, match=message):
            load_dataset(folder)

    X = np.zeros((2, 3072), np.uint8)
    refused("holds a list, but CIFAR's files hold a dict", [1, 2])
    refused("has no data: it has labels", {b"labels": [0, 1]})
    refused("has no labels: it has data", {b"data": X})
    refused("data of .* is a list, not a ndarray", {b"data": [1], b"labels": [0]})
    refused(r"shape \(2, 9\) of uint8, not \(n, 3072\)", {b"data": X[:, :9], b"labels": [0, 1]})
    refused("one integer for each of 2 images", {b"data": X, b"labels": [0]})
    refused("one integer for each of 2 images", {b"data": X, b"labels": [b"a", b"b"]})
    refused("label 12 in row 1", {b"data": X, b"labels": [0, 12]})
    batch.unlink()
    with pytest.raises(DataError, match="has no file data_batch_1: cifar10 is data_batch_1, "):
        load_dataset(folder)
    with pytest.raises(DataError, match="has its own test part"):
        load_dataset(folder, folder)
    with pytest.raises(DataError, match=r"no file or folder .*gone\.tar\.gz"):
        load_dataset(tmp_path / "gone.tar.gz")
    with tarfile.open(tmp_path / "mine.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("0.cls"))
    with pytest.raises(DataError, match=r"mine\.tar\.gz' has no file of CIFAR-10 or CIFAR-100 .*: unpack it"):
        load_dataset(tmp_path / "mine.tar.gz")


@pytest.fixture
def svhn(tmp_path: Path) -> tuple[Path, Any, Any]:
    rng = np.random.default_rng(2)
    X = rng.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
    y = (np.arange(20, dtype=np.uint8) % 10 + 1)[:, None]
    savemat(tmp_path / "train_32x32.mat", {"X": X, "y": y}, do_compression=True)
    savemat(tmp_path / "test_32x32.mat", {"X": X[..., :7], "y": y[:7].astype(float)})
    return tmp_path, X, y


def test_svhn_from_its_folder_and_from_its_train_file(svhn: tuple[Path, Any, Any]) -> None:
    folder, X, y = svhn
    for source in (folder, folder / "train_32x32.mat"):
        data = load_dataset(source)
        assert (data.name, data.class_names, data.augment) == ("svhn", tuple("0123456789"), "shift")
        assert data.X_train.shape == (20, 3, 32, 32)
        np.testing.assert_array_equal(data.X_train[13, 2], X[:, :, 2, 13])
        # The published 10 is the digit 0; every other label is its digit.
        assert data.y_train.tolist() == [0 if label == 10 else label for label in y.ravel().tolist()]
        assert data.y_test.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_svhn_that_cannot_be_used_is_refused(svhn: tuple[Path, Any, Any]) -> None:
    folder, X, y = svhn
    train = folder / "train_32x32.mat"

    def refused(message: str, **arrays: Any) -> None:
        savemat(train, arrays)
        with pytest.raises(DataError, match=message):
            load_dataset(train)

    refused("has no array y", X=X)
    refused(r"shape \(32, 32, 20\) of uint8, not \(32, 32, 3, n\)", X=X[:, :, 0], y=y)
    refused(r"y of .* has shape \(19, 1\) of uint8, but 20 images", X=X, y=y[1:])
    refused("label 11 in row 0 is not a digit", X=X, y=y + np.uint8(10))
    refused(r"label 1\.5 in row 0 is not a digit", X=X, y=y + 0.5)
    (folder / "test_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"has no test_32x32\.mat beside it: give test="):
        load_dataset(folder)


@pytest.mark.parametrize("keep", [0, 50, 150, 4000])
def test_a_truncated_mat_is_refused(svhn: tuple[Path, Any, Any], keep: int) -> None:
    train = svhn[0] / "train_32x32.mat"
    train.write_bytes(train.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train_32x32\.mat' is not a whole \.mat"):
        load_dataset(train)
