"""A client that never saw one class: does the rejector send it?"""

from __future__ import annotations

import numpy as np

from l2h import metrics
from l2h.errors import DataError
from l2h.experiments.paper.grid import MAIN
from l2h.experiments.paper.lab import MISSING, Pass
from l2h.experiments.paper.measure import cell, decisions
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
)


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
            rows += [[label, what, *cells] for what, cells in _rows(passes, loss).items()]
            if label != PAPER:
                bars[label] = _bars(passes, loss, names)
        out.table(
            f"missing-{name}",
            f"{name}: class {names[MISSING]} is missing",
            ["recipe", "figure", "missing class", "other classes", "all classes"],
            rows,
        )
        drawing = Drawing("per_class", {"rows": bars})
        out.plot(f"missing-{name}.png", f"{name}: share of each class that is sent", drawing)
        figures = [_figures(one, "priced") for one in ours]
        mean = {key: 100 * float(np.mean([one[key] for one in figures])) for key in figures[0]}
        out.findings.append(
            f"{name}: by our recipe {mean['sent']:.1f}% of the missing class is sent at an overall rate of "
            f"{mean['rate']:.1f}%; joint accuracy {mean['joint']:.1f}%, the server alone {mean['server']:.1f}%."
        )
    return out


def _figures(one: Pass, loss: str) -> dict[str, float]:
    remote = decisions(one, one.find(loss, MAIN), MAIN)
    assert remote is not None
    gone = one.test.y == MISSING
    right = np.where(remote, one.test.server_correct, one.test.client_correct)
    return {
        "sent": float(remote[gone].mean()),
        "rate": float(remote.mean()),
        "joint": float(right.mean()),
        "server": float(one.test.server_correct.mean()),
    }


def _rows(passes: list[Pass], loss: str) -> dict[str, list[object]]:
    out: dict[str, list[object]] = {}
    for what in ("only local", "only remote", "joint", "reject rate"):
        cells = []
        for part in ("missing", "others", "all"):
            values: list[float | None] = []
            for one in passes:
                remote = decisions(one, one.find(loss, MAIN), MAIN)
                if remote is None:
                    values.append(None)
                    continue
                gone = one.test.y == MISSING
                chosen = gone if part == "missing" else ~gone if part == "others" else np.ones_like(gone)
                counted = {
                    "only local": one.test.client_correct,
                    "only remote": one.test.server_correct,
                    "joint": np.where(remote, one.test.server_correct, one.test.client_correct),
                    "reject rate": remote,
                }[what]
                values.append(float(counted[chosen].mean()))
            cells.append(cell(values, percent=True))
        out[what] = list(cells)
    return out


def _bars(passes: list[Pass], loss: str, names: tuple[str, ...]) -> list[dict[str, object]]:
    rates = []
    for one in passes:
        remote = decisions(one, one.find(loss, MAIN), MAIN)
        if remote is not None:
            rates.append(metrics.reject_rate_per_class(remote, one.test.y, len(names)))
    out = []
    for k, name in enumerate(names):
        found = cell([None if np.isnan(rate[k]) else float(rate[k]) for rate in rates])
        mean, sem = (None, None) if found is None else (found["mean"], found["sem"])
        out.append({"name": name, "mean": mean, "sem": sem, "missing": k == MISSING})
    return out
