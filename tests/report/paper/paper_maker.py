"""Realistic results of the paper's experiments, aggregated from seeded random outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.costs import Costs, generalized_loss
from l2h.experiments.paper.study import Drawing
from l2h.metrics import spread

#: Style, and how well its rejector sees who is right: more noise, a worse one.
RECIPES = {"published recipe": ("paper", 2.4), "bounded weights": ("bounded", 1.4), "ours": ("ours", 0.5)}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Floats = npt.NDArray[np.float64]


def sample(values: Floats) -> dict[str, Any]:
    """Mean and standard error over the first axis, as lists; no error for one seed."""
    many = len(values) > 1
    sem = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if many else None
    return {"mean": values.mean(axis=0).tolist(), "sem": None if sem is None else sem.tolist()}


def make_curves(
    datasets: Sequence[str] = ("cifar10", "svhn"),
    *,
    seeds: int = 3,
    c_1: Sequence[float] = (1.0, 1.25),
    c_e: Sequence[float] = tuple(k / 40 for k in range(21)),
    recipes: Sequence[str] = tuple(RECIPES),
    samples: int = 600,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]], dict[str, dict[float, Any]]]:
    """Curves with rate, accuracy and risk; accuracies of client and server; trivial risks; all by data set."""
    rng = np.random.default_rng(3)
    curves, trivial = [], {}
    alone: dict[str, dict[str, float]] = {"client": {}, "server": {}}
    for d, dataset in enumerate(datasets):
        hard = rng.normal(0, 1.5, (seeds, samples))
        q_m, q_e = 1 / (1 + np.exp(hard - 0.8 - d)), 1 / (1 + np.exp(0.6 * hard - 1.6 - d))
        client, server = rng.random(hard.shape) < q_m, rng.random(hard.shape) < q_e
        alone["client"][dataset], alone["server"][dataset] = float(client.mean()), float(server.mean())
        trivial[dataset] = {price: _trivial(client, server, price, c_e) for price in c_1}
        for price in c_1:
            for label in recipes:
                style, noise = RECIPES[label]
                seen_m, seen_e = q_m + noise * rng.normal(0, 0.12, hard.shape), q_e
                shape = (seeds, len(c_e))
                rate, accuracy, risk = np.zeros(shape), np.zeros(shape), np.zeros(shape)
                for k, value in enumerate(c_e):
                    wrong = 1 - seen_e if style != "paper" else 0.1 * (1 - seen_e)
                    sent = 1 - seen_m > (value if style != "paper" else 0.2 * value) + price * wrong
                    rate[:, k] = sent.mean(axis=1)
                    accuracy[:, k] = np.where(sent, server, client).mean(axis=1)
                    loss = generalized_loss(client, server, sent, Costs(c_e=value, c_1=price))
                    risk[:, k] = loss.mean(axis=1)
                curves.append(
                    {
                        **{"label": label, "dataset": dataset, "c_1": price, "c_e": list(c_e), "style": style},
                        **{"rate": sample(rate), "accuracy": sample(accuracy), "risk": sample(risk)},
                    }
                )
    return curves, alone, trivial


def _trivial(client: Any, server: Any, c_1: float, c_e: Sequence[float]) -> dict[str, list[float]]:
    remote = {"all_local": np.zeros(client.shape, dtype=bool), "all_remote": np.ones(client.shape, dtype=bool)}
    return {"c_e": list(c_e)} | {
        name: [float(generalized_loss(client, server, sent, Costs(c_e=v, c_1=c_1)).mean()) for v in c_e]
        for name, sent in remote.items()
    }


def make_losses(panels: int = 3, seeds: int = 3, epochs: int = 15) -> list[dict[str, Any]]:
    """Loss curves of four links at several pairs of prices."""
    rng = np.random.default_rng(5)
    epoch, curves = np.arange(1, epochs + 1), []
    prices = [(1.0, 0.25), (1.25, 0.25), (1.25, 0.5), (1.0, 0.5), (1.5, 0.25), (1.5, 0.5)][:panels]
    for c_1, c_e in prices:
        for k, link in enumerate(("1", "100", "1000", "epoch")):
            base = c_1 * (0.9 + 0.5 * np.exp(-epoch / (2 + 2.5 * k))) + 0.4 * c_e
            values = base + rng.normal(0, 0.015, (seeds, epochs))
            panel = f"c_1 = {c_1:g}, c_e = {c_e:g}"
            curves.append({"panel": panel, "label": f"S = {link}", "epoch": epoch.tolist(), **sample(values)})
    return curves


def make_bounds(seeds: int = 3, points: int = 21) -> list[dict[str, Any]]:
    """Accuracy under a bound for three rules."""
    rng = np.random.default_rng(6)
    bound = np.linspace(0, 1, points)
    curves = []
    for label, lift, noise in (("threshold", 0.25, 0.006), ("stochastic", 0.1, 0.008), ("random", 0.0, 0.0)):
        accuracy = 0.62 + 0.17 * bound + lift * bound * (1 - bound) * 0.8 + rng.normal(0, 0.003, (seeds, points))
        rate = np.clip(bound + rng.normal(0, 1, (seeds, points)) * noise * np.sqrt(bound * (1 - bound)) * 2, 0, 1)
        curves.append({"label": label, "bound": bound.tolist(), "rate": sample(rate), "accuracy": sample(accuracy)})
    return curves


def make_classes(seeds: int = 3, names: Sequence[str] = CLASSES, lift: float = 0.0) -> list[dict[str, Any]]:
    """Reject rate per class; the client never saw the last."""
    rng = np.random.default_rng(8)
    rates = np.clip(0.2 + lift + 0.25 * rng.random(len(names)) + rng.normal(0, 0.02, (seeds, len(names))), 0, 1)
    rates[:, -1] = 0.93 - lift / 2
    out = []
    for k, name in enumerate(names):
        over = spread(rates[:, k])
        out.append({"name": name, "mean": over.mean, "sem": over.sem, "missing": k == len(names) - 1})
    return out


def make_scaling(counts: Sequence[int] = (1, 2, 5, 10, 20, 42, 84, 126, 200)) -> list[dict[str, Any]]:
    """Time and memory of a step for so many rejectors."""
    return [{"rejectors": n, "ms": 1.9 + 0.021 * n, "memory_gib": 0.42 + 0.0061 * n} for n in counts]


def make_drawings(*, name: str = "tradeoff", **options: Any) -> dict[str, Drawing]:
    """The plot of an experiment."""
    curves, alone, _ = make_curves(("cifar10",), **options)
    return {f"{name}-all.png": Drawing("tradeoff", {"curves": curves, "client": alone["client"]["cifar10"]})}


def make_experiment(*, seeds: int = 3, name: str = "tradeoff", **options: Any) -> dict[str, Any]:
    """An experiment with every kind of section and cell; its plot is one of ``make_drawings``."""
    curves, alone, trivial = make_curves(seeds=seeds, **options)
    file = f"{name}-all.png"
    datasets = list(alone["client"])
    prices = sorted({(curve["c_1"], c_e) for curve in curves for c_e in curve["c_e"]})
    labels = list(dict.fromkeys(curve["label"] for curve in curves))
    tables = [_risks(dataset, curves, trivial[dataset], labels, prices, seeds) for dataset in datasets]
    return {
        **{"schema": 1, "name": name, "title": "Trade-off of accuracy and reject rate", "quick": False},
        **{"question": "What does asking buy at each price?", "datasets": datasets, "seeds": list(range(seeds))},
        **{"command": f"l2h paper {name} --seeds {seeds}", "hardware": "2 CPU cores"},
        "settings": {"client": {"epochs": 10, "lr": 1e-3}, "batch": 16},
        "findings": ["ours has the lowest risk at `c_e = 0.25`.", "The published recipe sends more."],
        "errata": ["The released code weighs L2 with `1 - c_e + c_1*1[e!=y]`, the sign of c_1 reversed."],
        "sections": [
            {"kind": "text", "text": "First paragraph,\non two lines.\n\nSecond paragraph."},
            {"kind": "plot", "title": "Both", "file": file, "alt": "Accuracy against reject rate", "note": None},
            *tables,
            _odd(seeds),
        ],
    }


def _risks(
    dataset: str, curves: list[dict[str, Any]], trivial: Any, labels: list[str], prices: Any, seeds: int
) -> dict[str, Any]:
    columns = ["c_1", "c_e", *(f"risk, {label}" for label in labels), "never ask", *(f"sent, {x}" for x in labels)]
    rows = []
    for c_1, c_e in prices:
        row: list[Any] = [c_1, c_e]
        for key in ("risk", "rate"):
            for label in labels:
                (curve,) = [c for c in curves if (c["label"], c["dataset"], c["c_1"]) == (label, dataset, c_1)]
                k = curve["c_e"].index(c_e)
                sem = curve[key]["sem"]
                cell = {"mean": curve[key]["mean"][k], "sem": None if sem is None else sem[k], "n": seeds}
                row.append(cell | ({"percent": True} if key == "rate" else {}))
            if key == "risk":
                row.append({"mean": trivial[c_1]["all_local"][0], "sem": None})
        rows.append(row)
    return {
        **{"kind": "table", "title": f"Risk on {dataset}", "name": f"risk-{dataset}", "columns": columns},
        **{"rows": rows, "note": "Mean ± standard error.", "best": None},
    }


def _odd(seeds: int) -> dict[str, Any]:
    """Cells of every kind."""
    rows = [
        ["kept", 0.441, {"mean": 0.739, "sem": 0.00412, "percent": True}, None, 12345],
        ["sent", 1e-5, {"mean": 0.123, "sem": None, "percent": True}, {"mean": None, "sem": None}, 3],
        ["a | b", None, {"mean": 0.481, "sem": 0.001, "mark": "bad"}, {"mean": 0.5, "sem": 0.1, "n": seeds + 1}, 0],
    ]
    return {
        **{"kind": "table", "title": "Who is right where", "name": "contrastive", "note": None, "best": None},
        **{"columns": ["inputs", "share", "client", "server", "samples"], "rows": rows},
    }
