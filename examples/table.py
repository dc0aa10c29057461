"""A table with a legacy model: an old scikit-learn pipeline judges machines from two sensors, and cannot change.

L2H trains a server that sees the whole table, a gradient boosting of scikit-learn, and a rejector that knows when
asking it pays. Labels are texts, a column holds categories, and some values are missing.

    python examples/table.py
"""

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

import l2h


def machines(n: int, seed: int) -> tuple[pd.DataFrame, pd.Series]:
    """Return made data: what is known about n machines, and what each of them needs."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "temperature": rng.normal(60, 12, n).round(1),
            "vibration": rng.gamma(4, 1, n).round(2),
            "hours": rng.integers(0, 8000, n),
            "maker": rng.choice(["Arno", "Brix", "Colt"], n, p=[0.7, 0.2, 0.1]),
        }
    )
    hot = table["temperature"] > 70 + table["maker"].map({"Arno": 0, "Brix": 16, "Colt": -10})
    worn = table["vibration"] * (table["hours"] % 2000) > 5000  # a new bearing every 2000 hours
    table.loc[rng.random(n) < 0.05, "vibration"] = np.nan  # a sensor that is silent now and then
    needs = np.select([hot & worn, hot, worn], ["a stop", "cooling", "a bearing"], "nothing")
    return table, pd.Series(needs, name="needs")


# The old model was fitted years ago, to two columns. Nobody may touch it.
X_old, y_old = machines(500, seed=1)
old = make_pipeline(SimpleImputer(), DecisionTreeClassifier(max_depth=4, random_state=0))
old.fit(X_old[["temperature", "vibration"]], y_old)

X, y = machines(2000, seed=2)
X_new, y_new = machines(1000, seed=3)
system = l2h.HelpSystem(client=old, server=HistGradientBoostingClassifier(max_iter=30), dataset="machines")
system.fit(X, y)

costs = l2h.Costs(c_e=0.2)  # a request costs a fifth of what a wrong answer costs
print(system.evaluate(X_new, y_new, costs=costs))
for machine, answer in zip(X_new.index[:4], system.predict(X_new[:4], costs=costs), strict=True):
    print(f"machine {machine} needs {answer.label}, says the {answer.by}")
