"""Compare methods into a folder, from a plan and names to the summary."""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2h.experiments.compare.seeds import Comparison, Tell, prepare, results, run_seeds
from l2h.experiments.compare.summary import summarise
from l2h.experiments.overrides import make_settings, parse_options
from l2h.experiments.plan import Plan, digits_plan, with_augment
from l2h.methods import get, known
from l2h.training import Progress, pick_device

log = logging.getLogger("l2h")
#: The grid of prices where none is given.
GRID_1, GRID_E = (1.0, 1.25), (0.05, 0.1, 0.15, 0.25)
#: Called with the number of steps and whether seeds run in processes of their own; gives who is told of the progress.
Show = Callable[[int, bool], AbstractContextManager[tuple[Tell, Progress | None]]]


def compare_methods(
    plan: Plan,
    methods: Sequence[str] | None,
    seeds: Sequence[int],
    folder: Path,
    show: Show,
    *,
    classes: Sequence[str] | None = None,
    augment: str | None = None,
    jobs: int | None = None,
    draws: int = 2000,
    command: str = "",
    force: bool = False,
) -> dict[str, Any]:
    """Compare the methods that fit the data, and return the content of ``comparison.json``.

    Args:
        plan: of :func:`comparison_plan`.
        methods: names; None: all that fit the number of classes.
        seeds: one or more numbers. Those that the folder holds already are not run again.
        folder: of the results.
        show: shows the progress.
        classes: names of the classes to take; None: all.
        augment: None: the plan's own, or else what suits the data.
        jobs: seeds at once; None: one per CPU core, or one on a GPU.
        draws: of the bootstrap.
        command: that was typed, for the summary.
        force: replace the comparison that is in the folder.

    Raises:
        UnknownNameError: an unknown method.
        SettingsError: methods cannot be compared with these settings, or a named one not on so many classes.
        RunError: the folder holds something else.
    """
    names = tuple(method.name for method in get(methods or known()))
    comparison = Comparison(plan, names, tuple(seeds), None if classes is None else tuple(classes))
    dataset = comparison.load(seeds[0])
    if methods:
        for method in get(names):
            method.check(dataset.num_classes)
    unfit = {method.name: method.classes for method in get(names) if method.classes not in (None, dataset.num_classes)}
    kept = tuple(name for name in names if name not in unfit)
    jobs = jobs or _default_jobs(plan.settings.device, len(seeds))
    plan = with_augment(plan, dataset, augment)
    if jobs > 1 and plan.settings.threads is None:
        plan = replace(plan, settings=replace(plan.settings, threads=1))
    comparison = replace(comparison, plan=plan, methods=kept)
    there = prepare(folder, comparison, force=force)
    if there:
        log.info("%s holds seed %s already: not run again", folder, ", ".join(map(str, there)))
    left = [seed for seed in seeds if seed not in there]
    with show(len(left) * (1 + len(kept)), jobs > 1) as (tell, progress):
        run_seeds(folder, comparison, left, jobs=jobs, tell=tell, progress=progress)
    return summarise(
        comparison,
        results(folder, comparison),
        dataset=dataset.name,
        classes=dataset.num_classes,
        draws=draws,
        command=command,
        skipped=[{"method": name, "why": f"it is for {count} classes"} for name, count in unfit.items()],
    )


def comparison_plan(
    data: str,
    given: dict[str, Any],
    settings: dict[str, Any],
    overrides: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Plan:
    """Return the plan of a comparison: that of the demo for ``digits``, else that of ``l2h train``.

    Args:
        data: what :func:`l2h.load_dataset` takes.
        given: fields of the plan that replace its own where they are not None.
        settings: fields of :class:`l2h.Settings` that replace its own.
        overrides: further settings, as ``name=value``.
        options: the models' own, as ``server.width=2``.

    Raises:
        SettingsError: a value that cannot be used.
    """
    base = digits_plan() if data == "digits" else Plan(data=data)
    named = {name: value for name, value in given.items() if value is not None}
    values = {name: getattr(base.settings, name) for name in base.settings.__dataclass_fields__} | settings
    server = named.get("server", base.server)
    if server != base.server:
        values["server"] = None  # what suits the other server
        base = replace(base, server_options={})
    merged = {name: getattr(base, name) | more for name, more in parse_options(options).items()}
    return replace(base, **named, **merged, settings=make_settings(values, overrides, server))


def _default_jobs(device: str, seeds: int) -> int:
    if pick_device(device).type != "cpu":
        return 1
    return max(1, min(seeds, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
