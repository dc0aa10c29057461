"""Parquet of images in the Hugging Face layout, in one file or in many.

Column ``img`` or ``image`` is a struct of ``bytes`` and ``path``, ``label`` or ``fine_label`` a label;
the class names are in the schema's ``huggingface`` metadata.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from l2h.data.decoded import EncodedImages, ImageSource
from l2h.data.reading import RawDataset, ReadOptions, need, whole_file
from l2h.data.shards import Shards, holds_shards, read_shards
from l2h.errors import DataError, in_one_line
from l2h.files import require_room

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
SUFFIX = ".parquet"

#: Rows that are unpacked at a time, and bytes that are held at a time.
_ROWS, _BYTES = 256, 64 * 2**20

_log = logging.getLogger("l2h.data")


def matches(path: Path) -> bool:
    """Return whether this is a Parquet file, a pattern or a folder of them, or the stem of ``STEM-train.parquet``."""
    return holds_shards(path, SUFFIX) or (not path.exists() and _train_of(path).exists())


def read(path: Path, test: Path | None, options: ReadOptions) -> RawDataset:
    """Read the train files and, where there are any, the test files, as :func:`l2h.data.shards.find_parts` finds them.

    ``path`` may also be the stem of ``X-train.parquet`` and ``X-test.parquet``.
    """
    train = path if holds_shards(path, SUFFIX) else _train_of(path)
    return read_shards(train, test, SUFFIX, options, lambda shards: _source(shards, options.on_error))


def _train_of(stem: Path) -> Path:
    return stem.with_name(stem.name + "-train" + SUFFIX)


def _source(shards: Shards, on_error: str) -> ImageSource:
    pyarrow = need("pyarrow", "pyarrow", "reading Parquet")
    parquet = need("pyarrow.parquet", "pyarrow", "reading Parquet")

    schemas = cache(lambda: _read_schemas(parquet, shards.files, on_error))

    def pieces(rows: int) -> Iterator[EncodedImages]:
        for file in shards.files:
            try:
                yield from _read_file(pyarrow, parquet, file, rows)
            except DataError as error:
                yield EncodedImages([], np.zeros(0, np.int64), wrong=[str(error)])

    return ImageSource(shards.title, shards.place, shards.files, lambda: schemas()[0], pieces, lambda: schemas()[1])


def _read_schemas(parquet: Any, files: list[Path], on_error: str) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of rows and the class names of files, which must have their labels in the same column."""
    rows, found = 0, list[tuple[str, str, tuple[str, ...] | None]]()
    for file in files:
        title = in_one_line(file.name)
        try:
            with whole_file(file, "Parquet file"):
                metadata = parquet.read_metadata(file)
                schema = metadata.schema.to_arrow_schema()
                label = _column(schema.names, LABEL_COLUMNS, file)
        except DataError:
            if on_error == "stop":
                raise
            continue
        rows += metadata.num_rows
        found.append((title, label, _class_names(schema.metadata, label, file)))
        first, column, names = found[0]
        if label != column:
            raise DataError(
                f"{title} has its labels in the column {label}, {first} in {column}: they do not belong together"
            )
        if found[-1][2] != names:
            raise DataError(f"{title} has other class names than {first}: they do not belong together")
    return rows, found[0][2] if found else None


def _read_file(pyarrow: Any, parquet: Any, path: Path, rows: int) -> Iterator[EncodedImages]:
    """Give the rows of a file, some at a time, so that a file of any size takes little memory.

    A page that names one image for every row takes no room in the file, and is refused.
    """
    # Without these options a whole row group is read at once.
    with whole_file(path, "Parquet file"), parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
        names = file.schema_arrow.names
        image, label = _column(names, IMAGE_COLUMNS, path), _column(names, LABEL_COLUMNS, path)
        found: list[tuple[bytes | None, Any]] = []
        start = total = held = 0
        for batch in file.iter_batches(min(rows, _ROWS), columns=[image, label]):
            total += batch.nbytes
            require_room(total, path.stat().st_size)
            images = _image_bytes(pyarrow, batch.column(image), image, path).to_pylist()
            found += zip(images, _labels(pyarrow, batch.column(label), label, path).to_pylist(), strict=True)
            held += batch.nbytes
            if len(found) + _ROWS > rows or held > _BYTES:
                yield _piece(found, start, path)
                start, found, held = start + len(found), [], 0
        if found:
            yield _piece(found, start, path)


def _piece(found: list[tuple[bytes | None, Any]], start: int, path: Path) -> EncodedImages:
    """Return rows, less those without an image or a label."""
    images, labels, kept, wrong, title = [], [], [], [], in_one_line(path.name)
    for row, (image, label) in enumerate(found, start):
        if image is None:
            wrong.append(f"row {row} of {title}: there are no image bytes")
        elif label is None:
            wrong.append(f"row {row} of {title}: there is no label")
        elif isinstance(label, int) and label < 0:
            wrong.append(f"{title}: label {label} in row {row} marks an image without a label")
        else:
            images.append(image)
            labels.append(label)
            kept.append(row)
    y = np.array(labels) if labels else np.zeros(0, np.int64)
    return EncodedImages(images, y, lambda i: f"row {kept[i]} of {title}", wrong)


def _column(columns: Sequence[str], accepted: Sequence[str], path: Path) -> str:
    for name in accepted:
        if name in columns:
            return name
    raise DataError(f"{str(path)!r} has no column {' or '.join(accepted)}: its columns are {', '.join(columns)}")


def _image_bytes(pyarrow: Any, column: Any, name: str, path: Path) -> Any:
    kind = column.type
    if pyarrow.types.is_struct(kind) and (place := kind.get_field_index("bytes")) >= 0:
        column = column.flatten()[place]
    if not (pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type)):
        raise DataError(f"column {name} of {str(path)!r} is {kind}, but a struct of bytes and path is needed")
    return column


def _labels(pyarrow: Any, column: Any, name: str, path: Path) -> Any:
    kinds = pyarrow.types
    if kinds.is_dictionary(column.type):  # a category of pandas
        column = column.dictionary_decode()
    text = kinds.is_string(column.type) or kinds.is_large_string(column.type)
    if not (text or kinds.is_integer(column.type) or kinds.is_boolean(column.type)):
        raise DataError(f"column {name} of {str(path)!r} is {column.type}: labels are text, integers or booleans")
    return column


def _class_names(metadata: dict[bytes, bytes] | None, label: str, path: Path) -> tuple[str, ...] | None:
    stored = (metadata or {}).get(b"huggingface")
    if stored is None:
        return None
    try:
        feature = json.loads(stored)["info"]["features"][label]
        names = feature.get("names")
        return None if names is None else tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning(
            "the class names of %s cannot be read (%r): they are called 0, 1, ...", in_one_line(path.name), error
        )
        return None
