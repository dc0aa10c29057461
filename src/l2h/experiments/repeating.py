"""Repeat the paper's experiments: which of them, on what, and how they are put into files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.errors import RunError, SettingsError, UnknownNameError
from l2h.experiments.paper import EXPERIMENTS, Experiment, Study
from l2h.experiments.paper.grid import FULL, QUICK
from l2h.experiments.paper.lab import find_named
from l2h.experiments.paper.study import SCHEMA
from l2h.settings import Settings
from l2h.training import Progress

#: The data sets of all experiments but the one on a ViT.
SETS, VIT = ("cifar10", "svhn"), "cifar100-vit"


@dataclass(frozen=True)
class StudyRequest:
    """Which experiments to repeat, and on what.

    Attributes:
        name: of an experiment, or ``all``.
        data: the folder of the data sets, or ``digits``.
        datasets: names; none: all.
        quick: a small version.
        seeds: how many.
        out: the folder of the results.
        device: as in :class:`l2h.Settings`.
        precision: of our recipe.
        vit_weights: a file to start the ViT from.

    Raises:
        UnknownNameError: an unknown experiment or data set.
        SettingsError: values that do not go together.
        RunError: ``out`` is a file.
        DataError: a data set is not there.
    """

    name: str
    data: str
    datasets: Sequence[str]
    quick: bool
    seeds: int
    out: Path
    device: str
    precision: str
    vit_weights: Path | None

    def __post_init__(self) -> None:
        if self.name != "all" and self.name not in EXPERIMENTS:
            raise UnknownNameError(f"unknown experiment {self.name!r}; known: {', '.join(EXPERIMENTS)}, all")
        if self.seeds < 1:
            raise SettingsError(f"--seeds {self.seeds}: at least 1")
        if self.data == "digits" and not self.quick:
            raise SettingsError("the digits stand in for the paper's data only with --quick")
        sets = self.sets
        Settings(device=self.device, precision=self.precision)
        if self.out.exists() and not self.out.is_dir():
            raise RunError(f"{self.out} is a file: choose a folder with --out")
        if any(name != VIT for name in self.experiments):
            for dataset in sets:
                find_named(self.data, dataset)
        if VIT in self.experiments:
            find_named(self.data, "cifar100")

    @property
    def experiments(self) -> list[str]:
        """Return the names of the experiments, in the order in which they run."""
        return list(EXPERIMENTS) if self.name == "all" else [self.name]

    @property
    def sets(self) -> tuple[str, ...]:
        """Return the names of the data sets of the experiments on CIFAR-10 and SVHN."""
        named = self.datasets
        if self.data == "digits":
            if named:
                raise SettingsError(
                    f"--dataset {named[0]} goes with a folder of data sets; --data digits is one by itself"
                )
            return ("digits",)
        for dataset in named:
            if dataset not in SETS:
                raise UnknownNameError(f"unknown data set {dataset!r}; known: {', '.join(SETS)}")
            if list(named).count(dataset) > 1:
                raise SettingsError(f"--dataset {dataset} is given twice")
        return tuple(named) or SETS

    def study(self, progress: Progress) -> Study:
        """Return the study that the experiments are run with."""
        return Study(
            self.data,
            self.sets,
            tuple(range(self.seeds)),
            QUICK if self.quick else FULL,
            self.out,
            self.device,
            self.precision,
            progress,
            self.vit_weights,
        )


def experiment_values(experiment: Experiment, study: Study, *, quick: bool, command: str) -> dict[str, Any]:
    """Return the content of ``experiment.json``."""
    return {
        "schema": SCHEMA,
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "datasets": list(experiment.datasets or study.sets),
        "seeds": list(study.seeds),
        "quick": quick,
        "command": command,
        "hardware": "; ".join(sorted(study.hardware)),
        "settings": {key: str(value) for key, value in vars(study.scale).items()},
        "findings": experiment.findings,
        "errata": experiment.errata,
        "sections": experiment.sections,
    }


def gather_results(folder: Path, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return these results and those that the folder holds from before, in the order of the experiments."""
    now = {result["name"]: result for result in results}
    gathered = []
    for name in EXPERIMENTS:
        path = folder / name / "experiment.json"
        if name in now:
            gathered.append(now[name])
        elif path.exists():
            gathered.append(json.loads(path.read_text()))
    return gathered
