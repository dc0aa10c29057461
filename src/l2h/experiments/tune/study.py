"""The search over trials, by Ray Tune: trials run at once, and ASHA stops those that fall behind.

Each trial is a file of the folder once it is over, so that what was broken off goes on where it was, and more trials
add to those that are there.
"""

import contextlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from l2h.data import Dataset
from l2h.errors import L2HError, ResumeError, RunError, SettingsError, about
from l2h.experiments import runs
from l2h.experiments.carry_out import load_data
from l2h.experiments.clusters import RayCluster, TaskRequest, at_home, last_line, ray_cluster, reached
from l2h.experiments.frontier.study import held_back
from l2h.experiments.messages import message_queue
from l2h.experiments.overrides import augment_of
from l2h.experiments.plan import Plan, with_augment
from l2h.experiments.runs import CONFIG, RunTarget
from l2h.experiments.tune.space import TriedSetting, draw_trials
from l2h.experiments.tune.trial import run_trial, server_key
from l2h.files import read_json, write_json
from l2h.models import NAMES, build, client_view_size
from l2h.models.rejectors import build_rejector
from l2h.money import Money
from l2h.remote import is_remote

log = logging.getLogger("l2h")
TRIALS, SERVERS, BEST = "trials", "servers", "best.json"
#: What a search leaves in its folder, beside its configuration.
FILES = (TRIALS, BEST, "tuning.json", "report.html", runs.PLOTS)
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
#: ASHA compares trials at these shares of their training, in percent: at each the best of three goes on.
_LOOKS, _KEEP = (12, 36), 3
#: The trial with the settings as given: it is never stopped, so that the others can be compared with it.
_GIVEN = 0
#: In a trial's run folder: what it told before it was broken off.
_TOLD = "told.json"
_RETRIES = 2  # of a trial whose process or node was lost


@dataclass(frozen=True)
class Search:
    """What is tried, how often, and how.

    ``make_plan`` returns the plan with some settings; ``augment`` is what the user gave for it, if anything.
    """

    make_plan: Callable[[Mapping[str, Any]], Plan]
    tried: Sequence[TriedSetting]
    trials: int = 20
    stop_early: bool = True
    at_once: int | None = None  # trials at once; None: as many as the cluster has room for
    augment: str | None = None


def tune_settings(
    search: Search,
    folder: Path,
    on: str,
    command: str,
    force: bool = False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Run the trials that the folder does not hold yet, and return the content of ``tuning.json``.

    The risk is measured on a tenth of the training samples, which no trial trains on. The test part is not used.
    ``best.json`` gets the settings of the lowest risk, for ``l2h train --settings``.
    """
    plan = search.make_plan({})
    asked = [model for model in plan.named_servers.values() if is_remote(model)]
    if asked:
        raise SettingsError(f"--server {asked[0]}: every trial would ask it again; tune around a server that is a file")
    drawn = draw_trials(search.tried, search.trials, plan.settings.seed)
    if len(drawn) < search.trials:
        log.info("what is tried has no more than %d combinations, with the settings as given", len(drawn))
    ends = [{one.name: end} for one in search.tried if one.is_range for end in one.values]
    for values in [*ends, *drawn]:
        _check(search, values, lambda values: search.make_plan(values).specs)
    dataset = held_back(load_data(plan, stream=None))
    plans = [_check(search, values, lambda values: _checked_plan(search, values, dataset)) for values in drawn]
    study = {"training": plans[0].as_dict(), "tried": [str(one) for one in search.tried], "early": search.stop_early}
    new = force or not (folder / CONFIG).exists()
    # A cluster that cannot be reached leaves no new folder behind, which would then be in the way.
    with reached(on if new else None, plan.settings), runs.kept_alone(folder):
        runs.prepare_study(folder, "tuning", json.loads(json.dumps(study)), FILES, force=force)
        book = TrialBook(folder / TRIALS, drawn, tell)
        left = book.left()
        if len(left) < len(drawn):
            log.info("%s holds %d trials already: not run again", folder, len(drawn) - len(left))
        if left:
            keys = [server_key(one) for one in plans]
            alike = {number for number in left if keys.count(keys[number]) > 1}
            _run_trials(search, {number: plans[number] for number in left}, alike, book, on)
        shutil.rmtree(book.folder / SERVERS, ignore_errors=True)
        return _summary(search, plans[0], book, folder, dataset.name, len(dataset.y_test), command)


def _check(search: Search, values: Mapping[str, Any], check: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return what ``check`` gives for the values of a trial.

    An error names each ``--try`` whose value is refused by itself, or else all.
    """

    def refused(one: TriedSetting) -> bool:
        try:
            check({one.name: values[one.name]})
        except L2HError:
            return True
        return False

    try:
        return check(values)
    except L2HError:
        tried = [one for one in search.tried if one.name in values]
        named = " ".join(f"--try {one}" for one in [one for one in tried if refused(one)] or tried)
        with about(named or None):
            raise


def _checked_plan(search: Search, values: Mapping[str, Any], dataset: Dataset) -> Plan:
    """Return the plan of a trial; options that no model has are refused, by models that are built without weights."""
    plan = search.make_plan(values)
    shape, classes = dataset.input_shape, dataset.num_classes
    with torch.device("meta"):
        for name, model in plan.named_servers.items():
            if model in NAMES:
                options = plan.server_options.get(name, {}) if plan.servers else plan.server_options
                build(model, shape, classes, **options)
        if plan.rejector_options:
            view = client_view_size(classes, 0)
            heads = 1 + len(plan.named_servers)
            build_rejector(plan.rejector or "attached", shape, view, classes, None, heads, **plan.rejector_options)
    return with_augment(plan, dataset, augment_of(values) or search.augment)


class TrialBook:
    """The files of the trials: one each, written when the trial is over."""

    def __init__(
        self, folder: Path, drawn: Sequence[Mapping[str, Any]], tell: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        self.folder, self.drawn, self.tell = folder, drawn, tell
        folder.mkdir(parents=True, exist_ok=True)
        self.known = {number: found for number in range(len(drawn)) if (found := self._read(number)) is not None}
        self._curves: dict[int, list[tuple[float, float]]] = {}
        self._begun: dict[int, float] = {}
        self._heard: dict[int, float] = {}

    def left(self) -> list[int]:
        """Return the trials to run: those without a file, and those that failed."""
        return [n for n in range(len(self.drawn)) if self.known.get(n, {}).get("state", FAILED) == FAILED]

    def note(self, number: int, share: float | None, value: Any) -> None:
        """Take a message of a trial: that it begins, its risk at a share of its training, or how it ended.

        One whose process was lost begins again, and tells again what it does again.
        """
        self._heard[number] = time.monotonic()
        if value is None:
            self._begun.setdefault(number, time.monotonic())
        elif isinstance(value, float):
            point = round(share or 0.0, 2), value
            self._curves[number] = [*(one for one in self._curves.get(number, []) if one[0] < point[0]), point]
        else:
            self.close(number, **value)

    def close(self, number: int, state: str, **figures: Any) -> None:
        """Write the file of a trial that is over."""
        curve = self._curves.get(number, [])
        if state == STOPPED:
            figures = {"risk": curve[-1][1]} | figures
        if state == FINISHED:
            curve.append((100.0, figures["risk"]))
        seconds = round(self._heard.get(number, 0.0) - self._begun.get(number, 0.0), 1)
        self.known[number] = {
            "number": number,
            "values": dict(self.drawn[number]),
            "state": state,
            **figures,
            "seconds": seconds,
            "curve": curve,
        }
        write_json(self._path(number), self.known[number])
        shutil.rmtree(self.run_folder(number), ignore_errors=True)
        self.tell(len(self.drawn) - len(self.left()), len(self.drawn))
        said = figures.get("why") or f"risk {figures['risk']:.4f}"
        named = ", ".join(f"{name}={value}" for name, value in self.drawn[number].items()) or "as given"
        log.info("trial %d (%s): %s, %s", number, named, state, said)

    def has_told(self, number: int) -> bool:
        """Return whether a trial has told a risk."""
        return bool(self._curves.get(number))

    def run_folder(self, number: int) -> Path:
        """Return where a trial keeps its checkpoints while it runs."""
        return self.folder / f"{number:04d}"

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:04d}.json"

    def _read(self, number: int) -> dict[str, Any] | None:
        try:
            found = read_json(self._path(number))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(f"{self._path(number)} is damaged: {error}; without it its trial is run again") from error
        if not isinstance(found, dict) or found.get("values") != self.drawn[number]:
            raise RunError(f"{self._path(number)} is of another trial; remove it, or use --force")
        return found


def _run_trials(search: Search, plans: Mapping[int, Plan], alike: set[int], book: TrialBook, on: str) -> None:
    """Run trials; those that are ``alike`` train the same client and servers as others do."""
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # an interrupt ends the command, as it does elsewhere
    # Nobody reads Tune's own logs, and an interrupt may leave their writer waiting for ever.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what failed is told by us, in a line
    with ray_cluster(on) as cluster:
        request = cluster.request(next(iter(plans.values())).settings)
        placed = {number: replace(plan, settings=request.place(plan.settings)) for number, plan in plans.items()}
        log.info("Ray: %s; %d trials", cluster.describe(), len(plans))
        with message_queue(cluster, book.note) as queue, tempfile.TemporaryDirectory(prefix="l2h-tune-") as storage:
            given = {"plans": placed, "alike": alike, "home": os.getcwd(), "queue": queue}
            results = _tuner(search, given, book, cluster, request, storage).fit()
        over = {number for number in plans if book.known.get(number, {}).get("state") in (FINISHED, FAILED)}
        for result in results:
            number = result.config["number"] if result.config else -1
            if number in over or number not in plans:
                continue
            if result.error is not None:
                book.close(number, FAILED, why=last_line(result.error))
            elif book.has_told(number):
                book.close(number, STOPPED)
            else:
                book.close(number, FAILED, why="it ended without a word")


def _tuner(
    search: Search,
    given: Mapping[str, Any],
    book: TrialBook,
    cluster: RayCluster,
    request: TaskRequest,
    storage: str,
) -> Any:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    scheduler: Any = FIFOScheduler()
    if search.stop_early:
        scheduler = ASHAScheduler(
            time_attr="share", metric="risk", mode="min", max_t=100, grace_period=_LOOKS[0], reduction_factor=_KEEP
        )
        # The trials of earlier calls count in its comparisons.
        earlier = {n: found["curve"] for n, found in book.known.items() if n not in {*given["plans"], _GIVEN}}
        for number, curve in earlier.items():
            trial = SimpleNamespace(trial_id=f"known-{number}")
            scheduler.on_trial_add(None, trial)
            for look, risk in at_looks(curve):
                scheduler.on_trial_result(None, trial, {"share": look, "risk": risk})
    trainable = tune.with_parameters(_trial, folder=str(book.folder.absolute()), **given)
    return tune.Tuner(
        tune.with_resources(trainable, {"cpu": request.cpus, "gpu": request.gpus}),
        param_space={"number": tune.grid_search(list(given["plans"]))},
        tune_config=tune.TuneConfig(
            scheduler=scheduler, max_concurrent_trials=search.at_once or cluster.slots(request), reuse_actors=False
        ),
        run_config=tune.RunConfig(
            storage_path=storage, verbose=0, failure_config=tune.FailureConfig(max_failures=_RETRIES)
        ),
    )


def _trial(
    config: Mapping[str, Any],
    plans: Mapping[int, Plan],
    alike: set[int],
    home: str,
    folder: str,
    queue: Any,
) -> None:
    """Run one trial in a process of Ray; the driver is told by the queue, since Ray Tune may run elsewhere."""
    from ray import tune

    number = config["number"]
    log.setLevel(logging.ERROR)
    queue.put((number, None, None))
    told: list[tuple[float, float]] = []

    def tell(share: float, risk: float) -> None:
        if told and share <= told[-1][0]:  # done again after a break
            return
        before = len(at_looks(told))
        told.append((share, risk))
        queue.put((number, share, risk))
        write_json(own / _TOLD, {}, {"told": told})
        for look, there in at_looks(told)[before:]:
            if number != _GIVEN:
                tune.report({"share": look, "risk": there})

    with at_home(home), contextlib.ExitStack() as stack:
        plan = plans[number]
        own, shared = Path(folder) / f"{number:04d}", None
        if not own.parent.is_dir():  # of another machine
            own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="l2h-trial-"))) / "run"
        elif number in alike:
            shared = own.parent / SERVERS / server_key(plan)
        try:
            dataset = held_back(load_data(plan, stream=None))
            with contextlib.suppress(OSError, ValueError, KeyError):  # it begins
                for share, risk in read_json(own / _TOLD)["told"]:
                    tell(share, risk)
            try:
                found = run_trial(plan, dataset, RunTarget(own, resume=(own / CONFIG).exists()), tell, shared)
            except ResumeError:  # its checkpoints are of another kind of machine
                shutil.rmtree(own)
                found = run_trial(plan, dataset, RunTarget(own), tell, shared)
        except L2HError as error:
            queue.put((number, None, {"state": FAILED, "why": str(error)}))
            return
    queue.put((number, None, {"state": FINISHED, **found}))
    if number != _GIVEN:
        tune.report({"share": 100.0, "risk": found["risk"]})


def at_looks(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return what trials are compared by: of each look that a curve has reached, the first risk from there on.

    Example:
        >>> at_looks([(10.0, 0.4), (20.0, 0.3), (30.0, 0.2), (50.0, 0.1)])
        [(12, 0.3), (36, 0.1)]
        >>> at_looks([(50.0, 0.4)])
        [(12, 0.4), (36, 0.4)]
    """
    reached = [look for look in _LOOKS if curve and curve[-1][0] >= look]
    return [(look, next(risk for share, risk in curve if share >= look)) for look in reached]


def _summary(
    search: Search, plan: Plan, book: TrialBook, folder: Path, dataset: str, samples: int, command: str
) -> dict[str, Any]:
    trials = [book.known[number] for number in sorted(book.known)]
    whole = [trial for trial in trials if trial["state"] == FINISHED]
    if not whole:
        raise RunError(f"no trial came to its end; the first one: {trials[0].get('why', trials[0]['state'])}")
    best = min(whole, key=lambda trial: (float(trial["risk"]), len(trial["values"]), trial["number"]))
    write_json(folder / BEST, best["values"])
    prices = [costs.as_dict() if isinstance(costs, Money) else str(costs) for costs in plan.reported_costs]
    summary = {
        "schema": runs.SCHEMA,
        "dataset": dataset,
        "samples": samples,
        "seed": plan.settings.seed,
        "prices": prices,
        "tried": [str(one) for one in search.tried],
        "by_logarithm": [one.name for one in search.tried if one.by_logarithm],
        "best": best["number"],
        "command": command,
        "settings": json.loads(json.dumps(plan.as_dict())),
    }
    write_json(folder / "tuning.json", summary, {"trials": trials})
    return summary | {"trials": trials}
