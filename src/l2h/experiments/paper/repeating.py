"""Repeat the paper's experiments: what is refused before anything is trained, and the values that come out."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from l2h.errors import RunError, SettingsError, UnknownNameError
from l2h.experiments.paper.grid import FULL, QUICK
from l2h.experiments.paper.lab import PLACES, find_beside, find_named
from l2h.experiments.paper.main_prices import run_contrastive, run_gallery, run_missing
from l2h.experiments.paper.reproduce import run_reproduce
from l2h.experiments.paper.study import Experiment, Study
from l2h.experiments.paper.sweeps import run_async, run_bounds, run_tradeoff
from l2h.experiments.paper.vit import run_vit
from l2h.settings import Settings

SCHEMA = 1
#: By the names of the command, in the order in which ``all`` runs them; those of one pass follow each other.
EXPERIMENTS: dict[str, Callable[[Study], Experiment]] = {
    "tradeoff": run_tradeoff,
    "contrastive": run_contrastive,
    "async": run_async,
    "brr": run_bounds,
    "gallery": run_gallery,
    "missing-class": run_missing,
    "cifar100-vit": run_vit,
    "reproduce": run_reproduce,
}
#: The data sets of all experiments but the one on a ViT.
SETS, VIT = ("cifar10", "svhn"), "cifar100-vit"


def make_study(
    name: str, data: str, datasets: Sequence[str], seeds: int, folder: Path, *, quick: bool, **options: Any
) -> tuple[list[str], Study]:
    """Return the names of the experiments to run, and the study to run them with; ``options`` are fields of it."""
    experiments = list(EXPERIMENTS) if name == "all" else [name]
    if experiments[0] not in EXPERIMENTS:
        raise UnknownNameError(f"unknown experiment {name!r}; known: {', '.join(EXPERIMENTS)}, all")
    if seeds < 1:
        raise SettingsError(f"--seeds {seeds}: at least 1")
    if data == "digits" and not quick:
        raise SettingsError("the digits stand in for the paper's data only with --quick")
    place = Path(data)
    if place.name in PLACES and not datasets and (place.exists() or find_beside(place)):
        data, datasets = str(place.parent), [place.name]  # the data set itself in place of the folder that holds it
    sets = _sets(data, datasets)
    study = Study(data, sets, tuple(range(seeds)), QUICK if quick else FULL, folder, **options)
    Settings(device=study.device, precision=study.precision)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose a folder with --out")
    if experiments != [VIT]:
        for dataset in sets:
            find_named(data, dataset)
    if VIT in experiments:
        find_named(data, "cifar100")
    return experiments, study


def experiment_values(experiment: Experiment, study: Study, command: str) -> dict[str, Any]:
    """Return the content of ``experiment.json``."""
    return {
        "schema": SCHEMA,
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "datasets": list(experiment.datasets or study.sets),
        "seeds": list(study.seeds),
        "quick": study.scale is QUICK,
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
    files = {name: folder / name / "experiment.json" for name in EXPERIMENTS}
    before = {name: json.loads(path.read_text()) for name, path in files.items() if name not in now and path.exists()}
    return [(now | before)[name] for name in EXPERIMENTS if name in now or name in before]


def _sets(data: str, named: Sequence[str]) -> tuple[str, ...]:
    if data == "digits":
        if named:
            raise SettingsError(f"--dataset {named[0]} goes with a folder of data sets; --data digits is one by itself")
        return ("digits",)
    for name in named:
        if name not in SETS:
            raise UnknownNameError(f"unknown data set {name!r}; known: {', '.join(SETS)}")
        if list(named).count(name) > 1:
            raise SettingsError(f"--dataset {name} is given twice")
    return tuple(named) or SETS
