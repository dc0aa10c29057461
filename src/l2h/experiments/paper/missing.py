"""A client that never saw one class: does the rejector send it?"""

import numpy as np

from l2h import limits, metrics
from l2h.costs import BoolArray, Costs
from l2h.errors import DataError
from l2h.experiments.paper.grid import MAIN
from l2h.experiments.paper.lab import MISSING
from l2h.experiments.paper.measure import cell, decisions
from l2h.experiments.paper.passes import Pass
from l2h.experiments.paper.study import (
    BOUNDED,
    OURS,
    PAPER,
    PUBLISHED,
    SIGN,
    UNBOUNDED,
    Drawing,
    Experiment,
    Study,
    printed,
    printed_share,
    title_of,
)

FREE = Costs(c_e=0.0)
#: Bounds on the share sent, a few points below the rates that the paper's columns give (66.4% and 17.8%).
BOUNDS = {"cifar10": 0.6, "svhn": 0.15}
DEFAULT_BOUND = 0.5


def run(study: Study) -> Experiment:
    """Class 9 is left out of the client's training; server and rejector see all."""
    out = Experiment(
        "missing-class",
        "A class that the client never saw",
        "Is the missing class sent, and is the joint accuracy that of the server?",
        errata=[
            SIGN,
            UNBOUNDED,
            "The paper's overall reject rate on CIFAR-10, 72.7%, does not follow from its columns, which give 66.4%.",
        ],
    )
    table = printed("imbalance")
    for name in study.sets:
        names = study.lab(name, study.seeds[0]).dataset.class_names
        if len(names) <= MISSING:
            raise DataError(
                f"{name} has {len(names)} classes: the experiment leaves class {MISSING} out, so it needs ten"
            )
        published = study.published(name, missing=MISSING)
        ours = study.ours(name, missing=MISSING)
        recipes = {PAPER: (published, "paper"), BOUNDED: (published, "shifted"), OURS: (ours, "priced")}
        rows: list[list[object]] = []
        for row in table:
            if row["dataset"] == name:
                columns = ("missing_class", "other_classes", "all_classes")
                rows.append([PUBLISHED, row["row"], *(printed_share(row[key]) for key in columns)])
        bars = {}
        for label, (passes, loss) in recipes.items():
            sent = [decisions(one, one.find(loss, MAIN), MAIN) for one in passes]
            rows += [[label, what, *cells] for what, cells in _rows(passes, sent).items()]
            if label != PAPER:
                bars[label] = _bars(passes, sent, names)
        bound = BOUNDS.get(name, DEFAULT_BOUND)
        capped: list[BoolArray | None] = [_under(one, bound, seed) for seed, one in zip(study.seeds, ours, strict=True)]
        under = f"{OURS}, at most {100 * bound:.0f}% sent"
        rows += [[under, what, *cells] for what, cells in _rows(ours, capped).items()]
        bars[under] = _bars(ours, capped, names)
        out.table(
            f"missing-{name}",
            f"{title_of(name)}: class {names[MISSING]} is missing",
            ["recipe", "figure", "missing class", "other classes", "all classes"],
            rows,
            "The last recipe asks by the same rejector, with a bound on the share sent, below the paper's own rate, in "
            "place of a price. Its threshold comes from samples kept for calibration: where the test set is harder for "
            "the client than they are, as SVHN's is, more is sent than the bound says.",
        )
        drawing = Drawing("per_class", {"rows": bars})
        out.plot(f"missing-{name}.png", f"{title_of(name)}: share of each class that is sent", drawing)
        for label, sent in (
            ("at c_1 = 1.25, c_e = 0.25", [decisions(one, one.find("priced", MAIN), MAIN) for one in ours]),
            (f"with at most {100 * bound:.0f}% sent", capped),
        ):
            found = [_figures(one, remote) for one, remote in zip(ours, sent, strict=True) if remote is not None]
            mean = {key: 100 * float(np.mean([figures[key] for figures in found])) for key in found[0]}
            out.findings.append(
                f"{title_of(name)}: by our recipe {label}, {mean['sent']:.1f}% of the missing class is sent at an "
                f"overall rate of {mean['rate']:.1f}%; joint accuracy {mean['joint']:.1f}%, the server "
                f"alone {mean['server']:.1f}%."
            )
    return out


def _under(one: Pass, bound: float, seed: int) -> BoolArray:
    """What goes where at most a share may be sent and asking is free; the threshold is calibrated on other samples."""
    held, judged = one.judgement(0, "calibration"), one.judgement(0)
    threshold = limits.threshold_for(held.saving(FREE), bound)
    return threshold.apply(judged.saving(FREE), np.random.default_rng(seed))


def _figures(one: Pass, remote: BoolArray) -> dict[str, float]:
    right = np.where(remote, one.test.server_correct, one.test.client_correct)
    return {
        "sent": float(remote[one.test.y == MISSING].mean()),
        "rate": float(remote.mean()),
        "joint": float(right.mean()),
        "server": float(one.test.server_correct.mean()),
    }


def _rows(passes: list[Pass], sent: list[BoolArray | None]) -> dict[str, list[object]]:
    """Accuracies and reject rate of a recipe; those of client and server are known where its rejector diverged too."""
    out: dict[str, list[object]] = {}
    for what in ("only local", "only remote", "joint", "reject rate"):
        cells = []
        for part in ("missing", "others", "all"):
            values: list[float | None] = []
            for one, remote in zip(passes, sent, strict=True):
                gone = one.test.y == MISSING
                chosen = gone if part == "missing" else ~gone if part == "others" else np.ones_like(gone)
                counted = {"only local": one.test.client_correct, "only remote": one.test.server_correct}.get(what)
                if counted is None and remote is not None:
                    joint = np.where(remote, one.test.server_correct, one.test.client_correct)
                    counted = joint if what == "joint" else remote
                values.append(None if counted is None else float(counted[chosen].mean()))
            cells.append(cell(values, percent=True))
        out[what] = list(cells)
    return out


def _bars(passes: list[Pass], sent: list[BoolArray | None], names: tuple[str, ...]) -> list[dict[str, object]]:
    rates = [
        metrics.reject_rate_per_class(remote, one.test.y, len(names))
        for one, remote in zip(passes, sent, strict=True)
        if remote is not None
    ]
    out = []
    for k, name in enumerate(names):
        found = cell([None if np.isnan(rate[k]) else float(rate[k]) for rate in rates])
        mean, sem = (None, None) if found is None else (found["mean"], found["sem"])
        out.append({"name": name, "mean": mean, "sem": sem, "missing": k == MISSING})
    return out
