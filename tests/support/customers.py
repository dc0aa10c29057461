"""A made table of customers with numbers, categories, texts and missing values, and an old pipeline that knows some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import l2h

KNOWN = ["age", "hours per-week", "plan", "note"]
STAGE = l2h.StageSettings(epochs=8, batch=64)
QUICK = l2h.Settings(server=STAGE, rejector=STAGE, folds=2, threads=1)


def customers(n: int, seed: int = 0) -> tuple[pandas.DataFrame, np.ndarray[Any, Any]]:
    """Return the table, and who left: what the region says, the old pipeline does not know."""
    rng = np.random.default_rng(seed)
    age, hours = rng.normal(45, 12, n).round(1), rng.integers(1, 60, n)
    plan, region = rng.choice(["basic", "plus", "café"], n), rng.choice(["north", "south", "west"], n)
    angry = rng.random(n) < 0.3
    note = np.where(angry, "the line is dead again, Übel", "all is well, thank you")
    score = (hours - 30) / 15 + 2 * angry - (plan == "plus") + np.where(region == "south", 2.5, -1.0)
    left = (score + rng.normal(0, 0.5, n) > 0).astype(np.int64)
    frame = pandas.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, age),
            "hours per-week": hours,
            "plan": np.where(rng.random(n) < 0.05, None, plan),
            "note": [f"{text} {i}" for i, text in enumerate(note)],
            "region": region,
        }
    )
    return frame, left


def old_pipeline(frame: pandas.DataFrame, left: Any, columns: list[str] = KNOWN) -> Any:
    """Return a pipeline by column names, fitted to some of the columns."""
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    parts = [("numbers", numbers, ["age", "hours per-week"]), ("plan", words, ["plan"])]
    if "note" in columns:
        parts.append(("note", TfidfVectorizer(), "note"))
    return make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(frame[columns], left)
