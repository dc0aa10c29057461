"""Tables of outcomes: what was asked, whether the client was right, and whether the server was right."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import BoolArray
from l2h.data.reading import existing, need, whole_file
from l2h.errors import DataError, shown

TEXT_COLUMN, CLIENT_COLUMN, SERVER_COLUMN = "prompt", "client_right", "server_right"
#: What a CSV file may write for right and wrong.
_WORDS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


@dataclass(frozen=True)
class OutcomeTable:
    """Inputs that two answerers were asked about, and who was right."""

    name: str
    X: Any  # n texts as a list, or embeddings (n, d)
    client_right: BoolArray
    server_right: BoolArray

    def __len__(self) -> int:
        return len(self.client_right)

    def part(self, rows: npt.NDArray[np.int64]) -> OutcomeTable:
        X = [self.X[i] for i in rows] if isinstance(self.X, list) else self.X[rows]
        return OutcomeTable(self.name, X, self.client_right[rows], self.server_right[rows])


def read_outcomes(source: Any, text_column: str = TEXT_COLUMN) -> OutcomeTable:
    """Read a ``.parquet`` or ``.csv`` file, or take a data frame, with ``client_right`` and ``server_right``.

    ``text_column`` holds the inputs: texts, or lists of numbers of one length (embeddings). An error names the column
    and the row, which is counted from 0 without the header.
    """
    wanted = (text_column, CLIENT_COLUMN, SERVER_COLUMN)
    if isinstance(source, str | Path):
        path = existing(Path(source))
        name, columns = path.stem, _read_file(path, wanted)
    else:
        name, columns = "outcomes", _take_frame(source, wanted)
    if not columns[text_column]:
        raise DataError(f"{name} has no rows: at least one outcome is needed")
    return check_outcomes(columns[text_column], columns[CLIENT_COLUMN], columns[SERVER_COLUMN], name, text_column)


def read_prompts(source: str, text_column: str = TEXT_COLUMN) -> Any:
    """Return what a router is asked about: the rows of a file, or the text itself where it names none.

    A ``.npy`` holds embeddings; a ``.csv`` or ``.parquet`` has a column of texts or embeddings.
    """
    path = Path(source)
    named = path.suffix in (".npy", ".csv", ".parquet") and not any(letter.isspace() for letter in source)
    try:
        named = named or path.is_file()
    except OSError:  # too long for a path
        named = False
    if not named:
        return [source]
    if existing(path).suffix == ".npy":
        with whole_file(path, "file of numpy"):
            return np.atleast_2d(np.load(path, allow_pickle=False))
    return _read_file(path, (text_column,))[text_column]


def check_outcomes(
    X: Any, client_right: Any, server_right: Any, name: str = "outcomes", text_column: str = "X"
) -> OutcomeTable:
    """Return inputs and outcomes as arrays; raise a :class:`DataError` that names the row that cannot be used."""
    X = check_prompts(X, text_column)
    client = as_outcomes(CLIENT_COLUMN, client_right)
    server = as_outcomes(SERVER_COLUMN, server_right)
    if not len(X) == len(client) == len(server):
        lengths = f"{len(X)} inputs, {len(client)} of {CLIENT_COLUMN} and {len(server)} of {SERVER_COLUMN}"
        raise DataError(f"there are {lengths}: give one of each per input")
    return OutcomeTable(name, X, client, server)


def check_prompts(X: Any, name: str = "X") -> Any:
    """Return texts as a list, or embeddings as float64 (n, d); refuse empty texts and numbers that are not finite."""
    if isinstance(X, str):
        X = [X]
    values = X.tolist() if isinstance(X, np.ndarray) and X.dtype.kind in "OUT" else X
    if not isinstance(values, np.ndarray):
        try:
            values = list(values)
        except TypeError:
            raise DataError(f"{name} is {shown(X)}, but texts, or embeddings (n, d), are needed") from None
        if values and isinstance(values[0], str):
            return _checked_texts(values, name)
    return _checked_embeddings(values, name)


def as_outcomes(name: str, values: Any) -> BoolArray:
    """Return bool (n,) from booleans, 0 and 1, or the words true and false; refuse a third value with its row."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{name} must be one value per input; got shape {array.shape}")
    if array.dtype == np.bool_:
        return array
    return np.array([_as_bool(value, name, row) for row, value in enumerate(array.tolist())], dtype=np.bool_)


def _as_bool(value: Any, name: str, row: int) -> bool:
    found = _WORDS.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(found, bool | int | float) and found in (0, 1):
        return bool(found)
    raise DataError(f"row {row}: {name} is {shown(value)}, but an outcome is 0 (wrong) or 1 (right)")


def _checked_texts(values: Sequence[Any], name: str) -> list[str]:
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise DataError(f"row {row}: {name} is {shown(value)}, but the rows before it are texts")
        if not value.strip():
            raise DataError(f"row {row}: {name} is an empty text: remove the row")
    return list(values)


def _checked_embeddings(values: Any, name: str) -> npt.NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        lengths = [_length(value) for value in values]
        first = next((length for length in lengths if length is not None), 0)
        row = next((i for i, length in enumerate(lengths) if length != first), 0)
        raise DataError(
            f"row {row}: {name} is {shown(values[row])}, but texts, or lists of numbers of one length, are needed"
        ) from None
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{name} must be texts, or embeddings (n, d); got numbers of shape {array.shape}")
    bad = ~np.isfinite(array).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"row {row}: {name} has a number that is not finite ({int(bad.sum())} such rows): remove it")
    return array


def _length(value: Any) -> int | None:
    """Return how many numbers a list has; None where it is something else."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return len(array) if array.ndim == 1 else None


def _read_file(path: Path, wanted: Sequence[str]) -> dict[str, list[Any]]:
    if path.suffix == ".parquet":
        parquet = need("pyarrow.parquet", "pyarrow", "reading Parquet")
        with whole_file(path, "Parquet file"), parquet.ParquetFile(path) as file:
            _require(wanted, file.schema_arrow.names, str(path))
            table = file.read(columns=list(wanted))
            return {name: table.column(name).to_pylist() for name in wanted}
    if path.suffix == ".csv":
        with whole_file(path, "CSV file"), path.open(newline="", encoding="utf-8-sig") as text:
            rows = csv.DictReader(text)
            _require(wanted, rows.fieldnames or (), str(path))
            kept = [[row[name] for name in wanted] for row in rows]
        return {name: [row[k] for row in kept] for k, name in enumerate(wanted)}
    raise DataError(f"{str(path)!r} is no table: give a .parquet or a .csv file")


def _take_frame(source: Any, wanted: Sequence[str]) -> dict[str, list[Any]]:
    names = source if isinstance(source, Mapping) else getattr(source, "column_names", getattr(source, "columns", None))
    if names is None or not hasattr(source, "__getitem__"):
        raise DataError(
            f"{shown(source)} is no table of outcomes: give a file, a data frame, or X, {CLIENT_COLUMN} and "
            f"{SERVER_COLUMN}"
        )
    _require(wanted, names, "the table")
    return {name: _listed(source[name]) for name in wanted}


def _listed(column: Any) -> list[Any]:
    for method in ("to_pylist", "to_list", "tolist"):  # of pyarrow; of pandas and polars; of numpy
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _require(wanted: Sequence[str], names: Iterable[str], where: str) -> None:
    there = [str(name) for name in names]
    for name in wanted:
        if name not in there:
            hint = "; --text-column (text_column=) names another" if name == wanted[0] and len(wanted) > 1 else ""
            raise DataError(f"{where} has no column {name!r}: its columns are {', '.join(there) or 'none'}{hint}")
