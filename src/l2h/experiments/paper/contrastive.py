"""The contrastive table at the paper's main prices: both classifiers on what is kept and on what is sent."""

import numpy as np

from l2h.experiments.paper.grid import MAIN
from l2h.experiments.paper.measure import alone, cell, column, contrast, over_seeds, per_seed
from l2h.experiments.paper.passes import Pass
from l2h.experiments.paper.study import (
    BOUNDED,
    OURS,
    PAPER,
    PUBLISHED,
    SIGN,
    UNBOUNDED,
    Experiment,
    Study,
    printed,
    title_of,
)
from l2h.experiments.paper.study import printed_share as share

#: By the paper's own table and loss: risk of its rejector, and of never asking.
PRINTED_RISK = {"cifar10": (0.481, 0.369), "svhn": (0.135, 0.118)}


def run(study: Study) -> Experiment:
    """At c_1 = 1.25, c_e = 0.25."""
    out = Experiment(
        "contrastive",
        "Contrastive evaluation at c_1 = 1.25, c_e = 0.25",
        "Is what the rejector sends what the client gets wrong and the server right, and does asking pay?",
        errata=[
            SIGN,
            UNBOUNDED,
            "By the paper's own table and loss its rejector costs more than never asking: 0.481 against 0.369 on "
            "CIFAR-10, 0.135 against 0.118 on SVHN.",
        ],
    )
    table = printed("contrastive-main")
    for name in study.sets:
        published, ours = study.published(name), study.ours(name)
        recipes = {PAPER: (published, "paper"), BOUNDED: (published, "shifted"), OURS: (ours, "priced")}
        rows: list[list[object]] = []
        for side in ("local", "remote"):
            theirs = [row for row in table if row["dataset"] == name and row["decision"] == side]
            if theirs:
                one = theirs[0]
                rows.append([PUBLISHED, side, *(share(one[key]) for key in ("ratio", "m", "e", "diff")), None])
            for label, (passes, loss) in recipes.items():
                rows.append([label, side, *_measured(passes, loss, side)])
        out.table(
            f"contrastive-{name}",
            f"{title_of(name)}: the two sides",
            ["recipe", "decision", "share", "client", "server", "difference", "joint accuracy"],
            rows,
        )
        risks: list[list[object]] = []
        for label, (passes, loss) in recipes.items():
            found, trivial = over_seeds(passes, loss, MAIN), alone(passes, MAIN)
            row: list[object] = [label, column(found, "risk")]
            row += [column(trivial, key) for key in ("all_local", "all_remote")]
            risks.append(
                [*row, column(found, "random"), column(trivial, "oracle"), column(found, "rate", percent=True)]
            )
        if name in PRINTED_RISK:
            risks = [[PUBLISHED, *PRINTED_RISK[name], None, None, None, None], *risks]
        out.table(
            f"risk-{name}",
            f"{title_of(name)}: risk, which the paper leaves out",
            ["recipe", "risk", "never ask", "always ask", "random, same rate", "oracle", "sent"],
            risks,
        )
        mine = over_seeds(ours, "priced", MAIN)
        risk, never = (float(np.mean([row[key] for row in mine])) for key in ("risk", "all_local"))
        word = "below" if risk < never else "not below"
        out.findings.append(
            f"{title_of(name)}: by our recipe the risk is {risk:.4f}, {word} that of never asking, {never:.4f}."
        )
    return out


def _measured(passes: list[Pass], loss: str, side: str) -> list[object]:
    def found(one: Pass) -> dict[str, float | None] | None:
        values = contrast(one, one.find(loss, MAIN), MAIN)
        if values is not None and values[f"{side}_m"] is not None and values[f"{side}_e"] is not None:
            values["difference"] = float(values[f"{side}_e"] or 0) - float(values[f"{side}_m"] or 0)
        elif values is not None:
            values["difference"] = None
        return values

    names = (f"{side}_ratio", f"{side}_m", f"{side}_e", "difference", "joint")
    return [cell(per_seed(passes, found, name), percent=True) for name in names]
