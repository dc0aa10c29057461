"""Histogram gradient boosting as ONNX: skl2onnx writes some integers of its trees as booleans, which onnx refuses."""

from functools import cache
from typing import Any

_FLAGS = "nodes_missing_value_tracks_true"


@cache
def register_boosting() -> None:
    """Have skl2onnx write these integers as integers, from now on in this process."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes
    from skl2onnx.operator_converters.random_forest import convert_sklearn_random_forest_classifier
    from sklearn.ensemble import HistGradientBoostingClassifier

    def convert(scope: Any, operator: Any, container: Any) -> None:
        add = container.add_node

        def add_integers(*args: Any, **attributes: Any) -> None:
            if _FLAGS in attributes:
                attributes[_FLAGS] = [int(flag) for flag in attributes[_FLAGS]]
            add(*args, **attributes)

        container.add_node = add_integers
        try:
            convert_sklearn_random_forest_classifier(scope, operator, container)
        finally:
            container.add_node = add

    update_registered_converter(
        HistGradientBoostingClassifier,
        "SklearnHistGradientBoostingClassifier",
        calculate_linear_classifier_output_shapes,
        convert,
        overwrite=True,
        options={"zipmap": [True, False, "columns"], "raw_scores": [True, False], "output_class_labels": [False, True],
                 "nocl": [True, False]},
    )  # fmt: skip
