"""What a version answers from the artefacts of version 0.1: ``python answers.py FOLDER`` writes it beside them.

It was run with version 0.1 itself, whose artefacts were made by::

    l2h train --data digits --client tree --client-share 0.3 --server lenet5 --option rejector.width=0.25 \
        --set threads=1 --set server.epochs=15 --set rejector.epochs=10 --set copies=1 --set folds=2 --out priced
    l2h train --data digits --client tree --client-share 0.3 --server lenet5 --recipe paper --loss shifted \
        --rejector attached --option rejector.width=0.25 --c-e 0.1 --c-e 0.3 --set threads=1 --set server.epochs=12 \
        --set server.batch=16 --set server.lr=0.02 --set rejector.lr=0.002 --out paper
    l2h export priced --out priced-bundle
    l2h export paper --out paper-bundle
    l2h demo --out demo

The pages and pictures of the runs, and the server's half of the second bundle, are left out.
"""

from __future__ import annotations

import json
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from this_platform import platform_of

import l2h
from l2h import Costs, EdgeClient, RateLimit
from l2h.bundle import DeviceBundle, ServerBundle
from l2h.errors import L2HWarning

COUNT = 120
#: None: the prices that a system or a bundle was made for.
PRICES: dict[str, list[Costs | None]] = {
    "priced": [None, Costs(c_e=0.0), Costs(c_e=0.05), Costs(c_e=0.3, c_1=1.25), Costs.from_outcomes(1, 9, 2, 7)],
    "paper": [Costs(c_e=0.1), Costs(c_e=0.3)],
}
FIELDS = ("label", "source", "reason", "cost")
LIMITS = ["0%", "20%", "20%@80%", "100%", "30%/20", "7/1h"]


@cache
def digits() -> npt.NDArray[Any]:
    return l2h.load_dataset("digits", seed=0).X_test[:COUNT]


def answers_of(folder: Path) -> dict[str, l2h.Answers]:
    """Return what the runs and the bundles in a folder answer to the first test digits, by names that say how."""
    answers = {}
    for kind, prices in PRICES.items():
        system, device = l2h.load(folder / kind), DeviceBundle(folder / f"{kind}-bundle")
        for costs in prices:
            at = f"{kind} at {costs}"
            answers[f"{at}, system"] = system.predict(digits(), costs)
            with EdgeClient(device, costs=costs) as edge:
                answers[f"{at}, edge"] = edge.predict(digits())
            for limit in map(RateLimit.parse, LIMITS):
                answers[f"{at}, system, {limit}"] = system.predict(digits(), costs, limit=limit)
                with EdgeClient(device, costs=costs, limit=limit) as edge:
                    answers[f"{at}, edge, {limit}"] = edge.predict(digits())
            for seed in (0, 3):  # of a system just loaded: later calls go on drawing
                answers[f"{at}, system, 20%, stochastic {seed}"] = l2h.load(folder / kind).predict(
                    digits(), costs, limit=RateLimit(fraction=0.2), rule="stochastic", seed=seed
                )
    return answers


def numbers_of(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the floating-point numbers behind the answers: expected savings, measured rates, the server's scores."""
    numbers: dict[str, npt.NDArray[Any]] = {}
    for kind, prices in PRICES.items():
        system, device = l2h.load(folder / kind), DeviceBundle(folder / f"{kind}-bundle")
        numbers[f"{kind}, saving, system"] = np.stack(
            [system.judge(digits(), c).saving(c or Costs(c_e=0.1)) for c in prices]
        )
        numbers[f"{kind}, saving, bundle"] = np.stack(
            [device.judge(digits(), device.which(c)[0])[1].saving(device.which(c)[1]) for c in prices]
        )
        numbers[f"{kind}, calibrated rate"] = np.array([system.calibrated_rate(c) for c in prices])
    numbers["server"] = ServerBundle(folder / "priced-bundle").run(digits())
    return numbers


def reports_of(folder: Path) -> dict[str, Any]:
    """Return what the runs measure on all test digits, as ``metrics.json`` has it."""
    data = l2h.load_dataset("digits", seed=0)
    reports = {}
    for kind, prices in PRICES.items():
        system = l2h.load(folder / kind)
        for costs in prices:
            for limit in (None, "20%", "30%/20"):
                bound = None if limit is None else RateLimit.parse(limit)
                with warnings.catch_warnings():
                    warnings.simplefilter("error", L2HWarning)
                    report = system.evaluate(data.X_test, data.y_test, costs, limit=bound)
                reports[f"{kind}/{costs}/{limit}"] = report.as_dict()
    return reports


def pack(answers: dict[str, l2h.Answers]) -> dict[str, npt.NDArray[Any]]:
    """Return the answers as arrays with a row per name."""
    fields = {field: np.stack([getattr(one, field) for one in answers.values()]) for field in FIELDS}
    return {"name": np.array(list(answers)), **fields}


def write(folder: Path) -> None:
    """Write ``answers.npz`` and ``answers.json``."""
    np.savez_compressed(folder / "answers.npz", **pack(answers_of(folder)), **numbers_of(folder))
    values = {"l2h": l2h.__version__, "platform": platform_of(), "reports": reports_of(folder)}
    (folder / "answers.json").write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    write(Path(sys.argv[1]))
