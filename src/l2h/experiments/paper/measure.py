"""Figures of one cell, seed by seed, and cells of tables from them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from l2h import metrics
from l2h.costs import BoolArray, Costs
from l2h.experiments.paper.passes import Pass, PassOutcomes
from l2h.experiments.paper.study import STYLES

Cell = dict[str, Any]


def decisions(one: Pass, which: int, costs: Costs) -> BoolArray | None:
    """What a rejector sends of the test set; None where it has diverged."""
    judgement = one.judgement(which)
    if not np.isfinite(judgement.scores).all():
        return None
    return judgement.remote(costs)


def figures(side: PassOutcomes, remote: BoolArray, costs: Costs) -> dict[str, float]:
    """Risk beside its trivial baselines, reject rate, joint accuracy."""
    found = metrics.risks(side.client_correct, side.server_correct, remote, costs)
    return {
        "risk": found.system,
        "all_local": found.all_local,
        "all_remote": found.all_remote,
        "random": found.random,
        "oracle": found.oracle,
        "rate": float(remote.mean()),
        "accuracy": float(np.where(remote, side.server_correct, side.client_correct).mean()),
    }


def over_seeds(passes: Sequence[Pass], loss: str, costs: Costs, sync: int | str = 1) -> list[dict[str, float]]:
    """The figures of a cell for every seed whose rejector is finite."""
    out = []
    for one in passes:
        remote = decisions(one, one.find(loss, costs, sync), costs)
        if remote is not None:
            out.append(figures(one.test, remote, costs))
    return out


def alone(passes: Sequence[Pass], costs: Costs) -> list[dict[str, float]]:
    """What needs no rejector, for every seed: the risk of never and of always asking, and the oracle's."""
    return [figures(one.test, np.zeros(len(one.test.y), dtype=bool), costs) for one in passes]


def cell(values: Sequence[float | None], *, percent: bool = False) -> Cell | None:
    """Mean and standard error over seeds; None where no seed has a value."""
    known = [float(v) for v in values if v is not None]
    if not known:
        return None
    found = metrics.spread(known)
    return {"mean": found.mean, "sem": found.sem, "n": found.n} | ({"percent": True} if percent else {})


def column(rows: Sequence[dict[str, float]], name: str, *, percent: bool = False) -> Cell | None:
    """One figure of a cell over the seeds."""
    return cell([row[name] for row in rows], percent=percent)


def curve(values: Sequence[Sequence[float | None]]) -> dict[str, list[float | None]]:
    """Mean and standard error at each point, over seeds: a list a seed."""
    points = [cell(at) for at in zip(*values, strict=True)]
    return {
        "mean": [None if p is None else p["mean"] for p in points],
        "sem": [None if p is None else p["sem"] for p in points],
    }


def price_curve(
    label: str, name: str, c_1: float, prices: Sequence[float], passes: Sequence[Pass], loss: str
) -> dict[str, Any]:
    """Rate, accuracy and risk of a recipe against c_e, as the plots take them."""

    def of(one: Pass, c_e: float, figure: str) -> float | None:
        costs = Costs(c_e=c_e, c_1=c_1)
        remote = decisions(one, one.find(loss, costs), costs)
        return None if remote is None else figures(one.test, remote, costs)[figure]

    measured = {
        figure: curve([[of(one, e, figure) for e in prices] for one in passes])
        for figure in ("rate", "accuracy", "risk")
    }
    return {"label": label, "dataset": name, "c_1": c_1, "c_e": list(prices), "style": STYLES[label], **measured}


def trivial_curves(passes: Sequence[Pass], c_1: float, prices: Sequence[float]) -> dict[str, list[float]]:
    """The mean risk of never and of always asking against c_e, and the c_e."""
    rows = [alone(passes, Costs(c_e=e, c_1=c_1)) for e in prices]
    kinds = ("all_local", "all_remote")
    return {kind: [float(np.mean([row[kind] for row in at])) for at in rows] for kind in kinds} | {"c_e": list(prices)}


def contrast(one: Pass, which: int, costs: Costs) -> dict[str, float | None] | None:
    """The contrastive table of one rejector: shares and accuracies of the two sides."""
    remote = decisions(one, which, costs)
    if remote is None:
        return None
    table = metrics.contrastive(one.test.client_correct, one.test.server_correct, remote)
    out: dict[str, float | None] = {"joint": table.joint}
    for name, side in (("local", table.local), ("remote", table.remote)):
        out |= {f"{name}_ratio": side.ratio, f"{name}_m": side.client, f"{name}_e": side.server}
    return out


def per_seed(passes: Sequence[Pass], found: Callable[[Pass], dict[str, Any] | None], name: str) -> list[float | None]:
    """One figure of a function of a pass, seed by seed."""
    out = []
    for one in passes:
        values = found(one)
        out.append(None if values is None or values[name] is None else float(values[name]))
    return out
