"""SVHN's cropped digits as published: ``train_32x32.mat`` and ``test_32x32.mat``."""

from pathlib import Path
from typing import Any

import numpy as np

from l2h.data.reading import RawDataset, RawPart, ReadOptions, beside, existing, need, whole_file
from l2h.errors import DataError

TRAIN = "train_32x32.mat"
TEST = "test_32x32.mat"
_NAMES = tuple(str(digit) for digit in range(10))


def matches(path: Path) -> bool:
    """Return whether this is a ``.mat``, or a folder with SVHN's ``.mat`` in it."""
    return path.suffix == ".mat" or (path / TRAIN).is_file()


def read(path: Path, test: Path | None, _: ReadOptions) -> RawDataset:
    """Read SVHN's digits, images uint8 (n, 3, H, W); the published label 10 is the digit 0.

    ``path`` is the train file, or the folder that holds both. ``train_32x32.mat`` goes with ``test_32x32.mat``, unless
    ``test`` is given; a file of another name has no test part but that of ``test``.

    Raises:
        DataError: a file is missing or damaged, or does not hold SVHN's arrays.
        MissingExtraError: scipy is not installed.
    """
    train = existing(path / TRAIN if path.is_dir() else path)
    published = train.name == TRAIN
    if test is None and published:
        test = beside(train, TEST)
    return RawDataset.read("svhn" if published else train.stem, train, test, _read_file)


def _read_file(path: Path) -> RawPart:
    matlab = need("scipy.io", "scipy", "reading .mat")
    with whole_file(path, ".mat that scipy can read"):
        arrays = matlab.loadmat(path, variable_names=["X", "y"])
    for key in ("X", "y"):
        if key not in arrays:
            raise DataError(f"{str(path)!r} has no array {key}: SVHN has X (32, 32, 3, n) and y (n, 1)")
    X, y = arrays["X"], arrays["y"]
    if X.dtype != np.uint8 or X.ndim != 4 or X.shape[2] != 3:
        raise DataError(f"X of {str(path)!r} has shape {X.shape} of {X.dtype}, not (32, 32, 3, n) of uint8")
    return RawPart(np.ascontiguousarray(X.transpose(3, 2, 0, 1)), _digits(y, X.shape[3], path), _NAMES)


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
