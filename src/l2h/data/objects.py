"""Datasets that others hold in memory or on disk: torch datasets and loaders, and Hugging Face datasets."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from l2h.data.dataset import Array
from l2h.data.parquet import IMAGE_COLUMNS, LABEL_COLUMNS
from l2h.data.tables import TARGETS
from l2h.errors import DataError


def take_samples(X: Any, y: Any) -> tuple[Any, Any]:
    """Return inputs and labels: of a dataset that holds both, where ``y`` is None; else as they are.

    A dataset is a torch ``Dataset`` of pairs ``(input, label)``, a ``DataLoader`` of batches of them, or a Hugging Face
    ``Dataset`` with a column ``label`` (or one of class labels) and a column ``image``, or other columns.
    """
    if y is not None:
        return X, y
    if hasattr(X, "column_names") and hasattr(X, "features") and hasattr(X, "with_format"):
        return _from_columns(X)
    if any(base.__module__.startswith("torch.utils.data") for base in type(X).__mro__):
        batched = hasattr(X, "batch_size") and hasattr(X, "dataset")
        return _from_batches(X) if batched else _from_pairs(X)
    return X, y


def _from_batches(loader: Iterable[Any]) -> tuple[Array, Array]:
    parts = [_pair(batch, f"batch {number}") for number, batch in enumerate(loader)]
    if not parts:
        raise DataError("the loader gives no batch: give at least one sample")
    try:
        return np.concatenate([x for x, _ in parts]), np.concatenate([np.atleast_1d(label) for _, label in parts])
    except ValueError as error:
        raise DataError(f"the batches of the loader do not fit each other: {error}") from error


def _from_pairs(dataset: Any) -> tuple[Array, Array]:
    samples = (dataset[i] for i in range(len(dataset))) if hasattr(dataset, "__len__") else iter(dataset)
    pairs = [_pair(sample, f"sample {number}") for number, sample in enumerate(samples)]
    y = [np.asarray(label) for _, label in pairs]
    wrong = next((number for number, label in enumerate(y) if label.size != 1), None)
    if wrong is not None:
        raise DataError(f"sample {wrong} of the dataset has a label of shape {y[wrong].shape}: one label is needed")
    return _stacked([_image(x) for x, _ in pairs]), np.array([label.item() for label in y])


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
        return _stacked([_image(picture) for picture in plain[image]]), y
    return {name: list(plain[name]) for name in names if name != label}, y


def _pair(sample: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(sample, Sequence) or isinstance(sample, str) or len(sample) != 2:
        raise DataError(f"{what} of the dataset is a {type(sample).__name__}, but a pair (input, label) is needed")
    x, label = (part.detach().cpu().numpy() if hasattr(part, "detach") else part for part in sample)
    return x, label


def _image(x: Any) -> Array:
    if not hasattr(x, "convert"):
        return np.asarray(x)
    grey = x.mode in ("1", "L")
    pixels = np.asarray(x.convert("L" if grey else "RGB"))
    return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _stacked(rows: list[Array]) -> Array:
    if not rows:
        raise DataError("the dataset has no sample: give at least one")
    wrong = next((number for number, row in enumerate(rows) if row.shape != rows[0].shape), None)
    if wrong is not None:
        raise DataError(
            f"sample {wrong} has shape {rows[wrong].shape}, sample 0 {rows[0].shape}: bring them to one size first"
        )
    return np.stack(rows)
