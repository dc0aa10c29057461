"""One of the paper's experiments as plain values, checked before they are shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from l2h.errors import DataError
from l2h.report.common.text import counted

Experiment = Mapping[str, Any]

_SCHEMA = 1
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def checked(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment with null for numbers that are not finite.

    Raises:
        DataError: it is of another schema, a row does not fit its columns, or a name cannot be that of a file.
    """
    if experiment.get("schema") != _SCHEMA:
        raise DataError(
            f"an experiment of schema {experiment.get('schema')!r} cannot be shown: this version knows {_SCHEMA}; "
            "run the experiment again"
        )
    values: dict[str, Any] = _finite(experiment)
    names = [values["name"]]
    for section in values["sections"]:
        if section["kind"] not in ("text", "table", "plot"):
            raise DataError(f"a section of kind {section['kind']!r}: expected text, table or plot")
        names += [section["file"]] if section["kind"] == "plot" else []
    for table in tables(values):
        names.append(table["name"])
        for row in table["rows"]:
            if len(row) != len(table["columns"]):
                raise DataError(
                    f"table {table['name']}: a row of {len(row)} cells under {len(table['columns'])} columns: {row}"
                )
    for name in names:
        if not _FILE.fullmatch(name):
            raise DataError(f"{name!r} cannot name a file: use letters, digits, '.', '_' and '-' only")
    require_unique([table["name"] for table in tables(values)], f"tables of {values['name']}")
    return values


def require_unique(names: list[str], what: str) -> None:
    """Raise a :class:`DataError` where a name occurs twice."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two {what} are called {', '.join(twice)}: give each its own name")


def tables(experiment: Experiment) -> list[dict[str, Any]]:
    """Return the sections that are tables."""
    return [section for section in experiment["sections"] if section["kind"] == "table"]


def origin(experiment: Experiment) -> str:
    """Return the data sets, the seeds and the hardware of an experiment in one line."""
    seeds = experiment["seeds"]
    trained = f"{counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))})"
    return "; ".join(filter(None, (", ".join(experiment["datasets"]), trained, experiment["hardware"])))


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, each on one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
