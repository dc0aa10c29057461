"""Evaluate a system, a finished run or several seeds of one: at every price, under every bound on asking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from l2h.data import Dataset
from l2h.decision import AnyCosts, RejectorSpec, fitting_rejectors
from l2h.errors import RunError, warn
from l2h.experiments import runs
from l2h.experiments.finished import Bound, Conditions, bound_text, open_run
from l2h.experiments.plan import Plan
from l2h.metrics import OutcomeReport, spread_of_reports
from l2h.metrics.prices import in_short
from l2h.money import Money, plain_costs
from l2h.rows import Rows
from l2h.system import HelpSystem
from l2h.system.measuring import AskedSamples, Question


@dataclass(frozen=True)
class Evaluation:
    """A report, the rejector that it describes, and the bound on asking that held, if any."""

    report: OutcomeReport
    spec: RejectorSpec
    limit: Bound | None = None
    rule: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what ``metrics.json`` holds of one evaluation."""
        values, bound = self.report.as_dict(), None
        if self.limit is not None:
            bound = values["bound"] | {"limit": bound_text(self.limit), "rule": self.rule}
        return values | {"rejector": self._rejector, "bound": bound}

    def summary(self) -> dict[str, Any]:
        """Return one row of ``evaluations`` in ``metrics.json``: :meth:`as_dict` in short."""
        bound = None if self.limit is None else {"limit": bound_text(self.limit), "rule": self.rule}
        return self.report.summary() | {"rejector": self._rejector, "bound": bound}

    @property
    def _rejector(self) -> dict[str, Any]:
        return {"loss": self.spec.loss, "sync": self.spec.sync}


def write_metrics(folder: Path, results: Sequence[Evaluation]) -> None:
    """Write ``metrics.json``: the first evaluation in full, all in short, and the first one's sweep.

    ``no_sweep`` says why there is none, where there is none.
    """
    report = results[0].report
    values = results[0].as_dict() | {"evaluations": [result.summary() for result in results]}
    if report.sweep is None:
        runs.write_json(folder / runs.METRICS, values | {"sweep": None, "no_sweep": report.no_sweep})
    else:
        runs.write_json(folder / runs.METRICS, values, {"sweep": [in_short(row) for row in report.sweep]})


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one run, with what they were made from."""

    results: list[Evaluation]  # one per price, rejector and bound
    dataset: Dataset  # the data set whose test part was used
    training: dict[str, Any]  # plain values of the plan that the run was trained by, and of what it found out
    specs: Sequence[RejectorSpec]  # one per rejector of the system
    run: Path  # the run folder
    history: Sequence[dict[str, Any]] = ()  # the rows of its training, where they are at hand


def evaluate_system(
    system: HelpSystem,
    dataset: Dataset,
    prices: Sequence[AnyCosts | Money | None],
    bounds: Sequence[Bound | None] = (None,),
    rule: str | None = None,
) -> list[Evaluation]:
    """Evaluate every price with every rejector that answers for it, under every bound, on the test set.

    The models are run once.
    """
    fitted = replace(system.require_fitted(), dataset=dataset.name)
    questions = [
        (Question(costs, limit, rule, which), limit)
        for costs in prices
        for which in fitting_rejectors(fitted.specs, plain_costs(costs))
        for limit in bounds
    ]
    for question, _ in questions:
        question.check(fitted)
    asked = AskedSamples.of(fitted, *fitted.check(dataset.X_test, dataset.y_test))
    return [
        Evaluation(asked.report(question), fitted.specs[question.which or 0], limit, rule)
        for question, limit in questions
    ]


def evaluate_plan(system: HelpSystem, dataset: Dataset, plan: Plan, folder: Path) -> Evaluations:
    """Evaluate at every price of the plan, and write ``metrics.json`` into the run folder."""
    results = evaluate_system(system, dataset, plan.reported_costs)
    write_metrics(folder, results)
    training = plan.as_dict() | _scales_found(system)
    return Evaluations(results, dataset, training, system.specs, folder, system.require_fitted().history)


def evaluate_run(folder: Path, conditions: Conditions, out: Path | None = None) -> Evaluations:
    """Evaluate a finished run, and write ``metrics.json`` into ``out`` where that is given."""
    run = open_run(folder, conditions.server_run, conditions.asking)
    dataset = run.dataset(conditions.data, conditions.test, **conditions.reading)
    if conditions.data is None and not isinstance(dataset.X_train, Rows) and run.has_changed(dataset):
        warn(
            f"{run.training['data']} no longer holds the samples that {folder} was trained on: the test part may hold "
            "some of them; --data names other samples"
        )
    if conditions.second_opinion is not None:
        run.allow_second_opinion(conditions.second_opinion)
    prices: list[AnyCosts | Money | None] = [*run.cost_grid(conditions.c_e, conditions.c_1, conditions.prices)]
    if conditions.money is not None:
        prices = [conditions.money]
    elif conditions.c_e is None and conditions.c_1 is None and not conditions.prices:
        if conditions.bounds:
            prices = [None]
        elif run.training.get("money"):
            prices = [Money(**run.training["money"])]
    results = evaluate_system(run.system, dataset, prices, conditions.bounds or [None], conditions.rule)
    if out is not None:
        write_metrics(out, results)
    return Evaluations(results, dataset, run.training | _scales_found(run.system), run.system.specs, folder)


def _scales_found(system: HelpSystem) -> dict[str, Any]:
    """Return the scales of client and servers that were found out on labelled samples, and how they were chosen."""
    models = {"client": system.client} | {server.name: server.fixed for server in system.servers}
    return {
        f"{who}_fed": {"scale": model.preprocessing.scale, "accuracy": model.scales_tried}
        for who, model in models.items()
        if model is not None and model.scales_tried
    }


def evaluate_seeds(folders: Sequence[Path], conditions: Conditions) -> list[SeedSpread]:
    """Evaluate runs that differ in their seed alone, and return the spread of every price over them."""
    require_seeds(folders)
    by_run = [evaluate_run(folder, conditions).results for folder in folders]
    for folder, results in zip(folders, by_run, strict=True):
        if results[0].report.answerers != by_run[0][0].report.answerers:
            raise RunError(
                f"{folder} has other answerers than {folders[0]}: --second-opinion and --no-second-opinion set them"
            )
        if [(r.report.costs, r.spec) for r in results] != [(r.report.costs, r.spec) for r in by_run[0]]:
            raise RunError(
                f"{folder} has other prices or rejectors than {folders[0]}: --c-1 and --c-e, or --price, set the prices"
            )
    return [_spread([result.as_dict() for result in same]) for same in zip(*by_run, strict=True)]


@dataclass(frozen=True)
class SeedSpread:
    """One price over several seeds."""

    count: int  # how many seeds there are
    spread: dict[str, Any]  # every figure of ``metrics.json`` with its mean, std and sem
    mean: dict[str, Any]  # ``metrics.json`` of the first seed, with the means of risk, accuracy and reject rate


def _spread(metrics: Sequence[dict[str, Any]]) -> SeedSpread:
    spread = spread_of_reports(metrics)
    means = {
        "reject_rate": spread["reject_rate"]["mean"],
        "risk": {name: _mean(value) for name, value in spread["risk"].items()},
        "accuracy": {name: _mean(value) for name, value in spread["accuracy"].items()},
    }
    return SeedSpread(len(metrics), spread, metrics[0] | means)


def _mean(spread: dict[str, Any] | None) -> Any:
    """Return the mean of a spread, or the means of several by name."""
    if spread is None or "mean" in spread:
        return None if spread is None else spread["mean"]
    return {name: _mean(value) for name, value in spread.items()}


def require_seeds(folders: Sequence[Path]) -> None:
    """Raise :class:`RunError` where runs differ in anything but their seed: a mean over them would be misleading."""
    seen: dict[int | None, Path] = {}
    first: dict[str, Any] | None = None
    for folder in folders:
        training = dict(runs.read_config(folder).get("training", {}))
        settings = dict(training.get("settings", {}))
        seed = settings.pop("seed", None)
        if seed is not None and seed in seen:
            raise RunError(f"{folder} has the seed of {seen[seed]} ({seed}): give runs of different seeds")
        seen[seed] = folder
        training |= {
            "settings": settings,
            "c_1": None,
            "c_e": None,
            "prices": None,
            "money": None,
            "cache": None,
        }  # prices are compared where they are used
        first = first or training
        other = runs.differences(first, training)
        if other:
            raise RunError(f"{folder} is no other seed of {folders[0]}: {'; '.join(other[:4])}")
