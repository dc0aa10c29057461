"""Compare methods into a folder, over several seeds, from a plan and names to the summary.

Each seed's result is a file, so that what was broken off goes on where it was.
"""

import json
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np

from l2h import methods
from l2h.data import Dataset
from l2h.data.outcomes import OutcomeTable, read_outcomes
from l2h.errors import DataError, RunError, SettingsError
from l2h.experiments import runs
from l2h.experiments.clusters import reached
from l2h.experiments.compare.distributed import run_seeds_on
from l2h.experiments.compare.rows import CSV, read_rows, rows_of, write_rows
from l2h.experiments.compare.seed import SeedResult, SeedStudy, classes_of, run_seed
from l2h.experiments.compare.summary import curves, summarise
from l2h.experiments.overrides import make_settings, parse_options
from l2h.experiments.plan import Plan, digits_plan, with_augment
from l2h.training import Progress, pick_device

log = logging.getLogger("l2h")
SEEDS = "seeds"
#: What a comparison leaves in its folder, beside its configuration.
FILES = (SEEDS, CSV, runs.PLOTS, "comparison.json", "comparison.csv", "report.html")
#: The grid of prices where none is given.
GRID_1, GRID_E = (1.0, 1.25), (0.05, 0.1, 0.15, 0.25)
#: Called with the seed and what of it is finished: ``"server"``, then the methods one by one.
Tell = Callable[[int, str], None]
#: Called with the number of steps and whether seeds run in processes of their own; gives who is told of the progress.
Show = Callable[[int, bool], AbstractContextManager[tuple[Tell, Progress | None]]]


@dataclass(frozen=True)
class Comparison(SeedStudy):
    """What is compared, on what, how often."""

    methods: tuple[str, ...] = ()
    text_column: str | None = None  # of a table of outcomes; None where the data are samples

    def read(self, seed: int) -> Dataset | OutcomeTable:
        """Return the data of a seed."""
        if self.text_column is None:
            return self.load(seed)
        table, limit = read_outcomes(self.plan.data, self.text_column), self.plan.limit
        return table if limit is None else table.part(np.arange(min(limit, len(table))))

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise SettingsError(f"seeds={list(self.seeds)}: give one or more, each once, none below 0")
        methods.get(self.methods)
        if not self.methods:
            raise SettingsError(f"no method to compare; known: {', '.join(methods.known())}")
        if self.plan.settings.recipe != "default":
            raise SettingsError(
                "methods are compared around one finished server: recipe 'paper' has none, use l2h train"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return what the results depend on, but for the seed."""
        more = {} if self.text_column is None else {"text_column": self.text_column}
        return self.depends_on(methods=self.methods, classes=self.classes, **more)


def compare_methods(
    plan: Plan,
    names: Sequence[str] | None,
    seeds: Sequence[int],
    folder: Path,
    show: Show,
    *,
    classes: Sequence[str] | None,
    augment: str | None,
    jobs: int | None,
    command: str,
    force: bool,
    text_column: str | None = None,
    on: str | None = None,
) -> dict[str, Any]:
    """Compare the methods that fit the data, and return the content of ``comparison.json``.

    Without ``names`` all methods are compared, without ``classes`` on all of them. The data of the plan are a table of
    outcomes where it has a ``text_column``. What cannot take the data is left out, with the reason; a SettingsError is
    raised where nothing is left. Seeds that the folder holds already are not run again, unless ``force`` replaces what
    it holds. ``jobs`` is the number of seeds at once; None: one per CPU core, or one on a GPU. ``on`` is a cluster as
    :func:`l2h.experiments.clusters.ray_cluster` takes it, which runs as much at once as it has room for.
    """
    chosen = methods.get(names or methods.known())
    everyone = tuple(method.name for method in chosen)
    comparison = Comparison(plan, tuple(seeds), None if classes is None else tuple(classes), everyone, text_column)
    dataset = comparison.read(seeds[0])
    classes_there, outcomes = classes_of(dataset), isinstance(dataset, OutcomeTable)
    reasons = {method.name: method.why_not(classes_there, outcomes) for method in chosen}
    unfit = {name: why for name, why in reasons.items() if why is not None}
    kept = tuple(name for name in everyone if name not in unfit)
    if not kept:
        chosen[0].check(classes_there)
        raise SettingsError(f"method {everyone[0]!r}: {unfit[everyone[0]]}")
    jobs = jobs or (1 if on else _default_jobs(plan.settings.device, len(seeds)))
    plan = plan if isinstance(dataset, OutcomeTable) else with_augment(plan, dataset, augment)
    if (jobs > 1 or on) and plan.settings.threads is None:
        plan = replace(plan, settings=replace(plan.settings, threads=1))
    comparison = replace(comparison, plan=plan, methods=kept)
    with reached(on, plan.settings) as cluster, runs.kept_alone(folder):
        runs.prepare_study(folder, "comparison", comparison.as_dict(), FILES, force=force)
        there = [seed for seed in seeds if seed_file(folder, seed).exists()]
        if there:
            log.info("%s holds seed %s already: not run again", folder, ", ".join(map(str, there)))
        left = [seed for seed in seeds if seed not in there]
        with show(len(left) * (1 + len(kept)), jobs > 1 or cluster is not None) as (tell, progress):
            if cluster is None:
                run_seeds(folder, comparison, left, jobs, tell, progress)
            else:
                run_seeds_on(cluster, comparison, {seed: seed_file(folder, seed) for seed in left}, tell)
    results = [SeedResult.load(seed_file(folder, seed)) for seed in seeds]
    if len({result.names for result in results}) > 1:
        raise DataError("the seeds compared different methods: run them again with --force")
    rows = [row for one in results for row in rows_of(one, plan.costs, dataset.name, classes_there)]
    write_rows(folder / CSV, rows)
    summary = summarise(rows, command)
    settled = replace(plan, settings=plan.settings.with_seed(seeds[0]))
    return summary | {
        "frontiers": summary["frontiers"] | {"methods": curves(results)},
        "settings": json.loads(json.dumps(settled.as_dict())),
        "skipped": [{"method": name, "why": why} for name, why in unfit.items()],
    }


def join_comparisons(paths: Sequence[Path], command: str) -> dict[str, Any]:
    """Return the content of ``comparison.json`` for the rows of several files; it has no frontiers and no settings."""
    return summarise(read_rows(paths), command)


def comparison_plan(
    data: str,
    given: dict[str, Any],
    settings: dict[str, Any],
    overrides: Sequence[str],
    options: Sequence[str],
    sized: bool = False,
) -> Plan:
    """Return the plan of a comparison: that of the demo for ``digits``, else that of ``l2h train``.

    ``given`` are fields of the plan that replace its own where they are not None, ``settings`` those of its settings.
    ``overrides`` are further settings, as ``name=value``; ``options`` the models' own, as ``server.width=2``. Rejectors
    that are ``sized`` to a budget have a stage of their own.
    """
    base = digits_plan() if data == "digits" else Plan(data=data)
    named = {name: value for name, value in given.items() if value is not None}
    values = vars(base.settings) | settings
    servers = named.get("servers", {})
    server = next(iter(servers.values()), named.get("server", base.server))
    if servers or server != base.server:
        values["server"] = None  # what suits the other server
        base = replace(base, server_options={})
    merged = {name: getattr(base, name) | more for name, more in parse_options(options, servers).items()}
    return replace(base, **named, **merged, settings=make_settings(values, overrides, server, sized, len(servers) > 1))


def with_budget(plan: Plan, budgets: Sequence[str]) -> Plan:
    """Return a plan in which every learned method has the largest net of one budget, whatever its own options say."""
    if len(budgets) > 1:
        raise SettingsError(f"--budget {', '.join(budgets)}: one at a time, or several with --crossed")
    return replace(plan, budget=budgets[0], rejector_options={})


def seed_file(folder: Path, seed: int) -> Path:
    """Return where a seed's result is kept."""
    return folder / SEEDS / f"seed-{seed}.npz"


def run_seeds(
    folder: Path, comparison: Comparison, seeds: Sequence[int], jobs: int, tell: Tell, progress: Progress | None
) -> None:
    """Run some of the seeds, each into its file: here, with their trainings shown, or in so many processes at once."""
    if jobs == 1 or len(seeds) < 2:
        for seed in seeds:
            _run(folder, comparison, seed, lambda what, seed=seed: tell(seed, what), progress)  # type: ignore[misc]
        return
    spawn = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=spawn)
    manager.start(_end_with_parent)
    with manager, ProcessPoolExecutor(jobs, spawn, _end_with_parent) as pool:
        told = manager.Queue()
        running: set[Future[None]] = {pool.submit(_elsewhere, folder, comparison, seed, told) for seed in seeds}
        try:
            while running:
                finished, running = wait(running, timeout=0.5)
                _pass_on(told, tell)
                for one in finished:
                    one.result()
        except BrokenProcessPool as error:
            raise RunError(
                "a process was killed, maybe for want of memory: give fewer --jobs; the same command goes on with the "
                "seeds that are there"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process.name.startswith("SpawnProcess"):
                    process.terminate()
            raise


def _run(
    folder: Path, comparison: Comparison, seed: int, done: Callable[[str], None], progress: Progress | None = None
) -> None:
    plan = comparison.plan_of(seed)  # made anew, so that a process of its own knows the methods of its files
    result = run_seed(plan, comparison.read(seed), methods.get(comparison.methods), progress=progress, done=done)
    result.save(seed_file(folder, seed))


def _elsewhere(folder: Path, comparison: Comparison, seed: int, told: Any) -> None:
    """In a process of its own; warnings alone are logged there."""
    log.setLevel(logging.WARNING)
    _run(folder, comparison, seed, lambda what: told.put((seed, what)))


def _end_with_parent() -> None:
    """End this process with the command that started it, also where that is killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _pass_on(told: Any, tell: Tell) -> None:
    while True:
        try:
            tell(*told.get_nowait())
        except Empty:
            return


def _default_jobs(device: str, seeds: int) -> int:
    if pick_device(device).type != "cpu":
        return 1
    return max(1, min(seeds, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
