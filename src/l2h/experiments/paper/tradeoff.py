"""The trade-off figure: accuracy against reject rate, and reject rate against c_e, for two inaccuracy costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from l2h.costs import Costs
from l2h.experiments.paper.lab import Pass
from l2h.experiments.paper.measure import alone, column, curve, decisions, figures, over_seeds
from l2h.experiments.paper.study import BOUNDED, OURS, PAPER, SIGN, UNBOUNDED, Drawing, Experiment, Study

STYLES = {PAPER: "paper", BOUNDED: "bounded", OURS: "ours"}


def run(study: Study) -> Experiment:
    """One pass a data set and seed serves all cells."""
    out = Experiment(
        "tradeoff",
        "Trade-off of accuracy and reject rate",
        "How do the price of a request and the cost of a wrong remote answer move accuracy and the share sent?",
        errata=[SIGN, UNBOUNDED],
    )
    scale = study.scale
    for name in study.sets:
        published, ours = study.published(name), study.ours(name)
        recipes = {PAPER: (published, "paper"), BOUNDED: (published, "shifted"), OURS: (ours, "priced")}
        curves = [
            _curve(label, name, c_1, scale.c_e, passes, loss)
            for label, (passes, loss) in recipes.items()
            for c_1 in scale.c_1
        ]
        out.plot(
            f"tradeoff-{name}.png",
            f"{name}: accuracy against reject rate, reject rate against c_e",
            Drawing("tradeoff", {"curves": curves, "client": np.mean([p.test.client_correct.mean() for p in ours])}),
            "The paper prints this figure without numbers, so its curve is not repeated here.",
        )
        seconds = [one.facts["seconds"].get("server and rejector") for one in published]
        if all(second is not None for second in seconds):
            out.text(
                f"{name}: the server and {len(published[0].specs)} rejectors, these cells and those of the sync "
                f"intervals, trained in one pass a seed: {', '.join(f'{second:.0f} s' for second in seconds)} "
                "(by the clock, with whatever else the machine did)."
            )
        trivial = {
            c_1: {
                kind: [_mean([row[kind] for row in alone(published, Costs(c_e=e, c_1=c_1))]) for e in scale.c_e]
                for kind in ("all_local", "all_remote")
            }
            for c_1 in scale.c_1
        }
        out.plot(
            f"tradeoff-risk-{name}.png",
            f"{name}: risk against c_e",
            Drawing("risk", {"curves": curves, "trivial": trivial}),
        )
        rows, lost, worse = [], 0, 0
        for costs in scale.tradeoff:
            cells = {label: over_seeds(passes, loss, costs) for label, (passes, loss) in recipes.items()}
            lost += len(study.seeds) - len(cells[PAPER])
            best = np.mean([min(row["all_local"], row["all_remote"]) for row in cells[OURS]])
            worse += bool(np.mean([row["risk"] for row in cells[OURS]]) > best)
            rows.append(
                [f"{costs.c_1:g}", f"{costs.c_e:g}"]
                + [column(cells[label], "rate", percent=True) for label in recipes]
                + [column(cells[label], "accuracy", percent=True) for label in recipes]
                + [column(cells[label], "risk") for label in recipes]
                + [column(cells[BOUNDED], "all_local"), column(cells[BOUNDED], "all_remote")]
            )
        out.table(
            f"tradeoff-{name}",
            f"{name}: every cell",
            ["c_1", "c_e"]
            + [f"{what}, {label}" for what in ("sent", "accuracy", "risk") for label in recipes]
            + ["risk, never ask", "risk, always ask"],
            rows,
            "Never and always asking are those of the paper's recipe; our recipe has a server of its own.",
        )
        out.findings.append(
            f"{name}: of {len(rows) * len(study.seeds)} rejectors by the paper's L2 {lost} diverged. By our recipe the "
            f"mean risk is above the better of never and always asking at {worse} of {len(rows)} prices."
        )
    return out


def _curve(
    label: str, name: str, c_1: float, prices: tuple[float, ...], passes: list[Pass], loss: str
) -> dict[str, Any]:
    def of(one: Pass, c_e: float, figure: str) -> float | None:
        costs = Costs(c_e=c_e, c_1=c_1)
        remote = decisions(one, one.find(loss, costs), costs)
        return None if remote is None else figures(one.test, remote, costs)[figure]

    measured = {
        figure: curve([[of(one, e, figure) for e in prices] for one in passes])
        for figure in ("rate", "accuracy", "risk")
    }
    return {"label": label, "dataset": name, "c_1": c_1, "c_e": list(prices), "style": STYLES[label], **measured}


def _mean(values: list[float]) -> float:
    return float(np.mean(values))
