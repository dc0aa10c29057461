"""Measure what the default rejector's gain comes from: each variant removes or adds one thing and keeps the rest.

    python benchmarks/ablation.py --dataset digits --seeds 5 --out results/ablation-digits.csv
    python benchmarks/ablation.py --dataset DATA/cifar10 --limit 10000 --server lenet5 --option server.width=4 \
        --option rejector.width=1 --set honest=holdout --set server.epochs=15 --set rejector.epochs=6 --set threads=1 \
        --seeds 3 --out results/ablation-cifar10.csv
    (and once more with --client-knows, for a client that was fitted to the rejector's samples)

The CSV file has one row per variant and seed: mean risk over the grid of prices, frontier gain, accuracy of the student
if there is one, multiply-adds. Rows are written as they are measured.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression

from l2h import metrics
from l2h.costs import Costs, generalized_loss
from l2h.decision import Judgement
from l2h.experiments.compare.comparing import GRID_1, GRID_E
from l2h.experiments.compare.seed import make_bench
from l2h.experiments.overrides import make_settings, parse_options
from l2h.experiments.plan import Plan, digits_plan, divide, load_data
from l2h.losses import priced_losses
from l2h.methods import Bench, Inputs
from l2h.methods.helping import PricedAttached, PricedRule
from l2h.training import Context, Objective, pick_device
from l2h.training.augment import augment
from l2h.training.loop import repeatable, seeded


class NoStudent(PricedAttached):
    """The trunk is trained by the two heads alone."""

    name, student = "no student", False


class Bits(PricedAttached):
    """The heads learn 0/1 outcomes, from held-out samples alone."""

    name = "0/1 targets, honest samples"

    def objective(self, specs: Any, device: Any, server_accuracy: float) -> Objective:
        """Without the server's softmax; the student still learns from it."""
        return lambda scores, pool: priced_losses(scores, pool.client_correct.float(), pool.server_correct.float())

    def learns_softly(self, specs: Any) -> bool:
        return False


class HonestOnly(PricedAttached):
    """Soft targets without the samples that the server was fitted to; more augmented copies of the others instead."""

    name = "honest samples alone"

    def learns_softly(self, specs: Any) -> bool:
        return False


class NoStudentBits(Bits):
    """Neither."""

    name, student = "no student, 0/1 targets", False


class Width0(PricedAttached):
    """The client's scores alone: no trunk, no student."""

    name, student, options = "width 0: no trunk", False, {"width": 0}


class Width1(PricedAttached):
    """A trunk of LeNet-5's own size."""

    name, options = "width 1", {"width": 1}


class Width2(PricedAttached):
    """Twice that."""

    name, options = "width 2", {"width": 2}


class RawRule(PricedRule):
    """Heads as they come out of the training."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.platt = [(1.0, 0.0), (1.0, 0.0)]


class Raw(PricedAttached):
    """No calibration."""

    name, rule = "heads not calibrated", RawRule


class IsotonicRule(PricedRule):
    """Isotonic regression of each head instead of two parameters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        held = self.bench.calibration
        scores = self.scores(held.inputs, 0)
        truth = (held.client_correct, held.server_correct)
        self.maps = [IsotonicRegression(out_of_bounds="clip").fit(scores[:, k], truth[k]) for k in (0, 1)]

    def judgement(self, inputs: Inputs, costs: Costs) -> Judgement:
        scores = self.scores(inputs, 0)
        right = np.stack([np.asarray(self.maps[k].predict(scores[:, k]), dtype=np.float64) for k in (0, 1)], axis=1)
        return Judgement(right, right)


class Isotonic(PricedAttached):
    """Isotonic calibration."""

    name, rule = "isotonic calibration", IsotonicRule


class AveragedRule(PricedRule):
    """The heads' logits averaged over the input and four changed copies; the client runs once, on the input."""

    def scores(self, inputs: Inputs, which: int) -> Any:
        total = np.array(super().scores(inputs, which), copy=True)
        context = self.bench.context
        for copy in range(4):
            with seeded(context.device, self.bench.seed, "averaged", copy):
                x = augment(torch.from_numpy(inputs.X).to(context.device), context.settings.augment).cpu().numpy()
            total += super().scores(Inputs(x, inputs.client), which)
        return total / 5


class Averaged(PricedAttached):
    """Augmentation at test time."""

    name, rule = "augmented at test time", AveragedRule


VARIANTS = (
    *(PricedAttached, NoStudent, Bits, HonestOnly, NoStudentBits, Width0, Width1, Width2),
    *(Raw, Isotonic, Averaged),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--server", default=None)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--client-knows", action="store_true", help="only: a client fitted to the rejector's samples")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    base = digits_plan() if arguments.dataset == "digits" else Plan(data=arguments.dataset)
    server = arguments.server or base.server
    values = {name: getattr(base.settings, name) for name in base.settings.__dataclass_fields__}
    settings = make_settings(values | {"precision": arguments.precision}, arguments.set, server)
    options = parse_options(arguments.option)
    plan = replace(
        base,
        c_1=GRID_1,
        c_e=GRID_E,
        server=server,
        limit=arguments.limit,
        server_options=base.server_options | options["server"],
        rejector_options=base.rejector_options | options["rejector"],
        settings=settings,
    )
    fields = ["variant", "seed", "risk", "gain", "student", "client", "server", "multiply_adds"]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            measure(replace(plan, settings=settings.with_seed(seed)), arguments.client_knows, writer, file)


def measure(plan: Plan, client_knows: bool, writer: Any, file: Any) -> None:
    dataset = load_data(plan)
    augmented = plan.settings.augment if plan.settings.augment != "none" else dataset.augment
    plan = replace(plan, settings=replace(plan.settings, augment=augmented))
    device = pick_device(plan.settings.device)
    context = Context(plan.settings, device)
    with repeatable(plan.settings, device):
        if client_knows:
            bench, variants = knowing_bench(plan, dataset, context), (PricedAttached,)
        else:
            bench, variants = make_bench(plan, dataset, context), VARIANTS
        test = bench.outcomes(dataset.X_test, dataset.y_test)
        for variant in variants:
            rule = variant().fit(bench)
            choices = [rule.decide(test.inputs, costs) for costs in plan.costs]
            outcomes = (test.client_correct, test.server_correct)
            losses = [generalized_loss(*outcomes, c.remote, p) for c, p in zip(choices, plan.costs, strict=True)]
            area = metrics.frontier(choices[0].score, *outcomes).area
            facts = rule.facts(test.inputs, test.y)
            row = {
                "variant": "client fitted to the rejector's samples" if client_knows else variant.name,
                "seed": plan.settings.seed,
                "risk": round(float(np.mean(losses)), 5),
                "gain": round(metrics.frontier_gain(area, *outcomes) or 0.0, 5),
                "student": round(facts["student"], 5) if "student" in facts else "",
                "client": round(float(outcomes[0].mean()), 5),
                "server": round(float(outcomes[1].mean()), 5),
                "multiply_adds": int(facts["multiply_adds"]),
            }
            writer.writerow(row)
            file.flush()
            print(row, flush=True)


def knowing_bench(plan: Plan, dataset: Any, context: Context) -> Bench:
    """As :func:`make_bench`, but with a client that was fitted to the samples the rejector learns from."""
    parts = divide(dataset, plan)
    return make_bench(plan, dataset, context, replace(parts, client=parts.train))


if __name__ == "__main__":
    main()
