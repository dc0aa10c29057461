"""The trade-off figure: accuracy against reject rate, and reject rate against c_e, for two inaccuracy costs."""

import numpy as np

from l2h.experiments.paper.measure import column, over_seeds, price_curve, trivial_curves
from l2h.experiments.paper.study import BOUNDED, OURS, PAPER, SIGN, UNBOUNDED, Drawing, Experiment, Study, title_of


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
            price_curve(label, name, c_1, scale.c_e, passes, loss)
            for label, (passes, loss) in recipes.items()
            for c_1 in scale.c_1
        ]
        out.plot(
            f"tradeoff-{name}.png",
            f"{title_of(name)}: accuracy against reject rate, reject rate against c_e",
            Drawing("tradeoff", {"curves": curves, "client": np.mean([p.test.client_correct.mean() for p in ours])}),
            "The paper prints this figure without numbers, so its curve is not repeated here.",
        )
        seconds = [one.facts["seconds"].get("server and rejector") for one in published]
        if all(second is not None for second in seconds):
            out.text(
                f"{title_of(name)}: the server and {len(published[0].specs)} rejectors, these cells and those of the "
                f"sync intervals, trained in one pass a seed: {', '.join(f'{second:.0f} s' for second in seconds)} "
                "(by the clock, with whatever else the machine did)."
            )
        trivial = {c_1: trivial_curves(published, c_1, scale.c_e) for c_1 in scale.c_1}
        out.plot(
            f"tradeoff-risk-{name}.png",
            f"{title_of(name)}: risk against c_e",
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
            f"{title_of(name)}: every cell",
            ["c_1", "c_e"]
            + [f"{what}, {label}" for what in ("sent", "accuracy", "risk") for label in recipes]
            + ["risk, never ask", "risk, always ask"],
            rows,
            "Never and always asking are those of the paper's recipe; our recipe has a server of its own.",
        )
        out.findings.append(
            f"{title_of(name)}: of {len(rows) * len(study.seeds)} rejectors by the paper's L2 {lost} diverged. By our "
            f"recipe the mean risk is above the better of never and always asking at {worse} of {len(rows)} prices."
        )
    return out
