"""A crossed comparison into a folder, from a plan to ``crossed.csv`` and ``crossed.json``.

Every arm is written as soon as it is measured, and what is there is not measured again.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from l2h import methods
from l2h.budgets import Budget
from l2h.errors import SettingsError
from l2h.experiments import runs
from l2h.experiments.carry_out import working
from l2h.experiments.clusters import ClusterWork, RayCluster, reached
from l2h.experiments.compare.seed import SeedStudy
from l2h.experiments.crossed.rows import ARMS, CSV, FIELDS, JSON, Arm, Row, read_rows, summarise
from l2h.experiments.crossed.seed import SeedCrossing
from l2h.experiments.plan import with_augment
from l2h.methods import Learned
from l2h.training import Progress
from l2h.training.loop import repeatable

log = logging.getLogger("l2h")
RATES = (1e-2, 3e-3)
BUDGETS = ("1",)


class _Training(NamedTuple):
    """The losses of some methods in one arm."""

    names: tuple[str, ...]
    budget: str
    arm: Arm
    rate: float


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
    study: CrossedStudy,
    folder: Path,
    progress: Progress,
    *,
    augment: str | None,
    command: str,
    force: bool,
    on: str | None = None,
) -> dict[str, Any]:
    """Measure what of a study is not in the folder yet, and return the content of ``crossed.json``.

    ``on`` is a cluster as :func:`l2h.experiments.clusters.ray_cluster` takes it; without one, arms follow each other.
    """
    dataset = study.load(study.seeds[0])
    reasons = {method.name: method.why_not(dataset.num_classes) for method in methods.get(study.methods)}
    fitting = methods.get([name for name, why in reasons.items() if why is None])
    learned = [method for method in fitting if isinstance(method, Learned)]
    study = replace(study, plan=with_augment(study.plan, dataset, augment))
    path = folder / CSV
    with reached(on, study.plan.settings) as cluster, runs.kept_alone(folder):
        runs.prepare_study(folder, "crossed", study.as_dict(), (CSV, JSON), force=force)
        left = {seed: arms for seed in study.seeds if (arms := _missing_arms(study, seed, path, learned))}
        if cluster is not None:
            _measure_on(cluster, study, left, path)
            left = {}
        for seed, arms in left.items():
            _measure_seed(study, seed, path, arms, progress)
    rows = sorted((row for row in _rows(path) if row["seed"] in study.seeds), key=partial(_place, study))
    summary = summarise(rows, command)
    summary["skipped"] = [{"method": name, "why": why} for name, why in reasons.items() if why is not None]
    runs.write_json(folder / JSON, summary)
    return summary


def join_crossed(paths: Sequence[Path], folder: Path, command: str) -> dict[str, Any]:
    """Return the content of ``crossed.json`` for the rows of several files, and write it into a folder."""
    summary = summarise(read_rows(paths), command) | {"skipped": []}
    runs.write_json(folder / JSON, summary)
    return summary


def _missing_arms(study: CrossedStudy, seed: int, path: Path, fitting: Sequence[Learned]) -> list[_Training]:
    """Return what of a seed the file does not hold yet."""
    keys = ("budget", "trunk", "learned_from", "loss", "rate")
    written = Counter(tuple(row[key] for key in keys) for row in _rows(path) if row["seed"] == seed)
    there = {key for key, count in written.items() if count == len(study.plan.costs)}
    left = []
    for budget, rate, arm in itertools.product(study.budgets, study.rates, ARMS):
        names = tuple(m.name for m in fitting if (budget, *arm, m.loss_name(), f"{rate:g}") not in there)
        left += [_Training(names, budget, arm, rate)] if names else []
    if not left:
        log.info("%s holds seed %d already: not measured again", path.parent, seed)
    return left


def _measure_seed(study: CrossedStudy, seed: int, path: Path, left: Sequence[_Training], progress: Progress) -> None:
    plan = study.plan_of(seed)
    with working(plan, progress) as context:
        crossing = SeedCrossing(plan, study.load(seed), context)
        _keep_confidence(path, seed, crossing.confidence())
        for number, training in enumerate(left, start=1):
            _keep_arm(path, seed, training, list(crossing.rows(*training)), number, len(left))


def _measure_on(cluster: RayCluster, study: CrossedStudy, left: Mapping[int, Sequence[_Training]], path: Path) -> None:
    """Measure on a cluster: a task per seed for client and server, then one per arm, whose losses are one stack."""
    request = cluster.request(study.plan.settings)
    there, total = study.on(request), sum(map(len, left.values()))
    works = []
    for seed, arms in left.items():
        parts = {training: partial(_measure_arm, there, seed, training) for training in arms}
        works.append(ClusterWork(seed, parts, partial(_prepare, there, seed, arms)))
    number = 0
    for seed, training, value in cluster.run(works, request):
        if training is None:
            _keep_confidence(path, seed, value)
        else:
            number += 1
            _keep_arm(path, seed, training, value, number, total)


def _prepare(study: CrossedStudy, seed: int, arms: Sequence[_Training]) -> tuple[SeedCrossing, list[Row]]:
    plan = study.plan_of(seed)
    with working(plan) as context:
        crossing = SeedCrossing(plan, study.load(seed), context)
        sizes = dict.fromkeys((training.budget, training.arm[0]) for training in arms)
        return crossing.sized_apart(arms[0].names, sizes), crossing.confidence()


def _measure_arm(study: CrossedStudy, seed: int, training: _Training, crossing: SeedCrossing) -> list[Row]:
    plan = study.plan_of(seed)  # made anew, so that this process knows the methods of its files
    with repeatable(plan.settings, crossing.context.device):
        return list(crossing.rows(*training))


def _keep_confidence(path: Path, seed: int, rows: Sequence[Row]) -> None:
    if not any(row["seed"] == seed and not row["budget"] for row in _rows(path)):
        runs.append_rows(path, FIELDS, rows)


def _keep_arm(path: Path, seed: int, training: _Training, rows: Sequence[Row], number: int, total: int) -> None:
    runs.append_rows(path, FIELDS, rows)
    told = (seed, training.budget, training.rate, ", ".join(training.arm), number, total)
    log.info("seed %d, budget %s, rate %g: %s done (%d of %d)", *told)


def _place(study: CrossedStudy, row: Row) -> tuple[int, ...]:
    """Return a row's place in the order of a study on one machine; a cluster finishes arms in any order."""
    arm = row["trunk"], row["learned_from"]
    order = (study.seeds, study.budgets, [f"{rate:g}" for rate in study.rates], ARMS)
    values = row["seed"], row["budget"], row["rate"], arm
    return tuple(known.index(value) if value in known else -1 for known, value in zip(order, values, strict=True))


def _rows(path: Path) -> list[Row]:
    return read_rows([path]) if path.exists() else []
