"""Realistic comparisons of methods, aggregated from seeded random outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import Costs, FloatArray, cost_grid, generalized_loss
from l2h.decision import Judgement
from l2h.metrics import frontier, frontier_gain, spread

DEFAULT = "priced-attached"
#: Family, whether it is ours, and the noise of its probabilities: more noise, a worse ranking.
KINDS: dict[str, tuple[str, bool, float]] = {
    "all-local": ("trivial", False, 0.0),
    "all-remote": ("trivial", False, 0.0),
    "random": ("trivial", False, 0.0),
    "confidence": ("confidence", False, 0.75),
    "margin": ("confidence", False, 0.8),
    "entropy": ("confidence", False, 0.9),
    "temperature": ("confidence", False, 0.7),
    "lwa-separate": ("learned", False, 1.3),
    "softmax-l2d": ("learned", False, 0.6),
    "ova-l2d": ("learned", False, 0.65),
    "two-stage-confidence": ("learned", False, 0.55),
    "two-stage-separate": ("learned", False, 1.2),
    "l2h-paper": ("learned", False, 1.1),
    "shifted-separate": ("learned", True, 1.05),
    "swapped-separate": ("learned", True, 1.0),
    "priced-separate": ("learned", True, 0.95),
    "shifted-attached": ("learned", True, 0.5),
    "swapped-attached": ("learned", True, 0.45),
    "priced-attached": ("learned", True, 0.35),
    "oracle": ("reference", False, 0.0),
    "label-free": ("reference", False, 0.0),
}
NO_CURVE = ("all-local", "all-remote")


def make_comparison(
    names: Sequence[str] = tuple(KINDS),
    *,
    seeds: int = 3,
    samples: int = 200,
    c_1: Sequence[float] = (1.0, 1.25),
    c_e: Sequence[float] = (0.05, 0.1, 0.2, 0.3),
    noise: Mapping[str, float] | None = None,
    draws: int = 100,
    default: str = DEFAULT,
) -> dict[str, Any]:
    """What ``l2h compare`` hands over, for methods that see the truth through noise.

    Args:
        names: of the methods; one that is not in ``KINDS`` is a learned method of somebody else.
        seeds: how many trainings, all judged on test sets of their own.
        samples: of a test set.
        c_1: of the grid.
        c_e: of the grid.
        noise: of a method's probabilities, in place of the one in ``KINDS``.
        draws: of the bootstrap.
        default: the method that the others are held against.
    """
    grid = cost_grid(c_1, c_e)
    rng = np.random.default_rng(7)
    loss = np.zeros((len(names), len(grid), seeds, samples))
    sent, right = np.zeros_like(loss), np.zeros_like(loss)
    gain: dict[str, list[float]] = {}
    rate = np.linspace(0, 1, 201)
    curves = {name: np.zeros((seeds, 201)) for name in names if name not in NO_CURVE}
    level = {name: KINDS.get(name, ("learned", False, 0.8))[2] for name in names} | dict(noise or {})
    accuracy = np.zeros((2, seeds))
    for s in range(seeds):
        hard = rng.normal(0, 1.5, samples)
        q_m, q_e = _sigmoid(1.0 - hard), _sigmoid(2.2 - 0.6 * hard)
        client, server = rng.random(samples) < q_m, rng.random(samples) < q_e
        accuracy[:, s] = client.mean(), server.mean()
        for k, name in enumerate(names):
            seen = _sigmoid(1.0 - hard + level[name] * rng.normal(0, 1.5, samples))
            if name == "oracle":
                q_m, q_e, seen = 1.0 * client, 1.0 * server, 1.0 * client
            else:
                q_m, q_e = _sigmoid(1.0 - hard), _sigmoid(2.2 - 0.6 * hard)
            for i, costs in enumerate(grid):
                remote = _decide(name, _saving(seen, q_e, costs), rng)
                loss[k, i, s] = generalized_loss(client, server, remote, costs)
                sent[k, i, s], right[k, i, s] = remote, np.where(remote, server, client)
            if name in curves:
                score = rng.random(samples) if name == "random" else _saving(seen, q_e, Costs(0.0))
                curve = frontier(score, client, server)
                curves[name][s] = np.interp(rate, curve.rate, curve.accuracy)
                won = frontier_gain(curve.area, client, server)
                gain.setdefault(name, []).extend([] if won is None else [won])
    risk = loss.mean(axis=3)
    order = np.argsort(np.argsort(risk.mean(axis=2), axis=0), axis=0) + 1
    drawn = _bootstrap(loss, draws, rng)
    made = {
        "schema": 2,
        "dataset": "made up",
        "seeds": list(range(seeds)),
        "samples": samples,
        "classes": 10,
        "costs": [{"c_e": costs.c_e, "c_1": costs.c_1} for costs in grid],
        "default": default,
        "accuracy": {"client": _spread(accuracy[0]), "server": _spread(accuracy[1]), "student": None},
        "methods": [_method(name) for name in names],
        "cells": [
            {
                "method": name,
                "c_1": costs.c_1,
                "c_e": costs.c_e,
                "risk": _spread(risk[k, i]),
                "reject_rate": _spread(sent[k, i].mean(axis=1)),
                "accuracy": _spread(right[k, i].mean(axis=1)),
                "gain": _spread(gain[name]) if gain.get(name) else None,
                "risk_as_published": _spread(risk[k, i] + 0.01) if "l2d" in name else None,
            }
            for k, name in enumerate(names)
            for i, costs in enumerate(grid)
        ],
        "overall": [
            {
                "method": name,
                "risk": _spread(risk[k].mean(axis=0)) | {"sampling": 0.01},
                "gain": _spread(gain[name]) if gain.get(name) else None,
                "rank": float(order[k].mean()),
            }
            for k, name in enumerate(names)
        ],
        "pairs": [
            {"a": a, "b": b} | _interval(risk[i].mean() - risk[j].mean(), (drawn[i] - drawn[j]).mean(axis=0))
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i != j
        ],
        "against_default": [
            {"method": name, "c_1": costs.c_1, "c_e": costs.c_e}
            | _interval(risk[k, i].mean() - risk[ours, i].mean(), drawn[k, i] - drawn[ours, i])
            for ours in [names.index(default)]
            for k, name in enumerate(names)
            if name != default
            for i, costs in enumerate(grid)
        ],
        "intervals": {"confidence": 0.95, "test_set": "redrawn"},
        "frontiers": {
            "rate": rate.tolist(),
            "methods": {
                name: {
                    "mean": of.mean(axis=0).tolist(),
                    "sem": None if seeds == 1 else (of.std(axis=0, ddof=1) / np.sqrt(seeds)).tolist(),
                }
                for name, of in curves.items()
            },
        },
        "settings": {"recipe": "default", "server": {"name": "mlp", "epochs": 15}},
        "command": "l2h compare digits --seeds 3",
        "skipped": [{"method": "binary-l2h", "why": "two classes only"}],
    }
    plain: dict[str, Any] = json.loads(json.dumps(made, allow_nan=False))
    return plain


def _method(name: str) -> dict[str, Any]:
    family, ours, _ = KINDS.get(name, ("learned", False, 0.0))
    traits = None
    if family in ("learned", "confidence"):
        traits = {
            "separate": "separate" in name,
            "learns_client": name != "two-stage-separate",
            "learns_server": family == "learned" and name != "lwa-separate",
            "asynchronous": None if family == "confidence" else "l2d" not in name,
        }
    published = None
    if traits and name in ("confidence", "softmax-l2d", "two-stage-separate", "l2h-paper"):
        published = traits | ({"learns_client": False} if name == "softmax-l2d" else {})
    return {
        "name": name,
        "title": name.replace("-", " ").capitalize(),
        "family": family,
        "ours": ours,
        "reference": "" if family == "trivial" else f"Somebody {1970 + len(name)}",
        "equation": "" if family == "trivial" else "max_k p_k(x) < t",
        "change": "the client's scores are fixed; a deferral score is trained" if "l2d" in name else "",
        "traits": traits,
        "published_traits": published,
        "parameters": 1_234_567 if family == "learned" else None,
        "multiply_adds": 45_678 if family == "learned" else None,
        "steps": _spread([1200.0, 1300.0, 1100.0]) if family == "learned" else None,
    }


def _decide(name: str, saving: FloatArray, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    if name == "all-local":
        return np.zeros(len(saving), dtype=bool)
    if name == "all-remote":
        return np.ones(len(saving), dtype=bool)
    if name == "random":
        return rng.random(len(saving)) < (saving >= 0).mean()
    return saving > 0


def _bootstrap(loss: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """Mean loss (methods, prices, draws) over samples drawn anew within every seed, the same for all methods."""
    _, _, seeds, samples = loss.shape
    out = np.zeros((*loss.shape[:2], draws))
    for d in range(draws):
        for s in range(seeds):
            out[:, :, d] += loss[:, :, s, rng.integers(0, samples, samples)].mean(axis=2) / seeds
    return out


def _interval(difference: float, drawn: FloatArray) -> dict[str, float]:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"difference": float(difference), "low": float(low), "high": float(high)}


def _spread(values: Sequence[float] | FloatArray) -> dict[str, Any]:
    return spread(list(values)).as_dict()


def _sigmoid(x: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _saving(q_m: Any, q_e: Any, costs: Costs) -> Any:
    right = np.stack([q_m, q_e], axis=1)
    return Judgement(right, right).saving(costs)
