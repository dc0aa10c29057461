"""A study of budgets into a folder, from a plan to ``frontier.csv`` and ``frontier.json``.

Every row is written as soon as it is measured, and rows that are there are not measured again.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from l2h.budgets import Budget
from l2h.data import Dataset, split
from l2h.errors import SettingsError
from l2h.experiments import runs
from l2h.experiments.carry_out import load_data, working
from l2h.experiments.compare.seed import SeedStudy
from l2h.experiments.frontier.rows import FIELDS, Row, read_rows, summarise, ways
from l2h.experiments.frontier.seed import SeedFrontier
from l2h.experiments.plan import with_augment
from l2h.rows import take_rows
from l2h.training import Progress
from l2h.training.loop import derive

log = logging.getLogger("l2h")
CSV, JSON, PICTURE = "frontier.csv", "frontier.json", "frontier.png"
BUDGETS = ("0", "0.1", "0.3", "1", "3", "10")
PARTS = ("validation", "test")


@dataclass(frozen=True)
class FrontierStudy(SeedStudy):
    """What is measured, on what, how often; the prices and the rejector of the plan are of no account."""

    budgets: tuple[str, ...] = BUDGETS  # as :class:`l2h.budgets.Budget` reads them
    rivals: tuple[str, ...] = ()  # budgets at which the rivals are trained too
    part: str = "validation"  # what is measured on: a tenth of the training samples, or the test set

    def __post_init__(self) -> None:
        for text in (*self.budgets, *self.rivals):
            Budget.parse(text)
        for name, values in (("seeds", self.seeds), ("budgets", self.budgets), ("rivals", self.rivals)):
            if len(set(values)) != len(values) or (not values and name != "rivals"):
                raise SettingsError(f"{name} {', '.join(map(str, values)) or 'none'}: give one or more, each once")
        if self.part not in PARTS:
            raise SettingsError(f"--test-part {self.part!r} is unknown; known: {', '.join(PARTS)}")
        if self.plan.settings.recipe != "default":
            raise SettingsError("recipe 'paper' has no finished server to measure budgets with: use l2h paper")

    def as_dict(self) -> dict[str, Any]:
        """Return what a row depends on, but for its seed and budget."""
        return self.depends_on(part=self.part)


def measure_frontier(
    study: FrontierStudy, folder: Path, progress: Progress, *, augment: str | None, command: str, force: bool
) -> dict[str, Any]:
    """Measure what of a study is not in the folder yet, and return the content of ``frontier.json``."""
    dataset = load_data(study.plan)
    study = replace(study, plan=with_augment(study.plan, dataset, augment))
    runs.prepare_study(folder, "frontier", study.as_dict(), (CSV, JSON, PICTURE), force=force)
    path = folder / CSV
    timings: dict[Any, float | None] = {}
    wanted = ways(study.budgets, study.rivals)
    for seed in study.seeds:
        there = {(row["budget"], row["method"]) for row in _rows(path) if int(row["seed"]) == seed}
        left = [way for way in wanted if way not in there]
        if not left:
            log.info("%s holds seed %d already: not measured again", folder, seed)
            continue
        plan, data = study.plan_of(seed), study.load(seed)
        data = data if study.part == "test" else held_back(data)
        with working(plan, progress) as context:
            for row in SeedFrontier(plan, data, context, timings).rows(left):
                known = {"data": dataset.name, "part": study.part, "samples": len(data.y_test), "seed": seed} | row
                runs.append_rows(path, FIELDS, [known])
                told = known.get("risk_mean", "none at this budget")
                log.info("seed %d, budget %s: %s, mean risk %s", seed, row["budget"], row["method"], told)
    rows = [row for row in _rows(path) if int(row["seed"]) in study.seeds]
    return summarise([row for row in rows if (row["budget"], row["method"]) in wanted], command)


def held_back(dataset: Dataset) -> Dataset:
    """Return the data set with a tenth of the training samples in place of the test set."""
    train, validation = split(dataset.y_train, (0.9, 0.1), derive("validation"))
    X, y = dataset.X_train, dataset.y_train
    parts = {"X_train": take_rows(X, train), "X_test": take_rows(X, validation)}
    return replace(dataset, **parts, y_train=y[train], y_test=y[validation])


def _rows(path: Path) -> list[Row]:
    return read_rows([path]) if path.exists() else []
