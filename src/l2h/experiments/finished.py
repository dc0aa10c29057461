"""A finished run, opened: its system, what it was trained on and for, and its calibration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.costs import Costs, cost_grid
from l2h.data import Dataset, load_dataset
from l2h.data.load import holds_pictures, read_inputs
from l2h.decision import Policy
from l2h.errors import DataError, RunError
from l2h.experiments import runs
from l2h.experiments.plan import Samples, divide, plan_of
from l2h.limits import RateLimit, Threshold
from l2h.remote.oip import given_key
from l2h.system import HelpSystem, load


@dataclass(frozen=True)
class FinishedRun:
    """A finished run."""

    folder: Path
    training: dict[str, Any]  # plain values of the plan; empty for a system that was saved without one
    system: HelpSystem

    def dataset(self, data: str | None = None, test: str | None = None, target: str | None = None) -> Dataset:
        """Load the data set named here, or the run's own; a table is read by the columns of the run.

        Of data with another name than the run's, without a test part, every row is in both parts. A file of the same
        name may be the one that was trained on, wherever it lies now.
        """
        training = self.training
        if data is None and "data" not in training:
            raise RunError(f"{self.folder} does not say what data it was trained on: give --data")
        source, fitted = data or training["data"], self.system.require_fitted()
        other = Path(source).name != Path(training.get("data", "")).name
        return load_dataset(
            source,
            test if data else training["test"],
            test_share=1.0 if other else 0.2,
            seed=training.get("settings", {}).get("seed", 0),
            limit=None if data else training["limit"],
            target=target or training.get("target"),
            columns=fitted.columns,
            labels=fitted.labels,
            size=fitted.image_size if holds_pictures(source) else None,
        )

    def calibration_samples(self, data: str | None = None, target: str | None = None) -> Samples:
        """Return the training part of the data set named here, or the run's own calibration part."""
        dataset = self.dataset(data, target=target)
        if data is None:
            return divide(dataset, plan_of(self.training)).calibration
        return dataset.X_train, dataset.y_train

    def ask(
        self, sources: Sequence[str], index: Sequence[int] | None, costs: Costs | None, limit: RateLimit | None
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

    def costs(self, c_e: float | None, c_1: float | None) -> Costs:
        """Return these prices; where one is None, the first that the run was trained for."""
        return Costs(
            c_e=self.training.get("c_e", [0.1])[0] if c_e is None else c_e,
            c_1=self.training.get("c_1", [1.0])[0] if c_1 is None else c_1,
        )

    def export_costs(self, c_e: float | None, c_1: float | None) -> Costs | None:
        """Return the prices to export for; None where none are given and the rejectors have their own."""
        if c_e is None and c_1 is None and self.system.specs[0].costs is not None:
            return None
        return self.costs(c_e, c_1)

    def cost_grid(self, c_e: list[float] | None, c_1: list[float] | None) -> list[Costs]:
        """Return the grid of these prices; where one list is empty, of those that the run was trained for."""
        return cost_grid(c_1 or self.training.get("c_1") or [1.0], c_e or self.training.get("c_e") or [0.1])


@dataclass(frozen=True)
class Asking:
    """How a server that is asked, such as somebody's API, is reached for inputs that it was never asked about."""

    server: str | None = None  # its function again, or its address, which then gets the key of the environment
    progress: Callable[[int, int], None] | None = None  # told how many of how many inputs are asked

    def watch(self, system: HelpSystem) -> None:
        """Have the progress told of a system's server, if it is asked."""
        for server in system.remote_servers:
            server.progress = self.progress


def open_run(folder: Path, server_run: Path | None = None, asking: Asking | None = None) -> FinishedRun:
    """Open a finished run; ``server_run`` is that of a server that was trained by itself."""
    config = runs.read_config(folder)
    training, saved = config.get("training", {}), config.get("system") or {}
    # The run does not hold a TorchScript client or a fixed server itself: it names their files.
    files = {
        part: training[part]
        for part in ("client", "server")
        if saved.get(part, {}).get("kind") in ("given", "fixed") and Path(str(training.get(part, ""))).suffix
    }
    asking = asking or Asking()
    if asking.server is not None:
        if saved.get("server", {}).get("kind") != "remote":
            raise RunError(f"{folder} has no server that is asked: leave out --server")
        files["server"] = asking.server
    system = load(folder, **files, server_run=server_run, key=None if asking.server is None else given_key())
    asking.watch(system)
    return FinishedRun(folder, training, system)


@dataclass(frozen=True)
class RunCalibration:
    """What calibrating a run found."""

    samples: int  # how many there were
    costs: Costs  # the prices at which the rest was measured
    q1: float  # the reject rate
    thresholds: dict[str, Threshold]  # on the expected saving, by the bound that each meets

    def as_dict(self) -> dict[str, Any]:
        thresholds = {bound: threshold.as_dict() for bound, threshold in self.thresholds.items()}
        return {"samples": self.samples, "costs": self.costs.as_dict(), "q1": self.q1, "thresholds": thresholds}


def calibrate_run(
    folder: Path,
    bounds: Sequence[RateLimit] = (),
    *,
    data: str | None = None,
    target: str | None = None,
    c_e: float | None = None,
    c_1: float | None = None,
    server_run: Path | None = None,
    asking: Asking | None = None,
) -> RunCalibration:
    """Calibrate a run and save it.

    The samples are the training part of ``data``; None: the run's own calibration part. ``target`` names the column of
    a table that holds the labels. A price that is None is the
    run's. The bounds are shares of all requests, to find thresholds for.
    """
    run = open_run(folder, server_run, asking)
    system = run.system
    X, y = run.calibration_samples(data, target)
    system.calibrate(X, y)
    costs = system.specs[0].costs or run.costs(c_e, c_1)
    held_out = system.require_fitted().held_out_judgement(0)
    thresholds = {
        str(bound): Policy(lambda *_: (0, costs), True, lambda _: held_out, bound).threshold(costs, 0)
        for bound in bounds
    }
    system.save(folder)  # last: a bound that cannot be met leaves the run as it was
    return RunCalibration(len(y), costs, system.calibrated_rate(costs, which=0), thresholds)
