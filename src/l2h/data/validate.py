"""The checks of samples and labels, in one place for files, arrays and requests alike."""

from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import DataError

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]


def check_arrays(
    X: npt.ArrayLike,
    y: npt.ArrayLike | None,
    num_classes: int | None = None,
    *,
    what: str = "the data",
    allow_one_class: bool = False,
) -> tuple[Array, Labels]:
    """Return samples and their labels in the types the library works with.

    Args:
        X: (n, ...) with at least two dimensions, n at least 1. See :func:`check_inputs`.
        y: (n,) of integers or booleans, each in ``0 .. num_classes - 1``.
        num_classes: the number of classes; None for no upper limit.
        what: what messages call these samples.
        allow_one_class: accept labels that are all the same, as a small test part may have.

    Returns:
        X as uint8 (images) or float32, y as int64. No copy is made where the type is right already.

    Raises:
        DataError: lengths differ, an array is empty, a type or shape is wrong, a value is NaN or infinite, a label is
            out of range, or every label is the same. The message says what to do.

    Example:
        >>> X, y = check_arrays([[0.5, 1.0], [2.0, 3.0]], [0, 1])
        >>> X.dtype.name, y.dtype.name
        ('float32', 'int64')
        >>> check_arrays([[0.5], [2.0]], [0, 7], num_classes=2)
        Traceback (most recent call last):
        l2h.errors.DataError: the data: label 7 in row 1 is not in 0..1
    """
    if y is None:
        raise DataError(f"{what}: y is None, but labels are needed here: give one integer for each row of X")
    X = check_inputs(X, what=what)
    y = _labels(y, what)
    if len(X) != len(y):
        raise DataError(f"{what}: X has {len(X)} rows and y has {len(y)}: give one label for each row")
    _check_range(y, num_classes, what)
    if not allow_one_class and (y == y[0]).all():
        raise DataError(f"{what}: every label is {y[0]}: at least two classes are needed")
    return X, y


def check_inputs(X: npt.ArrayLike, *, what: str = "the data") -> Array:
    """Return samples without labels in the types the library works with.

    Args:
        X: (n, ...) with at least two dimensions, n at least 1. uint8 of shape (n, C, H, W) are images and stay as they
            are; any other number type, and uint8 of another shape, becomes float32.
        what: what messages call these samples.

    Raises:
        DataError: X is empty, has fewer than two dimensions, does not hold numbers, or holds NaN or infinity.

    Example:
        >>> check_inputs([[1, 2], [3, 4]]).dtype.name
        'float32'
        >>> check_inputs([[1.0], [float("nan")]])
        Traceback (most recent call last):
        l2h.errors.DataError: the data: 1 value of X is NaN or infinite as float32, the first in row 1: \
remove or fill such rows
    """
    array = _as_array(X, "X", what)
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{what}: X has dtype {array.dtype}, which does not hold plain numbers: "
            "encode it as a float or uint8 array first"
        )
    if array.ndim < 2:
        raise DataError(
            f"{what}: X has shape {array.shape}, but one row for each sample is needed: "
            "use X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one sample"
        )
    if array.size == 0:
        raise DataError(f"{what}: X is empty, of shape {array.shape}: give at least one sample")
    if array.dtype == np.uint8 and array.ndim == 4:
        return array
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is reported below
        array = array.astype(np.float32, copy=False)
    finite = np.isfinite(array)
    if not finite.all():
        count = int(finite.size - finite.sum())
        row = int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
        values = "1 value of X is" if count == 1 else f"{count} values of X are"
        raise DataError(
            f"{what}: {values} NaN or infinite as float32, the first in row {row}: remove or fill such rows"
        )
    return array


def _labels(y: npt.ArrayLike, what: str) -> Labels:
    array = _as_array(y, "y", what)
    if array.ndim != 1:
        raise DataError(f"{what}: y has shape {array.shape}, but each row needs one label: use y.ravel()")
    if array.size == 0:
        raise DataError(f"{what}: y is empty: give at least one sample")
    if array.dtype.kind == "f":
        raise DataError(
            f"{what}: y has dtype {array.dtype}, but labels are integers: "
            "use y.astype(int) if every value is a whole number"
        )
    if array.dtype.kind not in "iub":
        raise DataError(
            f"{what}: y has dtype {array.dtype}, but labels are integers 0, 1, ...: "
            "use class_names, y = np.unique(y, return_inverse=True)"
        )
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what}: y holds {array.max()}, which is no class: labels are integers 0, 1, ...")
    return array.astype(np.int64, copy=False)


def _check_range(y: Labels, num_classes: int | None, what: str) -> None:
    bad = y < 0 if num_classes is None else (y < 0) | (y >= num_classes)
    if bad.any():
        row = int(np.argmax(bad))
        wanted = "is negative: labels are 0, 1, ..."
        if num_classes is not None:
            wanted = f"is not in 0..{num_classes - 1}"
        raise DataError(f"{what}: label {y[row]} in row {row} {wanted}")


def _as_array(values: npt.ArrayLike, name: str, what: str) -> Array:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what}: {name} is not an array of numbers: {error}") from error
