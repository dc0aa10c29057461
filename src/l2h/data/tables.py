"""Tables as ``.csv`` or Parquet files: named columns, of which one holds the labels."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from l2h.columns import Columns
from l2h.data.dataset import Array
from l2h.data.parquet import IMAGE_COLUMNS
from l2h.data.reading import RawDataset, RawPart, ReadOptions, beside, existing, need, whole_file, without_train
from l2h.errors import DataError
from l2h.table import MISSING_WORDS, Table, absent_values, as_table, infer_types

#: What the column of labels is called where nobody says.
TARGETS = ("target", "label", "class", "y")


def matches(path: Path) -> bool:
    """Return whether this is a ``.csv``, a Parquet file without images, or the stem of ``STEM-train.csv``."""
    if path.suffix == ".csv":
        return True
    if path.suffix == ".parquet" and path.is_file():
        return not _has_images(path)
    return not path.exists() and _train_of(path).exists()


def read(path: Path, test: Path | None, options: ReadOptions) -> RawDataset:
    """Read the train file and, where there is one, its test file, whose columns are those of the train file.

    ``X-train.csv`` goes with ``X-test.csv``, unless ``test`` is given; a file of another name has no test part but that
    of ``test``. In a ``.csv`` a column is of numbers where every value is one, and the words that pandas takes for a
    missing value are missing.
    """
    train = existing(path if path.suffix else _train_of(path))
    if test is None and train.stem.endswith("-train"):
        test = beside(train, train.stem.removesuffix("-train") + "-test" + train.suffix)
    found, known = options.columns, options.labels
    texts = known is not None and known.values is not None and isinstance(known.values[0], str)

    def read_part(file: Path) -> RawPart:
        nonlocal found, texts
        table = read_table(file)
        target = _find_target(table, options.target, file)
        labels, rest = table.select([target]), table.select([name for name in table.names if name != target])
        if file.suffix == ".csv":
            labels, rest = labels if texts else infer_types(labels), infer_types(rest) if found is None else rest
        y = _labels(labels.columns[target], target, file)
        texts = y.dtype.kind == "U"  # those of the test file are read as those of the train file
        if found is None:
            if (y == y[0]).all():
                raise DataError(f"column {target!r} of {file.name} is {y[0]} in every row: two classes are needed")
            found = Columns.fit(rest)
        return RawPart(found.encode(rest), y)  # type: ignore[arg-type]

    return RawDataset.read(without_train(train.stem), train, test, read_part)


def read_table(path: Path) -> Table:
    """Read a ``.csv`` file as texts, None where a value is missing; or a Parquet file with the types that it has.

    Commas separate the values; where the line of names has none, semicolons or tabs.
    """
    if path.suffix == ".parquet":
        parquet = need("pyarrow.parquet", "pyarrow", "reading Parquet")
        with whole_file(path, "Parquet file"):
            return as_table(parquet.read_table(path))
    with whole_file(path, "CSV file"), path.open(newline="", encoding="utf-8-sig") as text:
        head = text.readline()
        text.seek(0)
        rows = csv.reader(text, strict=True, delimiter=next((mark for mark in ",;\t" if mark in head), ","))
        names = [name.strip() or f"Unnamed: {i}" for i, name in enumerate(next(rows, []))]
        values = [_fields(row, names, number) for number, row in enumerate(rows) if row]
    if not names or not values:
        raise DataError(f"{str(path)!r} has no rows: a line of column names and at least one row are needed")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{str(path)!r} has two columns {twice[0]!r}: give each a name of its own")
    return Table({name: np.array([row[i] for row in values], dtype=object) for i, name in enumerate(names)})


def _fields(row: list[str], names: Sequence[str], number: int) -> list[str | None]:
    if len(row) != len(names):
        raise DataError(f"row {number} has {len(row)} values, but there are {len(names)} columns: is a comma quoted?")
    return [None if value.strip() in MISSING_WORDS else value for value in row]


def _find_target(table: Table, target: str | None, path: Path) -> str:
    names = ", ".join(table.names[:12]) + (", ..." if len(table.names) > 12 else "")
    if target is not None:
        if target not in table.columns:
            raise DataError(f"{str(path)!r} has no column {target!r}; its columns are {names}")
    else:
        usual = [name for name in TARGETS if name in table.columns]
        if len(usual) != 1:
            problem = (
                "several columns that may hold the labels" if usual else "no column called " + " or ".join(TARGETS)
            )
            raise DataError(f"{str(path)!r} has {problem}: name it with --target (target=); its columns are {names}")
        target = usual[0]
    if len(table.names) < 2:
        raise DataError(f"{str(path)!r} has no column beside {target!r}, the labels")
    return target


def _labels(values: Array, target: str, path: Path) -> Array:
    absent = absent_values(values)
    if absent.any():
        raise DataError(f"row {int(np.argmax(absent))} of {path.name}: column {target!r} holds no label")
    return values.astype(str) if values.dtype == object else values


def _has_images(path: Path) -> bool:
    parquet = need("pyarrow.parquet", "pyarrow", "reading Parquet")
    types = need("pyarrow", "pyarrow", "reading Parquet").types
    with whole_file(path, "Parquet file"):
        schema = parquet.read_schema(path)
        packed = any(types.is_struct(kind) or types.is_binary(kind) for kind in schema.types)
        return packed or bool(set(IMAGE_COLUMNS) & set(schema.names))


def _train_of(stem: Path) -> Path:
    return stem.with_name(stem.name + "-train.csv")
