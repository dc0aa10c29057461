"""numpy's ``.npz``: ``X_train, y_train, X_test, y_test``, or ``X, y``, and optionally ``class_names``."""

from pathlib import Path

import numpy as np

from l2h.data.dataset import Array
from l2h.data.reading import RawDataset, RawPart, ReadOptions, existing, refuse_test, whole_file, without_train
from l2h.errors import DataError
from l2h.files import read_npz

_FOUR = ("X_train", "y_train", "X_test", "y_test")
_TWO = ("X", "y")


def matches(path: Path) -> bool:
    """Return whether the name ends in ``.npz``."""
    return path.suffix == ".npz"


def read(path: Path, test: Path | None, _: ReadOptions) -> RawDataset:
    """Read the arrays of an ``.npz``; ``test`` is another file with ``X`` and ``y``, where ``path`` has these alone.

    Images are uint8. Of shape (n, H, W, C) with C of 1 or 3, where axis 1 is neither, they are turned to
    (n, C, H, W); of shape (n, H, W) they get one channel.
    """
    arrays = _arrays(existing(path))
    name = without_train(path.stem)
    if all(key in arrays for key in _FOUR):
        refuse_test(test, repr(str(path)))
        return RawDataset(name, _part(arrays, path, "_train"), _part(arrays, path, "_test"))
    train = _part(arrays, path)
    return RawDataset(name, train, None if test is None else _part(_arrays(existing(test)), test))


def _arrays(path: Path) -> dict[str, Array]:
    with whole_file(path, ".npz of plain arrays"):
        return read_npz(path, lambda names: [key for key in (*_FOUR, *_TWO, "class_names") if key in names])


def _part(arrays: dict[str, Array], path: Path, ending: str = "") -> RawPart:
    names = _class_names(arrays, path)
    if not all(f"{key}{ending}" in arrays for key in _TWO):
        raise DataError(
            f"{str(path)!r} has {', '.join(arrays) or 'none of the arrays'}: "
            f"give it {', '.join(_FOUR)}, or {' and '.join(_TWO)}"
        )
    return RawPart(_channels_first(arrays[f"X{ending}"]), arrays[f"y{ending}"], names)


def _class_names(arrays: dict[str, Array], path: Path) -> tuple[str, ...] | None:
    names = arrays.get("class_names")
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1:
        raise DataError(
            f"class_names of {str(path)!r} has dtype {names.dtype} and shape {names.shape}: "
            "store a list of names as np.array(names, dtype=str)"
        )
    return tuple(str(name) for name in names)


def _channels_first(X: Array) -> Array:
    if X.dtype != np.uint8:
        return X
    if X.ndim == 3:
        return X[:, None]
    if X.ndim == 4 and X.shape[3] in (1, 3) and X.shape[1] not in (1, 3):
        return np.ascontiguousarray(X.transpose(0, 3, 1, 2))
    return X
