"""A crossed comparison into a folder, from a plan to ``crossed.csv`` and ``crossed.json``.

Every arm is written as soon as it is measured, and what is there is not measured again.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from l2h import methods
from l2h.budgets import Budget
from l2h.errors import SettingsError
from l2h.experiments import runs
from l2h.experiments.compare.seed import SeedStudy
from l2h.experiments.crossed.rows import ARMS, CSV, FIELDS, JSON, Row, read_rows, summarise
from l2h.experiments.crossed.seed import SeedCrossing
from l2h.experiments.plan import with_augment
from l2h.methods import Learned
from l2h.training import Context, Progress, pick_device
from l2h.training.loop import repeatable

log = logging.getLogger("l2h")
RATES = (1e-2, 3e-3)
BUDGETS = ("1",)


@dataclass(frozen=True)
class CrossedStudy(SeedStudy):
    """What is compared, on what, how often; the rejector of the plan is of no account."""

    methods: tuple[str, ...] = ()  # whose losses are crossed
    budgets: tuple[str, ...] = BUDGETS  # as :class:`l2h.budgets.Budget` reads them
    rates: tuple[float, ...] = RATES  # learning rates that each is tuned over

    def __post_init__(self) -> None:
        for text in self.budgets:
            if not Budget.parse(text).value:
                raise SettingsError("--budget 0 has no trunk to cross: give 0.3 or more")
        for name, values in (("seeds", self.seeds), ("budgets", self.budgets), ("rates", self.rates)):
            if len(set(values)) != len(values) or not values:
                raise SettingsError(f"{name} {', '.join(map(str, values)) or 'none'}: give one or more, each once")
        if self.plan.settings.recipe != "default":
            raise SettingsError("losses are crossed around one finished server: recipe 'paper' has none, use l2h train")

    def as_dict(self) -> dict[str, Any]:
        """Return what a row depends on, but for its seed, budget, loss, arm and rate."""
        return self.depends_on(classes=self.classes)


def crossable(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the methods whose losses can be crossed, each loss once; of these names, or of all there are."""
    found: dict[str, str] = {}
    for method in methods.get(names or methods.known()):
        if isinstance(method, Learned):
            found.setdefault(method.loss_name(), method.name)
        elif names:
            raise SettingsError(f"method {method.name!r} has no loss to cross: leave it out")
    return tuple(found.values())


def measure_crossed(
    study: CrossedStudy, folder: Path, progress: Progress, *, augment: str | None, command: str, force: bool
) -> dict[str, Any]:
    """Measure what of a study is not in the folder yet, and return the content of ``crossed.json``."""
    dataset = study.load(study.seeds[0])
    reasons = {method.name: method.why_not(dataset.num_classes) for method in methods.get(study.methods)}
    fitting = methods.get([name for name, why in reasons.items() if why is None])
    study = replace(study, plan=with_augment(study.plan, dataset, augment))
    runs.prepare_study(folder, "crossed", study.as_dict(), (CSV, JSON), force=force)
    path = folder / CSV
    for seed in study.seeds:
        _measure_seed(study, seed, path, [method for method in fitting if isinstance(method, Learned)], progress)
    rows = [row for row in _rows(path) if row["seed"] in study.seeds]
    summary = summarise(rows, command)
    summary["skipped"] = [{"method": name, "why": why} for name, why in reasons.items() if why is not None]
    runs.write_json(folder / JSON, summary)
    return summary


def join_crossed(paths: Sequence[Path], folder: Path, command: str) -> dict[str, Any]:
    """Return the content of ``crossed.json`` for the rows of several files, and write it into a folder."""
    summary = summarise(read_rows(paths), command) | {"skipped": []}
    runs.write_json(folder / JSON, summary)
    return summary


def _measure_seed(study: CrossedStudy, seed: int, path: Path, fitting: Sequence[Learned], progress: Progress) -> None:
    keys = ("budget", "trunk", "learned_from", "loss", "rate")
    written = Counter(tuple(row[key] for key in keys) for row in _rows(path) if row["seed"] == seed)
    there = {key for key, count in written.items() if count == len(study.plan.costs)}
    left = []
    for budget, rate, arm in itertools.product(study.budgets, study.rates, ARMS):
        names = [m.name for m in fitting if (budget, *arm, m.loss_name(), f"{rate:g}") not in there]
        left += [(names, budget, arm, rate)] if names else []
    if not left:
        log.info("%s holds seed %d already: not measured again", path.parent, seed)
        return
    plan = study.plan_of(seed)
    device = pick_device(plan.settings.device)
    with repeatable(plan.settings, device):
        crossing = SeedCrossing(plan, study.load(seed), Context(plan.settings, device, progress=progress))
        if not any(not budget for budget, *_ in there):
            runs.append_rows(path, FIELDS, crossing.confidence())
        for number, (names, budget, arm, rate) in enumerate(left, start=1):
            runs.append_rows(path, FIELDS, list(crossing.rows(names, budget, arm, rate)))
            told = (seed, budget, rate, ", ".join(arm), number, len(left))
            log.info("seed %d, budget %s, rate %g: %s done (%d of %d)", *told)


def _rows(path: Path) -> list[Row]:
    return read_rows([path]) if path.exists() else []
