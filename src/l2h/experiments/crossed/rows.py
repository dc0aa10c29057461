"""The rows of a crossed comparison: their columns, their CSV file, and what each factor is worth."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l2h.costs import FloatArray
from l2h.errors import RunError
from l2h.experiments import runs
from l2h.experiments.statistics import REDRAWN, SHARED, contrast, holm
from l2h.metrics import spread

SCHEMA = 1
CSV, JSON = "crossed.csv", "crossed.json"
SEPARATE, ATTACHED, STUDENT = "separate", "attached", "student"
#: A net of its own on the input; one that reads the client's scores too; one whose trunk is taught by the server.
TRUNKS = (SEPARATE, ATTACHED, STUDENT)
OUTCOMES, SOFTMAX = "outcomes", "softmax"
#: Who was right on samples that the server was not fitted to; beside these, its softmax on those that it was fitted to.
SAMPLES = (OUTCOMES, SOFTMAX)
#: The loss that the others are measured against.
PRICED = "priced"
CONFIDENCE = "confidence"
_KEYS = ("data", "test", "samples", "rest", "seed", "budget", "loss", "trunk", "learned_from", "rate")
_FIGURES = ("c_1", "c_e", "validation", "risk", "reject_rate", "gain", "student", "multiply_adds", "client", "server")
FIELDS = (*_KEYS, *_FIGURES, "steps", "seconds", "blocks")
Row = dict[str, Any]
Arm = tuple[str, str]  # a trunk and what is learned from
#: In the order of their training: the one that has everything first.
ARMS: tuple[Arm, ...] = tuple(itertools.product(reversed(TRUNKS), reversed(SAMPLES)))
FULL = ARMS[0]
Vectors = Mapping[int, FloatArray]  # by seed, the mean losses of blocks of test samples


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Return the rows of CSV files, each once, with numbers for figures and None where there is none."""
    rows: dict[tuple[str, ...], Row] = {}
    for path in paths:
        for number, row in enumerate(runs.read_rows(path, FIELDS, "a crossed comparison"), start=2):
            key = tuple(row[name] for name in (*_KEYS, "c_1", "c_e"))
            try:
                figures = {name: float(row[name]) if row[name] else None for name in _FIGURES}
                blocks = np.array(json.loads(row["blocks"]), dtype=np.float64)
                whole = {name: int(row[name]) for name in ("samples", "rest", "seed")}
                rows[key] = row | figures | whole | {"blocks": blocks}
            except (TypeError, ValueError) as error:
                raise RunError(f"{path}, line {number}: {error}") from error
    return list(rows.values())


def summarise(rows: Sequence[Row], command: str) -> dict[str, Any]:
    """Return levels and what each factor is worth as plain values: what ``crossed.json`` holds."""
    sets = sorted({(row["data"], row["samples"], row["rest"]) for row in rows})
    if len(sets) != 1:
        told = "; ".join(f"{data}, {samples} of {samples + rest} samples" for data, samples, rest in sets) or "no rows"
        raise RunError(f"a crossed comparison is of one data set; here are: {told}")
    ((data, samples, rest),) = sets
    prices = sorted({(row["c_1"], row["c_e"]) for row in rows})
    others = None if len({row["test"] for row in rows}) == 1 else rest  # None: all seeds have one test set
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "dataset": data,
        "samples": samples,
        "seeds": sorted({row["seed"] for row in rows}),
        "test_set": SHARED if others is None else REDRAWN,
        "costs": [{"c_1": c_1, "c_e": c_e} for c_1, c_e in prices],
        **{who: spread(list({r["seed"]: r[who] for r in rows}.values())).as_dict() for who in ("client", "server")},
        "cells": [],
        "effects": [],
        "command": command,
    }
    for budget in sorted({row["budget"] for row in rows} - {""}):
        found = _Cells([row for row in rows if row["budget"] in (budget, "")], prices)
        out["cells"] += [{"budget": budget} | cell for cell in found.as_dicts()]
        out["effects"] += [{"budget": budget} | effect for effect in _effects(found, samples, others)]
    return out


class _Cells:
    """The cells of one budget: of every loss, trunk and kind of samples the rate that was best on validation."""

    def __init__(self, rows: Sequence[Row], prices: Sequence[tuple[float, float]]) -> None:
        by_rate: dict[tuple[str, str, str, int], dict[str, list[Row]]] = {}
        for row in rows:
            key = (row["loss"], row["trunk"], row["learned_from"], row["seed"])
            by_rate.setdefault(key, {}).setdefault(row["rate"], []).append(row)
        self.chosen: dict[tuple[str, str, str], dict[int, list[Row]]] = {}
        common: dict[int, set[str]] = {}  # the same rates for all cells of a seed
        for (_, trunk, _, seed), rates in by_rate.items():
            if trunk:
                common[seed] = common.get(seed, set(rates)) & set(rates)
        for (*cell, seed), rates in by_rate.items():
            same = {rate: own for rate, own in rates.items() if rate in common.get(seed, ())} or rates
            whole = [own for own in same.values() if len(own) == len(prices)]
            if whole:
                best = min(whole, key=lambda own: float(np.mean([row["validation"] for row in own])))
                self.chosen.setdefault(tuple(cell), {})[seed] = best  # type: ignore[arg-type]

    @property
    def losses(self) -> list[str]:
        """All losses that were trained, in the order of the rows."""
        return list(dict.fromkeys(loss for loss, trunk, _ in self.chosen if trunk in TRUNKS))

    def vectors(self, loss: str, arm: Arm) -> Vectors:
        """Return the block means of a cell's losses, the mean over prices."""
        own = self.chosen.get((loss, *arm), {})
        return {seed: np.mean([row["blocks"] for row in some], axis=0) for seed, some in own.items()}

    def as_dicts(self) -> Iterator[dict[str, Any]]:
        for (loss, trunk, learned_from), seeds in self.chosen.items():
            rows = list(seeds.values())
            named = {"loss": loss, "trunk": trunk, "learned_from": learned_from, "seeds": sorted(seeds)}
            rates = [own[0]["rate"] for own in rows]
            yield named | {
                **{name: _over_seeds(rows, name) for name in ("risk", "reject_rate", "gain", "student")},
                "multiply_adds": rows[0][0]["multiply_adds"],
                "rates": {rate: rates.count(rate) for rate in sorted(set(rates))},
            }


def _effects(cells: _Cells, samples: int, rest: int | None) -> Iterator[dict[str, Any]]:
    """Give the differences between the levels of each factor; p-values are corrected within a factor."""
    for factor, pairs in _pairs(cells.losses).items():
        made = []
        for name, sides in pairs.items():
            found = _difference(cells, sides)
            if found is not None:
                made.append({"factor": factor, "of": name} | found.pop("plain") | _tested(found, samples, rest))
        for effect, corrected in zip(made, holm([effect["p"] for effect in made]), strict=True):
            yield effect | {"p_holm": corrected}


Sides = list[tuple[tuple[str, Arm], tuple[str, Arm]]]  # cells, each beside the one that it is measured against


def _pairs(losses: Sequence[str]) -> dict[str, dict[str, Sides]]:
    """Return the pairs of cells behind every effect: by factor, then by what is compared."""

    def arms(over: Iterable[tuple[Arm, Arm]]) -> Sides:
        return [((loss, a), (loss, b)) for loss in losses for a, b in over]

    trunks: dict[str, Sides] = {}
    for new, old in ((ATTACHED, SEPARATE), (STUDENT, ATTACHED)):
        for some in (*((one,) for one in SAMPLES), SAMPLES):
            over = [((new, learned), (old, learned)) for learned in some]
            trunks[f"{new} instead of {old}{_within(some, SAMPLES)}"] = arms(over)
    learned_from: dict[str, Sides] = {}
    for few in (*((one,) for one in TRUNKS), TRUNKS):
        over = [((trunk, SOFTMAX), (trunk, OUTCOMES)) for trunk in few]
        learned_from[f"{SOFTMAX} instead of {OUTCOMES}{_within(few, TRUNKS)}"] = arms(over)
    others = [loss for loss in losses if loss != PRICED]
    return {
        "trunk": trunks,
        "learned from": learned_from,
        "loss, all arms": {loss: [((loss, arm), (PRICED, arm)) for arm in ARMS] for loss in others},
        "loss, with everything": {loss: [((loss, FULL), (PRICED, FULL))] for loss in others},
        "with everything instead of confidence": {loss: [((loss, FULL), (CONFIDENCE, ("", "")))] for loss in losses},
    }


def _within(some: Sequence[str], everything: Sequence[str]) -> str:
    return "" if len(some) == len(everything) else f", {some[0]}"


def _difference(cells: _Cells, sides: Sides) -> dict[str, Any] | None:
    """Return the mean difference of the pairs of cells that have most seeds, as block means by seed; None without any.

    So a mean over losses is one over the same losses in every seed, also where later seeds have fewer of them.
    """
    pairs = [(cells.vectors(*a), cells.vectors(*b)) for a, b in sides]
    most = max((len(set(a) & set(b)) for a, b in pairs), default=0)
    there = [(a, b) for a, b in pairs if len(set(a) & set(b)) == most]
    seeds = set.intersection(*(set(a) & set(b) for a, b in there)) if most else set()
    if not seeds:
        return None
    vectors = {seed: np.mean([a[seed] - b[seed] for a, b in there], axis=0) for seed in sorted(seeds)}
    return {"plain": {"pairs": len(there), "seeds": sorted(seeds)}, "vectors": vectors}


def _tested(found: Mapping[str, Any], samples: int, rest: int | None) -> dict[str, Any]:
    return contrast(list(found["vectors"].values()), samples, rest).as_dict()


def _over_seeds(rows: Sequence[Sequence[Row]], name: str) -> dict[str, Any] | None:
    values = [[row[name] for row in own] for own in rows]
    if any(value is None for own in values for value in own):
        return None
    return spread([float(np.mean(own)) for own in values]).as_dict()
