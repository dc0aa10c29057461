"""``HelpClassifier``: a :class:`l2h.HelpSystem` as a classifier of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from l2h.answers import Answers
from l2h.budgets import Budget
from l2h.columns import encode_inputs, numbers_of
from l2h.costs import Costs, FloatArray
from l2h.data import split
from l2h.decision import SERVER, AnyLimit
from l2h.decision.limiters import limits_by_name
from l2h.errors import ClientError, DataError, shown
from l2h.experiments.overrides import make_settings
from l2h.labels import LabelCodec
from l2h.limits import RateLimit
from l2h.methods import Learned
from l2h.metrics import Report
from l2h.settings import Settings
from l2h.system import HelpSystem
from l2h.table import is_table

Array = npt.NDArray[Any]
#: Of the stand-in for a client: the share of the samples that it is fitted to, and its depth.
_STAND_IN_SHARE, _STAND_IN_DEPTH = 1 / 3, 3
#: The share of the samples that a guarantee is calibrated on.
_CALIBRATION = 0.1


class HelpClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A client, a server and a rejector as one classifier of scikit-learn.

    It works with ``clone``, ``cross_val_score``, ``GridSearchCV`` and ``Pipeline``. ``fit`` trains a
    :class:`l2h.HelpSystem`, which is kept as ``system_``.

    Args:
        client: the classifier that cannot change: whatever :func:`l2h.as_client` takes. Wrap a fitted estimator,
            ``FrozenEstimator(old)``: ``clone``, and so every cross-validation, would make a fresh one of it otherwise.
            Where None, a decision tree of depth 3 stands in. It is fitted to a third of the samples, and server and
            rejector are trained on the others.
        server: whatever :class:`l2h.HelpSystem` takes. An estimator is trained, fitted or not, unless it is wrapped
            in ``FrozenEstimator``.
        c_e: price of one request, where a wrong answer of the client costs 1.
        c_1: what a wrong answer of the server costs on top.
        limit: a bound on asking, such as ``"20%"``. For one with a guarantee, ``"20%@95%"``, :meth:`fit` keeps a tenth
            of the samples from all training and calibrates on them.
        budget: what the rejector may cost the device.
        method: name of a method that learns, or one of your own.
        settings: of the training; ``random_state`` has the place of its seed. Where None, the defaults, with fewer
            than five folds where a class is small.
        epochs: most passes over the samples, of the server and of the rejector; None for what ``settings`` say.
        second_opinion: let the rejector's student answer as well.
        random_state: of everything drawn at random in ``fit``.
        verbose: 1 shows how ``fit`` goes: bars on a terminal and in a notebook, else lines on stderr.

    Attributes:
        classes_: the labels of the classes, sorted.
        n_features_in_: how many columns X has.
        feature_names_in_: their names, where X is a data frame whose columns have names.
        system_: the fitted :class:`l2h.HelpSystem`, to save, to export and to evaluate.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.frozen import FrozenEstimator
        >>> from sklearn.model_selection import cross_val_score
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> old = DecisionTreeClassifier(max_depth=1).fit(X, y)
        >>> model = HelpClassifier(FrozenEstimator(old), "mlp", c_e=0.1, epochs=2, random_state=0)
        >>> len(cross_val_score(model, X, y, cv=2))
        2
    """

    classes_: Array
    n_features_in_: int
    feature_names_in_: Array
    system_: HelpSystem

    def __init__(
        self,
        client: Any = None,
        server: Any = "mlp",
        *,
        c_e: float = 0.1,
        c_1: float = 1.0,
        limit: AnyLimit | None = None,
        budget: Budget | float | str | None = None,
        method: str | Learned | None = None,
        settings: Settings | None = None,
        epochs: int | None = None,
        second_opinion: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.client = client
        self.server = server
        self.c_e = c_e
        self.c_1 = c_1
        self.limit = limit
        self.budget = budget
        self.method = method
        self.settings = settings
        self.epochs = epochs
        self.second_opinion = second_opinion
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> HelpClassifier:
        """Train server and rejector, and return the classifier itself.

        Args:
            X: (n, d), or images (n, C, H, W); or a data frame, whose columns may hold texts and missing values.
            y: (n,) labels: text, integers or booleans.
            sample_weight: (n,), 0 or more. No loss is weighted: a row is used with the chance weight / largest weight,
                drawn once, so that all that is trained sees the rows as often as the weights say. Equal weights
                use every row; one very large weight leaves few of the others.

        Raises:
            DataError: samples, labels or weights that cannot be used.
            ClientError: a client that is not fitted, or cannot be used.
        """
        X, y = self._take_samples(X, y)
        check_classification_targets(y)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.classes_, number = np.unique(y, return_inverse=True)
        labels = _codec(self.classes_)
        if sample_weight is not None:
            rows = _drawn(sample_weight, len(number), seed)
            X, number = X[rows], number[rows]
        if len(np.unique(number)) < 2:
            left = f"y has one class, {shown(self.classes_[number[0]])}, in {len(number)} rows"
            drawn = "" if sample_weight is None else " that sample_weight left of it: the largest weight leaves few"
            raise DataError(f"{left}{drawn}: at least two classes are needed")
        client = self._take_client()
        if client is None:
            own, rest = split(number, (_STAND_IN_SHARE, 1 - _STAND_IN_SHARE), seed)
            tree = DecisionTreeClassifier(max_depth=_STAND_IN_DEPTH, random_state=seed)
            client = tree.fit(numbers_of(X[own]).reshape(len(own), -1), labels.decode(number[own]))
            X, number = X[rest], number[rest]
        server = _unwrapped(clone(self.server) if hasattr(self.server, "get_params") else self.server)
        self.system_ = HelpSystem(
            client,
            server,
            method=self.method,
            settings=self._settings(number, seed),
            class_names=labels,
            budget=self.budget,
            second_opinion=self.second_opinion,
        )
        bounds = limits_by_name(self.limit, [SERVER.name]).values()
        promised = any(isinstance(bound, RateLimit) and bound.confidence is not None for bound in bounds)
        kept, told = _CALIBRATION if promised else None, bool(self.verbose)
        self.system_.fit(X, labels.decode(number), self._costs, calibration=kept, progress=told)
        return self

    def predict(self, X: Any) -> Array:
        """Return the labels (n,): the server's where it pays to ask it within the limit, else the client's."""
        answers = self._answers(X)
        return self.classes_[self.system_.require_fitted().labels.encode(answers.label)]

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probabilities (n, K) that whoever answers gives, in the order of ``classes_``."""
        probability = self._answers(X).probability
        assert probability is not None
        return probability

    def evaluate(self, X: Any, y: Any) -> Report:
        """Measure the system at the prices and under the limit of this classifier: :meth:`l2h.HelpSystem.evaluate`.

        ``scoring=lambda fitted, X, y: -fitted.evaluate(X, y).risk.system`` has a search minimise what answers cost;
        ``score`` is the accuracy, which knows no prices.
        """
        X = self._take_inputs(X)
        return self.system_.evaluate(X, y, self._costs, limit=self.limit)

    @property
    def _costs(self) -> Costs:
        return Costs(c_e=self.c_e, c_1=self.c_1)

    def _answers(self, X: Any) -> Answers:
        X = self._take_inputs(X)  # which refuses before fit
        return self.system_.predict(X, self._costs, limit=self.limit)

    def _take_samples(self, X: Any, y: Any) -> tuple[Any, Array]:
        """Check training samples as scikit-learn does; a data frame keeps its columns."""
        if not _has_columns(X):
            X, y = validate_data(self, X, y, dtype="numeric", allow_nd=True)
            return X, y
        validate_data(self, X, y, skip_check_array=True)
        y = column_or_1d(y, warn=True)
        if len(X) != len(y):
            raise DataError(f"X has {len(X)} rows and y has {len(y)}: give one label for each row")
        return encode_inputs(X), y

    def _take_inputs(self, X: Any) -> Any:
        """Check inputs against the training samples, and give an array the names of the columns of these."""
        check_is_fitted(self)
        if self.system_.require_fitted().columns is None:
            return validate_data(self, X, reset=False, dtype="numeric", allow_nd=True)
        validate_data(self, X, reset=False, skip_check_array=True)
        return X if _has_columns(X) else dict(zip(self.feature_names_in_, check_array(X).T, strict=True))

    def _take_client(self) -> Any:
        client = _unwrapped(self.client)
        if hasattr(client, "get_params") and getattr(client, "classes_", None) is None:
            raise ClientError(
                "the client is not fitted: give client=FrozenEstimator(fitted), of sklearn.frozen, since clone and "
                "cross-validation make a fresh estimator of one that is not frozen"
            )
        return client

    def _settings(self, number: npt.NDArray[np.int64], seed: int) -> Settings:
        # A part needs samples of two classes: those of the second largest are enough for as many parts.
        folds = max(2, min(Settings.folds, int(np.sort(np.bincount(number, minlength=2))[-2])))
        given = vars(self.settings or Settings(folds=folds)) | {"seed": seed}
        stages = [] if self.epochs is None else [f"{stage}.epochs={self.epochs}" for stage in ("server", "rejector")]
        return make_settings(given, stages, self.server if isinstance(self.server, str) else "", sized=True)


def _has_columns(X: Any) -> bool:
    """Return whether X is a data frame whose columns have names."""
    return is_table(X) and hasattr(X, "columns") and all(isinstance(name, str) for name in X.columns)


def _unwrapped(model: Any) -> Any:
    return model.estimator if isinstance(model, FrozenEstimator) else model


def _codec(classes: Array) -> LabelCodec:
    """Return the classes in the order of ``classes_``; whole numbers that are stored as floats are integers."""
    values = tuple(int(value) if isinstance(value, float) else value for value in classes.tolist())
    if classes.dtype.kind != "b" and values == tuple(range(len(values))):
        return LabelCodec.numbered(len(values))
    return LabelCodec(tuple(str(value) for value in values), values)


def _drawn(sample_weight: npt.ArrayLike, count: int, seed: int) -> npt.NDArray[np.intp]:
    """Return the rows that are used: each with the chance weight / largest weight."""
    weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weight.shape != (count,):
        raise DataError(f"sample_weight has shape {weight.shape}, but each of the {count} rows needs one weight")
    if weight.min() < 0 or weight.max() == 0:
        row, value = int(weight.argmin()), weight.min()
        problem = f"is {value:g} in row {row}: a weight is 0 or more" if value < 0 else "is zero in every row"
        raise DataError(f"sample_weight {problem}")
    return np.flatnonzero(np.random.default_rng(seed).random(count) * weight.max() < weight)
