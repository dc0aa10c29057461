"""Prices by sync intervals: does a rejector that sees stale copies of the server end up worse?"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from l2h.costs import Costs
from l2h.experiments.paper.grid import ASYNC, LOSSES
from l2h.experiments.paper.measure import cell, column, contrast, curve, over_seeds, per_seed
from l2h.experiments.paper.passes import Pass
from l2h.experiments.paper.study import SIGN, UNBOUNDED, Drawing, Experiment, Study, printed, printed_share, title_of

LABELS = {"paper": "paper's L2", "shifted": "bounded loss"}


def run(study: Study) -> Experiment:
    """The cells are in the same pass as the trade-off's."""
    out = Experiment(
        "async",
        "Prices by sync intervals",
        "What does a rejector lose that is trained against a copy of the server that arrives every S steps?",
        errata=[
            SIGN,
            UNBOUNDED,
            "The paper's Algorithm 2 syncs where t mod S = 1, which never happens for S = 1; here copies arrive at "
            "t = 1, 1 + S, 1 + 2S, ...",
        ],
    )
    table = printed("cifar10-svhn-alexnet")
    for name in study.sets:
        passes = study.published(name)
        rows = [
            [f"{costs.c_1:g}", f"{costs.c_e:g}", sync, side, *_printed(table, name, costs, sync, side)]
            + [_share(passes, loss, costs, sync, f"{side}_{key}") for loss in LOSSES for key in ("ratio", "m", "e")]
            for costs in ASYNC
            for sync in study.scale.syncs
            for side in ("local", "remote")
        ]
        out.table(
            f"async-{name}",
            f"{title_of(name)}: both sides at every S",
            ["c_1", "c_e", "S", "decision", "client, paper", "server, paper"]
            + [f"{what}, {LABELS[loss]}" for loss in LOSSES for what in ("share", "client", "server")],
            rows,
        )
        risks, spreads = [], []
        for costs in ASYNC:
            for sync in study.scale.syncs:
                cells = {loss: over_seeds(passes, loss, costs, sync) for loss in LOSSES}
                risks.append(
                    [f"{costs.c_1:g}", f"{costs.c_e:g}", sync]
                    + [column(cells[loss], "risk") for loss in LOSSES]
                    + [column(cells["shifted"], key) for key in ("all_local", "all_remote")]
                )
            at = [np.mean([r["risk"] for r in over_seeds(passes, "shifted", costs, s)]) for s in study.scale.syncs]
            spreads.append(float(np.max(at) - np.min(at)))
        out.table(
            f"async-risk-{name}",
            f"{title_of(name)}: risk at every S",
            ["c_1", "c_e", "S", *(f"risk, {LABELS[loss]}" for loss in LOSSES), "never ask", "always ask"],
            risks,
        )
        epochs = list(range(1, len(passes[0].losses) + 1))
        curves = [
            {
                "panel": f"c_1 = {costs.c_1:g}, c_e = {costs.c_e:g}",
                "label": f"S = {sync}",
                "epoch": epochs,
                **curve([[_finite(v) for v in one.losses[:, one.find("shifted", costs, sync)]] for one in passes]),
            }
            for costs in ASYNC
            for sync in study.scale.syncs
        ]
        out.plot(
            f"async-{name}.png",
            f"{title_of(name)}: the rejectors' training loss (bounded)",
            Drawing("losses", {"curves": curves}),
            "The loss rises because its weights do: the more the server gets right, the more keeping one counts.",
        )
        out.findings.append(
            f"{title_of(name)}: over all S the risk of the bounded loss differs by at most {max(spreads):.4f} at a "
            "price."
        )
    return out


def _printed(table: list[dict[str, str]], name: str, costs: Costs, sync: str, side: str) -> list[dict[str, Any] | None]:
    """The paper's accuracies of client and server for a row."""
    for row in table:
        prices = (float(row["c1"]), float(row["ce"]))
        if row["sync_interval"] == sync and row["decision"] == side and prices == (costs.c_1, costs.c_e):
            return [printed_share(row.get(f"{name}_{key}", "")) for key in ("m", "e")]
    return [None, None]


def _share(passes: Sequence[Pass], loss: str, costs: Costs, sync: str, key: str) -> dict[str, Any] | None:
    """One figure of the contrastive table over the seeds."""
    found = per_seed(passes, lambda one: contrast(one, one.find(loss, costs, sync), costs), key)
    return cell(found, percent=True)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
