"""One training on a Ray cluster: its processes train the server together, by Ray Train, and the first does the rest."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from l2h.errors import L2HError, RunError, SettingsError
from l2h.experiments.carry_out import help_to_train, load_data, train_run
from l2h.experiments.clusters import at_home, last_line, ray_cluster
from l2h.experiments.messages import message_queue
from l2h.experiments.plan import Plan
from l2h.experiments.runs import CONFIG, RunTarget, read_config
from l2h.models import NAMES
from l2h.system import HelpSystem
from l2h.system.saving import load
from l2h.training import Progress, data_parallel

log = logging.getLogger("l2h")
_RETRIES = 2  # of the whole group, from its last checkpoint, after a process or a node was lost


def train_on_ray(
    plan: Plan, target: RunTarget, on: str, processes: int | None, stream: bool | None, progress: Progress
) -> HelpSystem:
    """Train the plan's system into the run folder, by processes of a cluster, and return it.

    Without a number of processes they are as many as the cluster has room for. The run folder must be on a disk that
    the nodes share. Raises a :class:`RunError` that says what failed.
    """
    if plan.settings.recipe == "paper" or any(model not in NAMES for model in plan.named_servers.values()):
        raise SettingsError(f"--on {on}: processes train a network of a name together, by the default recipe alone")
    with ray_cluster(on) as cluster:
        request = cluster.request(plan.settings)
        room = cluster.slots(request)
        count = processes or room
        if count > room:
            raise SettingsError(f"--processes {count}: the cluster has room for {room} ({cluster.describe()})")
        log.info("Ray: %s; %d processes train the server", cluster.describe(), count)
        target.prepare(plan.as_dict())
        told = _Told(progress)
        with message_queue(cluster, told.take) as queue, tempfile.TemporaryDirectory(prefix="l2h-train-") as storage:
            given = {
                "plan": plan,
                "target": replace(target, folder=target.folder.absolute()),
                "stream": stream,
                "home": os.getcwd(),
                "queue": queue,
            }
            trainer = _trainer(given, count, request.cpus, bool(request.gpus), storage)
            try:
                trainer.fit()
                failed = None
            except (RuntimeError, cluster.ray.exceptions.RayError) as error:
                failed = error
        if failed is not None:
            raise RunError(
                f"{told.error or last_line(failed)}; with --resume it goes on from the last checkpoint"
            ) from failed
    return load(target.folder)


def _trainer(given: Mapping[str, Any], count: int, cpus: int, gpu: bool, storage: str) -> Any:
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer

    logging.getLogger("ray.train").setLevel(logging.CRITICAL)  # what failed is told by us, in a line
    return TorchTrainer(
        _train,
        train_loop_config=dict(given),
        torch_config=TorchConfig(backend="nccl" if gpu else "gloo"),
        scaling_config=train.ScalingConfig(num_workers=count, use_gpu=gpu, resources_per_worker={"CPU": cpus}),
        run_config=train.RunConfig(storage_path=storage, failure_config=train.FailureConfig(max_failures=_RETRIES)),
    )


def _train(config: Mapping[str, Any]) -> None:
    """Train in one process of the cluster; what the first says goes back through the queue."""
    plan, target, queue = config["plan"], config["target"], config["queue"]
    log.setLevel(logging.ERROR)
    with at_home(config["home"]), contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(data_parallel(plan.settings.device))
            if not (target.folder / CONFIG).exists():
                raise RunError(f"{target.folder} is not on a disk that the nodes share: choose another --out")
            if "system" in read_config(target.folder):  # lost when everything was done
                return
            dataset = load_data(plan, stream=config["stream"])
            if group.first:
                # The folder was made ready by the command; what is in it by now was trained for it.
                train_run(plan, dataset, replace(target, resume=True, force=False), _QueueProgress(queue))
            else:
                help_to_train(plan, dataset)
        except L2HError as error:
            queue.put(("error", str(error)))
            raise


class _QueueProgress(Progress):
    """Sends what a training reports, but for single steps, through a queue."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self.queue.put(("start", stage, epochs, steps, done))

    def epoch(self, stage: str, row: Mapping[str, Any]) -> None:
        self.queue.put(("epoch", stage, dict(row)))

    def finish(self, stage: str) -> None:
        self.queue.put(("finish", stage))


class _Told:
    """Passes the messages of a training on, and keeps the first error."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.error, self._steps = progress, "", 0

    def take(self, kind: str, *values: Any) -> None:
        if kind == "error":
            self.error = self.error or values[0]
            return
        if kind == "start":
            self._steps = values[2]
        if kind == "epoch":
            for _ in range(self._steps):
                self.progress.step()
        getattr(self.progress, kind)(*values)
