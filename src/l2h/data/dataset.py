"""A dataset of two labelled parts, the checks of samples and labels wherever they come from, and splits of rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.columns import EncodedTable, encode_inputs
from l2h.errors import DataError
from l2h.labels import LabelCodec, label_array
from l2h.rows import Rows, chunks
from l2h.table import is_table

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]

_FOUND = LabelCodec(())  # stands for the classes that are found in the labels
AUGMENTS = ("none", "shift", "flip+shift")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples to learn from and samples to test on.

    Args:
        name: its name in reports.
        X_train: images uint8 (n, C, H, W); tables float32 (n, d); any other numbers (n, ...) become float32;
            :class:`l2h.data.Rows` of either of the first two; a data frame, or another table with named columns,
            becomes an :class:`l2h.columns.EncodedTable`.
        y_train: (n,) labels of at least two classes: class numbers from 0 (int64), or any text, integers or booleans.
        X_test: as ``X_train``, of the same shape except for the number of rows.
        y_test: as ``y_train``, but may be of one class.
        class_names: one name for each class, in the order of the class numbers; the labels as text where left out.
        augment: what may be done to an image without changing its class: "none", "shift" or "flip+shift".
        labels: the classes, with their names; found in the labels where left out.

    Raises:
        DataError: the arrays do not fit each other, the class names or the labels; see
            :func:`check_arrays`.

    Example:
        >>> import numpy as np
        >>> data = Dataset("toy", np.eye(4), [0, 1, 0, 1], np.eye(4), [1, 0, 1, 0], ("no", "yes"))
        >>> data
        Dataset('toy': 4 train, 4 test, 2 classes, input (4,) float32, augment none)
        >>> data.num_classes, data.input_shape
        (2, (4,))
    """

    name: str
    X_train: Any
    y_train: Array
    X_test: Any
    y_test: Array
    class_names: tuple[str, ...] = ()
    augment: str = "none"
    labels: LabelCodec = _FOUND

    def __post_init__(self) -> None:
        if is_table(self.X_train):
            X_train = encode_inputs(self.X_train)
            object.__setattr__(self, "X_train", X_train)
            object.__setattr__(self, "X_test", X_train.columns.encode(self.X_test))
        whats = [f"the {part} part of {self.name}" for part in ("train", "test")]
        parts = [label_array(y, what) for y, what in zip((self.y_train, self.y_test), whats, strict=True)]
        labels = self.labels
        if not len(labels):
            labels = LabelCodec.find(np.concatenate(parts), self.class_names or None, self.name)
        names = labels.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if len(names) < 2 or twice:
            problem = f"names {twice[0]!r} twice" if twice else f"has {len(names)}: at least two are needed"
            raise DataError(f"class_names of {self.name} {problem}")
        X_train, y_train = check_arrays(self.X_train, parts[0], labels, what=f"the train part of {self.name}")
        X_test, y_test = check_arrays(
            self.X_test, parts[1], labels, what=f"the test part of {self.name}", allow_one_class=True
        )
        train_kind, test_kind = (X_train.shape[1:], X_train.dtype.name), (X_test.shape[1:], X_test.dtype.name)
        if train_kind != test_kind:
            raise DataError(
                f"the parts of {self.name} differ: a train sample is {train_kind[0]} of {train_kind[1]}, "
                f"a test sample {test_kind[0]} of {test_kind[1]}"
            )
        if self.augment not in AUGMENTS:
            raise DataError(f"augment={self.augment!r} of {self.name} is not one of {', '.join(AUGMENTS)}")
        if self.augment != "none" and X_train.ndim != 4:
            raise DataError(
                f"augment={self.augment!r} needs images (n, C, H, W), but X_train of {self.name} has shape "
                f"{X_train.shape}: use augment='none'"
            )
        y_train, y_test = labels.decode(y_train), labels.decode(y_test)
        checked: dict[str, Any] = {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}
        checked |= {"class_names": names, "labels": labels}
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @property
    def num_classes(self) -> int:
        """The number of classes, whether or not each has a sample."""
        return len(self.class_names)

    def numbered(self) -> "Dataset":
        """Return the dataset with class numbers from 0 as its labels; the names of the classes stay."""
        y_train, y_test = self.labels.encode(self.y_train), self.labels.encode(self.y_test)
        return replace(self, y_train=y_train, y_test=y_test, labels=LabelCodec(self.class_names))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample: (C, H, W) or (d,)."""
        return tuple(self.X_train.shape[1:])

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self.y_train)} train, {len(self.y_test)} test, "
            f"{self.num_classes} classes, input {self.input_shape} {self.X_train.dtype}, "
            f"augment {self.augment})"
        )


def check_arrays(
    X: Any,
    y: Any,
    labels: LabelCodec | None = None,
    *,
    what: str = "the data",
    allow_one_class: bool = False,
) -> tuple[Any, Labels]:
    """Return samples as :func:`check_inputs` does, and the class numbers of their labels as int64 (n,).

    The labels are those of ``labels`` (None: whatever classes :meth:`LabelCodec.find` finds), of at least two classes
    unless ``allow_one_class`` accepts a small test part. ``what`` is what messages call these samples. No copy is made
    where the type is right already.
    """
    X = check_inputs(X, what=what)
    y = label_array(y, what)
    if len(X) != len(y):
        raise DataError(f"{what}: X has {len(X)} rows and y has {len(y)}: give one label for each row")
    numbers = (labels or LabelCodec.find(y, what=what)).encode(y, what)
    if not allow_one_class and (numbers == numbers[0]).all():
        raise DataError(f"{what}: every label is {y[0]}: at least two classes are needed")
    return X, numbers


def check_inputs(X: Any, *, what: str = "the data") -> Any:
    """Return samples (n, ...) in the types the library works with, or raise a :class:`DataError` that says what to do.

    uint8 of shape (n, C, H, W) are images and stay as they are; any other number type, and uint8 of another shape,
    becomes float32. A table that was encoded already is returned as it is.
    """
    if isinstance(X, EncodedTable):
        return X  # its columns were checked
    if isinstance(X, Rows):
        return _check_rows(X, what)
    if any(base.__module__.startswith("torch.utils.data") for base in type(X).__mro__):
        raise DataError(
            f"{what}: X is a torch {type(X).__name__}, which gives pairs: call fit(dataset) or evaluate(dataset) "
            "without labels, and give arrays of inputs to the others"
        )
    try:
        array = np.asarray(X)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what}: X is not an array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise DataError(
            f"{what}: X has dtype {array.dtype}, which does not hold plain numbers: "
            "encode it as a float or uint8 array first"
        )
    _require_samples(array.shape, what)
    if array.dtype == np.uint8 and array.ndim == 4:
        return array
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is reported below
        array = array.astype(np.float32, copy=False)
    _require_finite(array, what)
    return array


def _require_samples(shape: tuple[int, ...], what: str) -> None:
    if len(shape) < 2:
        raise DataError(
            f"{what}: X has shape {shape}, but one row for each sample is needed: "
            "use X.reshape(-1, 1) for one feature, X.reshape(1, -1) for one sample"
        )
    if 0 in shape:
        raise DataError(f"{what}: X is empty, of shape {shape}: give at least one sample")


def _require_finite(array: Array, what: str, start: int = 0) -> None:
    """Raise where a value is not finite; the first row of the array is called ``start``."""
    finite = np.isfinite(array)
    if not finite.all():
        count = int(finite.size - finite.sum())
        row = start + int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
        values = "1 value of X is" if count == 1 else f"{count} values of X are"
        raise DataError(
            f"{what}: {values} NaN or infinite as float32, the first in row {row}: remove or fill such rows, or give a "
            "table with named columns, where values may be missing"
        )


def _check_rows(X: Rows, what: str) -> Rows:
    """Check samples that are read when they are needed; they have their type already."""
    if not isinstance(getattr(X, "dtype", None), np.dtype) or not isinstance(getattr(X, "shape", None), tuple):
        raise DataError(f"{what}: {type(X).__name__} needs shape, a tuple, and dtype, such as np.dtype('uint8')")
    images = X.dtype == np.uint8 and X.ndim == 4
    if not images and X.dtype != np.float32:
        raise DataError(
            f"{what}: X is {X.dtype} of shape {X.shape}: rows that are not read into memory are uint8 images "
            "(n, C, H, W) or float32"
        )
    _require_samples(X.shape, what)
    start = 0
    for chunk in () if images else chunks(X):
        _require_finite(chunk, what, start)
        start += len(chunk)
    return X


def split(y: npt.ArrayLike, shares: Sequence[float], seed: int) -> list[npt.NDArray[np.int64]]:
    """Return sorted row numbers of parts that are disjoint, cover every row, and have each class in its share.

    The shares are above 0 and add up to 1. With two shares the rows of a class in a part are its exact share rounded up
    or down, so a part misses a class only where that share is below one row. A further share is taken from what is left
    in the same way, and may be one row further off.

    Example:
        >>> train, test = split([0, 0, 0, 0, 1, 1, 1, 1], (0.75, 0.25), seed=0)
        >>> len(train), len(test), sorted([*train, *test]) == list(range(8))
        (6, 2, True)
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise DataError(f"y has shape {labels.shape}, but one label for each row is needed: use y.ravel()")
    positive = all(math.isfinite(share) and share > 0 for share in shares)
    if not positive or abs(sum(shares) - 1) > 1e-6:
        raise DataError(f"shares={tuple(shares)} must each be above 0 and add up to 1")
    shuffled = _random_state(seed).permutation(len(labels))
    rest = shuffled[np.argsort(labels[shuffled], kind="stable")]
    parts = []
    for place, share in enumerate(shares[:-1]):
        # Systematic sampling of rows sorted by class: m rows of a class give m * share, rounded up or down.
        fraction = share / sum(shares[place:])
        steps = np.floor(np.arange(len(rest) + 1) * fraction + 0.5)
        taken = np.diff(steps) > 0
        parts.append(np.sort(rest[taken]))
        rest = rest[~taken]
    return [*parts, np.sort(rest)]


def subset(count: int, limit: int | None, seed: int) -> npt.NDArray[np.int64] | None:
    """Return ``limit`` of ``count`` row numbers, drawn at random and sorted; None where every row is wanted.

    For one seed a smaller subset lies within a larger one.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit} must be 1 or more, or None for every row")
    if limit is None or limit >= count:
        return None
    return np.sort(_random_state(seed).permutation(count)[:limit])


def _random_state(seed: int) -> np.random.Generator:
    if seed < 0:
        raise DataError(f"seed={seed} must be 0 or more")
    return np.random.default_rng(seed)
