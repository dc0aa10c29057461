"""The rows of a comparison: what each method cost at each price and seed, small enough to be kept as a CSV file."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l2h import methods
from l2h.costs import BoolArray, Costs, FloatArray, generalized_loss
from l2h.errors import RunError
from l2h.experiments import runs
from l2h.experiments.compare.seed import SeedResult
from l2h.experiments.statistics import block_means

CSV = "rows.csv"
_KEYS = ("data", "test", "samples", "rest", "classes", "seed", "method", "c_1", "c_e")
_FACTS = ("parameters", "multiply_adds", "steps", "student")
_FIGURES = ("risk", "risk_as_published", "reject_rate", "accuracy", "gain", *_FACTS, "client", "server")
FIELDS = (*_KEYS, *_FIGURES, "blocks")
_WHOLE, _PRICES = ("samples", "rest", "classes", "seed"), ("c_1", "c_e")
Row = dict[str, Any]


def rows_of(result: SeedResult, prices: Sequence[Costs], dataset: str, classes: int) -> list[Row]:
    """Return a row per method and price of one seed."""
    common = {
        "data": dataset,
        "test": result.test_digest[:12],
        "samples": len(result.client_correct),
        "rest": result.rest,
        "classes": classes,
        "seed": result.seed,
        "client": float(result.client_correct.mean()),
        "server": float(result.server_correct.mean()),
    }
    rows = []
    for m, name in enumerate(result.names):
        facts = {fact: result.facts.get(name, {}).get(fact) for fact in _FACTS}
        for c, costs in enumerate(prices):
            remote, gain = result.remote[m, c], float(result.gain[m, c])
            losses = _losses(result, remote, costs)
            published = _losses(result, result.as_published[m, c], costs) if result.has_published[m] else None
            rows.append(
                common
                | facts
                | {
                    "method": name,
                    "c_1": costs.c_1,
                    "c_e": costs.c_e,
                    "risk": float(losses.mean()),
                    "risk_as_published": None if published is None else float(published.mean()),
                    "reject_rate": float(remote.mean()),
                    "accuracy": float(np.where(remote, result.server_correct, result.client_correct).mean()),
                    "gain": None if np.isnan(gain) else gain,
                    "blocks": np.round(block_means(losses), 6),
                }
            )
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows into a CSV file, in place of what it held."""
    path.unlink(missing_ok=True)
    plain = ({**row, "blocks": json.dumps(row["blocks"].tolist(), separators=(",", ":"))} for row in rows)
    runs.append_rows(path, FIELDS, plain)


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Return the rows of CSV files, each once; raise a :class:`RunError` for one that is no such table."""
    rows: dict[tuple[str, ...], Row] = {}
    for path in paths:
        for number, row in enumerate(runs.read_rows(path, FIELDS, "a comparison"), start=2):
            try:
                figures: Row = {name: float(row[name]) if row[name] else None for name in _FIGURES}
                figures |= {name: int(row[name]) for name in _WHOLE} | {name: float(row[name]) for name in _PRICES}
                figures["blocks"] = np.array(json.loads(row["blocks"]), dtype=np.float64)
                methods.get([row["method"]])
            except (TypeError, ValueError) as error:
                raise RunError(f"{path}, line {number}: {error}") from error
            rows[tuple(row[name] for name in _KEYS)] = row | figures
    return list(rows.values())


def _losses(result: SeedResult, remote: BoolArray, costs: Costs) -> FloatArray:
    return generalized_loss(result.client_correct, result.server_correct, remote, costs)
