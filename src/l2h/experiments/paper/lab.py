"""The laboratory: one data set and one seed, with what the experiments of the paper share.

The server's loss knows no costs, so one server training serves every cell, and all rejectors train beside it in the
same pass. Two such passes are kept as files and never run again: by the paper's recipe, and by ours.
"""

import logging
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from l2h.classifiers import UNIT_RANGE, Classifier, as_client, unit_range
from l2h.data import Dataset, load_dataset, split
from l2h.decision import RejectorSpec
from l2h.errors import DataError
from l2h.experiments.paper.grid import LOSSES, MAIN, Scale
from l2h.experiments.paper.passes import Labels, Pass, PassOutcomes
from l2h.methods.base import Bench
from l2h.methods.helping import PricedAttached, PricedRule
from l2h.methods.learned import LearnedRule
from l2h.models import build_scaled
from l2h.rows import digest
from l2h.settings import PAPER_SERVER, Settings
from l2h.system import HelpSystem
from l2h.training import Context, Progress, Silent, pick_device, train_classifier
from l2h.training.loop import derive, repeatable, seeded
from l2h.training.recipes import rejector_scores, server_log_probabilities, train_paper
from l2h.training.rejectors import RejectorBatch
from l2h.training.targets import ServerOutcome

log = logging.getLogger("l2h")
CALIBRATION, HELD_OUT = 0.1, 0.2
PLACES = {
    "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10.npz"),
    "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz", "cifar100.npz"),
    "svhn": ("train_32x32.mat", "svhn.npz"),
}
MISSING = 9
#: The team of a client that was fitted to all training images, also those that rejectors are calibrated on.
EVERYTHING = "all"
PRICED = (RejectorSpec(),)
#: The client of a team: the usual one (None), the one that misses a class, or the one fitted to everything.
Team = int | str | None
#: The rejectors that stand beside each client.
Teams = dict[Team, tuple[RejectorSpec, ...]]
Array = npt.NDArray[Any]


@dataclass
class Lab:
    """One data set and one seed."""

    data: str  # the folder of the data sets, or ``digits``
    name: str  # ``cifar10``, ``svhn`` or ``cifar100``
    seed: int
    scale: Scale
    folder: Path  # where passes are kept
    device: str = "auto"
    precision: str = "fp32"  # of our recipe; the paper's runs in tf32
    progress: Progress = field(default_factory=Silent)
    about: str = ""  # what else the passes depend on

    @cached_property
    def dataset(self) -> Dataset:
        return load_named(self.data, self.name, self.seed, self.scale.limit)

    def published(self, missing: int | None = None, specs: Sequence[RejectorSpec] | None = None) -> Pass:
        """By the paper's recipe; ``missing`` is a class that the client never saw.

        Without ``specs`` the rejectors of both clients, with and without that class, train in one pass.
        """
        teams: Teams = self._teams("published") if specs is None else {missing: tuple(specs)}
        settings = self.scale.published_settings(self.seed, self.device)
        return self.keep("published", missing, teams[missing], lambda: self._in_chunks(teams, settings), teams)

    def ours(self, missing: int | None = None) -> Pass:
        """By our recipe: one priced rejector for all prices; likewise for both clients around one server."""
        return self.keep("ours", missing, PRICED, self._help, self._teams("ours"))

    def is_kept(self, recipe: str) -> bool:
        """Return whether the passes by a recipe, ``published`` or ``ours``, are there for both clients."""
        teams = self._teams(recipe).items()
        return all(Pass.load(self._path(recipe, team), self.key(specs)) is not None for team, specs in teams)

    def _teams(self, recipe: str) -> Teams:
        """Return the rejectors that train in one pass: beside the usual client, and beside that without a class."""
        if recipe == "ours":
            return {None: PRICED, MISSING: PRICED}
        cells = tuple(RejectorSpec(loss, MAIN) for loss in LOSSES)
        return {None: tuple(self.scale.specs()), MISSING: cells}

    def _path(self, recipe: str, team: Team) -> Path:
        return self.folder / f"{self.name}-{recipe}{'' if team is None else '-missing'}-{self.seed}.npz"

    def beside(self, teams: Teams, **changes: Any) -> dict[Team, Pass]:
        """Train the rejectors of all teams beside one server, with changes of the recipe's settings; keep nothing."""
        return self._in_chunks(teams, replace(self.scale.published_settings(self.seed, self.device), **changes))

    def keep(
        self,
        recipe: str,
        missing: int | None,
        specs: tuple[RejectorSpec, ...],
        make: Callable[[], dict[Team, Pass]],
        teams: Teams | None = None,
    ) -> Pass:
        """The pass that is there, or the one that ``make`` gives; whatever it gives is kept."""
        kept = Pass.load(self._path(recipe, missing), self.key(specs))
        if kept is not None:
            log.info("%s: seed %d by recipe %s is there already", self.name, self.seed, recipe)
            return kept
        made = make()
        for team, one in made.items():
            its = self.key((teams or {missing: specs})[team])
            path = self._path(recipe, team)
            if team == missing or Pass.load(path, its) is None:
                one.save(path, its)
        return made[missing]

    def key(self, specs: Sequence[RejectorSpec]) -> dict[str, Any]:
        """Return what the outcomes of these rejectors depend on."""
        data = self.dataset
        return {
            "data": digest(data.X_train, data.y_train, data.X_test, data.y_test),
            "seed": self.seed,
            # What concerns the ViT alone is in ``about`` where there is one.
            "scale": {k: str(v) for k, v in vars(self.scale).items() if not k.startswith("vit_")},
            "specs": [spec.as_dict() for spec in specs],
            "precision": self.precision,
            "about": self.about,
        }

    def parts(self) -> tuple[Labels, Labels]:
        """Rows to train on, and rows for calibration alone: the paper calibrates on the test set, we do not."""
        train, calibration = split(self.dataset.y_train, (1 - CALIBRATION, CALIBRATION), derive(self.seed, "parts"))
        return train, calibration

    def _samples(self) -> list[tuple[Array, Labels]]:
        """X and y to train on, and for calibration."""
        return [(self.dataset.X_train[rows], self.dataset.y_train[rows]) for rows in self.parts()]

    def held_out_rows(self) -> Labels:
        """Which of the rows to train on, by their place among them, the client is not fitted to, nor our server."""
        train = self.parts()[0]
        return split(self.dataset.y_train[train], (1 - HELD_OUT, HELD_OUT), derive(self.seed, "honest"))[1]

    def client(self, context: Context, team: Team) -> Classifier:
        """LeNet-5 by the authors' settings, the same for both recipes, without the class that a number names."""
        rows = np.delete(self.parts()[0], self.held_out_rows())
        if team == EVERYTHING:
            rows = np.arange(len(self.dataset.y_train))
        elif team is not None:
            rows = rows[self.dataset.y_train[rows] != team]
        return train_client(self.dataset, rows, self.seed, self.scale, context)

    def _in_chunks(self, teams: Teams, settings: Settings) -> dict[Team, Pass]:
        """All rejectors in one pass or, where the GPU's memory is too small for that, in halves.

        Nothing changes but the time: the server's training does not depend on the rejectors beside it.
        """
        try:
            return self._publish(teams, settings)
        except torch.OutOfMemoryError:
            if sum(map(len, teams.values())) == 1:
                raise
        torch.cuda.empty_cache()
        everyone = [(team, spec) for team, specs in teams.items() for spec in specs]
        half = (len(everyone) + 1) // 2
        log.warning("%d rejectors do not fit into the GPU's memory: %d and then the rest", len(everyone), half)
        out: dict[Team, Pass] = {}
        for part in (everyone[:half], everyone[half:]):
            chunk = {team: tuple(s for t, s in part if t == team) for team in dict.fromkeys(t for t, _ in part)}
            for team, one in self._in_chunks(chunk, settings).items():
                out[team] = out[team].joined(one) if team in out else one
        return out

    def _publish(self, teams: Teams, settings: Settings) -> dict[Team, Pass]:
        """Algorithms 1 and 2, the rejectors of all teams beside one server."""
        context = self._context(settings)
        (X, y), held = self._samples()
        specs = [spec for team in teams.values() for spec in team]
        clients = {team: self.client(context, team) for team in teams}
        # A separate rejector sees nothing of its client, so any client's job tells how the nets are made.
        job = self._system(next(iter(clients.values())), "separate", settings, {}).prepare(X, y, specs=specs)
        correct = {team: clients[team].answers(X, job.num_classes).label == y for team in teams}
        right = [correct[team] for team, own in teams.items() for _ in own]
        with repeatable(settings, context.device):
            trained = train_paper(job, context, np.stack(right))
        (server,) = trained.servers
        assert isinstance(server, nn.Module)
        rows = [row for row in context.history if row.get("rejector_loss") is not None]
        columns = [f"rejector_loss_{i}" for i in range(len(specs))] if len(specs) > 1 else ["rejector_loss"]
        losses = np.array([[float(row[column]) for column in columns] for row in rows])
        data, facts = self.dataset, self._facts(context.history)
        judges = [(str(spec.sync), spec.dropout) for spec in specs]
        judged = [rows[-1][f"server_right_{list(dict.fromkeys(judges)).index(judge)}"] for judge in judges]

        out: dict[Team, Pass] = {}
        start = 0
        for team, own in teams.items():
            chosen = slice(start, start + len(own))
            test, calibration = (
                scored_outcomes(clients[team], server, trained.rejectors, context, *side)
                for side in ((data.X_test, data.y_test), held)
            )
            known = facts | {"server_right": judged[chosen]}
            out[team] = Pass(own, test.only(chosen), calibration.only(chosen), losses[:, chosen], known)
            start = chosen.stop
        return out

    def _help(self) -> dict[Team, Pass]:
        """Our recipe around one server, for the client with all classes and the one without."""
        settings = Settings(
            seed=self.seed,
            device=self.device,
            precision=self.precision,
            augment=self.dataset.augment,
            honest="holdout",
            server=self.scale.server_stage,
            rejector=self.scale.rejector_stage,
        )
        context = self._context(settings)
        data = self.dataset
        (X, y), held = self._samples()
        out: dict[Team, Pass] = {}
        outcome: ServerOutcome | None = None
        teams = (None, MISSING) if data.num_classes > MISSING else (None,)
        clients = {team: self.client(context, team) for team in teams}
        with repeatable(settings, context.device):
            for team, client in clients.items():
                system = self._system(client, "attached", settings, self.scale.rejector_options)
                job = system.prepare(X, y, specs=PRICED, held_out_rows=self.held_out_rows())
                bench = Bench(job, context, (MAIN,), held, self.scale.rejector_options, outcome)
                outcome = bench.outcome
                rule = PricedAttached().fit(bench)
                test, calibration = (priced_outcomes(bench, rule, *side) for side in ((data.X_test, data.y_test), held))
                sizes = rule.facts(bench.outcomes(data.X_test[:1], data.y_test[:1]).inputs, data.y_test[:1])
                out[team] = Pass(PRICED, test, calibration, np.zeros((0, 1)), self._facts(context.history) | sizes)
        return out

    def _system(self, client: Classifier, rejector: str, settings: Settings, options: dict[str, Any]) -> HelpSystem:
        return HelpSystem(
            client=client,
            server=self.scale.server,
            rejector=rejector,
            settings=settings,
            class_names=self.dataset.class_names,
            dataset=self.name,
            server_options=self.scale.server_options,
            rejector_options=options,
        )

    def _context(self, settings: Settings) -> Context:
        return Context(settings, pick_device(settings.device), progress=self.progress)

    def _facts(self, history: Sequence[dict[str, Any]]) -> dict[str, Any]:
        seconds: dict[str, float] = {}
        for row in history:
            seconds[row["stage"]] = round(seconds.get(row["stage"], 0.0) + float(row["seconds"]), 3)
        return {"seconds": seconds, "hardware": hardware(self.device)}


def hardware(device: str) -> str:
    """What a training runs on, in words."""
    where = pick_device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else f"{platform.machine()} CPU"
    return f"{name}, torch {torch.__version__}"


def priced_outcomes(bench: Bench, rule: LearnedRule, X: Array, y: Labels) -> PassOutcomes:
    """What a bench's client and server and a priced rule make of samples."""
    assert isinstance(rule, PricedRule)
    found = bench.outcomes(X, y)
    probability = rule.judgement(found.inputs, bench.costs[0]).probability
    assert probability is not None
    heads = probability[None].astype(np.float32)
    return PassOutcomes(y, found.client.label, found.server_log_probability.argmax(axis=1), heads)


def scored_outcomes(
    client: Classifier, server: nn.Module, rejectors: RejectorBatch, context: Context, X: Array, y: Labels
) -> PassOutcomes:
    """What a client, a server and rejectors by the paper's recipe make of samples."""
    log_probabilities = server_log_probabilities(server, X, context)
    answers = client.answers(X, log_probabilities.shape[1])
    scores = rejector_scores(rejectors, X, answers, context)
    return PassOutcomes(y, answers.label, log_probabilities.argmax(axis=1), scores)


def train_client(dataset: Dataset, rows: Labels, seed: int, scale: Scale, context: Context) -> Classifier:
    """LeNet-5 by the authors' settings on some rows of the training set.

    It is the same client for every recipe: trained without augmentation and in single precision, whatever theirs.
    """
    plain = replace(context, settings=replace(context.settings, augment="none", precision="fp32"))
    settings = replace(PAPER_SERVER, epochs=scale.client_epochs, lr=scale.lr)
    with repeatable(plain.settings, context.device):
        with seeded(context.device, seed, "client"):
            net = build_scaled("lenet5", dataset.input_shape, dataset.num_classes)
        train_classifier("client", net, unit_range(dataset.X_train[rows]), dataset.y_train[rows], settings, plain)
    return as_client(net, preprocessing=UNIT_RANGE if dataset.X_train.dtype == np.uint8 else None)


def load_named(data: str, name: str, seed: int, limit: int | None) -> Dataset:
    """A data set of the experiments from a folder, or the bundled digits in its place; raises as :func:`find_named`."""
    return load_dataset(find_named(data, name), seed=seed, limit=limit, stream=False).numbered()


def find_named(data: str, name: str) -> str:
    """Return where a folder has a data set, as :func:`l2h.load_dataset` takes it."""
    if data == "digits":
        return data
    if not Path(data).is_dir():
        raise DataError(f"--data {data}: there is no such folder; it holds cifar10, svhn and cifar100")
    places = [Path(data) / name, *(Path(data) / other for other in PLACES[name])]
    for place in places:
        if place.exists() or find_beside(place):
            return str(place)
    raise DataError(
        f"{data} has no {name}: put there {name}-train.parquet and {name}-test.parquet (Hugging Face's image layout), "
        f"or {' or '.join(PLACES[name])} as published; or run on the bundled digits with --data digits --quick"
    )


def find_beside(place: Path) -> bool:
    """Return whether a data set lies there as Hugging Face's pair of files."""
    return place.with_name(f"{place.name}-train.parquet").exists()
