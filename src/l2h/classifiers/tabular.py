"""What a classifier of the user's gets of a table: a data frame, columns by their names, or a matrix of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.columns import EncodedTable
from l2h.errors import ClientError

Array = npt.NDArray[Any]
#: What an input of texts gets where one is missing: what skl2onnx writes for the NaN among an encoder's categories.
MISSING_TEXT = "nan"
_TYPES = {"float": np.float32, "double": np.float64, "int64": np.int64, "int32": np.int32, "bool": np.bool_}


def estimator_inputs(estimator: Any, X: EncodedTable) -> Any:
    """Return what a scikit-learn estimator gets: a data frame of the columns it was fitted to, or their numbers."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        return X.table.select([_find(name, X, "estimator") for name in names]).to_frame()
    width = getattr(estimator, "n_features_in_", None)
    return X.table.to_frame() if width is None else matrix_of(X, width, "estimator")


def takes_columns(inputs: Sequence[Any]) -> bool:
    """Return whether the inputs of an ONNX file are columns of a table: several, or texts."""
    return len(inputs) > 1 or inputs[0].type == "tensor(string)"


def column_feeds(X: EncodedTable, inputs: Sequence[Any]) -> dict[str, Array]:
    """Return what each input of an ONNX file gets: the column of its name, one value per row, (n, 1)."""
    feeds = {}
    for entry in inputs:
        name = _find(entry.name, X, "ONNX model")
        values, kind = X.table.columns[name], entry.type.removeprefix("tensor(").removesuffix(")")
        if kind == "string":
            values = np.array([MISSING_TEXT if value is None else str(value) for value in values], dtype=object)
        elif kind not in _TYPES or values.dtype == object:
            raise ClientError(f"the ONNX model takes column {name!r} as {kind}, but it holds {_kind(X, name)}")
        elif kind.startswith("int") and np.isnan(values).any():
            raise ClientError(f"the ONNX model takes column {name!r} as {kind}, which cannot be missing")
        else:
            values = values.astype(_TYPES[kind])
        feeds[entry.name] = values.reshape(-1, 1)
    return feeds


def matrix_of(X: EncodedTable, width: int | None, who: str) -> Array:
    """Return the numbers (n, width): the columns themselves where all are numbers and it takes one each.

    Else what the table became, and that too where ``width`` is not known.
    """
    columns = list(X.columns)
    if width in (None, X.shape[1]):
        return X.x
    if width == len(columns) and all(column.kind == "number" for column in columns):
        return np.stack([values.astype(np.float32) for values in X.table.columns.values()], axis=1)
    raise ClientError(
        f"the {who} takes {width} numbers per row, but the table has {len(columns)} columns, which become "
        f"{X.shape[1]} numbers: give one that takes columns by their names, such as a Pipeline fitted to a data frame"
    )


def _find(wanted: str, X: EncodedTable, who: str) -> str:
    """Return the name of a column; skl2onnx writes "_" for what is no letter or digit."""
    names = X.table.names
    if wanted in names:
        return wanted
    alike = [name for name in names if re.sub(r"[^\w+]", "_", name) == wanted]
    if len(alike) == 1:
        return alike[0]
    few = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise ClientError(f"the {who} takes a column {wanted!r}, which the table does not have; it has {few}")


def _kind(X: EncodedTable, name: str) -> str:
    return next({"category": "categories", "text": "texts"}.get(c.kind, "numbers") for c in X.columns if c.name == name)
