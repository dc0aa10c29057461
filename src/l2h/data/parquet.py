"""Parquet of images in the Hugging Face layout.

Column ``img`` or ``image`` is a struct of ``bytes`` and ``path``, ``label`` or ``fine_label`` a label;
the class names are in the schema's ``huggingface`` metadata.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l2h.data.images import cached, decode_images
from l2h.data.reading import RawDataset, RawPart, ReadOptions, beside, existing, need, whole_file, without_train
from l2h.errors import DataError
from l2h.files import require_room

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")

#: Rows that are unpacked at a time.
_ROWS = 256

_log = logging.getLogger("l2h.data")


def matches(path: Path) -> bool:
    """Return whether this is a Parquet file, or the stem of ``STEM-train.parquet`` and ``STEM-test.parquet``."""
    return path.suffix == ".parquet" or (not path.exists() and _train_of(path).exists())


def read(path: Path, test: Path | None, options: ReadOptions) -> RawDataset:
    """Read the train file and, where there is one, its test file.

    ``path`` is the train file, or the stem of a train and a test file. ``X-train.parquet`` goes with
    ``X-test.parquet``, unless ``test`` is given; a file of another name has no test part but that of ``test``.
    """
    train = existing(path if path.suffix == ".parquet" else _train_of(path))
    if test is None and train.stem.endswith("-train"):
        test = beside(train, train.stem.removesuffix("-train") + "-test.parquet")

    def read_file(file: Path) -> RawPart:
        return cached([file], lambda: _decode_file(file, options.workers, options.size), options.cache, options.size)

    return RawDataset.read(without_train(train.stem), train, test, read_file)


def _train_of(stem: Path) -> Path:
    return stem.with_name(stem.name + "-train.parquet")


def _decode_file(path: Path, workers: int, size: int | None) -> RawPart:
    pyarrow = need("pyarrow", "pyarrow", "reading Parquet")
    parquet = need("pyarrow.parquet", "pyarrow", "reading Parquet")
    with whole_file(path, "Parquet file"), parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        image = _column(schema.names, IMAGE_COLUMNS, path)
        label = _column(schema.names, LABEL_COLUMNS, path)
        table = _read_bounded(pyarrow, file, [image, label], path.stat().st_size)
    if table.num_rows == 0:
        raise DataError(f"{str(path)!r} has no rows: at least one image is needed")
    y = _labels(pyarrow, table.column(label), label, path)
    encoded = _image_bytes(pyarrow, table.column(image), image, path)
    _log.info("decoding %d images of %s", len(encoded), path.name)
    X = decode_images(encoded, lambda row: f"row {row} of {path.name}", workers, size)
    return RawPart(X, y, _class_names(schema.metadata, label, path))


def _read_bounded(pyarrow: Any, file: Any, columns: list[str], packed: int) -> Any:
    """Read some rows at a time: a page that names one image for every row takes no room in the file."""
    batches, total = [], 0
    for batch in file.iter_batches(_ROWS, columns=columns):
        batches.append(batch)
        total += batch.nbytes
        require_room(total, packed)
    schema = pyarrow.schema([file.schema_arrow.field(name) for name in columns])
    return pyarrow.Table.from_batches(batches, schema)


def _column(columns: Sequence[str], accepted: Sequence[str], path: Path) -> str:
    for name in accepted:
        if name in columns:
            return name
    raise DataError(f"{str(path)!r} has no column {' or '.join(accepted)}: its columns are {', '.join(columns)}")


def _image_bytes(pyarrow: Any, column: Any, name: str, path: Path) -> list[bytes]:
    kind = column.type
    if pyarrow.types.is_struct(kind) and (place := kind.get_field_index("bytes")) >= 0:
        column = pyarrow.chunked_array([chunk.flatten()[place] for chunk in column.chunks])
    if not (pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type)):
        raise DataError(f"column {name} of {str(path)!r} is {kind}, but a struct of bytes and path is needed")
    encoded: list[bytes] = column.to_pylist()
    if column.null_count:
        raise DataError(f"row {encoded.index(None)} of {path.name}: there are no image bytes")  # type: ignore[arg-type]
    return encoded


def _labels(pyarrow: Any, column: Any, name: str, path: Path) -> Any:
    kinds = pyarrow.types
    text = kinds.is_string(column.type) or kinds.is_large_string(column.type)
    if not (text or kinds.is_integer(column.type) or kinds.is_boolean(column.type)):
        raise DataError(f"column {name} of {str(path)!r} is {column.type}: labels are text, integers or booleans")
    if column.null_count:
        raise DataError(f"row {column.to_pylist().index(None)} of {path.name}: there is no label")
    labels = np.array(column.to_pylist()) if text else column.to_numpy()
    if labels.dtype.kind == "i" and labels.min() < 0:
        raise DataError(f"{path.name}: label {labels.min()} in row {labels.argmin()} marks an image without a label")
    return labels


def _class_names(metadata: dict[bytes, bytes] | None, label: str, path: Path) -> tuple[str, ...] | None:
    stored = (metadata or {}).get(b"huggingface")
    if stored is None:
        return None
    try:
        feature = json.loads(stored)["info"]["features"][label]
        names = feature.get("names")
        return None if names is None else tuple(str(name) for name in names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("the class names of %s cannot be read (%r): they are called 0, 1, ...", path.name, error)
        return None
