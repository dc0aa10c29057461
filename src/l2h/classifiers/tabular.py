"""What a classifier of the user's gets of a table: a data frame, columns by their names, or a matrix of numbers."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.columns import EncodedTable
from l2h.errors import ClientError, shown

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


def model_feeds(X: EncodedTable, inputs: Sequence[Any]) -> dict[str, Array]:
    """Return what each input of an ONNX file gets.

    Several inputs, one of texts, or one that is called as a column and takes one number, get the columns of their
    names, one value per row, (n, 1). Another input gets all numbers.
    """
    feeds = {}
    first, width = inputs[0], inputs[0].shape[-1]
    single = len(inputs) == 1 and first.type != "tensor(string)"
    if single and not (width == 1 and _alike(first.name, X)):
        matrix = matrix_of(X, width if isinstance(width, int) else None, "ONNX model")
        return {first.name: matrix.astype(_TYPES.get(_type_of(first), np.float32), copy=False)}
    for entry in inputs:
        name = _find(entry.name, X, "ONNX model")
        feeds[entry.name] = _feed(X.table.columns[name], name, _type_of(entry)).reshape(-1, 1)
    return feeds


def _type_of(entry: Any) -> str:
    kind: str = entry.type
    return kind.removeprefix("tensor(").removesuffix(")")


def _feed(values: Array, name: str, kind: str) -> Array:
    if kind == "string":
        return np.array([MISSING_TEXT if value is None else str(value) for value in values], dtype=object)
    if values.dtype == object:  # categories, which may be numbers
        wrong = [value for value in values if isinstance(value, str)]
        if wrong or kind not in _TYPES:
            what = f"{shown(wrong[0])} and the like" if wrong else "categories"
            raise ClientError(f"the ONNX model takes column {name!r} as {kind}, but it holds {what}")
        values = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if kind not in _TYPES or (kind.startswith("int") and np.isnan(values).any()):
        raise ClientError(f"the ONNX model takes column {name!r} as {kind}, but it holds numbers, some of them missing")
    return values.astype(_TYPES[kind])


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
    alike = _alike(wanted, X)
    if len(alike) == 1:
        return alike[0]
    names = X.table.names
    few = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise ClientError(f"the {who} takes a column {wanted!r}, which the table does not have; it has {few}")


def _alike(wanted: str, X: EncodedTable) -> list[str]:
    names = X.table.names
    return [wanted] if wanted in names else [name for name in names if column_name(name) == wanted]


def column_name(name: str) -> str:
    """Return what skl2onnx calls the input of a column: it writes "_" for what is no letter or digit."""
    return re.sub(r"[^\w+]", "_", name)
