"""Compare methods into a folder: what is compared, which seeds are still to be run, and the summary."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from l2h.data import Dataset
from l2h.experiments.compare.seeds import Comparison, Tell, prepare, results, run_seeds
from l2h.experiments.compare.summary import summarise
from l2h.experiments.overrides import make_settings, parse_options
from l2h.experiments.plan import Plan, digits_plan, with_augment
from l2h.methods import get, known
from l2h.training import Progress, pick_device

log = logging.getLogger("l2h")
#: The grid of prices where none is given.
GRID_1, GRID_E = (1.0, 1.25), (0.05, 0.1, 0.15, 0.25)


@dataclass(frozen=True)
class ComparisonRun:
    """A comparison that is ready to be run.

    Attributes:
        comparison: what is compared.
        dataset: the data of the first seed.
        jobs: seeds at once.
        skipped: methods that do not fit the data, each with ``method`` and ``why``.
    """

    comparison: Comparison
    dataset: Dataset
    jobs: int
    skipped: list[dict[str, str]]

    def prepare(self, folder: Path, *, force: bool) -> list[int]:
        """Make the folder ready and return the seeds that are still to be run.

        Raises:
            RunError: the folder holds something else.
        """
        there = prepare(folder, self.comparison, force=force)
        if there:
            log.info("%s holds seed %s already: not run again", folder, ", ".join(map(str, there)))
        return [seed for seed in self.comparison.seeds if seed not in there]

    def run(self, folder: Path, seeds: Sequence[int], tell: Tell, progress: Progress | None) -> None:
        """Run these seeds, each into its file in the folder."""
        run_seeds(folder, self.comparison, seeds, jobs=self.jobs, tell=tell, progress=progress)

    def summarise(self, folder: Path, *, draws: int, command: str) -> dict[str, Any]:
        """Return the content of ``comparison.json``."""
        return summarise(
            self.comparison,
            results(folder, self.comparison),
            dataset=self.dataset.name,
            classes=self.dataset.num_classes,
            draws=draws,
            command=command,
            skipped=self.skipped,
        )


def make_comparison(
    plan: Plan,
    methods: Sequence[str] | None,
    seeds: Sequence[int],
    *,
    classes: Sequence[str] | None = None,
    augment: str | None = None,
    jobs: int | None = None,
) -> ComparisonRun:
    """Make a comparison ready, with the methods that fit its data.

    Args:
        plan: of :func:`comparison_plan`.
        methods: names; None: all that fit the number of classes.
        seeds: one or more numbers.
        classes: names of the classes to take; None: all.
        augment: None: the plan's own, or else what suits the data.
        jobs: seeds at once; None: one per CPU core, or one on a GPU.

    Raises:
        UnknownNameError: an unknown method.
        SettingsError: settings that methods cannot be compared with.
        DataError: a method that is named does not fit the number of classes.
    """
    names = tuple(method.name for method in get(methods or known()))
    comparison = Comparison(plan, names, tuple(seeds), None if classes is None else tuple(classes))
    dataset = comparison.load(seeds[0])
    skipped = []
    for method in get(names):
        if method.classes is not None and method.classes != dataset.num_classes:
            if methods:
                method.check(dataset.num_classes)
            skipped.append({"method": method.name, "why": f"it is for {method.classes} classes"})
    left_out = {row["method"] for row in skipped}
    kept = tuple(name for name in names if name not in left_out)
    jobs = jobs or _default_jobs(plan.settings.device, len(seeds))
    plan = with_augment(plan, dataset, augment)
    if jobs > 1 and plan.settings.threads is None:
        plan = replace(plan, settings=replace(plan.settings, threads=1))
    return ComparisonRun(replace(comparison, plan=plan, methods=kept), dataset, jobs, skipped)


def comparison_plan(
    data: str,
    models: dict[str, Any],
    given: dict[str, Any],
    settings: dict[str, Any],
    overrides: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Plan:
    """Return the plan of a comparison: that of the demo for ``digits``, else that of ``l2h train``.

    Args:
        data: what :func:`l2h.load_dataset` takes.
        models: fields of the plan that replace its own where they are not None.
        given: fields of the plan that replace its own.
        settings: fields of :class:`l2h.Settings` that replace its own.
        overrides: further settings, as ``name=value``.
        options: the models' own, as ``server.width=2``.

    Raises:
        SettingsError: a value that cannot be used.
    """
    base = digits_plan() if data == "digits" else Plan(data=data)
    named = {name: value for name, value in models.items() if value is not None}
    values = {name: getattr(base.settings, name) for name in base.settings.__dataclass_fields__} | settings
    server = named.get("server", base.server)
    if server != base.server:
        values["server"] = None  # what suits the other server
        base = replace(base, server_options={})
    merged = {name: getattr(base, name) | more for name, more in parse_options(options).items()}
    return replace(base, **named, **given, **merged, settings=make_settings(values, overrides, server))


def _default_jobs(device: str, seeds: int) -> int:
    if pick_device(device).type != "cpu":
        return 1
    return max(1, min(seeds, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
