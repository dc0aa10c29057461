"""One trial: a whole training with some settings, which tells its validation risk after every epoch."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l2h.columns import numbers_of
from l2h.costs import BoolArray, FloatArray
from l2h.data import Dataset
from l2h.decision import CLIENT, Answerer, AnyCosts, fitting_rejectors
from l2h.experiments.carry_out import divide, make_client, make_system
from l2h.experiments.evaluating import evaluate_system
from l2h.experiments.plan import Plan
from l2h.experiments.runs import RunTarget
from l2h.metrics import AnswererChoice
from l2h.models import NAMES
from l2h.money import plain_costs
from l2h.system import HelpSystem
from l2h.training import Context, Job, Progress, RejectorStage, Silent
from l2h.training.checkpoint import Checkpoint, Checkpoints, load_checkpoint
from l2h.training.loop import Stage, repeatable
from l2h.training.recipes import rejector_scores, server_log_probabilities
from l2h.training.server import ServerStage
from l2h.training.targets import divide_samples

#: Told the share of the training that is done, in percent, and the risk had it ended there.
TellRisk = Callable[[float, float], None]
#: What client and servers are trained without: they come out the same whatever these are.
_OF_REJECTOR, _SETTINGS_OF_REJECTOR = ("rejector_options", "budget"), ("rejector", "copies", "distill")


def run_trial(
    plan: Plan, dataset: Dataset, target: RunTarget, tell: TellRisk, shared: Path | None = None
) -> dict[str, Any]:
    """Train and calibrate the plan's system, and return its risk on the test part of the data, and more of it.

    ``shared`` is the folder of client and servers of trials with the same :func:`server_key`, where there are others.
    """
    target.prepare(plan.as_dict())
    parts = divide(dataset, plan)
    context = target.context(plan.settings, Silent())
    context.checkpoints = checkpoints = SharedCheckpoints(context.checkpoints, shared)
    with repeatable(plan.settings, context.device):
        client = make_client(plan, dataset, parts, context)
        if plan.client in NAMES:
            checkpoints.share("client", [])
        system = make_system(plan, dataset, client)
        job = system.prepare(*parts.train, specs=plan.specs, held_out_rows=parts.held_out_rows)
        context.progress = TrialRisk(plan, system, job, dataset, context, checkpoints, tell)
        trained = system.method.train(job, context)
    system.adopt(job, trained, context.history).calibrate(*parts.calibration)
    reports = [evaluation.report for evaluation in evaluate_system(system, dataset, plan.reported_costs)]
    return {
        "risk": float(np.mean([report.risk.system for report in reports])),
        "never": float(np.mean([report.risk.all_local for report in reports])),
        "asked": float(np.mean([report.reject_rate for report in reports])),
        "accuracy": float(np.mean([report.accuracy["system"] for report in reports])),
        "epochs": len(context.history),
    }


def server_key(plan: Plan) -> str:
    """Return a name of all that a plan's client and servers come from: of two plans the same where they are."""
    values = {name: value for name, value in plan.as_dict().items() if name not in _OF_REJECTOR}
    settings = values["settings"].items()
    values["settings"] = {name: value for name, value in settings if name not in _SETTINGS_OF_REJECTOR}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


class SharedCheckpoints(Checkpoints):
    """Checkpoints of a trial that takes what another one has trained to its end, and leaves its own for others.

    Trials that train the same at the same time do not wait for each other: each would have the same file.
    """

    def __init__(self, own: Checkpoints, shared: Path | None) -> None:
        super().__init__(own.folder, own.resume, own.every)
        self.shared = Checkpoints(shared, resume=True)
        self.told: list[tuple[float, float]] = []  # by the stage that was loaded last, where another trial trained it

    def load(self, stage: str) -> Checkpoint | None:
        found = self.shared.load(stage)
        self.told = [] if found is None else found.meta["told"]
        return super().load(stage) if found is None else found

    def share(self, stage: str, told: Sequence[tuple[float, float]]) -> None:
        """Leave a stage that is finished for others, with the risks that it told."""
        own, path = self.path(stage), self.shared.path(stage)
        if own is not None and path is not None and not path.exists():
            found = load_checkpoint(own)
            tensors = {name: tensor for name, tensor in found.tensors.items() if not name.startswith("optimizer/")}
            self.shared.save(stage, tensors, {**found.meta, "told": list(told)})


class TrialRisk(Progress):
    """Tells the risk on the test part after every epoch, as a mean over the plan's prices.

    It is that of the best threshold on the rejector's score or, before there is a rejector, on the client's confidence.
    """

    def __init__(
        self,
        plan: Plan,
        system: HelpSystem,
        job: Job,
        dataset: Dataset,
        context: Context,
        checkpoints: SharedCheckpoints,
        tell: TellRisk,
    ) -> None:
        self.system, self.job, self.context, self.checkpoints, self.tell = system, job, context, checkpoints, tell
        self.prices: list[AnyCosts] = [plain_costs(costs) for costs in plan.reported_costs]
        self.X, self.y = numbers_of(dataset.X_test), dataset.labels.encode(dataset.y_test)
        self.answers = system.client.answers(dataset.X_test, job.num_classes)
        self.client_right = self.answers.label == self.y
        self.server_right: dict[str, BoolArray] = {
            server.name: server.fixed.answers(dataset.X_test, job.num_classes).label == self.y
            for server in job.servers
            if server.fixed is not None
        }
        networks = sum(server.make is not None for server in job.servers)
        self._stages = 1 if plan.settings.recipe == "paper" else 1 + networks * _trainings(job, context)
        self._finished = 0
        self._epochs, self._done = 1, 0
        self._told: list[tuple[float, float]] = []  # by the stage that is trained, where it is one of a server

    def start(self, stage: str, epochs: int, steps: int, done: int) -> None:
        self._epochs, self._done, self._told = epochs, done, []
        for share, risk in self.checkpoints.told:
            self.tell(share, risk)

    def finish(self, stage: str) -> None:
        self._finished += 1
        if self._told and not self._done:  # of a stage that was resumed only a part was told here
            self.checkpoints.share(stage, self._told)

    def look_at(self, stage: Stage, epoch: int) -> None:
        risk = None
        if isinstance(stage, ServerStage):
            risk = self._with_server(stage)
        elif isinstance(stage, RejectorStage) and len(self.server_right) == len(self.job.servers):
            risk = self._with_rejectors(stage)
        if risk is not None and np.isfinite(risk) and epoch > self._done:
            share = min(100 * (self._finished + epoch / self._epochs) / self._stages, 99.9)
            self._told += [(share, risk)] if isinstance(stage, ServerStage) else []
            self.tell(share, risk)  # the whole is told by the trial

    def _with_server(self, stage: ServerStage) -> float:
        server = max(
            (one for one in self.job.servers if stage.name.startswith(one.stage)), key=lambda one: len(one.stage)
        )
        right = server_log_probabilities(stage.model, self.X, self.context).argmax(axis=1) == self.y
        self.server_right[server.name] = right
        risks = []
        for costs in self.prices:
            price = costs[server.name] if isinstance(costs, Mapping) else costs
            choice = AnswererChoice.of_two(self.client_right, right, np.ones(len(right), dtype=bool))
            risks.append(best_cut(-self.answers.confidence, choice.losses_of(CLIENT, price), choice.losses(price)))
        return float(np.mean(risks))

    def _with_rejectors(self, stage: RejectorStage) -> float:
        scores = rejector_scores(stage.rejectors, self.X, self.answers, self.context)
        names = [server.name for server in self.job.servers]
        answerers = (CLIENT, *(Answerer(name, remote=True) for name in names))
        correct = np.column_stack([self.client_right, *(self.server_right[name] for name in names)])
        asked, risks = np.ones(len(correct), dtype=bool), []
        for costs in self.prices:
            for which in fitting_rejectors(self.job.specs, costs):
                judgement = self.system.method.judgement(
                    self.job.specs[which], scores[which], self.answers.log_probability, answerers=answerers
                )
                servers = asked.astype(np.intp) if len(names) == 1 else judgement.choose(costs, asked)
                choice = AnswererChoice(answerers, correct, servers)
                risks.append(best_cut(judgement.saving(costs), choice.losses_of(CLIENT, costs), choice.losses(costs)))
        return float(np.mean(risks))


def best_cut(score: FloatArray, local: FloatArray, remote: FloatArray) -> float:
    """Return the lowest mean loss of asking where a score is above a threshold, from the losses of both answers (n,).

    Example:
        >>> best_cut(np.array([0.9, 0.2, 0.8]), np.array([1.0, 0.0, 1.0]), np.array([0.1, 0.1, 1.1]))
        0.3666666666666667
    """
    order = np.argsort(-score, kind="stable")
    return float((local.sum() + np.cumsum([0.0, *(remote - local)[order]])).min() / len(order))


def _trainings(job: Job, context: Context) -> int:
    """Return how often a network is trained as a server: once, or for each fold and for all of them together."""
    parts, _ = divide_samples(job, context)
    return 1 if len(parts) == 1 else len(parts) + 1
