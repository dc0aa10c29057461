"""The rows of a frontier: their columns, their CSV file, and their means over seeds."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from l2h.costs import Costs, cost_grid
from l2h.errors import RunError
from l2h.experiments import runs
from l2h.metrics import spread

SCHEMA = 1
#: The prices that are reported by themselves, and those that the mean risk is over.
SHOWN = {"1_0.1": Costs(c_e=0.1, c_1=1.0), "1.25_0.25": Costs(c_e=0.25, c_1=1.25)}
GRID = tuple(cost_grid((0.9, 1.1, 1.4), (0.07, 0.12, 0.2)))
PRICES = (*SHOWN.values(), *GRID)
#: Who answers: a threshold on confidence decides; the rejector decides; it decides, and its student may answer; the
#: student alone; and a net of the work of client and rejector together, trained on the labels alone.
CONFIDENCE, TWO_WAYS, THREE_WAYS, STUDENT, REPLACED = "confidence", "two-ways", "three-ways", "student", "replaced"
RIVALS = ("selective-query", "appealnet")
WAYS = (CONFIDENCE, TWO_WAYS, THREE_WAYS, STUDENT, REPLACED, *RIVALS)
_OF_A_WAY = (
    *("multiply_adds", "microseconds", "gain", *(f"risk_{name}" for name in (*SHOWN, "mean")), "risk_error"),
    *(*(f"remote_{name}" for name in SHOWN), "accuracy"),
)
_OF_A_SEED = (
    *("client_multiply_adds", "client_microseconds", "server_multiply_adds", "client", "server"),
    *("label_free_gain", *(f"oracle_{name}" for name in (*SHOWN, "mean"))),
)
FIELDS = ("data", "part", "samples", "seed", "budget", "method", "options", *_OF_A_WAY, *_OF_A_SEED, "seconds")
Row = dict[str, Any]
Way = tuple[str, str]  # a budget and who answers with it


def ways(budgets: Iterable[str], rivals: Iterable[str]) -> list[Way]:
    """Return the budget and the method of every row of a seed; ``rivals`` are the budgets of the rivals."""
    ours = [(budget, way) for budget in budgets for way in (TWO_WAYS, THREE_WAYS, STUDENT, REPLACED)]
    return [("0", CONFIDENCE), *ours, *((budget, rival) for budget in rivals for rival in RIVALS)]


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Return the rows of CSV files, each seed, budget and method once; figures are numbers, or None where missing."""
    figures = (*_OF_A_WAY, *_OF_A_SEED)
    rows = [row for path in paths for row in runs.read_rows(path, FIELDS, "a frontier", figures, figures)]
    key = ("data", "part", "seed", "budget", "method")
    return list({tuple(row[name] for name in key): row for row in rows}.values())


def summarise(rows: Sequence[Row], command: str) -> dict[str, Any]:
    """Return means and spread over seeds as plain values: what ``frontier.json`` holds."""
    known = [row for row in rows if row["risk_mean"] is not None]
    sets = sorted({(row["data"], row["part"], row["samples"]) for row in known})
    if len(sets) != 1:
        told = "; ".join(f"{data}, {part}, {samples} samples" for data, part, samples in sets) or "no rows"
        raise RunError(f"a frontier is of one data set and one part of it; here are: {told}")
    ((data, part, samples),) = sets
    budgets = sorted({row["budget"] for row in known}, key=lambda budget: _work(known, budget))
    first = {row["seed"]: row for row in known}.values()
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "dataset": data,
        "part": part,
        "samples": int(samples),
        "seeds": sorted({int(row["seed"]) for row in known}),
        "prices": {name: costs.as_dict() for name, costs in SHOWN.items()} | {"mean": [c.as_dict() for c in GRID]},
        "common": {name: _over_seeds(name, [row[name] for row in first]) for name in _OF_A_SEED},
        "rows": [],
        "command": command,
    }
    for budget in budgets:
        for way in WAYS:
            own = [row for row in known if (row["budget"], row["method"]) == (budget, way)]
            if own:
                figures = {name: _over_seeds(name, [row[name] for row in own]) for name in _OF_A_WAY}
                out["rows"].append({"budget": budget, "method": way, "seeds": len(own)} | figures)
    return out


def _work(rows: Sequence[Row], budget: str) -> float:
    """The multiply-adds of a budget's rejectors, by which budgets in different units are put in order."""
    own = [row["multiply_adds"] or 0.0 for row in rows if row["budget"] == budget and row["method"] != REPLACED]
    return max(own, default=0.0)


def _over_seeds(name: str, values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    # A net's time does not depend on the seed, and whatever else ran only added to it.
    return spread([min(known)] if name.endswith("microseconds") else known).as_dict()
