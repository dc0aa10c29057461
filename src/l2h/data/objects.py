"""Datasets that others hold in memory or on disk: torch datasets and loaders, and Hugging Face datasets."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from l2h.data.dataset import Array, check_inputs
from l2h.data.images import MODES
from l2h.data.parquet import IMAGE_COLUMNS, LABEL_COLUMNS
from l2h.data.tables import TARGETS
from l2h.errors import DataError, L2HError, reason, warn
from l2h.rows import RowNumbers, Rows

_REREAD = 16  # samples of a dataset that are read twice, to see whether they are the same


def take_samples(X: Any, y: Any) -> tuple[Any, Any]:
    """Return inputs and labels: of a dataset that holds both, where ``y`` is None; else as they are.

    A dataset is a torch ``Dataset`` of pairs ``(input, label)``, a ``DataLoader`` of batches of them, or a Hugging Face
    ``Dataset`` with a column ``label`` (or one of class labels) and a column ``image``, or other columns. The inputs of
    a torch ``Dataset`` whose samples have numbers are not copied, but read from it when they are needed.
    """
    if y is not None:
        return X, y
    if hasattr(X, "column_names") and hasattr(X, "features") and hasattr(X, "with_format"):
        return _from_columns(X)
    if any(base.__module__.startswith("torch.utils.data") for base in type(X).__mro__):
        if hasattr(X, "batch_size") and hasattr(X, "dataset"):
            return _from_batches(X)
        numbered = hasattr(X, "__len__") and all(base.__name__ != "IterableDataset" for base in type(X).__mro__)
        return _from_numbered(X) if numbered else _from_pairs(X)
    return X, y


class DatasetRows(Rows):
    """The inputs of a torch ``Dataset`` of pairs, read from it whenever they are indexed; nothing is kept."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        first = check_inputs(self._sample(0)[0][None], what="sample 0 of the dataset")
        self.shape, self.dtype = (len(dataset), *first.shape[1:]), first.dtype

    def read(self, rows: RowNumbers) -> Array:
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which is refused elsewhere
            for place, row in enumerate(rows.tolist()):
                out[place] = self._checked(row)[0]
        return out

    def labels(self) -> Array:
        """Return the labels of all samples; every sample is read once for it, and its shape is checked."""
        return _labels([self._checked(row)[1] for row in range(len(self))])

    def repeats_itself(self) -> bool:
        """Return whether some samples are the same when they are read again: not where it changes them at random."""
        rows = np.unique(np.linspace(0, len(self) - 1, _REREAD).astype(np.int64))
        return np.array_equal(self.read(rows), self.read(rows), equal_nan=self.dtype.kind == "f")

    def _checked(self, row: int) -> tuple[Array, Any]:
        x, label = self._sample(row)
        if x.shape != self.shape[1:]:
            raise DataError(_other_shape(row, x.shape, self.shape[1:]))
        if x.dtype != self.dtype and (self.dtype == np.uint8 or x.dtype.kind not in "fiub"):
            raise DataError(f"sample {row} of the dataset is {x.dtype}, sample 0 {self.dtype}: give all in one type")
        return x, label

    def _sample(self, row: int) -> tuple[Array, Any]:
        try:
            sample = self.dataset[row]
        except L2HError:
            raise
        except Exception as error:  # a user's code: files that are gone, pictures that are damaged, anything
            why = f"{type(error).__name__}: {reason(error)}"
            raise DataError(f"sample {row} of the dataset cannot be read: {why}") from error
        x, label = _pair(sample, f"sample {row}")
        return _image(x, row), label


def _from_batches(loader: Iterable[Any]) -> tuple[Array, Array]:
    parts = [_pair(batch, f"batch {number}") for number, batch in enumerate(loader)]
    if not parts:
        raise DataError("the loader gives no batch: give at least one sample")
    try:
        return np.concatenate([x for x, _ in parts]), np.concatenate([np.atleast_1d(label) for _, label in parts])
    except ValueError as error:
        raise DataError(f"the batches of the loader do not fit each other: {reason(error)}") from error


def _from_numbered(dataset: Any) -> tuple[Any, Array]:
    if not len(dataset):
        return _from_pairs(())
    rows = DatasetRows(dataset)
    if rows.repeats_itself():
        return rows, rows.labels()
    warn(
        "the dataset gives other inputs when it is read again, so it is copied as it is now: let Settings(augment=...) "
        "change images instead, and nothing is copied"
    )
    return _from_pairs(dataset[row] for row in range(len(dataset)))


def _from_pairs(samples: Iterable[Any]) -> tuple[Array, Array]:
    pairs = [_pair(sample, f"sample {number}") for number, sample in enumerate(samples)]
    y = _labels([label for _, label in pairs])
    return _stacked([_image(x, row) for row, (x, _) in enumerate(pairs)]), y


def _labels(labels: list[Any]) -> Array:
    values = []
    for row, label in enumerate(map(np.asarray, labels)):
        if label.size != 1:
            raise DataError(f"sample {row} of the dataset has a label of shape {label.shape}: one label is needed")
        values.append(label.item())
        if isinstance(values[-1], str) != isinstance(values[0], str):
            raise DataError(
                f"sample {row} of the dataset has the label {values[-1]!r}, sample 0 {values[0]!r}: use one kind"
            )
    return np.array(values)


def _from_columns(dataset: Any) -> tuple[Any, Any]:
    """Return the columns of a Hugging Face dataset: its images, or all others as a table."""
    names, features = list(dataset.column_names), dict(dataset.features)
    marked = [name for name in names if type(features.get(name)).__name__ == "ClassLabel"]
    label = next((name for name in (*LABEL_COLUMNS, *TARGETS, *marked) if name in names), None)
    if label is None:
        raise DataError(f"the dataset has no column of labels, such as 'label'; its columns are {', '.join(names)}")
    plain = dataset.with_format(None)
    y = np.array(list(plain[label]))
    if label in marked and (y < 0).any():
        raise DataError(f"row {int(np.argmax(y < 0))} of the dataset has no label ({y.min()})")
    pictures = [name for name in names if type(features.get(name)).__name__ == "Image"]
    image = next((name for name in (*pictures, *IMAGE_COLUMNS) if name in names), None)
    if image is not None:
        return _stacked([_image(picture, row) for row, picture in enumerate(plain[image])]), y
    return {name: list(plain[name]) for name in names if name != label}, y


def _pair(sample: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(sample, Sequence) or isinstance(sample, str) or len(sample) != 2:
        raise DataError(f"{what} of the dataset is a {type(sample).__name__}, but a pair (input, label) is needed")
    x, label = (_array(part) if hasattr(part, "detach") else part for part in sample)
    return x, label


def _array(tensor: Any) -> Array:
    short = str(tensor.dtype) == "torch.bfloat16"  # which numpy does not have
    out: Array = (tensor.float() if short else tensor).detach().cpu().numpy()
    return out


def _image(x: Any, row: int) -> Array:
    if not hasattr(x, "convert"):
        return np.asarray(x)
    if x.mode not in MODES:  # Pillow would cut off what 8 bits do not hold
        raise DataError(f"sample {row} of the dataset: mode {x.mode} is not 8 bits per channel: convert it to RGB or L")
    grey = x.mode in ("1", "L")
    pixels = np.asarray(x.convert("L" if grey else "RGB"))
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _stacked(rows: list[Array]) -> Array:
    if not rows:
        raise DataError("the dataset has no sample: give at least one")
    wrong = next((number for number, row in enumerate(rows) if row.shape != rows[0].shape), None)
    if wrong is not None:
        raise DataError(_other_shape(wrong, rows[wrong].shape, rows[0].shape))
    return np.stack(rows)


def _other_shape(number: int, shape: tuple[int, ...], first: tuple[int, ...]) -> str:
    return f"sample {number} has shape {shape}, sample 0 {first}: bring them to one size first"
