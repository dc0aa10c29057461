"""From options to a finished run folder: what ``l2h train`` and ``l2h demo`` both do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2h.costs import Costs
from l2h.data import Dataset
from l2h.errors import ClientError
from l2h.experiments import runs
from l2h.experiments.plan import Plan, divide, make_client, make_system
from l2h.files import write_atomically
from l2h.limits import RateLimit
from l2h.metrics import Report
from l2h.system import HelpSystem
from l2h.training import Context, Progress, RejectorSpec, pick_device
from l2h.training.checkpoint import Checkpoints
from l2h.training.loop import repeatable

log = logging.getLogger("l2h")


def train_run(
    plan: Plan,
    dataset: Dataset,
    folder: Path,
    progress: Progress,
    *,
    force: bool = False,
    resume: bool = False,
    checkpoint_every: int = 1,
) -> HelpSystem:
    """Train by the plan into the run folder: client, server, rejector, calibration, saved."""
    for model in (plan.client, plan.server):
        if Path(model).suffix and not Path(model).is_file():
            raise ClientError(f"no file at {model}: check the path")
    runs.prepare_run(folder, plan.as_dict(), force=force, resume=resume)
    parts = divide(dataset, plan)
    log.info(
        "%s: %d samples for server and rejector, %d for calibration, %d for test, %d classes",
        dataset.name,
        len(parts.train[1]),
        len(parts.calibration[1]),
        len(dataset.y_test),
        dataset.num_classes,
    )
    device = pick_device(plan.settings.device)
    checkpoints = Checkpoints(folder / runs.CHECKPOINTS, resume, checkpoint_every)
    context = Context(plan.settings, device, checkpoints, progress)
    with repeatable(plan.settings, device):
        client = make_client(plan, dataset, parts, context)
    system = make_system(plan, dataset, client)
    system.fit(
        *parts.train,
        specs=plan.specs,
        run=folder,
        resume=resume,
        checkpoint_every=checkpoint_every,
        progress=progress,
        earlier=context.history,
        held_out_rows=parts.held_out_rows,
    )
    system.calibrate(*parts.calibration)
    system.save(folder)
    checkpoints.clear()
    return system


@dataclass(frozen=True)
class Result:
    """A report, the rejector it is of, and the bound on asking that held, if any."""

    report: Report
    spec: RejectorSpec
    limit: RateLimit | None = None
    rule: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """What ``metrics.json`` holds."""
        bound = None if self.limit is None else {"limit": str(self.limit), "rule": self.rule}
        return self.report.as_dict() | {
            "rejector": {"loss": self.spec.loss, "sync": self.spec.sync},
            "bound": bound,
        }


def report_run(system: HelpSystem, dataset: Dataset, plan: Plan, folder: Path) -> list[Result]:
    """Evaluate at every price of the plan; write metrics, plots and the page for the first."""
    results = evaluate_all(system, dataset, plan.costs)
    runs.write_metrics(folder, results[0].as_dict())
    write_pictures(results[0].report, dataset, folder, system.history, plan.as_dict())
    if len(plan.sync) > 1:
        from l2h.report import plot_sync, png

        picture = plot_sync(system.history, [spec.sync for spec in system.specs])
        write_atomically(folder / runs.PLOTS / "sync.png", png(picture))
    return results


def evaluate_all(
    system: HelpSystem,
    dataset: Dataset,
    prices: Sequence[Costs | None],
    bounds: Sequence[RateLimit | None] = (None,),
    rule: str | None = None,
) -> list[Result]:
    """Every price with every rejector that answers for it, under every bound."""
    X, y = dataset.X_test, dataset.y_test
    return [
        Result(system.evaluate(X, y, costs, limit=limit, rule=rule, which=which), system.specs[which], limit, rule)
        for costs in prices
        for which in system.answering(costs)
        for limit in bounds
    ]


def write_pictures(
    report: Report, dataset: Dataset, folder: Path, history: list[dict[str, Any]], settings: dict[str, Any]
) -> Path:
    """``plots/*.png`` and ``report.html`` of a report."""
    from l2h.report import save_plots, write_page

    images = dataset.X_test if dataset.X_test.ndim == 4 else None
    seed = report.seed or 0
    steps = ["`l2h train --data DATA --client YOUR.onnx --server lenet5 --out runs/mine` trains around your own client"]
    if report.heads:
        steps = [f"`l2h evaluate {folder} --c-e 0.05 --c-e 0.2` prices it differently, with no new training", *steps]
    save_plots(report, folder / runs.PLOTS, history=history, images=images, seed=seed)
    return write_page(
        report,
        folder,
        title=f"Learning to help on {dataset.name}",
        history=history,
        images=images,
        settings=settings,
        next_steps=steps,
        seed=seed,
    )
