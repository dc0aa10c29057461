"""From seed by seed to a comparison: means, standard errors, paired bootstrap intervals, who beats whom."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from l2h import methods
from l2h.costs import BoolArray, Costs, FloatArray, generalized_loss
from l2h.errors import DataError
from l2h.experiments.compare.seed import RATES, SeedResult
from l2h.experiments.plan import Plan
from l2h.metrics import bootstrap_means, interval, spread

SCHEMA = 1
CONFIDENCE = 0.95


def summarise(
    plan: Plan,
    results: Sequence[SeedResult],
    *,
    dataset: str,
    classes: int,
    draws: int,
    command: str,
    skipped: list[dict[str, str]],
) -> dict[str, Any]:
    """Return the comparison as plain values: what ``comparison.json`` holds."""
    names = results[0].names
    if any(result.names != names for result in results):
        raise DataError("the seeds compared different methods: run them again with --force")
    prices, default = plan.costs, methods.DEFAULT
    losses = [_losses(result, result.remote, prices) for result in results]
    risks = [one.mean(axis=-1) for one in losses]
    published = [_losses(result, result.as_published, prices).mean(axis=-1) for result in results]
    answers = [np.where(r.remote, r.server_correct, r.client_correct).mean(axis=-1) for r in results]
    cells = []
    for m, name in enumerate(names):
        for c, costs in enumerate(prices):
            gains = [float(result.gain[m, c]) for result in results]
            cells.append(
                {
                    "method": name,
                    "c_1": costs.c_1,
                    "c_e": costs.c_e,
                    "risk": spread([seed[m, c] for seed in risks]).as_dict(),
                    "reject_rate": spread([float(r.remote[m, c].mean()) for r in results]).as_dict(),
                    "accuracy": spread([float(seed[m, c]) for seed in answers]).as_dict(),
                    "gain": None if np.isnan(gains).any() else spread(gains).as_dict(),
                    "risk_as_published": spread([seed[m, c] for seed in published]).as_dict()
                    if results[0].has_published[m]
                    else None,
                }
            )
    settled = replace(plan, settings=plan.settings.with_seed(results[0].seed))
    shared = len({result.test_digest for result in results}) == 1
    columns = [one.reshape(len(names) * len(prices), -1).T for one in losses]
    drawn = bootstrap_means(columns, draws=draws, shared=shared).reshape(draws, len(names), len(prices))
    means = np.mean(risks, axis=0)
    over, drawn_over = means.mean(axis=1), drawn.mean(axis=2)
    return {
        "schema": SCHEMA,
        "dataset": dataset,
        "seeds": [result.seed for result in results],
        "samples": len(results[0].client_correct),
        "classes": classes,
        "costs": [{"c_e": c.c_e, "c_1": c.c_1} for c in prices],
        "default": default,
        "accuracy": {
            "client": spread([float(r.client_correct.mean()) for r in results]).as_dict(),
            "server": spread([float(r.server_correct.mean()) for r in results]).as_dict(),
            "student": _fact(results, default, "student"),
        },
        "methods": [_described(method, results) for method in methods.get(names)],
        "cells": cells,
        "overall": _overall(names, risks, results),
        "pairs": [
            {"a": a, "b": b} | interval(drawn_over[:, i] - drawn_over[:, j], over[i] - over[j], CONFIDENCE).as_dict()
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i != j
        ],
        "against_default": [
            {"method": name, "c_1": costs.c_1, "c_e": costs.c_e}
            | interval(drawn[:, m, c] - drawn[:, at, c], means[m, c] - means[at, c], CONFIDENCE).as_dict()
            for at in (i for i, name in enumerate(names) if name == default)
            for m, name in enumerate(names)
            for c, costs in enumerate(prices)
            if m != at
        ],
        "bootstrap": {"draws": draws, "confidence": CONFIDENCE, "test_set": "shared" if shared else "own"},
        "frontiers": {"rate": RATES.tolist(), "methods": {name: _curve(results, m) for m, name in enumerate(names)}},
        "settings": json.loads(json.dumps(settled.as_dict())),
        "command": command,
        "skipped": skipped,
    }


def _losses(result: SeedResult, remote: BoolArray, prices: Sequence[Costs]) -> FloatArray:
    """(M, C, n)."""
    outcomes = (result.client_correct, result.server_correct)
    return np.stack(
        [[generalized_loss(*outcomes, decisions[c], costs) for c, costs in enumerate(prices)] for decisions in remote]
    )


def _overall(names: Sequence[str], risks: Sequence[FloatArray], results: Sequence[SeedResult]) -> list[dict[str, Any]]:
    means = np.mean(risks, axis=0)
    deployable = [m for m, method in enumerate(methods.get(names)) if method.family != "reference"]
    out = []
    for m, name in enumerate(names):
        gains = [float(result.gain[m].mean()) for result in results]
        # A rank among what can be deployed: 1 is the lowest risk at a price; ties share their mean.
        below = (means[deployable] < means[m]).sum(axis=0)
        equal = (means[deployable] == means[m]).sum(axis=0)
        rank = float((below + (np.maximum(equal, 1) + 1) / 2).mean()) if m in deployable else None
        out.append(
            {
                "method": name,
                "risk": spread([float(seed[m].mean()) for seed in risks]).as_dict(),
                "gain": None if np.isnan(gains).any() else spread(gains).as_dict(),
                "rank": rank,
            }
        )
    return out


def _described(method: methods.Method, results: Sequence[SeedResult]) -> dict[str, Any]:
    facts = results[0].facts.get(method.name, {})
    return method.card() | {
        "parameters": int(facts["parameters"]) if "parameters" in facts else None,
        "multiply_adds": int(facts["multiply_adds"]) if "multiply_adds" in facts else None,
        "steps": _fact(results, method.name, "steps"),
    }


def _fact(results: Sequence[SeedResult], name: str, fact: str) -> dict[str, Any] | None:
    values = [result.facts.get(name, {}).get(fact) for result in results]
    return None if any(v is None for v in values) else spread([float(v) for v in values if v is not None]).as_dict()


def _curve(results: Sequence[SeedResult], m: int) -> dict[str, Any]:
    curves = np.stack([result.curve[m] for result in results])
    sem = None if len(curves) == 1 else (curves.std(axis=0, ddof=1) / np.sqrt(len(curves))).round(6).tolist()
    return {"mean": curves.mean(axis=0).round(6).tolist(), "sem": sem}
