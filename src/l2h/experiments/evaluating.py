"""Evaluate a system at every price and under every bound on asking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.costs import Costs
from l2h.data import Dataset
from l2h.decision import RejectorSpec
from l2h.experiments import runs
from l2h.experiments.plan import Plan
from l2h.limits import RateLimit
from l2h.metrics import Report
from l2h.system import HelpSystem


@dataclass(frozen=True)
class Evaluation:
    """A report, the rejector that it describes, and the bound on asking that held, if any."""

    report: Report
    spec: RejectorSpec
    limit: RateLimit | None = None
    rule: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``metrics.json``."""
        bound = None if self.limit is None else {"limit": str(self.limit), "rule": self.rule}
        return self.report.as_dict() | {
            "rejector": {"loss": self.spec.loss, "sync": self.spec.sync},
            "bound": bound,
        }


def evaluate_system(
    system: HelpSystem,
    dataset: Dataset,
    prices: Sequence[Costs | None],
    bounds: Sequence[RateLimit | None] = (None,),
    rule: str | None = None,
) -> list[Evaluation]:
    """Evaluate every price with every rejector that answers for it, under every bound, on the test set."""
    X, y = dataset.X_test, dataset.y_test
    return [
        Evaluation(system.evaluate(X, y, costs, limit=limit, rule=rule, which=which), system.specs[which], limit, rule)
        for costs in prices
        for which in system.answering(costs)
        for limit in bounds
    ]


def evaluate_plan(system: HelpSystem, dataset: Dataset, plan: Plan, folder: Path) -> list[Evaluation]:
    """Evaluate at every price of the plan, and write the metrics of the first price into the run folder."""
    results = evaluate_system(system, dataset, plan.costs)
    runs.write_metrics(folder, results[0].as_dict())
    return results
