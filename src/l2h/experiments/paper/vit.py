"""CIFAR-100 with a ViT as the server, over the paper's grid of 28 prices.

The paper fine-tunes a pre-trained ViT-B/16. Where no weights are given a smaller ViT is trained from scratch and stands
in. It is trained once and shared by all seeds, which draw the client, the rejectors and the order of samples: its loss
knows nothing of them.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from torch import nn

from l2h.costs import Costs
from l2h.data import Dataset, split
from l2h.decision import RejectorSpec
from l2h.experiments.paper.grid import BOUNDED, LOSSES, OURS, PAPER, PUBLISHED
from l2h.experiments.paper.lab import hardware, load_named, priced_outcomes, scored_outcomes, train_client
from l2h.experiments.paper.passes import Labels, Pass, column, over_seeds, price_curve, trivial_curves
from l2h.experiments.paper.study import SIGN, UNBOUNDED, Drawing, Experiment, Study, printed, printed_share, title_of
from l2h.files import digest
from l2h.methods.base import Bench
from l2h.methods.helping import PricedAttached
from l2h.models import ViT, build_scaled, load_pretrained, pretrained_options
from l2h.models.rejectors import SeparateRejector
from l2h.settings import PAPER_REJECTOR, Settings
from l2h.system import HelpSystem
from l2h.training import BatchLoss, Context, Job, RejectorStage, pick_device, train_classifier
from l2h.training.checkpoint import load_checkpoint, save_checkpoint
from l2h.training.job import input_scale
from l2h.training.loop import derive, repeatable, run_stage, seeded
from l2h.training.recipes import make_rejectors
from l2h.training.targets import ServerOutcome, make_pool, make_teacher

log = logging.getLogger("l2h")
#: Shares of the training set: to fit client and server to, for the rejector to learn from, to calibrate on.
SHARES = (0.85, 0.09, 0.06)


def run_vit(study: Study) -> Experiment:
    """The ViT, then a client and the rejectors for every seed."""
    out = Experiment(
        "cifar100-vit",
        "CIFAR-100 with a ViT server",
        "At which prices does a weak client gain from asking a strong server, and does the rejector know?",
        errata=[
            SIGN,
            UNBOUNDED,
            "At c_1 = 4, c_e = 0.2 the paper prints a joint accuracy of 60.4 where 87.9 follows from its own columns.",
        ],
    )
    name = "digits" if study.data == "digits" else "cifar100"
    out.datasets = (name,)
    lab = VitLab(study, name)
    prices = printed_prices()
    published, ours = lab.passes(prices)
    recipes = {PAPER: (published, "paper"), BOUNDED: (published, "shifted"), OURS: (ours, "priced")}
    risks, shares, worse, lost = [], [], 0, 0
    for costs in prices:
        cells = {label: over_seeds(passes, loss, costs) for label, (passes, loss) in recipes.items()}
        theirs, price = printed_cell(costs), [f"{costs.c_1:g}", f"{costs.c_e:g}"]
        risk, best = column(cells[OURS], "risk"), [min(r["all_local"], r["all_remote"]) for r in cells[OURS]]
        bad = risk["mean"] > float(np.mean(best)) + (risk["sem"] or 0.0)
        worse += bad
        lost += len(published) - len(cells[PAPER])
        risks.append(
            [*price, theirs["risk"], theirs["trivial"], column(cells[PAPER], "risk"), column(cells[BOUNDED], "risk")]
            + [risk | ({"mark": "bad"} if bad else {})]
            + [column(cells[OURS], key) for key in ("all_local", "all_remote")]
        )
        shares.append(
            [*price, printed_share(theirs["sent"]), printed_share(theirs["joint"])]
            + [column(cells[label], key, percent=True) for label in recipes for key in ("rate", "accuracy")]
        )
    grid: dict[float, list[float]] = {}
    for costs in prices:
        grid.setdefault(costs.c_1, []).append(costs.c_e)
    curves = [
        price_curve(label, name, c_1, c_es, passes, loss)
        for label, (passes, loss) in recipes.items()
        for c_1, c_es in grid.items()
    ]
    trivial = {c_1: trivial_curves(ours, c_1, c_es) for c_1, c_es in grid.items()}
    drawing = Drawing("risk", {"curves": curves, "trivial": trivial})
    out.plot("cifar100-vit.png", f"{title_of(name)}: risk against c_e", drawing)
    out.table(
        "cifar100-vit-risk",
        "Risk at every price",
        ["c_1", "c_e", PUBLISHED, f"better trivial, {PUBLISHED}", *recipes, "never ask", "always ask"],
        risks,
        "The paper's risks follow from its own columns and its loss. Marked: above the better of never and always "
        "asking by more than the standard error.",
    )
    out.table(
        "cifar100-vit",
        "Share sent, and accuracy of the two together",
        ["c_1", "c_e", f"sent, {PUBLISHED}", f"joint, {PUBLISHED}"]
        + [f"{what}, {label}" for label in recipes for what in ("sent", "joint")],
        shares,
    )
    seconds = ours[0].facts["server_seconds"]
    server = float(np.mean([one.test.server_correct.mean() for one in ours]))
    client = float(np.mean([one.test.client_correct.mean() for one in ours]))
    theirs_worse = sum(printed_cell(costs)["risk"] > printed_cell(costs)["trivial"] for costs in prices)
    out.text(
        f"The server: {lab.description} in {seconds:.0f} s by the clock; right on {100 * server:.1f}% of the test "
        f"set, the client on {100 * client:.1f}% (the paper: 88.1% and 27.6%)."
    )
    out.findings.append(
        f"By our recipe {worse} of {len(prices)} prices have a risk above the better of never and always asking by "
        f"more than the standard error; by the paper's own numbers {theirs_worse} of {len(prices)} are above it."
    )
    out.findings.append(f"Of {len(prices) * len(published)} rejectors by the paper's L2 {lost} diverged.")
    return out


def printed_prices() -> list[Costs]:
    """The grid of the paper's table, in its order."""
    seen = dict.fromkeys((float(row["c1"]), float(row["ce"])) for row in printed("cifar100-vit"))
    return [Costs(c_e=c_e, c_1=c_1) for c_1, c_e in seen]


def printed_cell(costs: Costs) -> dict[str, Any]:
    """What the paper prints for a price, and the risk that follows from it."""
    rows = [row for row in printed("cifar100-vit") if float(row["c1"]) == costs.c_1 and float(row["ce"]) == costs.c_e]
    local, remote = (next(row for row in rows if row["decision"] == side) for side in ("local", "remote"))
    keep, send = float(local["ratio"]) / 100, float(remote["ratio"]) / 100
    m, e = float(local["m"] or 0) / 100, float(remote["e"] or 0) / 100
    right_m = keep * m + send * float(remote["m"] or 0) / 100
    right_e = keep * float(local["e"] or 0) / 100 + send * e
    return {
        "sent": remote["ratio"],
        "joint": local["joint_accuracy"],
        "risk": round(keep * (1 - m) + send * (costs.c_e + costs.c_1 * (1 - e)), 4),
        "trivial": round(min(1 - right_m, costs.c_e + costs.c_1 * (1 - right_e)), 4),
    }


class VitLab:
    """The ViT and what all seeds share."""

    def __init__(self, study: Study, name: str) -> None:
        self.study, self.name = study, name
        scale, weights = study.scale, study.vit_weights
        self.stage = scale.vit_stage if weights is None else scale.vit_tuning
        self.options = scale.vit_options if weights is None else pretrained_options(weights)
        self.dataset: Dataset = load_named(study.data, name, 0, scale.limit)
        y = self.dataset.y_train
        self.fit, self.held_out, self.calibration = split(y, SHARES, derive(0, "vit parts"))
        self.settings = Settings(
            seed=0,
            device=study.device,
            precision=study.precision,
            augment=self.dataset.augment,
            honest="holdout",
            server=self.stage,
            rejector=scale.rejector_stage,
        )
        self.device = pick_device(study.device)
        self._seconds: float | None = None

    @property
    def description(self) -> str:
        """Of the ViT."""
        options = ", ".join(f"{k} {v}" for k, v in self.options.items())
        start = "from scratch" if self.study.vit_weights is None else f"from {self.study.vit_weights.name}"
        return f"a ViT ({options}) trained {start} for {self.stage.epochs} epochs"

    @cached_property
    def server(self) -> nn.Module:
        """Trained once, then kept beside the passes."""
        X, y = self.dataset.X_train, self.dataset.y_train
        context = Context(self.settings, self.device, progress=self.study.progress)
        with seeded(self.device, 0, "server"):
            scale = input_scale(X[self.fit], self.settings)
            net = build_scaled("vit", self.dataset.input_shape, self.dataset.num_classes, scale, **self.options)
        path = self.study.folder / "passes" / f"{self.name}-vit.safetensors"
        key = {
            "data": digest(X[self.fit], y[self.fit]),
            "options": {k: str(v) for k, v in self.options.items()},
            "stage": {k: str(v) for k, v in vars(self.stage).items()},
            "settings": [self.settings.precision, self.settings.augment, str(self.study.vit_weights)],
        }
        kept = load_checkpoint(path) if path.exists() else None
        if kept is not None and kept.meta.get("key") == key:
            net.load_state_dict(kept.tensors)
            self._seconds = kept.meta["seconds"]
            log.info("%s: the ViT is there already", self.name)
        else:
            if self.study.vit_weights is not None:
                inner = net.net
                assert isinstance(inner, ViT)
                load_pretrained(inner, self.study.vit_weights)
            with repeatable(self.settings, self.device):
                train_classifier("server", net, X[self.fit], y[self.fit], self.stage, context)
            self._seconds = round(sum(row["seconds"] for row in context.history), 1)
            save_checkpoint(path, net.state_dict(), {"key": key, "seconds": self._seconds})
        return net.to(self.device).eval()

    def passes(self, prices: Sequence[Costs]) -> tuple[list[Pass], list[Pass]]:
        """By the paper's recipe and by ours, of every seed."""
        specs = tuple(RejectorSpec(loss, costs) for loss in LOSSES for costs in prices)
        both: tuple[list[Pass], list[Pass]] = ([], [])
        for seed in self.study.seeds:
            lab = replace(self.study.lab(f"{self.name}-vit", seed), about=f"{self.description}; {self.stage}")
            lab.dataset = self.dataset
            both[0].append(lab.keep("published", None, specs, partial(self._published, seed, specs)))
            both[1].append(lab.keep("ours", None, (RejectorSpec(),), partial(self._ours, seed, prices)))
        self.study.note([*both[0], *both[1]])
        return both

    def _published(self, seed: int, specs: tuple[RejectorSpec, ...]) -> dict[int | None, Pass]:
        """Rejectors by L2 on the server's own training samples, by the authors' settings."""
        scale = self.study.scale
        settings = replace(self.settings, seed=seed, augment="none", precision="tf32")
        context = Context(settings, self.device, progress=self.study.progress)
        with repeatable(settings, self.device):
            job = self._job(seed, context, specs)
            shape = self.dataset.input_shape
            job = replace(job, make_rejector=lambda: SeparateRejector(shape, scale=input_scale(job.X, settings)))
            teacher = make_teacher(job, context, self.fit, self.server)
            pool = make_pool(job, context, [teacher], self.fit, distill=0.0)
            rejectors = make_rejectors(job, context, pool.view)
            stage = RejectorStage(
                "rejector",
                rejectors,
                BatchLoss(specs, self.device).on_pool,
                pool,
                replace(PAPER_REJECTOR, epochs=scale.epochs, lr=scale.lr / 10),
                context,
            )
            run_stage(stage, context)

        test, held = (scored_outcomes(job.client, self.server, rejectors, context, *side) for side in self._sides)
        return {None: Pass(specs, test, held, np.zeros((0, len(specs))), self._facts)}

    def _ours(self, seed: int, prices: Sequence[Costs]) -> dict[int | None, Pass]:
        settings = replace(self.settings, seed=seed)
        context = Context(settings, self.device, progress=self.study.progress)
        with repeatable(settings, self.device):
            job = self._job(seed, context, [RejectorSpec()])
            teacher = make_teacher(job, context, self.held_out, self.server)
            outcome = ServerOutcome([self.server], [[teacher]], self.fit)
            bench = Bench(job, context, prices, self._sides[1], self.study.scale.rejector_options, outcome)
            rule = PricedAttached().fit(bench)

        test, held = (priced_outcomes(bench, rule, *side) for side in self._sides)
        return {None: Pass((RejectorSpec(),), test, held, np.zeros((0, 1)), self._facts)}

    @property
    def _facts(self) -> dict[str, Any]:
        return {"hardware": hardware(self.study.device), "server_seconds": self._seconds}

    def _job(self, seed: int, context: Context, specs: Sequence[RejectorSpec]) -> Job:
        X, y = self.dataset.X_train, self.dataset.y_train
        plain = replace(context, settings=replace(context.settings, augment="none", precision="fp32"))
        client = train_client(self.dataset, self.fit, seed, self.study.scale, plain)
        system = HelpSystem(
            client=client,
            server="vit",
            rejector="attached",
            settings=context.settings,
            class_names=self.dataset.class_names,
            dataset=self.name,
            server_options=self.options,
            rejector_options=self.study.scale.rejector_options,
        )
        return system.prepare(X, y, specs=specs, held_out_rows=self.held_out)

    @property
    def _sides(self) -> list[tuple[Any, Labels]]:
        """X and y of the test set, and of the calibration samples."""
        data, held = self.dataset, self.calibration
        return [(data.X_test, data.y_test), (data.X_train[held], data.y_train[held])]
