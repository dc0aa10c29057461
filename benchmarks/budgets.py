"""Measure what a rejector is worth against what it costs the device: risk and frontier gain at several budgets.

    python benchmarks/budgets.py --data DATA/cifar10 --seeds 0 1 2 --out results/budgets-cifar10
    python benchmarks/budgets.py --data DATA/cifar10 --seeds 0 --out OUT --rejector width=1,depth=2 width=2,depth=1
    (and once more with --test when every choice is made)

A budget is a multiple of the client's multiply-adds. Client, server and division of the samples are those of
``l2h train``. Without ``--test`` a tenth of the training samples stands in for the test set. The server is trained once
per data set and seed; with ``--cache`` its answers are kept in a file and later calls read them. The CSV file has one
row per seed and rejector, written as they are measured; budget 0 is a threshold on the client's confidence.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h import decision, metrics
from l2h.costs import Costs, generalized_loss
from l2h.data import Dataset, load_dataset, split
from l2h.decision import RejectorSpec
from l2h.experiments.overrides import make_settings
from l2h.experiments.plan import Plan, divide, make_client, make_system, with_augment
from l2h.methods import Bench, Outcomes
from l2h.methods.helping import PricedAttached
from l2h.models import client_view_size, multiply_adds
from l2h.models.budget import within_budget
from l2h.settings import DEFAULT_REJECTOR, SEPARABLE_REJECTOR, StageSettings
from l2h.training import Context, Job, pick_device
from l2h.training.loop import derive, repeatable
from l2h.training.targets import ServerOutcome, Teacher, train_server

#: The prices that are reported by themselves, and those that the mean is over.
SHOWN = (Costs(c_e=0.1, c_1=1.0), Costs(c_e=0.25, c_1=1.25))
GRID = tuple(Costs(c_e=c_e, c_1=c_1) for c_1 in (0.9, 1.1, 1.4) for c_e in (0.07, 0.12, 0.2))
REAL = ("width", "lr", "weight_decay")  # options that are not whole numbers
FIELDS = (
    *("data", "part", "seed", "name", "budget", "options", "multiply_adds", "client_multiply_adds"),
    *("server_multiply_adds", "gain", "risk_1_0.1", "risk_1.25_0.25", "risk_mean", "remote_1_0.1", "student"),
    *("client", "server", "oracle_1_0.1", "label_free_gain", "seconds"),
)


class ServerRecord(nn.Module):
    """A trained server whose answers are written down, or, without a model, the answers that were written down.

    The answers are given again in the order in which they were asked for; a sum over the inputs tells whether the
    question is the same.
    """

    def __init__(self, model: nn.Module | None, answers: list[tuple[int, Tensor]]) -> None:
        super().__init__()
        self.model, self.answers, self.asked = model, answers, 0

    def forward(self, x: Tensor) -> Tensor:
        total = int(x.long().sum())
        if self.model is not None:
            scores: Tensor = self.model(x)
            self.answers.append((total, scores.half().cpu()))
            return scores
        expected, known = self.answers[self.asked]
        self.asked += 1
        if expected != total:
            raise SystemExit("the cache was made from other samples or on another kind of device: delete it")
        return known.to(x.device).float()


def recorded_server(job: Job, context: Context, path: Path | None) -> ServerOutcome:
    """Return the trained server, from its record where there is one."""
    if path is not None and path.exists():
        with np.load(path) as file:
            kept = {name: file[name] for name in file.files}
        starts = np.cumsum(kept["lengths"])[:-1]
        parts = [torch.from_numpy(part) for part in np.split(kept["answers"], starts)]
        replayed = ServerRecord(None, list(zip(kept["totals"].tolist(), parts, strict=True)))
        log_p = torch.from_numpy(kept["log_probability"]).to(context.device)
        teacher = Teacher(kept["index"], replayed, log_p, float(kept["temperature"]))
        return ServerOutcome([replayed], [[teacher]], kept["fitted"])
    outcome = train_server(job, context)
    if path is None:
        return outcome
    ((teacher,),), (server,) = outcome.teachers, outcome.servers
    record = ServerRecord(server, [])
    return replace(outcome, servers=[record], teachers=[[replace(teacher, model=record)]])


def write_record(outcome: ServerOutcome, path: Path) -> None:
    """Write the answers of a server that was trained here."""
    (record,), ((teacher,),) = outcome.servers, outcome.teachers
    if not isinstance(record, ServerRecord) or record.model is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        totals=np.array([total for total, _ in record.answers]),
        lengths=np.array([len(part) for _, part in record.answers]),
        answers=torch.cat([part for _, part in record.answers]).numpy(),
        index=teacher.index,
        log_probability=teacher.log_probability.cpu().numpy(),
        temperature=teacher.temperature,
        fitted=outcome.fitted,
    )


def held_back(dataset: Dataset) -> Dataset:
    """Return the data set with a tenth of the training samples in place of the test set."""
    train, validation = split(dataset.y_train, (0.9, 0.1), derive("validation"))
    X, y = dataset.X_train, dataset.y_train
    return replace(dataset, X_train=X[train], y_train=y[train], X_test=X[validation], y_test=y[validation])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="as of l2h train: FOLDER/cifar10")
    parser.add_argument("--test", action="store_true", help="measure on the test set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--budgets", type=float, nargs="*", default=[0.1, 0.3, 1.0, 3.0, 10.0])
    parser.add_argument("--rejector", nargs="*", default=[], help="options by hand, such as width=1,depth=2,lr=3e-3")
    parser.add_argument("--only", action="store_true", help="only those of --rejector, no budgets")
    parser.add_argument("--cache", type=Path, help="folder for the servers' answers")
    parser.add_argument("--limit", type=int, help="use only so many rows")
    parser.add_argument("--set", action="append", default=[], help="a setting of l2h train: rejector.epochs=30")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    whole = load_dataset(arguments.data, limit=arguments.limit)
    dataset = whole if arguments.test else held_back(whole)
    print(f"{dataset.name}: {len(dataset.y_train)} samples, {len(dataset.y_test)} to measure on", flush=True)
    with (arguments.out / "budgets.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for seed in arguments.seeds:
            values = {"recipe": "default", "seed": seed, "precision": arguments.precision}
            settings = make_settings(values, arguments.set, "alexnet", sized=True)
            plan = with_augment(Plan(data=arguments.data, settings=settings), dataset, None)
            for row in measure(plan, dataset, arguments):
                common = {"data": dataset.name, "part": "test" if arguments.test else "validation", "seed": seed}
                writer.writerow(common | row)
                file.flush()
                print(" ".join(f"{k}={v}" for k, v in row.items() if k != "options" or v), flush=True)


def measure(plan: Plan, dataset: Dataset, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train one seed's client and server, then a rejector per budget, and give one row for each."""
    begun = time.monotonic()
    device = pick_device(plan.settings.device)
    context = Context(plan.settings, device)
    with repeatable(plan.settings, device):
        parts = divide(dataset, plan)
        client = make_client(plan, dataset, parts, context)
        system = make_system(plan, dataset, client)
        job = system.prepare(*parts.train, specs=[RejectorSpec()], held_out_rows=parts.held_out_rows)
        name = f"{dataset.name}-{'test' if arguments.test else 'validation'}-{plan.settings.seed}.npz"
        path = None if arguments.cache is None else arguments.cache / name
        outcome = recorded_server(job, context, path)
        bench = Bench(job, context, (*SHOWN, *GRID), parts.calibration, {}, outcome)
        test = bench.outcomes(dataset.X_test, dataset.y_test)
        if path is not None:
            write_record(outcome, path)
        image = torch.zeros(1, *dataset.input_shape, device=device)
        known = {
            "client_multiply_adds": multiply_adds(client.module.to(device), image),
            "server_multiply_adds": multiply_adds(job.servers[0].make().to(device), image),
            "client": round(float(test.client_correct.mean()), 5),
            "server": round(float(test.server_correct.mean()), 5),
            "oracle_1_0.1": round(float(np.minimum(~test.client_correct, 0.1 + ~test.server_correct).mean()), 5),
            "label_free_gain": gain(test, label_free(test)),
        }
        held = bench.calibration
        thresholds = [
            decision.confidence_threshold(held.client.confidence, held.client_correct, held.server_correct, costs)
            for costs in bench.costs
        ]
        remotes = [decision.confidence(test.client.confidence, threshold) for threshold in thresholds]
        row = risks(test, remotes) | {"gain": gain(test, -test.client.confidence), "multiply_adds": 0}
        yield known | row | {"name": "confidence", "budget": 0, "seconds": round(time.monotonic() - begun, 2)}
        for name, budget, options in rejectors(bench, known["client_multiply_adds"], arguments):
            begun = time.monotonic()
            stage = {key: options.pop(key) for key in list(options) if key in StageSettings.__dataclass_fields__}
            usual = SEPARABLE_REJECTOR if options.get("trunk") == "separable" else DEFAULT_REJECTOR
            own = replace(plan.settings.rejector or usual, **stage)
            bench.context = Context(replace(plan.settings, rejector=own), device)
            method = PricedAttached()
            method.options = options  # type: ignore[misc]
            rule = method.fit(bench)
            choices = [rule.decide(test.inputs, costs) for costs in bench.costs]
            facts = rule.facts(test.inputs, test.y)
            row = risks(test, [choice.remote for choice in choices]) | {"gain": gain(test, choices[0].score)}
            row |= {"name": name, "options": options, "multiply_adds": int(facts["multiply_adds"])}
            row |= {"student": round(facts["student"], 5)} if "student" in facts else {}
            row["budget"] = budget or round(facts["multiply_adds"] / known["client_multiply_adds"], 3)
            yield known | row | {"seconds": round(time.monotonic() - begun, 2)}


def rejectors(
    bench: Bench, client: int, arguments: argparse.Namespace
) -> Iterator[tuple[str, float | None, dict[str, Any]]]:
    """Give name, budget and options of every rejector that is to be measured."""
    shape, job = tuple(bench.job.X.shape[1:]), bench.job
    for text in arguments.rejector:
        options: dict[str, Any] = {"trunk": "separable"}
        for part in text.split(","):
            key, _, value = part.partition("=")
            options[key] = value if key == "trunk" else float(value) if key in REAL else int(value)
        yield text, None, options
    view = client_view_size(bench.num_classes, job.embedding_size)
    for budget in () if arguments.only else arguments.budgets:
        options = within_budget(round(budget * client), "attached", shape, view, bench.num_classes)
        yield f"budget {budget:g}", budget, options


def risks(test: Outcomes, remotes: list[Any]) -> dict[str, float]:
    """Return the risks of decisions at the shown prices and their mean over the grid."""
    losses = [
        float(generalized_loss(test.client_correct, test.server_correct, remote, costs).mean())
        for remote, costs in zip(remotes, (*SHOWN, *GRID), strict=True)
    ]
    return {
        "risk_1_0.1": round(losses[0], 5),
        "risk_1.25_0.25": round(losses[1], 5),
        "risk_mean": round(float(np.mean(losses[len(SHOWN) :])), 5),
        "remote_1_0.1": round(float(remotes[0].mean()), 4),
    }


def gain(test: Outcomes, score: Any) -> float:
    """Return the frontier gain of a ranking."""
    area = metrics.frontier(score, test.client_correct, test.server_correct).area
    return round(metrics.frontier_gain(area, test.client_correct, test.server_correct) or 0.0, 5)


def label_free(test: Outcomes) -> Any:
    """Return the server's own belief in what asking it gains."""
    p = test.server_probability
    return p.max(axis=1) - np.take_along_axis(p, test.client.label[:, None], axis=1)[:, 0]


if __name__ == "__main__":
    main()
