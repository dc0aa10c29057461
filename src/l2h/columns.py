"""Tables: rows of named columns, and :class:`Columns`, which turns them into the numbers that networks read.

A table is encoded once, where it comes in. Networks, rejectors and the wire see the float32 array. A classifier of the
user's gets the columns by name. A device needs numpy alone for all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.errors import DataError, shown, warn
from l2h.ngrams import NGrams, weigh
from l2h.table import DATE_HINT, Array, Table, absent_values, as_table, is_table, parse_number

#: A column of texts is one of categories where it has at most so many different ones, and on average so many rows each.
MOST_CATEGORIES, ROWS_PER_CATEGORY = 256, 4
#: With so few different texts it always is.
FEW_CATEGORIES = 20
#: Single words and runs of three characters; each is hashed into 256 numbers.
TEXT = NGrams(words=(1, 1), characters=(3, 3), bits=8)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?([ T]\d\d?:\d\d.*)?|\d\d?[./]\d\d?[./]\d{4}")


@dataclass(frozen=True)
class TableColumn:
    """What training found out about one column.

    A number becomes one number; a category one number per known category, 1 for its own and 0 for the others; a text
    becomes 512 numbers, by hashing its words and its runs of three characters. Where values were missing
    in training, one more number follows: 1 where the value is missing. ``fill``, the mean in training, then stands for
    a missing number, and zeros for a missing category or text.
    """

    name: str
    kind: str  # number, category or text
    missing: bool = False  # whether some values were missing in training
    fill: float = 0.0  # what stands for a missing number: their mean
    spread: float = 1.0  # their standard deviation
    categories: tuple[str | int | float | bool, ...] = ()  # in the order of their numbers
    declared: bool = False  # whether they were declared, as by the type of a pandas column

    def __post_init__(self) -> None:
        known: set[str] = set()
        for value in self.categories:
            if _key(value) in known:
                raise DataError(f"column {self.name!r} has the category {shown(value)} twice")
            known.add(_key(value))

    @property
    def width(self) -> int:
        """How many numbers the column becomes."""
        size = {"number": 1, "category": len(self.categories), "text": TEXT.columns}[self.kind]
        return size + self.missing

    @property
    def features(self) -> list[str]:
        """The names of these numbers, for people."""
        parts = {
            "number": [self.name],
            "category": [f"{self.name}={value}" for value in self.categories],
            "text": [f"{self.name}#{i}" for i in range(TEXT.columns)],
        }[self.kind]
        return [*parts, f"{self.name} is missing"] if self.missing else parts

    @classmethod
    def fit(cls, name: str, values: Array, declared: Sequence[Any] | None) -> TableColumn:
        absent = absent_values(values)
        missing, there = bool(absent.any()), values[~absent]
        if declared is not None:
            return cls(name, "category", missing, categories=tuple(declared), declared=True)
        if values.dtype != object:
            _require_finite(values, name)
            numbers = there.astype(np.float64) if len(there) else np.zeros(1)
            return cls(name, "number", missing, float(numbers.mean()), float(numbers.std()))
        if len(there) and all(_DATE.fullmatch(value.strip()) for value in there):
            raise DataError(f"column {name!r} {DATE_HINT}")
        known = sorted(set(there))
        if len(known) > max(FEW_CATEGORIES, min(MOST_CATEGORIES, len(values) // ROWS_PER_CATEGORY)):
            return cls(name, "text", missing)
        return cls(name, "category", missing, categories=tuple(known))

    def encode(self, values: Array) -> tuple[Array, npt.NDArray[np.float32]]:
        """Return the values as they were in training, numbers as numbers, and the features (n, width)."""
        absent = absent_values(values)
        if not self.missing and absent.any():
            row = int(np.argmax(absent))
            raise DataError(
                f"row {row}: column {self.name!r} has no value, and it had one in every row of the training: fill it in"
            )
        x = np.zeros((len(values), self.width), dtype=np.float32)
        if self.missing:
            x[:, -1] = absent
        if self.kind == "number":
            values = self._numbers(values)
            with np.errstate(over="ignore"):  # beyond float32 it becomes infinite and is refused
                x[:, 0] = np.where(absent, self.fill, values)
            _require_finite(x[:, 0], self.name)
        elif self.kind == "category":
            codes = self._find(values, absent)
            x[np.flatnonzero(~absent), codes] = 1.0
            place = np.full(len(values), -1)
            place[~absent] = codes
            values = np.array([None if code < 0 else self.categories[code] for code in place], dtype=object)
        else:
            values = np.array(
                [None if gone else str(value) for value, gone in zip(values, absent, strict=True)], dtype=object
            )
            counts = TEXT.count(["" if value is None else value for value in values])
            weighed = weigh(counts, TEXT, np.ones(TEXT.columns, dtype=np.float32), len(values))
            x[weighed.row, weighed.column] = weighed.value
        return values, x

    def decode(self, x: Array) -> Array:
        """Return the values of a column of numbers or categories whose features, (n, width), are given."""
        flags = x[:, self.kind == "number" :]  # of a category, with the flag of a missing one, exactly one is 1
        wrong = ((flags != 0) & (flags != 1)).any(axis=1)
        if self.kind == "category":
            wrong |= flags.sum(axis=1) != 1
        if wrong.any():
            row = int(np.argmax(wrong))
            found = shown(x[row].tolist())
            raise DataError(f"row {row}: the numbers of column {self.name!r} are {found}, which no value becomes")
        if self.kind == "number":
            numbers = x[:, 0].astype(np.float64)
            return np.where(flags[:, 0] == 1, np.nan, numbers) if self.missing else numbers
        values: Array = np.array([*self.categories, None], dtype=object)[x.argmax(axis=1)]
        return values

    def _numbers(self, values: Array) -> Array:
        if values.dtype != object:
            return values
        parsed = np.array([parse_number(value) for value in values])
        wrong = np.isnan(parsed) & ~absent_values(values)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(f"row {row}: column {self.name!r} is {shown(values[row])}, but a number is expected")
        return parsed

    def _find(self, values: Array, absent: Array) -> list[int]:
        codes = self._codes
        found = [codes.get(_key(value)) for value in values[~absent].tolist()]
        if None in found and not isinstance(next(iter(self.categories), ""), str):  # a .csv has texts for them
            found = [codes.get(_key(parse_number(value))) for value in values[~absent].tolist()]
        if None in found:
            row = int(np.flatnonzero(~absent)[found.index(None)])
            known = ", ".join(str(value) for value in self.categories[:5])
            raise DataError(
                f"row {row}: column {self.name!r} is {shown(values[row])}, a category that the training did not have; "
                f"it had {known}{', ...' if len(self.categories) > 5 else ''}"
            )
        return found  # type: ignore[return-value]

    @cached_property
    def _codes(self) -> dict[str, int]:
        codes = {_key(value): code for code, value in enumerate(self.categories)}
        single = {
            _key(np.float32(value).item()): codes[_key(value)] for value in self.categories if type(value) is float
        }
        return single | codes


@dataclass(frozen=True)
class Columns:
    """The columns of a training table, and how a row of them becomes numbers.

    Example:
        >>> columns = Columns.fit(as_table({"age": [20, 30, None], "job": ["nurse", "pilot", "nurse"]}))
        >>> columns.encode({"job": "pilot", "age": 41}).x.tolist()
        [[41.0, 0.0, 0.0, 1.0]]
        >>> columns.features
        ['age', 'age is missing', 'job=nurse', 'job=pilot']
    """

    columns: tuple[TableColumn, ...]

    @classmethod
    def fit(cls, table: Table) -> Columns:
        """Return the columns of a training table; raise a :class:`DataError` where one holds dates or infinity."""
        if not len(table):
            raise DataError("the table has no rows: at least one is needed")
        return cls(
            tuple(TableColumn.fit(name, values, table.declared.get(name)) for name, values in table.columns.items())
        )

    def __iter__(self) -> Iterator[TableColumn]:
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    @property
    def width(self) -> int:
        """d, how many numbers a row becomes."""
        return sum(column.width for column in self.columns)

    def __str__(self) -> str:
        kinds = {"category": "{} categories", "number": "number", "text": "text"}
        return ", ".join(f"{c.name} ({kinds[c.kind].format(len(c.categories))})" for c in self.columns)

    @property
    def unscaled(self) -> npt.NDArray[np.bool_]:
        """(d,), which of these numbers lie in 0 .. 1: all but those of columns of numbers."""
        return np.concatenate([np.arange(column.width) >= (column.kind == "number") for column in self.columns])

    def encode(self, source: Any) -> EncodedTable:
        """Return rows with their numbers, float32 (n, d); the columns may come in any order, and more than are needed.

        Raises:
            DataError: a column is missing, or a value cannot be used: a category that the training did not have, a
                text where a number is expected, a missing value where the training had none. The message names the
                column and the row, which is counted from 0.
        """
        if isinstance(source, EncodedTable) and source.columns == self:
            return source
        table = as_table(source, self.names)
        absent = [name for name in self.names if name not in table.columns]
        if absent:
            names = (*table.names, *table.left_out)
            there = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise DataError(f"the table has no column {absent[0]!r}, which the training had; it has {there}")
        if not len(table):
            raise DataError("the table has no rows: give at least one")
        extra = [*table.left_out, *(table.columns.keys() - set(self.names))]
        if extra:
            warn(f"column {extra[0]!r} was not in the training and is ignored")
        encoded = [column.encode(table.columns[column.name]) for column in self.columns]
        declared = {column.name: column.categories for column in self.columns if column.declared}
        values = {column.name: part for column, (part, _) in zip(self.columns, encoded, strict=True)}
        return EncodedTable(np.concatenate([x for _, x in encoded], axis=1), Table(values, declared), self)

    def decode(self, x: npt.NDArray[np.float32]) -> Table:
        """Return the table that became these numbers, (n, d); its columns of texts cannot be found and are left out.

        Integers and booleans are floats, rounded to float32. :meth:`encode` makes the same numbers of the table.

        Raises:
            DataError: :meth:`encode` gives no such row, or all columns are texts.

        Example:
            >>> columns = Columns.fit(as_table({"age": [20, None], "job": ["nurse", "pilot"]}))
            >>> columns.decode(np.array([[41, 0, 0, 1]], dtype=np.float32)).columns["job"].tolist()
            ['pilot']
        """
        ends = np.cumsum([column.width for column in self])
        parts = zip(self, np.split(x, ends[:-1], axis=1), strict=True)
        values = {column.name: column.decode(part) for column, part in parts if column.kind != "text"}
        if not values:
            raise DataError("all columns are texts, which cannot be found from their numbers")
        return Table(values, {column.name: column.categories for column in self if column.declared})

    def made_rows(self, n: int) -> EncodedTable:
        """Return n rows that look like those of the training, the same ones on every call, to try a model with."""
        rng = np.random.default_rng(0)
        words = [*self.names, *(str(value) for column in self for value in column.categories), "the", "Of", "42"]
        made: dict[str, Any] = {}
        for column in self:
            if column.kind == "number":
                values: list[Any] = rng.normal(column.fill, column.spread, n).tolist()
            elif column.kind == "category":
                values = list(rng.choice(np.array([*column.categories, None], dtype=object)[:-1], n))
            else:
                values = [" ".join(rng.choice(words, 6)) for _ in range(n)]
            gone = rng.random(n) < 0.1 if column.missing else np.zeros(n)
            made[column.name] = [None if out else value for value, out in zip(values, gone, strict=True)]
        return self.encode(made)

    def as_list(self) -> list[dict[str, Any]]:
        return [
            {key: list(value) if key == "categories" else value for key, value in asdict(column).items()}
            for column in self
        ]

    @classmethod
    def from_list(cls, values: Sequence[Mapping[str, Any]]) -> Columns:
        return cls(tuple(TableColumn(**{**value, "categories": tuple(value["categories"])}) for value in values))


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Rows of a table beside the numbers that they became; it is indexed by rows and counts as the array of numbers."""

    x: npt.NDArray[np.float32]  # (n, d)
    table: Table  # the columns of the training, in their order
    columns: Columns

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def ndim(self) -> int:
        return self.x.ndim

    @property
    def dtype(self) -> np.dtype[np.float32]:
        return self.x.dtype

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Any) -> EncodedTable:
        return replace(self, x=self.x[rows], table=self.table[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.x, dtype=dtype, copy=copy)


def numbers_of(X: Array | EncodedTable) -> Array:
    """Return the array of inputs: of a table, what it became."""
    return X.x if isinstance(X, EncodedTable) else X


def encode_inputs(X: Any) -> Any:
    """Return training inputs with named columns as an :class:`EncodedTable`, and all others as they are."""
    if isinstance(X, EncodedTable) or not is_table(X):
        return X
    table = as_table(X)
    return Columns.fit(table).encode(table)


def _require_finite(values: Array, name: str) -> None:
    wrong = np.isinf(values) if values.dtype.kind == "f" else np.zeros(0)
    if wrong.any():
        raise DataError(f"row {int(np.argmax(wrong))}: column {name!r} is infinite as float32")


def _key(value: Any) -> str:
    """Return a category as text, the same for the same number however it is stored: True, 1, 1.0 and "1" differ not."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
