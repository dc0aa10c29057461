"""Train the system of a plan into a run folder."""

import logging
from pathlib import Path

from l2h.data import Dataset
from l2h.errors import ClientError
from l2h.experiments.plan import Plan, divide, make_client, make_system
from l2h.experiments.runs import HISTORY, RunTarget
from l2h.system import HelpSystem
from l2h.training import Progress
from l2h.training.loop import repeatable

log = logging.getLogger("l2h")


def train_run(plan: Plan, dataset: Dataset, target: RunTarget, progress: Progress) -> HelpSystem:
    """Train the plan's client, server and rejector, calibrate the system, save it and return it.

    Raises:
        ClientError: a model file of the plan does not exist.
        RunError: the folder cannot take this run.
    """
    for model in (plan.client, plan.server):
        if Path(model).suffix and not Path(model).is_file():
            raise ClientError(f"no file at {model}: check the path")
    target.prepare(plan.as_dict())
    parts = divide(dataset, plan)
    log.info(
        "%s: %d samples for server and rejector, %d for calibration, %d for test, %d classes",
        dataset.name,
        len(parts.train[1]),
        len(parts.calibration[1]),
        len(dataset.y_test),
        dataset.num_classes,
    )
    context = target.context(plan.settings, progress)
    with repeatable(plan.settings, context.device):
        client = make_client(plan, dataset, parts, context)
    system = make_system(plan, dataset, client)
    context.history_file = target.folder / HISTORY
    system.fit(
        *parts.train,
        specs=plan.specs,
        held_out_rows=parts.held_out_rows,
        run=target.folder,
        resume=target.resume,
        context=context,
    )
    system.calibrate(*parts.calibration)
    system.save(target.folder)
    context.checkpoints.clear()
    return system
