"""Train a router from a table of outcomes into a run folder, and evaluate it on its test part or on another table."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from l2h.costs import Costs, cost_grid
from l2h.data.outcomes import TEXT_COLUMN, OutcomeTable, read_outcomes
from l2h.decision import RejectorSpec
from l2h.errors import RunError
from l2h.experiments import runs
from l2h.experiments.evaluating import Evaluation, write_metrics
from l2h.limits import RateLimit
from l2h.money import Money
from l2h.routing import Router, fit_router


@dataclass(frozen=True)
class RouterPlan:
    """What a router is trained on and measured at."""

    outcomes: str  # the table
    text_column: str = TEXT_COLUMN
    test: str | None = None  # another table to measure on; None: a fifth of the rows, drawn by the seed
    limit: int | None = None  # use only so many rows
    c_1: tuple[float, ...] = (1.0,)
    c_e: tuple[float, ...] = (0.1,)
    seed: int = 0
    money: dict[str, Any] = field(default_factory=dict)  # fields of :class:`l2h.Money`, instead of both

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for ``config.json``."""
        values = {name: value for name, value in asdict(self).items() if value or name != "money"}
        return values | {"c_1": list(self.c_1), "c_e": list(self.c_e)}

    @property
    def costs(self) -> list[Costs | Money]:
        """The grid of prices, or the money."""
        return [Money(**self.money)] if self.money else [*cost_grid(self.c_1, self.c_e)]

    def parts(self) -> tuple[OutcomeTable, OutcomeTable]:
        """Return the rows to train on and the rows to test on."""
        table = read_outcomes(self.outcomes, self.text_column)
        if self.limit is not None:
            table = table.part(np.arange(min(self.limit, len(table))))
        if self.test is not None:
            return table, read_outcomes(self.test, self.text_column)
        order = np.random.default_rng(self.seed).permutation(len(table))
        tested = max(1, len(table) // 5)
        return table.part(np.sort(order[tested:])), table.part(np.sort(order[:tested]))


def train_router(
    plan: RouterPlan, target: runs.RunTarget, progress: Callable[[int, int], None] | None = None
) -> list[Evaluation]:
    """Train a router, save it and its metrics in the run folder, and return its evaluation at every price."""
    prices, (train, test) = plan.costs, plan.parts()
    target.prepare(plan.as_dict())
    router = fit_router(
        train.X, train.client_right, train.server_right, seed=plan.seed, dataset=train.name, progress=progress
    )
    router.save(target.folder)
    results = evaluate_router(router, test, prices)
    write_metrics(target.folder, results)
    return results


def evaluate_router(
    router: Router,
    test: OutcomeTable,
    prices: Sequence[Costs | Money | None],
    bounds: Sequence[RateLimit | None] = (None,),
    rule: str | None = None,
) -> list[Evaluation]:
    """Evaluate a router at every price under every bound."""
    known = (test.X, test.client_right, test.server_right)
    return [
        Evaluation(
            router.evaluate(*known, costs, limit=bound, rule=rule, dataset=test.name), RejectorSpec(), bound, rule
        )
        for costs in prices
        for bound in bounds
    ]


@dataclass(frozen=True)
class RouterConditions:
    """The conditions under which a finished run of a router is evaluated."""

    outcomes: str | None = None  # a table other than the run's test part
    text_column: str | None = None  # of that table; None: the run's
    c_1: list[float] | None = None  # None: the run's
    c_e: list[float] | None = None
    bounds: Sequence[RateLimit] = ()
    rule: str | None = None
    money: Money | None = None  # instead of the prices


def evaluate_router_run(
    folder: Path, conditions: RouterConditions, out: Path | None = None
) -> tuple[list[Evaluation], dict[str, Any]]:
    """Evaluate a finished run; write ``metrics.json`` into ``out``; return also the run's settings."""
    router, training = Router.load(folder), runs.read_config(folder).get("training", {})
    column = conditions.text_column or training.get("text_column", TEXT_COLUMN)
    if conditions.outcomes is not None:
        test = read_outcomes(conditions.outcomes, column)
    elif "outcomes" in training:
        plan = RouterPlan(**training | {name: tuple(training[name]) for name in ("c_1", "c_e")})
        test = plan.parts()[1]
    else:
        raise RunError(f"{folder} does not say what it was trained on: give --outcomes FILE")
    prices: list[Costs | Money | None] = [
        *cost_grid(conditions.c_1 or training.get("c_1") or [1.0], conditions.c_e or training.get("c_e") or [0.1])
    ]
    if conditions.money is not None:
        prices = [conditions.money]
    elif conditions.c_e is None and conditions.c_1 is None:
        if conditions.bounds:
            prices = [None]
        elif training.get("money"):
            prices = [Money(**training["money"])]
    results = evaluate_router(router, test, prices, conditions.bounds or [None], conditions.rule)
    if out is not None:
        write_metrics(out, results)
    return results, training
