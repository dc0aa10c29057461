"""From seed by seed to a comparison: means, standard errors, intervals of paired differences, who beats whom."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from l2h import methods
from l2h.costs import FloatArray
from l2h.errors import RunError
from l2h.experiments.compare.rows import Row
from l2h.experiments.compare.seed import RATES, SeedResult
from l2h.experiments.statistics import CONFIDENCE, REDRAWN, SHARED, Contrast, contrast, corrected
from l2h.metrics import spread

SCHEMA = 2
SEPARATE = "priced-separate"
_FIGURES = ("risk", "reject_rate", "accuracy", "gain", "risk_as_published")


def summarise(rows: Sequence[Row], command: str) -> dict[str, Any]:
    """Return the comparison as plain values: what ``comparison.json`` holds, but for curves and settings."""
    table = _Table(rows)
    names, prices = table.names, table.prices
    # Where only outcomes are known there are no client's scores to read, and the default's loss has a net of its own.
    default = next((name for name in (methods.DEFAULT, SEPARATE) if name in names), methods.DEFAULT)
    return {
        "schema": SCHEMA,
        "dataset": rows[0]["data"],
        "seeds": table.seeds,
        "samples": rows[0]["samples"],
        "classes": rows[0]["classes"],
        "costs": [{"c_e": c_e, "c_1": c_1} for c_1, c_e in prices],
        "default": default,
        "accuracy": {
            **{who: table.spread(names[0], prices[0], who) for who in ("client", "server")},
            "student": table.spread(default, prices[0], "student") if default in names else None,
        },
        "methods": [_described(method, table) for method in methods.get(names)],
        "cells": [
            {"method": name, "c_1": c_1, "c_e": c_e}
            | {figure: table.spread(name, (c_1, c_e), figure) for figure in _FIGURES}
            for name in names
            for c_1, c_e in prices
        ],
        "overall": _overall(table),
        "pairs": list(_pairs(table)),
        "against_default": list(_against(table, default)) if default in names else [],
        "intervals": {"confidence": CONFIDENCE, "test_set": SHARED if table.rest is None else REDRAWN},
        "frontiers": {"rate": RATES.tolist(), "methods": {}},
        "settings": {},
        "command": command,
        "skipped": [],
    }


def curves(results: Sequence[SeedResult]) -> dict[str, Any]:
    """Return the frontier of every method, the mean over seeds with its standard error."""
    return {name: _curve(results, m) for m, name in enumerate(results[0].names)}


class _Table:
    """The rows by method and price, in the order of the seeds; a RunError where one is missing."""

    def __init__(self, rows: Sequence[Row]) -> None:
        if len({(row["data"], row["classes"], row["samples"], row["rest"]) for row in rows}) != 1:
            raise RunError("these are the rows of no comparison, or of several data sets: name files of one")
        self.seeds = sorted({row["seed"] for row in rows})
        self.samples = rows[0]["samples"]
        self.prices = list(dict.fromkeys((row["c_1"], row["c_e"]) for row in rows))
        there = {row["method"] for row in rows}
        self.names = [name for name in methods.known() if name in there]
        self.rest = None if len({row["test"] for row in rows}) == 1 else rows[0]["rest"]
        self._rows = {(row["method"], (row["c_1"], row["c_e"]), row["seed"]): row for row in rows}
        missing = len(self.names) * len(self.prices) * len(self.seeds) - len(self._rows)
        if missing:
            raise RunError(f"{missing} rows are missing: the seeds have other methods or prices than each other")

    def values(self, name: str, price: tuple[float, float], figure: str) -> list[Any]:
        """Return a figure of every seed."""
        return [self._rows[name, price, seed][figure] for seed in self.seeds]

    def spread(self, name: str, price: tuple[float, float], figure: str) -> dict[str, Any] | None:
        values = self.values(name, price, figure)
        if any(value is None for value in values):
            return None
        found = spread(values).as_dict()
        return found | ({"sampling": self.contrast(name, None, price).sample_error} if figure == "risk" else {})

    def means(self, name: str, figure: str) -> list[float] | None:
        """Return the mean over the prices of every seed."""
        over = [self.values(name, price, figure) for price in self.prices]
        if any(value is None for own in over for value in own):
            return None
        return [float(np.mean(own)) for own in zip(*over, strict=True)]

    def blocks(self, name: str, price: tuple[float, float] | None) -> list[FloatArray]:
        """Return the block means of every seed at a price, or over all."""
        some = self.prices if price is None else [price]
        each = [self.values(name, one, "blocks") for one in some]
        return [np.mean(own, axis=0) for own in zip(*each, strict=True)]

    def contrast(self, a: str, b: str | None, price: tuple[float, float] | None = None) -> Contrast:
        """Return the risk of one method, less that of another."""
        first = self.blocks(a, price)
        second = [np.zeros_like(own) for own in first] if b is None else self.blocks(b, price)
        differences = [one - other for one, other in zip(first, second, strict=True)]
        return contrast(differences, self.samples, self.rest)


def _pairs(table: _Table) -> Iterator[dict[str, Any]]:
    """Give the difference of every two methods; p-values are corrected for the methods held against one."""
    for b in table.names:
        others = [a for a in table.names if a != b]
        found = corrected([table.contrast(a, b) for a in others])
        yield from ({"a": a, "b": b} | one.as_dict() for a, one in zip(others, found, strict=True))


def _against(table: _Table, default: str) -> Iterator[dict[str, Any]]:
    """Give the difference of every method to the default at each price; p-values are corrected for the prices."""
    for name in (name for name in table.names if name != default):
        found = corrected([table.contrast(name, default, price) for price in table.prices])
        for (c_1, c_e), one in zip(table.prices, found, strict=True):
            yield {"method": name, "c_1": c_1, "c_e": c_e} | one.as_dict()


def _overall(table: _Table) -> list[dict[str, Any]]:
    names = table.names
    means = np.array([[np.mean(table.values(name, price, "risk")) for price in table.prices] for name in names])
    deployable = [m for m, method in enumerate(methods.get(names)) if method.family != "reference"]
    out = []
    for m, name in enumerate(names):
        gains = table.means(name, "gain")
        # A rank among what can be deployed: 1 is the lowest risk at a price; ties share their mean.
        below = (means[deployable] < means[m]).sum(axis=0)
        equal = (means[deployable] == means[m]).sum(axis=0)
        rank = float((below + (np.maximum(equal, 1) + 1) / 2).mean()) if m in deployable else None
        risk = spread(table.means(name, "risk") or []).as_dict() | {"sampling": table.contrast(name, None).sample_error}
        gain = None if gains is None else spread(gains).as_dict()
        out.append({"method": name, "risk": risk, "gain": gain, "rank": rank})
    return out


def _described(method: methods.Method, table: _Table) -> dict[str, Any]:
    price = table.prices[0]
    counts = {fact: table.values(method.name, price, fact)[0] for fact in ("parameters", "multiply_adds")}
    counted = {fact: None if value is None else int(value) for fact, value in counts.items()}
    return method.card() | counted | {"steps": table.spread(method.name, price, "steps")}


def _curve(results: Sequence[SeedResult], m: int) -> dict[str, Any]:
    curves = np.stack([result.curve[m] for result in results])
    sem = None if len(curves) == 1 else (curves.std(axis=0, ddof=1) / np.sqrt(len(curves))).round(6).tolist()
    return {"mean": curves.mean(axis=0).round(6).tolist(), "sem": sem}
