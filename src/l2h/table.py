"""Tables: rows of named columns, made of data frames, mappings and files of texts."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import DataError, MissingExtraError, shown, warn

Array = npt.NDArray[Any]
#: What a CSV file writes for a missing value: what pandas reads as one.
MISSING_WORDS = {
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "NaN", "None", "n/a", "nan", "null"),
}
_BOOLEANS = {"true": 1.0, "false": 0.0}
#: A text that begins so is no number: 01 is not 1.
_CODE = re.compile(r"\s*[+-]?0[0-9]")
DATE_HINT = "holds dates: give numbers instead, such as the year, the weekday, or the days since a fixed day"


class Table:
    """Rows of named columns, each an array: numbers, NaN where one is missing; or texts, None where one is missing.

    ``declared`` are the categories of columns that were declared to be of categories, in their order; ``left_out`` the
    names of columns of the source that were not read. :func:`as_table` makes a table of what people have.

    Example:
        >>> table = as_table({"age": [31, None], "job": ["nurse", "pilot"]})
        >>> len(table), table.names, table.columns["age"].tolist()
        (2, ('age', 'job'), [31.0, nan])
        >>> table[1:].columns["job"].tolist()
        ['pilot']
    """

    def __init__(
        self,
        columns: Mapping[str, Array],
        declared: Mapping[str, Sequence[Any]] | None = None,
        left_out: Iterable[str] = (),
    ) -> None:
        self.columns, self.left_out = dict(columns), tuple(left_out)
        self.declared = dict(declared or {})
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1 or not (lengths or self.left_out):
            raise DataError(f"a table needs columns of one length; got {shown(lengths)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: Any) -> Table:
        """Return some rows: a slice, a mask or row numbers."""
        return Table({name: values[rows] for name, values in self.columns.items()}, self.declared)

    def select(self, names: Iterable[str]) -> Table:
        return Table({name: self.columns[name] for name in names}, self.declared)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame; a missing text is NaN there, and declared categories have their type."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "a model that takes a table by its column names needs pandas: pip install pandas"
            ) from error
        series: dict[str, Any] = {}
        for name, values in self.columns.items():
            series[name] = values
            if values.dtype == object:
                series[name] = np.array([np.nan if value is None else value for value in values], dtype=object)
            if name in self.declared:
                series[name] = pandas.Categorical(series[name], categories=list(self.declared[name]))
        return pandas.DataFrame(series)


def is_table(X: Any) -> bool:
    """Return whether inputs have named columns: a table, a data frame or its row, a mapping, or a list of mappings."""
    if isinstance(X, np.ndarray):
        return False
    if isinstance(X, Table | Mapping) or isinstance(getattr(X, "table", None), Table):
        return True
    if isinstance(X, list | tuple):
        return len(X) > 0 and isinstance(X[0], Mapping)
    kind = type(X)  # not X itself: a lazy frame looks its columns up
    known = kind.__module__.split(".")[0] in ("pandas", "polars", "pyarrow")
    if known and kind.__name__ == "Series" and hasattr(kind, "index"):  # of pandas: a row has names, a column numbers
        return len(X) > 0 and all(isinstance(name, str) for name in X.index)
    return known and (hasattr(kind, "columns") or hasattr(kind, "column_names"))


def as_table(source: Any, needed: Sequence[str] | None = None) -> Table:
    """Return a table of a data frame (pandas or polars), a pyarrow table, a mapping of columns, or one row or more.

    A row is a mapping of single values or a pandas Series. ``needed`` are the columns to read; None for all. An error
    names the column and the row, which is counted from 0.
    """
    if isinstance(source, Table):
        return source
    if isinstance(getattr(source, "table", None), Table):  # with its numbers beside it
        return source.table  # type: ignore[no-any-return]
    if not is_table(source):
        kind = f"an array of shape {source.shape}" if isinstance(source, np.ndarray) else shown(source)
        raise DataError(f"{kind} has no named columns: give a data frame, or a mapping of columns")
    source = _as_columns(source)
    names = list(source if isinstance(source, dict) else _names(source))
    texts = [str(name) for name in names]
    if len(set(texts)) < len(texts):
        twice = sorted({name for name in texts if texts.count(name) > 1})
        raise DataError(f"the table has two columns {twice[0]!r}: give each a name of its own")
    if not names:
        raise DataError("the table has no columns")
    columns, declared = {}, {}
    wanted = set(texts if needed is None else needed)
    for name in names:
        if str(name) not in wanted:
            continue
        columns[str(name)], categories = _take_column(source[name], str(name))
        if categories is not None:
            declared[str(name)] = categories
    return Table(columns, declared, [name for name in texts if name not in wanted])


def _as_columns(source: Any) -> Any:
    """Return rows as a dictionary of columns, and a frame as it is."""
    if type(source).__name__ == "Series":
        source = source.to_dict()
    if isinstance(source, list | tuple):
        wrong = next((row for row, values in enumerate(source) if not isinstance(values, Mapping)), None)
        if wrong is not None:
            raise DataError(f"row {wrong} is {shown(source[wrong])}: give a mapping of values, as in row 0")
        names = list(dict.fromkeys(name for row in source for name in row))
        return {name: [row.get(name) for row in source] for name in names}
    if isinstance(source, Mapping):
        single = {name: _is_single(values) for name, values in source.items()}
        if len(set(single.values())) > 1:
            name = next(name for name in single if single[name])
            raise DataError(f"column {str(name)!r} is {shown(source[name])}, and other columns have one value per row")
        return {name: [values] if single[name] else values for name, values in source.items()}
    return source.collect() if type(source).__name__ == "LazyFrame" else source  # of polars


def _names(source: Any) -> Any:
    # By its type: a data frame of pandas gives a column for any other attribute.
    return source.column_names if hasattr(type(source), "column_names") else source.columns


def _is_single(values: Any) -> bool:
    """Return whether this is one value, and no column of them."""
    return (
        isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0
    )


def infer_types(table: Table) -> Table:
    """Return a table of texts, as a CSV file holds it, with numbers and booleans where all of a column are.

    A column with a zero before another digit stays text: its values are codes, which numbers would change.
    """
    columns: dict[str, Array] = {}
    for name, values in table.columns.items():
        absent = absent_values(values)
        parsed = np.array([parse_number(value) for value in values])
        codes = np.array([value is not None and _CODE.match(value) is not None for value in values])
        wrong = (np.isnan(parsed) | codes) & ~absent
        columns[name] = values
        if not wrong.any():
            words = {value.strip().lower() for value in values[~absent]}
            if not absent.any() and words <= set(_BOOLEANS):
                parsed = parsed.astype(np.bool_)
            elif not absent.any() and all(re.fullmatch(r"[+-]?\d{1,18}", word) for word in words):
                parsed = np.array([int(value) for value in values])
            columns[name] = parsed
        elif 10 * wrong.sum() < len(values):
            row = int(np.argmax(wrong))
            text = f"row {row}: column {name!r} is {shown(values[row])}, and most of the column are numbers"
            warn(f"{text}: it is read as texts")
    return Table(columns)


def _take_column(values: Any, name: str) -> tuple[Array, tuple[Any, ...] | None]:
    """Return a column as an array of numbers or texts, and its categories where they are declared."""
    dtype = getattr(values, "dtype", getattr(values, "type", None))
    if type(dtype).__name__ == "DictionaryType":  # of pyarrow
        categories: Any = sorted({value for value in values.to_pylist() if value is not None})
        values = np.array(values.to_pylist(), dtype=object)
    else:
        categories = getattr(dtype, "categories", None)  # of pandas, and of polars' Enum
        if type(dtype).__name__ == "Categorical":  # of polars, where the type may know more than the column holds
            categories = values.drop_nulls().unique().sort()
    if hasattr(values, "to_numpy"):
        arrow = type(values).__module__.startswith("pyarrow")  # which copies only where it is told to
        array = values.to_numpy(zero_copy_only=False) if arrow else values.to_numpy()
    elif isinstance(values, np.ndarray):
        array = values
    else:
        array = np.fromiter(values, dtype=object, count=len(values))
    if array.ndim != 1:
        raise DataError(f"column {name!r} has shape {array.shape}: a column has one value per row")
    array = _plain(array, name)
    if categories is None:
        return array, None
    known = _plain(np.asarray(categories), name)
    return array, tuple(known.tolist())


def _plain(array: Array, name: str) -> Array:
    """Return numbers as they are, and objects as numbers or texts."""
    kind = array.dtype.kind
    if kind in "biuf":
        return array
    if kind in "Mm":
        raise DataError(f"column {name!r} {DATE_HINT}")
    if kind not in "OUT":
        raise DataError(f"column {name!r} has the type {array.dtype}: a column holds numbers, categories or texts")
    values: list[Any] = [None if _is_missing(value) else value for value in array.tolist()]
    types = {_type_of(value, row, name) for row, value in enumerate(values) if value is not None}
    if types == {str}:
        return np.array(values, dtype=object)
    if str in types:
        row = next(row for row, value in enumerate(values) if isinstance(value, str))
        raise DataError(f"row {row}: column {name!r} is {shown(values[row])}, but other rows hold numbers")
    if types in ({bool}, {int}) and None not in values and max(map(abs, values)) < 2**63:
        return np.array(values)
    return np.array([np.nan if value is None else _as_float(value) for value in values])


def _type_of(value: Any, row: int, name: str) -> type:
    for kind in (str, bool, int, float, Decimal):
        if isinstance(value, kind):
            return kind
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        raise DataError(f"column {name!r} {DATE_HINT}")
    raise DataError(f"row {row}: column {name!r} is {shown(value)}: a column holds numbers, categories or texts")


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf


def _is_missing(value: Any) -> bool:
    # pandas has two values of its own for what is missing, and is not imported here.
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | Decimal | np.generic) and bool(value != value)  # noqa: PLR0124


def absent_values(values: Array) -> npt.NDArray[np.bool_]:
    """Return (n,), true where a value of a column is missing."""
    if values.dtype == object:
        return np.array([_is_missing(value) for value in values], dtype=np.bool_)
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=np.bool_)


def parse_number(value: Any) -> float:
    """Return the number that a text stands for; NaN where it is none, or is missing."""
    if not isinstance(value, str):
        return np.nan if value is None else float(value)
    word = value.strip()
    try:
        if word.lower() in _BOOLEANS:
            return _BOOLEANS[word.lower()]
        return float(word.replace("_", "?")) if word.isascii() else np.nan
    except ValueError:
        return np.nan
