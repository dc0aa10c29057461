"""A finished run, opened: its system, what it was trained on and for, and its calibration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from l2h.columns import numbers_of
from l2h.costs import Costs, cost_grid
from l2h.data import Dataset, load_dataset
from l2h.data.load import holds_pictures, read_inputs
from l2h.decision import AnyCosts
from l2h.errors import DataError, RunError, SettingsError, reason
from l2h.experiments import runs
from l2h.experiments.carry_out import Samples, divide
from l2h.experiments.plan import division_of, require_known
from l2h.files import TRAINING, read_json
from l2h.limits import RateLimit, Threshold
from l2h.money import Money
from l2h.remote.oip import given_key
from l2h.rows import digest
from l2h.system import HelpSystem, load
from l2h.system.steps import make_policy

#: A bound over all servers, or bounds by the server's name, ``all`` for all servers together.
Bound = RateLimit | Mapping[str, RateLimit]


def bound_text(bound: Bound) -> str:
    """Return a bound as the commands take it."""
    if isinstance(bound, RateLimit):
        return str(bound)
    return ", ".join(f"{name}={limit}" for name, limit in bound.items())


@dataclass(frozen=True)
class FinishedRun:
    """A finished run."""

    folder: Path
    training: dict[str, Any]  # plain values of the plan; empty for a system that was saved without one
    system: HelpSystem

    def dataset(
        self,
        data: str | None = None,
        test: str | None = None,
        target: str | None = None,
        *,
        cache: str | None = None,
        on_error: str | None = None,
        stream: bool | None = False,
    ) -> Dataset:
        """Load the data set named here, or the run's own; a table is read by the columns of the run.

        Of data with another name than the run's, without a test part, every row is in both parts. A file of the same
        name may be the one that was trained on, wherever it lies now.
        """
        training = self.training
        if data is None and "data" not in training:
            raise RunError(f"{self.folder} does not say what data it was trained on: give --data")
        source, fitted = data or training["data"], self.system.require_fitted()
        other = Path(source).name != Path(training.get("data", "")).name
        pictures = holds_pictures(source)
        return load_dataset(
            source,
            test if data else training["test"],
            test_share=1.0 if other else 0.2,
            seed=training.get("settings", {}).get("seed", 0),
            limit=None if data else training["limit"],
            target=target or training.get("target"),
            columns=fitted.columns,
            labels=fitted.labels,
            size=fitted.image_size if pictures else None,
            cache=cache or training.get("cache") or True,
            on_error=on_error or (training.get("on_error") if pictures else None) or "stop",
            stream=stream,
        )

    def calibration_samples(self, data: str | None = None, **reading: Any) -> Samples:
        """Return the training part of the data set named here, or the run's own calibration part.

        ``reading`` are further arguments of :meth:`dataset`. The run's own samples are read and compared with those of
        its training: where some are lost or changed, the rows are divided otherwise, and the calibration part would
        hold samples that were trained on. Runs of earlier versions and of two hosts do not say what they were.
        """
        dataset = self.dataset(data, **reading)
        if data is not None:
            return dataset.X_train, dataset.y_train
        if self.has_changed(dataset):
            raise RunError(
                f"{self.training['data']} no longer holds the samples that {self.folder} was trained on, so that none "
                "of them is known to be fresh: give --data with samples that nothing was trained on"
            )
        return divide(dataset, division_of(self.training)).calibration

    def has_changed(self, dataset: Dataset) -> bool:
        """Whether the run's own data, read again, give other training samples than it had, where those are known."""
        trained = _trained_on(self.folder)
        if trained is None:
            return False
        X, y = divide(dataset, division_of(self.training)).train
        try:
            return trained != digest(numbers_of(X), self.system.require_fitted().labels.encode(y))
        except DataError:  # of a label that it did not have
            return True

    def ask(
        self, sources: Sequence[str], index: Sequence[int] | None, costs: AnyCosts | None, limit: Bound | None
    ) -> list[dict[str, Any]]:
        """Return one row per answer to inputs of files; the server that is asked is the run's own.

        ``index`` names the inputs, counted from 0; None: all of them. Without prices they are the run's; under a limit
        asking is then free.
        """
        fitted = self.system.require_fitted()
        X = fitted.check_inputs(read_inputs(sources, fitted.input_shape, fitted.image_size))
        chosen = list(index) if index else list(range(len(X)))
        wrong = [i for i in chosen if not 0 <= i < len(X)]
        if wrong:
            raise DataError(f"there is no input {wrong[0]}: {', '.join(sources)} holds 0 to {len(X) - 1}")
        if costs is None and limit is None:
            costs = self.system.specs[0].costs or self.costs(None, None)
        answers = self.system.predict(X[chosen], costs, limit=limit)
        judged = self.system.judge(X[chosen], costs)
        saving = judged.saving(fitted.select(costs)[1])
        kept = ("label", "source", "by", "reason", "cost")
        return [
            {"index": i, "class": fitted.labels.name(answer.label), "expected_saving": saved}
            | {name: getattr(answer, name) for name in kept}
            for i, answer, saved in zip(chosen, answers, saving.tolist(), strict=True)
        ]

    def costs(self, c_e: float | None, c_1: float | None, prices: Mapping[str, Costs] | None = None) -> AnyCosts:
        """Return these prices; where one is None, the first that the run was trained for.

        ``prices`` are those of some of several servers; the others have the run's.
        """
        (costs,) = self.cost_grid(None if c_e is None else [c_e], None if c_1 is None else [c_1], prices, first=True)
        return costs

    def export_costs(
        self, c_e: float | None, c_1: float | None, prices: Mapping[str, Costs] | None = None
    ) -> AnyCosts | None:
        """Return the prices to export for; None where none are given and the rejectors have their own."""
        if c_e is None and c_1 is None and not prices and self.system.specs[0].costs is not None:
            return None
        return self.costs(c_e, c_1, prices)

    def cost_grid(
        self,
        c_e: list[float] | None,
        c_1: list[float] | None,
        prices: Mapping[str, Costs] | None = None,
        *,
        first: bool = False,
    ) -> list[AnyCosts]:
        """Return the grid of these prices; where one list is empty, of those that the run was trained for.

        ``first`` takes only the first of what the run was trained for.
        """
        grid = {"c_1": self.training.get("c_1") or [1.0], "c_e": self.training.get("c_e") or [0.1]}
        if first:
            grid = {name: values[:1] for name, values in grid.items()}
        pairs = cost_grid(c_1 or grid["c_1"], c_e or grid["c_e"])
        names = [server.name for server in self.system.servers]
        own = {name: Costs.from_dict(values) for name, values in (self.training.get("prices") or {}).items()}
        if prices and (c_e or c_1):
            raise SettingsError("--price is of one server, --c-e and --c-1 of all: give the one or the other")
        if prices:
            require_known(prices, names, "--price")
            by_server = {name: prices.get(name) or own.get(name) or pairs[0] for name in names}
            return [by_server if len(names) > 1 else by_server[names[0]]]
        return [own] if own and not c_e and not c_1 else [*pairs]

    def allow_second_opinion(self, allowed: bool) -> None:
        """Let the rejector's student answer, or not, whatever the run was trained with."""
        fitted = self.system.require_fitted()
        if allowed and (fitted.calibration is None or fitted.calibration.student is None):
            raise RunError(
                f"{self.folder} has no student that is calibrated: a second opinion needs an attached rejector with a "
                f"student, trained by loss 'priced', and l2h calibrate {self.folder}"
            )
        self.system.second_opinion = allowed
        self.system.fitted = replace(fitted, second_opinion=allowed)


@dataclass(frozen=True)
class Asking:
    """How a server that is asked, such as somebody's API, is reached for inputs that it was never asked about."""

    #: Its function again, or its address, which then gets the key of the environment; of several servers by name.
    server: str | Mapping[str, str] | None = None
    progress: Callable[[int, int], None] | None = None  # told how many of how many inputs are asked

    def watch(self, system: HelpSystem) -> None:
        """Have the progress told of a system's server, if it is asked."""
        for server in system.remote_servers:
            server.progress = self.progress


@dataclass(frozen=True)
class Conditions:
    """The conditions under which finished runs are evaluated."""

    data: str | None = None  # a data set other than the run's
    test: str | None = None  # its test part, where that is a file of its own
    c_1: list[float] | None = None  # inaccuracy costs; None: the run's
    c_e: list[float] | None = None  # prices of a request; None: the run's
    prices: Mapping[str, Costs] = field(default_factory=dict)  # of some of several servers; the run's for the others
    money: Money | None = None  # instead of all prices
    bounds: Sequence[Bound] = ()  # on asking; under a bound and without prices asking is free
    rule: str | None = None  # how a share is met
    server_run: Path | None = None  # the run of a server that was trained by itself
    asking: Asking | None = None  # how a server that is asked is reached
    target: str | None = None  # the column of a table that holds the labels; None: as in the run
    cache: str | None = None  # the folder of decoded images; None: as in the run
    on_error: str | None = None  # what is done about what is damaged, as in :class:`Plan`; None: as in the run
    second_opinion: bool | None = None  # whether the student may answer; None: as in the run

    @property
    def reading(self) -> dict[str, Any]:
        """How data are read, as :meth:`FinishedRun.dataset` takes it."""
        return {"target": self.target, "cache": self.cache, "on_error": self.on_error, "stream": None}


def open_run(folder: Path, server_run: Path | None = None, asking: Asking | None = None) -> FinishedRun:
    """Open a finished run; ``server_run`` is that of a server that was trained by itself."""
    config = runs.read_config(folder)
    training, saved = config.get("training", {}), config.get("system") or {}
    described = dict(saved.get("servers") or {"server": saved.get("server", {})})
    named: dict[str, Any] = training.get("servers") or {"server": training.get("server", "")}
    # The run does not hold a TorchScript client or a fixed server itself: it names their files.
    client = training.get("client", "")
    files = {name: str(named.get(name, "")) for name, part in described.items() if _names_file(part, named.get(name))}
    asking = asking or Asking()
    again = {"server": asking.server} if isinstance(asking.server, str) else dict(asking.server or {})
    for name in again:
        if described.get(name, {}).get("kind") != "remote":
            which = "that is asked" if isinstance(asking.server, str) else f"{name!r} that is asked"
            raise RunError(f"{folder} has no server {which}: leave out --server")
    system = load(
        folder,
        client=client if _names_file(saved.get("client", {}), client) else None,
        servers=(files | again) or None,
        server_run=server_run,
        key=given_key() if again else None,
    )
    asking.watch(system)
    return FinishedRun(folder, training, system)


def _trained_on(folder: Path) -> str | None:
    """Return the digest of the samples that server and rejector were trained on; None where it was not kept."""
    path = folder / runs.CHECKPOINTS / TRAINING
    try:
        return str(read_json(path)["data"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{path} is damaged: {reason(error)}") from error


def _names_file(part: Mapping[str, Any], model: Any) -> bool:
    return part.get("kind") in ("given", "fixed") and bool(Path(str(model or "")).suffix)


@dataclass(frozen=True)
class RunCalibration:
    """What calibrating a run found."""

    samples: int  # how many there were
    costs: AnyCosts  # the prices at which the rest was measured
    q1: float  # the reject rate
    shares: dict[str, float]  # of the samples, those that each answerer answers
    #: By the bound that each meets: a threshold on the expected saving, or what is added to the price of each server.
    thresholds: dict[str, Threshold | dict[str, float]]

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "samples": self.samples,
            "costs": self.costs.as_dict() if isinstance(self.costs, Costs) else None,
            "q1": self.q1,
            "thresholds": {
                bound: {"added_prices": found} if isinstance(found, dict) else found.as_dict()
                for bound, found in self.thresholds.items()
            },
        }
        if not isinstance(self.costs, Costs):
            values["prices"] = {name: costs.as_dict() for name, costs in self.costs.items()}
        return values if len(self.shares) == 2 else values | {"shares": self.shares}


def calibrate_run(folder: Path, conditions: Conditions) -> RunCalibration:
    """Calibrate a run and save it.

    The samples are the training part of the conditions' data; None: the run's own calibration part. The bounds are
    shares of all requests, or of those to each server, to find thresholds or prices for. Of prices the first are used.
    """
    run = open_run(folder, conditions.server_run, conditions.asking)
    system = run.system
    X, y = run.calibration_samples(conditions.data, **conditions.reading)
    system.calibrate(X, y)
    if conditions.second_opinion is not None:
        run.allow_second_opinion(conditions.second_opinion)
    given = conditions.c_e, conditions.c_1, conditions.prices
    fitted, costs = system.require_fitted(), system.specs[0].costs or run.cost_grid(*given, first=True)[0]
    held_out = fitted.held_out_judgement(0)
    remote = held_out.remote(costs)
    column = held_out.choose(costs, remote)
    shares = {one.name: float(np.mean(column == k)) for k, one in enumerate(fitted.answerers)}
    thresholds: dict[str, Threshold | dict[str, float]] = {}
    for bound in conditions.bounds:
        terms = make_policy(fitted, bound, None, {}).terms(costs, 0)
        if terms.shares is not None:
            names = (server.name for server in fitted.servers)
            thresholds[bound_text(bound)] = dict(zip(names, terms.shares.prices, strict=True))
        elif terms.threshold is not None:
            thresholds[bound_text(bound)] = terms.threshold
    system.save(folder)  # last: a bound that cannot be met leaves the run as it was
    return RunCalibration(len(y), costs, float(remote.mean()), shares, thresholds)
