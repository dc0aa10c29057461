"""Labels of any kind: the user's own value of each class, which everything inside the library counts from 0."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from l2h.errors import ClientError, DataError, shown

Array = npt.NDArray[Any]
Value = str | int | bool
#: How classes may be given: their names, a name for each value, or all of it.
ClassNames: TypeAlias = "Sequence[str] | Mapping[Any, str] | LabelCodec"


@dataclass(frozen=True)
class LabelCodec:
    """The classes of a system: their names, and the label that the user has for each.

    Example:
        >>> codec = LabelCodec.find(["dog", "cat", "dog", "dog"])
        >>> codec.encode(["cat", "dog"]), codec.decode(np.array([1, 0]))
        (array([0, 1]), array(['dog', 'cat'], dtype='<U3'))
    """

    names: tuple[str, ...]  # K names, for people
    #: K labels of one kind: text, integers or booleans; None where the labels are 0 .. K - 1 themselves.
    values: tuple[Value, ...] | None = None

    def __post_init__(self) -> None:
        if self.values is None:
            return
        for value in self.values:
            if not isinstance(value, str | bool) and not (isinstance(value, int) and -(2**63) <= value < 2**63):
                raise DataError(f"{shown(value)} is no label: give text, integers of 64 bits or booleans")
        if len(set(self.values)) != len(self.names) or len(self.values) != len(self.names):
            raise DataError(f"{len(self.values)} labels for {len(self.names)} names: give each class one of both")
        if len({type(value) for value in self.values}) != 1:
            raise DataError(f"labels of several kinds: {shown(self.values)}: give text, integers or booleans alone")

    @classmethod
    def numbered(cls, num_classes: int) -> LabelCodec:
        return cls(tuple(str(k) for k in range(num_classes)))

    @classmethod
    def find(cls, y: Any, class_names: ClassNames | None = None, what: str = "the data") -> LabelCodec:
        """Return the classes of training labels, in sorted order, or in that of ``class_names``.

        Integers from 0 of which at least half occur are class numbers, and so are all integers where a list of names is
        given. Text must then be among the names. Names by value, ``{1: "one", 2: "two"}``, are taken as they are.
        """
        if isinstance(class_names, LabelCodec):
            return class_names
        given = class_names.values() if isinstance(class_names, Mapping) else class_names
        names = () if given is None else tuple(str(name) for name in given)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise DataError(f"class_names names {shown(twice[0])} twice: give each class a name of its own")
        if isinstance(class_names, Mapping):
            values = label_array(list(class_names), "class_names").tolist()
            return cls(names, tuple(values))
        labels = label_array(y, what)
        kind, found = labels.dtype.kind, np.unique(labels)
        if class_names is not None or kind == "b":
            names = names or ("False", "True")
            both = (False, True) if kind == "b" and len(names) == 2 else None
            return cls(names, names if kind == "U" else both)
        if kind == "i" and found[0] == 0 and 2 * len(found) > found[-1]:
            return cls.numbered(int(found[-1]) + 1)
        if len(found) > max(2, len(labels) // 2):
            raise DataError(
                f"{what}: y has {len(found)} different values in {len(labels)} rows, such as {shown(found[0].item())}: "
                "labels are classes, each with several rows"
            )
        return cls(tuple(str(value) for value in found.tolist()), tuple(found.tolist()))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def _places(self) -> dict[Any, int]:
        """The number of each class by its label; 1, 1.0 and True are the same label, as in Python."""
        return {value: k for k, value in enumerate(range(len(self)) if self.values is None else self.values)}

    @cached_property
    def _array(self) -> Array:
        return np.array(self.values)

    def encode(self, y: Any, what: str = "the data") -> npt.NDArray[np.int64]:
        """Return the class numbers (n,) of labels; raise a :class:`DataError` that names the row of any other label."""
        labels = label_array(y, what)
        if self.values is None and labels.dtype.kind != "U":
            numbers = labels.astype(np.int64, copy=False)
            bad = (numbers < 0) | (numbers >= len(self))
        else:
            numbers = self._numbers(labels)
            bad = numbers < 0
        if bad.any():
            row = int(np.argmax(bad))
            raise DataError(f"{what}: label {shown(labels[row].item())} in row {row} is {self._not_among()}")
        return numbers

    def decode(self, numbers: Array) -> Array:
        """Return the user's labels of class numbers: the numbers themselves where they are the labels."""
        return numbers if self.values is None else self._array[numbers]

    def places(self, classes: Iterable[Any], who: str) -> npt.NDArray[np.int64]:
        """Return the class numbers of the classes that a classifier knows; ``who`` is how an error calls it."""
        known = [getattr(value, "item", lambda value=value: value)() for value in classes]
        for value in known:
            if value not in self._places:
                raise ClientError(
                    f"the {who} knows class {shown(value)}, which is {self._not_among()}: give class_names= for "
                    "classes without a sample, or relabel the data"
                )
        return np.array([self._places[value] for value in known], dtype=np.int64)

    def numbers(self, answers: Array, who: str) -> npt.NDArray[np.int64]:
        """Return the class numbers of labels that a classifier answered.

        They are matched by value; but integers where the labels are text are class numbers, as the columns of scores.
        """
        if answers.dtype.kind in "iub" and (self.values is None or isinstance(self.values[0], str)):
            return answers.astype(np.int64)
        numbers = self._numbers(answers)
        if (numbers < 0).any():
            value = answers[int(np.argmin(numbers))]
            raise ClientError(
                f"the {who} answered {shown(getattr(value, 'item', lambda: value)())}, which is {self._not_among()}"
            )
        return numbers

    def spread(self, scores: Array, places: npt.NDArray[np.int64], fill: float) -> Array:
        """Return scores (n, k) of the classes at ``places`` as scores (n, K) of all; the others get ``fill``."""
        full = np.full((len(scores), len(self)), fill, dtype=scores.dtype)
        full[:, places] = scores
        return full

    def name(self, label: Value) -> str:
        return self.names[self._places[label]]

    def _numbers(self, labels: Array) -> npt.NDArray[np.int64]:
        if labels.dtype == object:  # of several kinds, perhaps, which have no order
            known = [self._places.get(value, -1) if isinstance(value, Hashable) else -1 for value in labels.tolist()]
            return np.array(known, dtype=np.int64)
        found, inverse = np.unique(labels, return_inverse=True)
        places = np.array([self._places.get(value, -1) for value in found.tolist()], dtype=np.int64)
        return places[inverse]

    def _not_among(self) -> str:
        if self.values is None:
            return f"not in 0..{len(self) - 1}"
        few = ", ".join(shown(value, 24) for value in self.values[:6])
        return f"none of the {len(self)} classes {few}{', ...' if len(self) > 6 else ''}"


def label_array(y: Any, what: str = "the data") -> Array:
    """Return labels as an array (n,) of text, int64 or booleans, or raise a :class:`DataError` that names the row.

    Floats are accepted as integers where every one is whole.
    """
    if y is None:
        raise DataError(f"{what}: y is None, but labels are needed here: give one for each row of X")
    array = _as_array(y, what)
    if array.ndim != 1:
        raise DataError(f"{what}: y has shape {array.shape}, but each row needs one label: use y.ravel()")
    if array.size == 0:
        raise DataError(f"{what}: y is empty: give at least one sample")
    if array.dtype.kind == "O":
        array = _of_one_kind(array, what)
    if array.dtype.kind == "f":
        whole = array == np.floor(array)  # false for NaN
        if not (whole & (np.abs(array) < 2**53)).all():
            row = int(np.argmin(whole))
            missing = "no label (NaN)" if np.isnan(array[row]) else f"the label {array[row]}, which is no whole number"
            raise DataError(f"{what}: row {row} has {missing}: labels are classes, not numbers to predict")
    elif array.dtype.kind not in "iubU":
        raise DataError(f"{what}: y has dtype {array.dtype}, but labels are text, integers or booleans")
    elif array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what}: y holds {array.max()}, which is too large for a label")
    return array if array.dtype.kind in "bU" else array.astype(np.int64, copy=False)


def _as_array(y: Any, what: str) -> Array:
    if isinstance(y, list | tuple) and any(isinstance(value, str) for value in y):
        array = np.empty(len(y), dtype=object)  # numpy would write numbers among text as text
        array[:] = y
        return array
    try:
        return np.asarray(y)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what}: y is not an array of labels: {error}") from error


def _of_one_kind(array: Array, what: str) -> Array:
    values = [getattr(value, "item", lambda value=value: value)() for value in array]
    kinds = [type(value) for value in values]
    first = next((kind for kind in kinds if kind in (str, bool, int, float)), None)
    for row, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if value is None or kind.__name__ in ("NAType", "NaTType") or (kind is float and np.isnan(value)):
            raise DataError(f"{what}: row {row} has no label ({value}): leave it out or label it")
        if kind is not first:
            mixed = "text, integers or booleans" if first is None else f"as in row 0 {shown(values[0])}"
            raise DataError(f"{what}: the label {shown(value)} in row {row} is {kind.__name__}: use one kind, {mixed}")
    try:
        return np.array(values)
    except OverflowError as error:
        raise DataError(f"{what}: a label is too large: {error}") from error
