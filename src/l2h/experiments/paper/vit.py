"""CIFAR-100 with a ViT as the server, over the paper's grid of 28 prices.

The paper fine-tunes a pre-trained ViT-B/16. Where no weights are given a smaller ViT is trained from scratch and stands
in. It is trained once and shared by all seeds, which draw the client and the rejectors: its loss knows nothing of them.
The rejectors of the paper's recipe train beside it, step by step; ours train after it.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2h.classifiers import Classifier
from l2h.costs import Costs
from l2h.data import Dataset, split
from l2h.decision import RejectorSpec
from l2h.experiments.paper.grid import LOSSES, OURS, PAPER, PUBLISHED, RECIPES
from l2h.experiments.paper.lab import Team, hardware, load_named, priced_outcomes, scored_outcomes, train_client
from l2h.experiments.paper.passes import Labels, Pass, column, over_seeds, price_curve, trivial_curves
from l2h.experiments.paper.study import ERRATA, Drawing, Experiment, Study, printed, printed_share, title_of
from l2h.methods.base import Bench
from l2h.methods.helping import PricedAttached
from l2h.models import ViT, build_scaled, load_pretrained, pretrained_options
from l2h.models.rejectors import SeparateRejector
from l2h.rows import digest
from l2h.settings import PAPER_REJECTOR, Settings
from l2h.system import HelpSystem
from l2h.training import Context, Job, RejectorBatch, pick_device
from l2h.training.checkpoint import load_checkpoint, save_checkpoint
from l2h.training.job import input_scale
from l2h.training.loop import derive, repeatable, run_stage, seeded
from l2h.training.rejector_stage import RejectorStep
from l2h.training.server import ServerStage
from l2h.training.streaming import pick
from l2h.training.targets import ServerOutcome, make_teacher

log = logging.getLogger("l2h")
#: How the paper's recipe is followed; kept passes of another way are made again.
BESIDE = "rejectors beside the server"
#: Shares of the training set: to fit client and server to, for the rejector to learn from, to calibrate on.
SHARES = (0.85, 0.09, 0.06)


def run_vit(study: Study) -> Experiment:
    """The ViT, then a client and the rejectors for every seed."""
    out = Experiment(
        "cifar100-vit",
        "CIFAR-100 with a ViT server",
        "At which prices does a weak client gain from asking a strong server, and does the rejector know?",
        errata=[
            *ERRATA,
            "At c_1 = 4, c_e = 0.2 the paper prints a joint accuracy of 60.4 where 87.9 follows from its own columns.",
        ],
    )
    name = vit_data(study)
    out.datasets = (name,)
    lab = VitLab(study, name)
    prices = printed_prices()
    published, ours = lab.passes(prices)
    recipes = {label: (published, loss) for label, loss in RECIPES.items()} | {OURS: (ours, "priced")}
    risks, shares, worse, lost = [], [], 0, 0
    for costs in prices:
        cells = {label: over_seeds(passes, loss, costs) for label, (passes, loss) in recipes.items()}
        theirs, price = printed_cell(costs), [f"{costs.c_1:g}", f"{costs.c_e:g}"]
        risk, best = column(cells[OURS], "risk"), [min(r["all_local"], r["all_remote"]) for r in cells[OURS]]
        bad = risk["mean"] > float(np.mean(best)) + (risk["sem"] or 0.0)
        worse += bad
        lost += len(published) - len(cells[PAPER])
        risks.append(
            [*price, theirs["risk"], theirs["trivial"], *(column(cells[label], "risk") for label in RECIPES)]
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
        f"The server: {lab.description} in {seconds:.0f} s by the clock, beside it the rejectors of the paper's "
        f"recipe, which take a step after each of its own; right on {100 * server:.1f}% of the test "
        f"set, the client on {100 * client:.1f}% (the paper: 88.1% and 27.6%)."
    )
    out.findings.append(
        f"By our recipe {worse} of {len(prices)} prices have a risk above the better of never and always asking by "
        f"more than the standard error; by the paper's own numbers {theirs_worse} of {len(prices)} are above it."
    )
    out.findings.append(f"Of {len(prices) * len(published)} rejectors by the paper's L2 {lost} diverged.")
    return out


def vit_data(study: Study) -> str:
    """Return the name of the data set that the ViT is for."""
    return "digits" if study.data == "digits" else "cifar100"


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
        self._clients: dict[int, Classifier] = {}

    @property
    def description(self) -> str:
        """Of the ViT."""
        options = ", ".join(f"{k} {v}" for k, v in self.options.items())
        start = "from scratch" if self.study.vit_weights is None else f"from {self.study.vit_weights.name}"
        return f"a ViT ({options}) trained {start} for {self.stage.epochs} epochs"

    @cached_property
    def server(self) -> nn.Module:
        """The ViT, trained once and then kept beside the passes."""
        net = self._untrained()
        kept = load_checkpoint(self._path) if self._path.exists() else None
        if kept is not None and kept.meta.get("key") == self._key:
            net.load_state_dict(kept.tensors)
            self._seconds = kept.meta["seconds"]
            log.info("%s: the ViT is there already", self.name)
            return net.eval()
        return self._train(ServerStage("server", net, *self._samples, self.stage, self._context(0)))

    def passes(self, prices: Sequence[Costs]) -> tuple[list[Pass], list[Pass]]:
        """By the paper's recipe and by ours, of every seed."""
        specs = tuple(RejectorSpec(loss, costs) for loss in LOSSES for costs in prices)
        everyone = cache(partial(self._published, specs))

        def published(seed: int) -> dict[Team, Pass]:
            return {None: everyone()[seed]}

        both: tuple[list[Pass], list[Pass]] = ([], [])
        for seed in self.study.seeds:
            lab = replace(self.study.lab(f"{self.name}-vit", seed), about=f"{self.description}; {self.stage}; {BESIDE}")
            lab.dataset = self.dataset
            both[0].append(lab.keep("published", None, specs, partial(published, seed)))
            both[1].append(lab.keep("ours", None, (RejectorSpec(),), partial(self._ours, seed, prices)))
        self.study.note([*both[0], *both[1]])
        return both

    def client(self, seed: int) -> Classifier:
        """The client of a seed, the same for both recipes."""
        if seed not in self._clients:
            self._clients[seed] = train_client(self.dataset, self.fit, seed, self.study.scale, self._context(seed))
        return self._clients[seed]

    def _published(self, specs: tuple[RejectorSpec, ...]) -> dict[int, Pass]:
        """The rejectors of all seeds beside one training of the server, on its own samples and inputs in [-1, 1].

        They take as large a step for the mean loss of a batch as the authors' rejector, on the server's larger batches.
        """
        scale, seeds = self.study.scale, self.study.seeds
        settings = replace(self.settings, augment="none", precision="fp32", recipe="paper", loss="paper")
        context = Context(settings, self.device, progress=self.study.progress)
        X, y = self.dataset.X_train[self.fit], self.dataset.y_train[self.fit]
        inputs = input_scale(X, settings)
        modules, right = [], []
        for seed in seeds:
            right += [self.client(seed).answers(X, self.dataset.num_classes).label == y] * len(specs)
            for spec in specs:
                with seeded(self.device, seed, "rejector", spec.seed):
                    modules.append(SeparateRejector(self.dataset.input_shape, scale=copy.deepcopy(inputs)))
        rejectors = RejectorBatch(modules, self.device)
        stage = BesideStage("server", self._untrained(), *self._samples, self.stage, self._context(0))
        lr = scale.lr / 10 * 16 / stage.batch  # the authors' batches have 16
        step = RejectorStep(rejectors, specs * len(seeds), replace(PAPER_REJECTOR, lr=lr), context)
        stage.rejectors, stage.client_correct = step, torch.from_numpy(np.stack(right)).to(self.device)
        self.server = self._train(stage)
        out = {}
        for k, seed in enumerate(seeds):
            test, held = (
                scored_outcomes(self.client(seed), self.server, rejectors, context, *side).only(
                    slice(k * len(specs), (k + 1) * len(specs))
                )
                for side in self._sides
            )
            out[seed] = Pass(specs, test, held, np.zeros((0, len(specs))), self._facts)
        return out

    def _ours(self, seed: int, prices: Sequence[Costs]) -> dict[Team, Pass]:
        context, client = self._context(seed), self.client(seed)
        with repeatable(context.settings, self.device):
            job = self._job(client, context)
            teacher = make_teacher(job, context, self.held_out, self.server)
            outcome = ServerOutcome([self.server], [[teacher]], self.fit)
            bench = Bench(job, context, prices, self._sides[1], self.study.scale.rejector_options, outcome)
            rule = PricedAttached().fit(bench)

        test, held = (priced_outcomes(bench, rule, *side) for side in self._sides)
        return {None: Pass((RejectorSpec(),), test, held, np.zeros((0, 1)), self._facts)}

    def _untrained(self) -> nn.Module:
        """The ViT before its training; from the weights of the user's file where there is one."""
        with seeded(self.device, 0, "server"):
            scale = input_scale(self.dataset.X_train[self.fit], self.settings)
            net = build_scaled("vit", self.dataset.input_shape, self.dataset.num_classes, scale, **self.options)
        if self.study.vit_weights is not None:
            inner = net.net
            assert isinstance(inner, ViT)
            load_pretrained(inner, self.study.vit_weights)
        return net.to(self.device)

    def _train(self, stage: ServerStage) -> nn.Module:
        """Train the server by a stage, keep it, and return it."""
        with repeatable(self.settings, self.device):
            run_stage(stage, stage.context)
        stage.keep_best()
        self._seconds = round(sum(row["seconds"] for row in stage.context.history), 1)
        save_checkpoint(self._path, stage.model.state_dict(), {"key": self._key, "seconds": self._seconds})
        return stage.model.eval()

    @property
    def _path(self) -> Path:
        return self.study.folder / "passes" / f"{self.name}-vit.safetensors"

    @property
    def _key(self) -> dict[str, Any]:
        """What the server's weights depend on."""
        return {
            "data": digest(self.dataset.X_train[self.fit], self.dataset.y_train[self.fit]),
            "options": {k: str(v) for k, v in self.options.items()},
            "stage": {k: str(v) for k, v in vars(self.stage).items()},
            "settings": [self.settings.precision, self.settings.augment, str(self.study.vit_weights)],
        }

    @property
    def _samples(self) -> tuple[Tensor, Tensor]:
        """What the server is fitted to, on the device."""
        X, y = (torch.from_numpy(a[self.fit]).to(self.device) for a in (self.dataset.X_train, self.dataset.y_train))
        return X, y

    def _context(self, seed: int) -> Context:
        return Context(replace(self.settings, seed=seed), self.device, progress=self.study.progress)

    @property
    def _facts(self) -> dict[str, Any]:
        return {"hardware": hardware(self.study.device), "server_seconds": self._seconds}

    def _job(self, client: Classifier, context: Context) -> Job:
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
        X, y = self.dataset.X_train, self.dataset.y_train
        return system.prepare(X, y, specs=[RejectorSpec()], held_out_rows=self.held_out)

    @property
    def _sides(self) -> list[tuple[Any, Labels]]:
        """X and y of the test set, and of the calibration samples."""
        data, held = self.dataset, self.calibration
        return [(data.X_test, data.y_test), (data.X_train[held], data.y_train[held])]


class BesideStage(ServerStage):
    """Trains a server by its own recipe and, after each of its steps, rejectors by L2 on the same samples unchanged."""

    rejectors: RejectorStep
    client_correct: Tensor  # bool (R, n)

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.rejectors.begin_epoch(self.epoch)

    def train_batch(self, chosen: Tensor, read: Tensor | None = None) -> Tensor:
        loss = super().train_batch(chosen, read)
        x = pick(self.x, chosen, read)
        self.model.eval()
        with torch.no_grad(), self.context.autocast():
            correct = self.model(x).argmax(-1) == self.y[chosen]
        self.model.train()
        self.rejectors.update(x, x.flatten(1), self.client_correct[:, chosen], correct)  # they read no view
        return loss
