"""numpy's ``.npz``: ``X_train, y_train, X_test, y_test``, or ``X, y``, and if wanted ``class_names``."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from l2h.data.parts import Part, Parts, Reading, drop_train, existing, refuse_test
from l2h.data.validate import Array
from l2h.errors import DataError

_FOUR = ("X_train", "y_train", "X_test", "y_test")
_TWO = ("X", "y")
# What numpy raises on damaged bytes, on a file that is no zip, and on Python objects.
_DAMAGE = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)


def matches(path: Path) -> bool:
    """Whether the name ends in ``.npz``."""
    return path.suffix == ".npz"


def read(path: Path, test: Path | None, reading: Reading) -> Parts:
    """The arrays of an ``.npz``.

    Images are uint8. Of shape (n, H, W, C) with C of 1 or 3, where axis 1 is neither, they are turned to
    (n, C, H, W); of shape (n, H, W) they get one channel.

    Args:
        path: the file.
        test: another file with ``X`` and ``y`` to test on, where ``path`` has ``X`` and ``y`` alone.
        reading: not used; there is nothing to decode.

    Raises:
        DataError: a file is missing or damaged, lacks an array, or holds Python objects.
    """
    del reading
    arrays = _arrays(existing(path))
    names = _class_names(arrays, path)
    name = drop_train(path.stem)
    if all(key in arrays for key in _FOUR):
        refuse_test(test, repr(str(path)))
        train = Part(_channels_first(arrays["X_train"]), arrays["y_train"], names)
        return Parts(name, train, Part(_channels_first(arrays["X_test"]), arrays["y_test"], names))
    train = _two(arrays, names, path)
    if test is None:
        return Parts(name, train)
    arrays = _arrays(existing(test))
    return Parts(name, train, _two(arrays, _class_names(arrays, test), test))


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in (*_FOUR, *_TWO, "class_names") if key in file}
    except _DAMAGE as error:
        raise DataError(f"{str(path)!r} is not a whole .npz of plain arrays: {error}") from error


def _two(arrays: dict[str, Array], names: tuple[str, ...] | None, path: Path) -> Part:
    if not all(key in arrays for key in _TWO):
        raise DataError(
            f"{str(path)!r} has {', '.join(arrays) or 'none of the arrays'}: "
            f"give it {', '.join(_FOUR)}, or {' and '.join(_TWO)}"
        )
    return Part(_channels_first(arrays["X"]), arrays["y"], names)


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
