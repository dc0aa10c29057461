"""``load_dataset``: one function for every format; the digits that need no file; and inputs without labels."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from l2h.columns import Columns
from l2h.data import folder, npz, parquet, published, tables, webdataset
from l2h.data.dataset import Dataset, check_arrays, split, subset
from l2h.data.decoded import cache_folder, settled
from l2h.data.images import SUFFIXES, check_size, read_images
from l2h.data.reading import RawDataset, RawPart, ReadOptions, need, refuse_test, same_parts, whole_file
from l2h.errors import DataError, reason, shown
from l2h.files import open_regular, read_npy, read_npz
from l2h.labels import LabelCodec, label_array
from l2h.rows import Rows, take_rows

_DIGITS_TEST_SHARE = 0.3
#: Tried in this order; a folder that is nothing else is a folder of images.
_FORMATS: tuple[ModuleType, ...] = (tables, parquet, webdataset, npz, published, folder)
#: Those of compressed images, which can be brought to one size, left out where damaged, and read from disk.
_PICTURES = (parquet, webdataset, folder)

_ACCEPTED = """accepted are
  digits                            scikit-learn's digits
  DIR/mine.npz                      arrays X_train, y_train, X_test, y_test, or X and y
  DIR/mine.csv, DIR/mine.parquet    a table; target= or --target names the column of labels
  DIR/cifar10-train.parquet         Hugging Face images, with cifar10-test.parquet; also DIR/cifar10
  DIR/shards, DIR/train-*.parquet   the same in many files: train-*.parquet and test-*.parquet
  DIR/shards, DIR/train-*.tar       WebDataset: KEY.jpg with KEY.cls or KEY.json; also DIR/train-{000..011}.tar
  DIR/photos                        a folder of train/CLASS/*.png and test/CLASS/*.png, or of CLASS/*.png
  DIR/cifar-10-batches-py           CIFAR as published, also cifar-100-python and the .tar.gz of either
  DIR/train_32x32.mat               SVHN as published, with test_32x32.mat; also DIR"""


def load_dataset(
    source: str | Path,
    test: str | Path | None = None,
    *,
    test_share: float = 0.2,
    seed: int = 0,
    cache: str | Path | bool = True,
    workers: int | None = None,
    limit: int | None = None,
    target: str | None = None,
    columns: Columns | None = None,
    size: int | None = None,
    labels: LabelCodec | None = None,
    stream: bool | None = None,
    on_error: str = "stop",
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Read a dataset, whatever its format.

    Accepted are ``"digits"``; an ``.npz``; a table as ``.csv`` or Parquet; images in Parquet, in WebDataset's ``.tar``
    files, or in a folder for each class; CIFAR-10, CIFAR-100 and SVHN as published. The modules of this package
    describe each. Parquet images and ``.tar`` files may be many: give their folder or a pattern.

    Args:
        source: the train file, a pattern of train files, the folder, or ``"digits"``.
        test: the test file or folder, where the source has none and none lies beside it.
        test_share: how much of each class is set aside as the test part where there is none; above 0. With 1 every row
            is in both parts, for data that nothing is trained on.
            ``"digits"`` always sets aside 0.3.
        seed: 0 or more; decides what is set aside, and which rows ``limit`` keeps.
        cache: keep decoded images in ``$L2H_CACHE`` or ``~/.cache/l2h`` (``True``), in this folder, or nowhere
            (``False``).
        workers: how many threads or processes decode images; ``None`` for one on each core.
        limit: keep this many train rows and this many test rows, drawn at random; ``None`` for all.
        target: the column of a table that holds the labels; where ``None``, the one that is called ``target``,
            ``label``, ``class`` or ``y``.
        columns: those of a trained system, by which a table is read; where ``None``, they are found in the table.
        size: bring images of any size, from a folder, Parquet or ``.tar`` files, to ``size`` x ``size``: each is turned
            as its EXIF orientation says, its shorter side is resized to ``size``, and the centre is cut out.
        labels: those of a trained system (``system.fitted.labels``): where they are text, so are those of a ``.csv``.
        stream: keep compressed images decoded in the cache folder and read them from there, batch by batch, instead of
            all into memory: ``X_train`` and ``X_test`` are then :class:`l2h.data.Rows`. Where ``None``, those that take
            more than an eighth of the free memory. Results do not depend on it.
        on_error: what is done about an image, a ``.tar`` or a Parquet file that is damaged: ``"stop"`` raises an error
            that names it, ``"skip"`` leaves it out and names it in the log.
        progress: called with how many of how many images are decoded; None for nobody.

    Returns:
        The dataset, checked. ``augment`` is "flip+shift" for CIFAR, "shift" for other images, else "none".

    Raises:
        DataError: the source is missing, damaged, of no accepted format, or does not hold usable samples.
        MissingExtraError: a package that this format needs is not installed.

    Example:
        >>> load_dataset("digits", limit=100)
        Dataset('digits': 100 train, 100 test, 10 classes, input (1, 8, 8) uint8, augment shift)
    """
    if workers is not None and workers < 1:
        raise DataError(f"workers={workers} must be 1 or more, or None for one on each core")
    check_size(size)
    if on_error not in ("stop", "skip"):
        raise DataError(f"on_error={on_error!r} is unknown; known: stop, skip")
    test = None if test is None else Path(test).expanduser()
    if isinstance(source, str) and source == "digits":
        refuse_test(test, "digits")
        _refuse_pictures("digits", size, stream, on_error)
        return _limited(digits(seed), limit, seed)
    if not isinstance(source, str | Path):
        raise DataError(f"source is a {type(source).__name__}, not a path: arrays go into l2h.Dataset(...)")
    path = Path(source).expanduser()
    if test is not None and test.is_file() and test.resolve() == path.resolve():
        raise same_parts(path)
    options = ReadOptions(
        cache_folder(cache),
        workers or os.cpu_count() or 1,
        target=target,
        columns=columns,
        size=size,
        labels=labels,
        stream=stream,
        on_error=on_error,
        progress=progress,
    )
    try:
        reader = next((reader for reader in _FORMATS if reader.matches(path)), None)
        if reader is None:
            problem = "is of no known format" if path.exists() else "does not exist"
            raise DataError(f"{str(source)!r} {problem}; {_ACCEPTED}")
        if target is not None and reader is not tables:
            raise DataError(f"target={target!r} names a column, but {str(source)!r} is no table: leave it out")
        if reader not in _PICTURES:
            _refuse_pictures(repr(str(source)), size, stream, on_error)
        raw = reader.read(path, test, options)
    except OSError as error:
        raise DataError(f"{str(source)!r} cannot be read: {reason(error)}") from error
    data = _limited(_assemble(raw, test_share, seed), limit, seed)
    if isinstance(data.X_train, Rows) or isinstance(data.X_test, Rows):
        data = replace(data, X_train=settled(data.X_train, stream), X_test=settled(data.X_test, stream))
    return data


def digits(seed: int = 0) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits as images uint8 (n, 1, 8, 8), 30% of each class as the test part.

    The published values 0..16 become 0..255.

    Example:
        >>> digits()
        Dataset('digits': 1258 train, 539 test, 10 classes, input (1, 8, 8) uint8, augment shift)
    """
    bunch = need("sklearn.datasets", "scikit-learn", "the digits dataset").load_digits()
    X = np.round(bunch.images[:, None] * (255 / 16)).astype(np.uint8)
    y = bunch.target.astype(np.int64)
    train, test = split(y, (1 - _DIGITS_TEST_SHARE, _DIGITS_TEST_SHARE), seed)
    return Dataset(
        name="digits",
        X_train=X[train],
        y_train=y[train],
        X_test=X[test],
        y_test=y[test],
        class_names=tuple(str(name) for name in bunch.target_names),
        augment="shift",
    )


def holds_pictures(source: str | Path) -> bool:
    """Return whether a source holds compressed images, which ``size`` can bring to one size."""
    path = Path(source).expanduser()
    return next((reader in _PICTURES for reader in _FORMATS if reader.matches(path)), False)


def _refuse_pictures(source: str, size: int | None, stream: bool | None, on_error: str) -> None:
    """Refuse options of compressed images for a source that has none."""
    given = {"size": size, "stream": stream or None, "on_error": None if on_error == "stop" else on_error}
    for name, value in given.items():
        if value is not None:
            raise DataError(
                f"{name}={value} is for images in a folder, Parquet or .tar files, and {source} is none: leave it out"
            )


def read_inputs(source: str | Sequence[str], input_shape: Sequence[int], size: int | None = None) -> Any:
    """Read inputs for a model from images, or from one ``.npy``, ``.npz``, table, or what :func:`load_dataset` takes.

    A table is returned as it is: its columns are compared where it is encoded. A grey image for a model of colour
    images gets three equal channels, as in training; beyond that the inputs are not compared with ``input_shape``, the
    shape of one of them. ``size`` is what images are brought to, as in training.
    """
    sources = [source] if isinstance(source, str) else source
    paths = [Path(text).expanduser() for text in sources]
    others = [path for path in paths if path.suffix.lower() not in SUFFIXES or not path.is_file()]
    if not others:
        return read_images(paths, size, colour=len(input_shape) == 3 and input_shape[0] == 3)
    if len(paths) > 1:
        raise DataError(f"of several inputs each must be the file of an image, and {str(others[0])!r} is none")
    source, path = sources[0], paths[0]
    if tables.matches(path) and path.is_file():
        return tables.read_table(path)
    if path.suffix not in (".npy", ".npz") or not path.is_file():
        return load_dataset(source, size=size if holds_pictures(source) else None, test_share=1).X_test
    with whole_file(path, "file of plain arrays"):
        if path.suffix == ".npy":
            with open_regular(path) as file:
                return read_npy(file, path.stat().st_size)
        (inputs,) = read_npz(path, lambda names: [_inputs_among(names, source)]).values()
        return inputs


def _inputs_among(names: list[str], source: str) -> str:
    wanted = [name for name in ("X_test", "X", "X_train") if name in names] or names
    if not wanted or (wanted == names and len(names) > 1):
        raise DataError(f"{source} holds {', '.join(names) or 'nothing'}: name the inputs X or X_test")
    return wanted[0]


def _assemble(raw: RawDataset, test_share: float, seed: int) -> Dataset:
    train, test = raw.train, raw.test
    parts = [(part, f"the {name} part of {raw.name}") for part, name in ((train, "train"), (test, "test")) if part]
    both = [label_array(part.y, what) for part, what in parts]
    if len({y.dtype.kind == "U" for y in both}) > 1:
        first, second = (
            f"{what} has labels such as {shown(y[0].item())}" for y, (_, what) in zip(both, parts, strict=True)
        )
        raise DataError(f"{first}, {second}: use one kind")
    y = np.concatenate(both)
    labels = LabelCodec.find(y, _class_names(raw.name, train, test), raw.name)
    X, y = check_arrays(train.X, train.y, labels, what=parts[0][1])
    if test is None:
        if not 0 < test_share <= 1:
            raise DataError(f"test_share={test_share} must be above 0 and at most 1")
        everything = np.arange(len(y))
        train_rows, test_rows = (
            (everything, everything) if test_share == 1 else split(y, (1 - test_share, test_share), seed)
        )
        if not len(test_rows) or not len(train_rows):
            raise DataError(f"test_share={test_share} of {len(y)} rows of {raw.name} leaves a part empty")
        (X_train, y_train), (X_test, y_test) = ((take_rows(X, rows), y[rows]) for rows in (train_rows, test_rows))
    else:
        X_train, y_train = X, y
        X_test, y_test = check_arrays(test.X, test.y, labels, what=parts[1][1], allow_one_class=True)
    are_images = X_train.ndim == 4 and X_train.dtype == np.uint8
    augment = "none" if not are_images else "flip+shift" if "cifar" in raw.name.lower() else "shift"
    y_train, y_test = labels.decode(y_train), labels.decode(y_test)
    return Dataset(raw.name, X_train, y_train, X_test, y_test, labels.names, augment, labels)


def _class_names(name: str, train: RawPart, test: RawPart | None) -> tuple[str, ...] | None:
    if train.class_names is None or test is None or test.class_names is None:
        return train.class_names
    for label, (ours, theirs) in enumerate(zip(train.class_names, test.class_names, strict=False)):
        if ours != theirs:
            raise DataError(f"the parts of {name} differ in class {label}: train {ours!r}, test {theirs!r}")
    if len(train.class_names) != len(test.class_names):
        raise DataError(
            f"the parts of {name} differ in classes: train has {len(train.class_names)}, test {len(test.class_names)}"
        )
    return train.class_names


def _limited(data: Dataset, limit: int | None, seed: int) -> Dataset:
    rows = [subset(len(y), limit, seed) for y in (data.y_train, data.y_test)]
    if all(part is None for part in rows):
        return data
    train, test = (slice(None) if part is None else part for part in rows)
    return replace(
        data,
        X_train=take_rows(data.X_train, train),
        y_train=data.y_train[train],
        X_test=take_rows(data.X_test, test),
        y_test=data.y_test[test],
    )
