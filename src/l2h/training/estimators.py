"""scikit-learn classifiers as servers that are trained: found by name, and fitted to some of the samples."""

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.classifiers import SklearnClassifier
from l2h.columns import EncodedTable, numbers_of
from l2h.errors import ModelError, UnknownNameError, first_line
from l2h.remote import SKLEARN
from l2h.rows import in_memory

#: What an estimator of scikit-learn takes beside uint8 samples: it makes float32 of them.
COPIES = 5


def is_estimator(model: Any) -> bool:
    """Return whether this is a scikit-learn classifier that is not fitted yet."""
    if not (hasattr(model, "fit") and hasattr(model, "get_params")) or isinstance(model, type):
        return False
    from sklearn.base import is_classifier

    return bool(is_classifier(model)) and getattr(model, "classes_", None) is None


def find_estimator(text: str) -> Any:
    """Return a new classifier of scikit-learn's own, from ``sklearn:NAME``; nothing else can be named so."""
    from sklearn.utils import all_estimators

    name, known = text.removeprefix(SKLEARN), dict(all_estimators("classifier"))
    if name not in known:
        close = difflib.get_close_matches(name, known, 4, 0.3) or ["HistGradientBoostingClassifier"]
        raise UnknownNameError(f"scikit-learn has no classifier {name!r}; it has, among others: {', '.join(close)}")
    try:
        return known[name]()
    except TypeError as error:
        raise ModelError(f"{name} is made of other estimators: give it in Python, server={name}(...)") from error


def with_options(estimator: Any, options: Mapping[str, Any]) -> Any:
    """Return a copy of an estimator, not fitted, with these parameters; one without probabilities is refused."""
    from sklearn.base import clone

    name = type(estimator).__name__
    try:
        made = clone(estimator).set_params(**options)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{name} cannot be made with {dict(options)}: {first_line(error)}") from error
    if not hasattr(made, "predict_proba"):
        raise ModelError(
            f"a server gives probabilities, and {name} has no predict_proba: use CalibratedClassifierCV({name}(...))"
        )
    return made


def fit_estimator(
    estimator: Any, X: npt.NDArray[Any] | EncodedTable, y: npt.NDArray[np.int64], seed: int
) -> SklearnClassifier:
    """Return a copy of an estimator fitted to samples, as a classifier; ``seed`` is of what it draws.

    It gets one flat row per sample. Of a table it gets the numbers; the data frame where it has a ColumnTransformer.
    """
    from sklearn.base import clone

    fresh = clone(estimator)
    seeds = [
        name for name, value in fresh.get_params().items() if f"__{name}".endswith("__random_state") and value is None
    ]
    fresh.set_params(**dict.fromkeys(seeds, seed % 2**32))
    columns = isinstance(X, EncodedTable) and _takes_columns(fresh)
    rows = X.table.to_frame() if isinstance(X, EncodedTable) and columns else in_memory(numbers_of(X), COPIES)
    try:
        fresh.fit(rows if hasattr(rows, "columns") else rows.reshape(len(X), -1), y)
    except (ValueError, TypeError, KeyError) as error:
        name = type(estimator).__name__
        raise ModelError(f"{name} cannot be fitted to {len(y)} samples: {first_line(error)}") from error
    fitted = SklearnClassifier(fresh)
    fitted.probabilities = True
    return fitted


def _takes_columns(estimator: Any) -> bool:
    parts = [estimator, *estimator.get_params().values()]
    return any(type(part).__name__ == "ColumnTransformer" for part in parts)
