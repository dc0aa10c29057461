"""A dataset: two labelled parts, the names of the classes, and how images may be augmented."""

from dataclasses import dataclass

from l2h.data.validate import Array, Labels, check_arrays
from l2h.errors import DataError

AUGMENTS = ("none", "shift", "flip+shift")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Samples to learn from and samples to test on.

    Args:
        name: its name in reports.
        X_train: images uint8 (n, C, H, W); tables float32 (n, d); any other numbers (n, ...) become float32.
        y_train: int64 (n,), each in ``0 .. num_classes - 1``, of at least two classes.
        X_test: as ``X_train``, of the same shape except for the number of rows.
        y_test: as ``y_train``, but may be of one class.
        class_names: one name for each class, in the order of the labels.
        augment: what may be done to an image without changing its class: "none", "shift" or "flip+shift".

    Raises:
        DataError: the arrays do not fit each other, the class names or the labels; see
            :func:`l2h.data.validate.check_arrays`.

    Example:
        >>> import numpy as np
        >>> data = Dataset("toy", np.eye(4), [0, 1, 0, 1], np.eye(4), [1, 0, 1, 0], ("no", "yes"))
        >>> data
        Dataset('toy': 4 train, 4 test, 2 classes, input (4,) float32, augment none)
        >>> data.num_classes, data.input_shape
        (2, (4,))
    """

    name: str
    X_train: Array
    y_train: Labels
    X_test: Array
    y_test: Labels
    class_names: tuple[str, ...]
    augment: str = "none"

    def __post_init__(self) -> None:
        names = tuple(str(name) for name in self.class_names)
        twice = sorted({name for name in names if names.count(name) > 1})
        if len(names) < 2 or twice:
            problem = f"names {twice[0]!r} twice" if twice else f"has {len(names)}: at least two are needed"
            raise DataError(f"class_names of {self.name} {problem}")
        X_train, y_train = check_arrays(self.X_train, self.y_train, len(names), what=f"the train part of {self.name}")
        X_test, y_test = check_arrays(
            self.X_test, self.y_test, len(names), what=f"the test part of {self.name}", allow_one_class=True
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
        for field, value in (
            ("X_train", X_train),
            ("y_train", y_train),
            ("X_test", X_test),
            ("y_test", y_test),
            ("class_names", names),
        ):
            object.__setattr__(self, field, value)

    @property
    def num_classes(self) -> int:
        """The number of classes, whether or not each has a sample."""
        return len(self.class_names)

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
