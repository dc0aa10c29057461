"""A comparison over several seeds. Each seed's result is a file, so that what was broken off goes on where it was."""

import json
import logging
import multiprocessing
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty
from typing import Any

from l2h import methods
from l2h.data import Dataset
from l2h.errors import RunError, SettingsError
from l2h.experiments import runs
from l2h.experiments.compare.seed import SeedResult, run_seed, take_classes
from l2h.experiments.plan import Plan, load_data
from l2h.training import Progress

log = logging.getLogger("l2h")
SEEDS = "seeds"
#: Called with the seed and what of it is finished: ``"server"``, then the methods one by one.
Tell = Callable[[int, str], None]


@dataclass(frozen=True)
class Comparison:
    """What is compared, on what, how often."""

    plan: Plan  # data, client, server, prices and settings; its seed is of no account
    methods: tuple[str, ...]  # names
    seeds: tuple[int, ...]  # numbers
    classes: tuple[str, ...] | None = None  # names of the classes to take; None for all

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

    def plan_of(self, seed: int) -> Plan:
        """The plan with that seed."""
        return replace(self.plan, settings=self.plan.settings.with_seed(seed))

    def load(self, seed: int) -> Dataset:
        """The data of a seed."""
        dataset = load_data(self.plan_of(seed))
        return dataset if self.classes is None else take_classes(dataset, self.classes)

    def as_dict(self) -> dict[str, Any]:
        """What the results depend on, but for the seed, as JSON has it."""
        values = {"training": self.plan_of(0).as_dict(), "methods": self.methods, "classes": self.classes}
        plain: dict[str, Any] = json.loads(json.dumps(values))
        del plain["training"]["settings"]["threads"]  # how many seeds run at once is of no account
        return plain


def prepare(folder: Path, comparison: Comparison, *, force: bool = False) -> list[int]:
    """Make the folder ready, and give the seeds that are already there.

    Raises:
        RunError: the folder holds something else, or a comparison of other settings; the message names them.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose a folder with --out")
    if (folder / runs.CONFIG).exists():
        differing = runs.differences(_ours(folder)["comparison"], comparison.as_dict())
        if force:
            for name in (SEEDS, runs.PLOTS):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in ("comparison.json", "comparison.csv", "report.html"):
                (folder / name).unlink(missing_ok=True)
        elif differing:
            raise RunError(f"{folder} holds another comparison ({'; '.join(differing)}): --force replaces it")
    elif folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty and holds no comparison: choose another folder with --out")
    runs.write_config(folder, {"schema": runs.SCHEMA, "comparison": comparison.as_dict()})
    return [seed for seed in comparison.seeds if seed_file(folder, seed).exists()]


def _ours(folder: Path) -> dict[str, Any]:
    config = runs.read_config(folder)
    if "comparison" not in config:
        raise RunError(f"{folder} holds a run, not a comparison: choose another folder with --out")
    return config


def seed_file(folder: Path, seed: int) -> Path:
    """Where a seed's result is kept."""
    return folder / SEEDS / f"seed-{seed}.npz"


def results(folder: Path, comparison: Comparison) -> list[SeedResult]:
    """The results of all seeds of a finished comparison."""
    return [SeedResult.load(seed_file(folder, seed)) for seed in comparison.seeds]


def run_seeds(
    folder: Path,
    comparison: Comparison,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    tell: Tell = lambda seed, what: None,
    progress: Progress | None = None,
) -> None:
    """Run some of the seeds, each into its file.

    Args:
        folder: prepared.
        comparison: what to run.
        seeds: which.
        jobs: processes at once; 1 runs them here.
        tell: who is told what is finished.
        progress: who is told of each training, where they run here.
    """
    if jobs == 1 or len(seeds) < 2:
        for seed in seeds:
            _run(folder, comparison, seed, lambda what, seed=seed: tell(seed, what), progress)  # type: ignore[misc]
        return
    spawn = multiprocessing.get_context("spawn")
    with spawn.Manager() as manager, ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
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
    result = run_seed(
        plan,
        comparison.load(seed),
        methods.get(comparison.methods),
        progress=progress,
        done=done,
    )
    result.save(seed_file(folder, seed))


def _elsewhere(folder: Path, comparison: Comparison, seed: int, told: Any) -> None:
    """In a process of its own; warnings alone are logged there."""
    logging.getLogger("l2h").setLevel(logging.WARNING)
    _run(folder, comparison, seed, lambda what: told.put((seed, what)))


def _pass_on(told: Any, tell: Tell) -> None:
    while True:
        try:
            tell(*told.get_nowait())
        except Empty:
            return
