"""A scikit-learn estimator that takes the columns of a table by their names, as ONNX with one input per column."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from l2h.classifiers.tabular import MISSING_TEXT
from l2h.columns import Columns, TableColumn
from l2h.errors import ConversionError

if TYPE_CHECKING:
    from onnx import ModelProto

#: The words of a text as scikit-learn finds them, in the regular expressions of onnxruntime.
_WORDS = r"[\p{L}\p{N}_]{2,}"
_USUAL_PATTERN = r"(?u)\b\w\w+\b"


def estimator_to_onnx(estimator: Any, columns: Columns, opsets: Mapping[str, int] | None) -> ModelProto:
    """Convert an estimator that was fitted to a data frame; its inputs are called as the columns."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    known = {column.name: column for column in columns}
    chosen = [known[name] for name in estimator.feature_names_in_]
    prepared = copy.deepcopy(estimator)
    options: dict[int, dict[str, Any]] = {id(prepared): {"zipmap": False}}
    for part in _parts(prepared):
        if type(part).__name__ == "SimpleImputer" and part.statistics_.dtype == object:
            part.missing_values = MISSING_TEXT  # texts in ONNX have no NaN
        elif hasattr(part, "vocabulary_"):
            options[id(part)] = _text_options(part)
    whole = not hasattr(_first(prepared), "transformers_")
    if whole and not all(_is_number(column) for column in chosen):
        raise ConversionError("it takes texts, and is no pipeline that begins with a ColumnTransformer")
    if whole:
        types: list[Any] = [("columns_together", FloatTensorType([None, len(chosen)]))]
    else:
        types = [(c.name, (FloatTensorType if _is_number(c) else StringTensorType)([None, 1])) for c in chosen]
    model: ModelProto = to_onnx(prepared, initial_types=types, options=options, target_opset=opsets)
    if whole:
        return _join_inputs(model, [column.name for column in chosen])
    read = {name for node in model.graph.node for name in node.input}
    for unused in [entry for entry in model.graph.input if entry.name not in read]:
        model.graph.input.remove(unused)
    return model


def _join_inputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """Give a model with one input of several numbers an input for each of them."""
    from onnx import TensorProto, helper

    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)} & set(names)
    if taken:
        raise ConversionError(f"column {min(taken)!r} has the name of a part of the model: rename it")
    nodes = [helper.make_node("Concat", list(names), [graph.input[0].name], axis=1), *graph.node]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend([helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in names])
    return model


def _is_number(column: TableColumn) -> bool:
    if column.kind == "category":
        return not any(isinstance(value, str) for value in column.categories)
    return column.kind == "number"


def _first(estimator: Any) -> Any:
    steps = getattr(estimator, "steps", None)
    return _first(steps[0][1]) if steps else estimator


def _parts(estimator: Any) -> Iterator[Any]:
    yield estimator
    inner = [step[1] for step in (*getattr(estimator, "steps", ()), *getattr(estimator, "transformers_", ()))]
    inner += [part for _, part in getattr(estimator, "transformer_list", ())]
    for part in inner:
        if hasattr(part, "get_params"):
            yield from _parts(part)


def _text_options(vectorizer: Any) -> dict[str, Any]:
    # Lower-casing letters beyond ASCII needs a locale that knows them, which a device may lack: only where they occur.
    plain = all(str(word).isascii() for word in vectorizer.vocabulary_)
    options = {"locale": "C" if plain else "C.UTF-8"}
    usual = vectorizer.analyzer == "word" and vectorizer.token_pattern == _USUAL_PATTERN
    return options | ({"tokenexp": _WORDS} if usual else {})
