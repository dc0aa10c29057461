"""The rows of a study of shifts: their columns, their CSV files, and their means over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l2h.errors import RunError
from l2h.experiments import runs
from l2h.metrics import spread

SCHEMA = 1
CSV, COURSE_CSV = "shift.csv", "course.csv"
#: Those with a mean over seeds. ``never``, ``always``, ``best_cut`` and ``again`` are risks: of never asking, of always
#: asking, with the best cut on the saving, and with heads calibrated again, which is empty where a student may answer.
FIGURES = ("asked", "accuracy", "risk", "never", "always", "best_cut", "again", "client", "server")
#: ``limit`` is empty for the run at its prices; ``broken`` 1 where more was asked than the limit lets; ``alarm`` the
#: first alarm of drift (above, below or empty), ``alarm_after`` the number of inputs until then.
FIELDS = ("data", "samples", "seed", "shift", "strength", "limit", *FIGURES, "broken", "alarm", "alarm_after")
#: The share asked of the last inputs while a shift comes and goes.
COURSE_FIELDS = ("data", "samples", "seed", "shift", "limit", "input", "asked", "alarm")
Row = dict[str, Any]


def write_rows(folder: Path, rows: Sequence[Row], courses: Sequence[Row]) -> None:
    """Write ``shift.csv`` and ``course.csv`` anew; figures have six digits."""
    for name, fields, own in ((CSV, FIELDS, rows), (COURSE_CSV, COURSE_FIELDS, courses)):
        path = folder / name
        path.unlink(missing_ok=True)
        runs.append_rows(path, fields, [{key: _short(value) for key, value in row.items()} for row in own])


def read_rows(paths: Iterable[Path]) -> tuple[list[Row], list[Row]]:
    """Return the rows of these ``shift.csv`` files, and of the ``course.csv`` beside each; each seed once."""
    rows: dict[tuple[Any, ...], Row] = {}
    courses: dict[tuple[Any, ...], Row] = {}
    for path in paths:
        numbers = (*FIGURES, "strength", "seed", "samples")
        for row in runs.read_rows(path, FIELDS, "a study of shifts", numbers, ("again",)):
            rows[tuple(row[name] for name in ("data", "seed", "shift", "strength", "limit"))] = row
        beside, places = path.with_name(COURSE_CSV), ("asked", "input", "seed", "samples")
        for row in runs.read_rows(beside, COURSE_FIELDS, "the courses of a study of shifts", places):
            courses[tuple(row[name] for name in ("data", "seed", "shift", "limit", "input"))] = row
    found = {row["data"] for row in rows.values()}
    if len(found) > 1:
        raise RunError(f"rows of different data do not belong together: {', '.join(sorted(found))}")
    if not rows:
        raise RunError("there are no rows of shifts: name a shift.csv")
    return list(rows.values()), list(courses.values())


def summarise(rows: Sequence[Row], courses: Sequence[Row], command: str) -> dict[str, Any]:
    """Return the content of ``shift.json``: means over seeds by shift, strength and limit."""
    clean = [row for row in rows if row["limit"] == ""]
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "dataset": rows[0]["data"],
        "samples": max(int(row["samples"]) for row in rows),
        "seeds": sorted({int(row["seed"]) for row in rows}),
        "limits": _ordered(row["limit"] for row in rows if row["limit"]),
        "rows": [],
        "course": None,
        "command": command,
    }
    for shift, strength in _ordered((row["shift"], int(row["strength"])) for row in clean):
        for limit in ("", *out["limits"]):
            key = (shift, strength, limit)
            own = [row for row in rows if (row["shift"], int(row["strength"]), row["limit"]) == key]
            if own:
                out["rows"].append(_mean_row(own))
    if courses:
        out["course"] = _course(courses, out["limits"])
    return out


def _course(courses: Sequence[Row], limits: Sequence[str]) -> Row:
    """Return the shares asked lately by limit and seed; of rows with different shifts, those with the first."""
    own = [row for row in courses if row["shift"] == courses[0]["shift"]]
    places = sorted({int(row["input"]) for row in own})
    seeds = sorted({int(row["seed"]) for row in own})
    by_place = {(row["limit"], int(row["seed"]), int(row["input"])): row for row in own}
    found: Row = {"shift": courses[0]["shift"], "seeds": seeds, "inputs": places, "limits": {}}
    for limit in limits:
        rows = [[by_place.get((limit, seed, place)) for place in places] for seed in seeds]
        found["limits"][limit] = {
            "asked": [[None if row is None else float(row["asked"]) for row in of_seed] for of_seed in rows],
            "alarm": [[bool(row and row["alarm"]) for row in of_seed] for of_seed in rows],
        }
    return found


def _mean_row(own: Sequence[Row]) -> Row:
    alarms = Counter(row["alarm"] for row in own if row["alarm"])
    after = [int(row["alarm_after"]) for row in own if str(row["alarm_after"])]
    return {
        **{name: own[0][name] for name in ("shift", "limit")},
        "strength": int(own[0]["strength"]),
        "seeds": len(own),
        **{name: _over_seeds([row[name] for row in own]) for name in FIGURES},
        "broken": None if own[0]["limit"] == "" else sum(int(row["broken"]) for row in own),
        "alarms": dict(sorted(alarms.items())),
        "alarm_after": float(np.median(after)) if after else None,
    }


def _over_seeds(values: Sequence[float | None]) -> Row | None:
    known = [float(value) for value in values if value is not None]
    return spread(known).as_dict() if len(known) == len(values) else None


def _ordered(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
