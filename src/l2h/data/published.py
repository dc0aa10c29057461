"""CIFAR-10 and CIFAR-100 as published, Python pickles in a folder or in their ``.tar.gz``; SVHN, in ``.mat`` files.

A pickle can run any code when it is read. These are read with an unpickler that builds numpy arrays and plain
containers and refuses everything else.
"""

import io
import math
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from l2h.data.reading import RawDataset, RawPart, ReadOptions, beside, existing, need, refuse_test, whole_file
from l2h.errors import DataError
from l2h.files import require_room

SVHN_TRAIN, SVHN_TEST = "train_32x32.mat", "test_32x32.mat"


@dataclass(frozen=True)
class _Layout:
    name: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    label_names: str

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.meta)


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10 = _Layout(
    name="cifar10", train=_BATCHES, test="test_batch", meta="batches.meta", labels="labels", label_names="label_names"
)
CIFAR100 = _Layout(
    name="cifar100", train=("train",), test="test", meta="meta", labels="fine_labels", label_names="fine_label_names"
)
_FILES = {*CIFAR10.files, *CIFAR100.files}


def matches(path: Path) -> bool:
    """Return whether this is a ``.mat``, a ``.tar.gz``, or a folder with the first files of one of the three."""
    if path.is_dir() and not _is_svhn(path):
        return any((path / file).is_file() for file in (CIFAR10.train[0], CIFAR10.meta, CIFAR100.meta))
    return _is_svhn(path) or path.name.endswith((".tar.gz", ".tgz"))


def read(path: Path, test: Path | None, _: ReadOptions) -> RawDataset:
    """Read both parts; ``test`` is for SVHN alone."""
    return _read_svhn(path, test) if _is_svhn(path) else _read_cifar(path, test)


def _is_svhn(path: Path) -> bool:
    return path.suffix == ".mat" or (path / SVHN_TRAIN).is_file()


def _read_cifar(path: Path, test: Path | None) -> RawDataset:
    """Read both parts of CIFAR-10 or CIFAR-100 (fine labels), images uint8 (n, 3, 32, 32).

    ``path`` is the folder ``cifar-10-batches-py`` or ``cifar-100-python``, or the ``.tar.gz``, which is not unpacked to
    disk; ``test`` must be None.
    """
    refuse_test(test, repr(str(path)))
    if path.is_dir():
        files = {file: (path / file).read_bytes() for file in _FILES if (path / file).is_file()}
    else:
        files = _from_tar(existing(path))
    if not files:
        raise DataError(
            f"{str(path)!r} has no file of CIFAR-10 or CIFAR-100 as published: unpack it, and give the folder of its "
            "images, or its .tar files if it is a WebDataset"
        )
    layout = CIFAR10 if CIFAR10.train[0] in files or CIFAR10.meta in files else CIFAR100
    missing = [file for file in layout.files if file not in files]
    if missing:
        raise DataError(f"{str(path)!r} has no file {missing[0]}: {layout.name} is {', '.join(layout.files)}")
    meta = _load(files[layout.meta], path / layout.meta)
    names = tuple(_text(name) for name in _field(meta, layout.label_names, list, path / layout.meta))
    train = [_batch(files[file], layout, path / file) for file in layout.train]
    return RawDataset(
        name=layout.name,
        train=RawPart(np.concatenate([X for X, _ in train]), np.concatenate([y for _, y in train]), names),
        test=RawPart(*_batch(files[layout.test], layout, path / layout.test), names),
    )


def restricted_load(data: bytes) -> Any:
    """Unpickle numpy arrays, numbers, strings and plain containers, and refuse any other global with a ``DataError``.

    Example:
        >>> restricted_load(pickle.dumps({"data": [1, 2]}))
        {'data': [1, 2]}
        >>> restricted_load(pickle.dumps(print))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        l2h.errors.DataError: the pickle asks for builtins.print, ...
    """
    return _RestrictedUnpickler(io.BytesIO(data), encoding="bytes").load()


def _latin1(text: str, encoding: str | bytes) -> bytes:
    # Under protocol 2 Python 3 writes bytes as a call of _codecs.encode with latin1; no other is needed.
    if _text(encoding) not in ("latin1", "latin-1"):
        raise DataError(f"the pickle asks for _codecs.encode with {encoding!r}, but only latin1 is permitted")
    return text.encode("latin-1")


_RECONSTRUCT: Any = np.empty(0).__reduce__()[0]
_PERMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PERMITTED:
            raise DataError(
                f"the pickle asks for {module}.{name}, which CIFAR's files do not need and could run code: "
                "get the file from its publisher"
            )
        return _PERMITTED[module, name]


def _from_tar(path: Path) -> dict[str, bytes]:
    files, total = {}, 0
    with whole_file(path, ".tar.gz"), tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = member.name.rsplit("/", 1)[-1]
            if member.isfile() and name in _FILES and (opened := tar.extractfile(member)) is not None:
                total += member.size
                require_room(total, path.stat().st_size)
                files[name] = opened.read()
    return files


def _load(data: bytes, path: Path) -> dict[str, Any]:
    with whole_file(path, "pickle"):
        try:
            loaded = restricted_load(data)
        except DataError as error:
            raise DataError(f"{str(path)!r}: {error}") from error
    if not isinstance(loaded, dict):
        raise DataError(f"{str(path)!r} holds a {type(loaded).__name__}, but CIFAR's files hold a dict")
    return {_text(key): value for key, value in loaded.items()}


def _batch(data: bytes, layout: _Layout, path: Path) -> tuple[Any, Any]:
    batch = _load(data, path)
    X = _field(batch, "data", np.ndarray, path)
    if X.dtype != np.uint8 or X.shape[1:] != (3072,):
        raise DataError(f"data of {str(path)!r} has shape {X.shape} of {X.dtype}, not (n, 3072) of uint8")
    y = np.array(_field(batch, layout.labels, list, path))
    if y.dtype.kind != "i" or y.shape != X.shape[:1]:
        raise DataError(f"{layout.labels} of {str(path)!r} are not one integer for each of {len(X)} images")
    return X.reshape(-1, 3, 32, 32), y.astype(np.int64)


def _field(values: dict[str, Any], key: str, kind: type, path: Path) -> Any:
    if key not in values:
        raise DataError(f"{str(path)!r} has no {key}: it has {', '.join(map(str, values))}")
    if not isinstance(values[key], kind):
        raise DataError(f"{key} of {str(path)!r} is a {type(values[key]).__name__}, not a {kind.__name__}")
    return values[key]


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _read_svhn(path: Path, test: Path | None) -> RawDataset:
    """Read SVHN's digits, images uint8 (n, 3, H, W); the published label 10 is the digit 0.

    ``path`` is the train file, or the folder that holds both. ``train_32x32.mat`` goes with ``test_32x32.mat``, unless
    ``test`` is given; a file of another name has no test part but that of ``test``.
    """
    train = existing(path / SVHN_TRAIN if path.is_dir() else path)
    published = train.name == SVHN_TRAIN
    if test is None and published:
        test = beside(train, SVHN_TEST)
    return RawDataset.read("svhn" if published else train.stem, train, test, _read_mat)


def _read_mat(path: Path) -> RawPart:
    matlab = need("scipy.io", "scipy", "reading .mat")
    with whole_file(path, ".mat that scipy can read"):
        known = [(math.prod(shape), kind) for name, shape, kind in matlab.whosmat(path) if name in ("X", "y")]
        require_room(sum(count * (1 if kind == "uint8" else 8) for count, kind in known), path.stat().st_size)
        arrays = matlab.loadmat(path, variable_names=["X", "y"])
    for key in ("X", "y"):
        if key not in arrays:
            raise DataError(f"{str(path)!r} has no array {key}: SVHN has X (32, 32, 3, n) and y (n, 1)")
    X, y = arrays["X"], arrays["y"]
    if X.dtype != np.uint8 or X.ndim != 4 or X.shape[2] != 3:
        raise DataError(f"X of {str(path)!r} has shape {X.shape} of {X.dtype}, not (32, 32, 3, n) of uint8")
    names = tuple(str(digit) for digit in range(10))
    return RawPart(np.ascontiguousarray(X.transpose(3, 2, 0, 1)), _digits(y, X.shape[3], path), names)


def _digits(y: Any, count: int, path: Path) -> Any:
    if y.size != count or y.dtype.kind not in "iuf":
        raise DataError(f"y of {str(path)!r} has shape {y.shape} of {y.dtype}, but {count} images need one digit each")
    # MATLAB's numbers are doubles unless someone says otherwise, so whole doubles are labels here.
    values = y.ravel()
    bad = ~np.isin(values, range(11))
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"{str(path)!r}: label {values[row]} in row {row} is not a digit: SVHN has 1..10, where 10 is 0"
        )
    return values.astype(np.int64) % 10
