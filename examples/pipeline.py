"""A scikit-learn pipeline: ``l2h.HelpClassifier`` is an estimator, so cross-validation and grid search work as ever.

An old decision tree says how busy a road is. The last step of the pipeline trains a server and a rejector around it. A
grid search chooses the server's parameters by what an answer costs.

    python examples/pipeline.py
"""

from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.tree import DecisionTreeClassifier

import l2h


def road(n: int, seed: int) -> tuple[Any, Any]:
    """Return made data: hour of the week, rain, and warmth, which is missing now and then; and how busy the road is."""
    rng = np.random.default_rng(seed)
    hour, rain, warmth = rng.integers(0, 168, n), rng.random(n) < 0.3, rng.normal(15, 8, n)
    weekend, clock = hour >= 5 * 24, hour % 24
    rush = ~weekend & (np.isin(clock, [7, 8, 9, 16, 17, 18]))
    trips = weekend & (clock >= 10) & (clock < 18) & ~rain & (warmth > 12)
    warmth[rng.random(n) < 0.1] = np.nan
    return np.column_stack([hour, rain, warmth]), np.select([rush, trips], ["rush", "trips"], "calm")


X_old, y_old = road(300, seed=1)
old = DecisionTreeClassifier(max_depth=5, random_state=0).fit(SimpleImputer().fit_transform(X_old), y_old)
client = FrozenEstimator(old)  # frozen, or scikit-learn would make a fresh copy of it
server = HistGradientBoostingClassifier(random_state=0)
pipeline = Pipeline(
    [("fill", SimpleImputer()), ("help", l2h.HelpClassifier(client, server, c_e=0.1, epochs=5, random_state=0))]
)


def saving(fitted: Pipeline, X: Any, y: Any) -> float:
    """Return minus what an answer costs on average: the larger, the better."""
    return -float(fitted["help"].evaluate(fitted["fill"].transform(X), y).risk.system)


X, y = road(2000, seed=2)
search = GridSearchCV(pipeline, {"help__server__max_iter": [5, 30]}, scoring=saving, cv=2).fit(X, y)
best, (X_new, y_new) = search.best_estimator_, road(1000, seed=3)
print("best parameters:", search.best_params_)
print("accuracy in two folds:", *cross_val_score(best, X, y, cv=2).round(2))
print("accuracy on new hours:", round(best.score(X_new, y_new), 2))
print(best["help"].evaluate(best["fill"].transform(X_new), y_new))
