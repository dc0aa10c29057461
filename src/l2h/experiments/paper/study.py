"""What every experiment of the paper is given, and what it gives back."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from l2h.experiments.paper.grid import Scale
from l2h.experiments.paper.lab import Lab
from l2h.experiments.paper.passes import UNPRINTED, Cell, Pass, cell
from l2h.training import Progress, Silent


@dataclass(frozen=True)
class Drawing:
    """A picture to be drawn: by the plot of this name, from these data."""

    plot: str
    data: Any


@dataclass
class Experiment:
    """One experiment's result."""

    name: str  # of the command
    title: str  # for people
    question: str  # what it asks
    findings: list[str] = field(default_factory=list)  # sentences made from the numbers
    errata: list[str] = field(default_factory=list)  # what the paper or its code says otherwise
    sections: list[dict[str, Any]] = field(default_factory=list)  # tables, texts and plots in their order
    drawings: dict[str, Drawing] = field(default_factory=dict)  # the plots' files
    datasets: tuple[str, ...] | None = None  # it ran on; None for all of the study

    def table(
        self, name: str, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str | None = None
    ) -> None:
        content = {"columns": list(columns), "rows": [list(row) for row in rows], "note": note, "best": None}
        self.sections.append({"kind": "table", "name": name, "title": title, **content})

    def plot(self, file: str, title: str, drawing: Drawing, note: str | None = None) -> None:
        self.sections.append({"kind": "plot", "title": title, "file": file, "alt": title, "note": note})
        self.drawings[file] = drawing

    def text(self, text: str) -> None:
        self.sections.append({"kind": "text", "text": text})


@dataclass(frozen=True)
class Study:
    """Data, seeds and size."""

    data: str  # folder of the data sets, or ``digits``
    sets: tuple[str, ...]  # names of the data sets for the experiments on CIFAR-10 and SVHN
    seeds: tuple[int, ...]  # numbers
    scale: Scale  # full or quick
    folder: Path  # of all results
    device: str = "auto"  # as in :class:`l2h.Settings`
    precision: str = "fp32"  # of our recipe
    progress: Progress = field(default_factory=Silent)
    vit_weights: Path | None = None  # a safetensors file for the ViT; None trains it from scratch
    hardware: set[str] = field(default_factory=set)  # what the passes seen so far were trained on

    def lab(self, name: str, seed: int) -> Lab:
        passes = self.folder / "passes"
        return Lab(self.data, name, seed, self.scale, passes, self.device, self.precision, self.progress)

    def published(self, name: str, **options: Any) -> list[Pass]:
        """The pass by the paper's recipe, of every seed."""
        return self.note([self.lab(name, seed).published(**options) for seed in self.seeds])

    def ours(self, name: str, **options: Any) -> list[Pass]:
        """The pass by our recipe, of every seed."""
        return self.note([self.lab(name, seed).ours(**options) for seed in self.seeds])

    def note(self, passes: list[Pass]) -> list[Pass]:
        """The same passes, what they were trained on noted."""
        self.hardware.update(one.facts["hardware"] for one in passes if "hardware" in one.facts)
        return passes


def printed(table: str) -> list[dict[str, str]]:
    """The rows of one of the paper's tables."""
    text = (files(__package__) / "tables" / f"{table}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def printed_share(text: str) -> Cell:
    """A percentage as the paper prints it, as a fraction; without a number where it prints none."""
    return {"mean": float(text) / 100, "sem": None, "percent": True} if text else cell([], why=UNPRINTED)


def title_of(dataset: str) -> str:
    """A data set's name as people write it."""
    return {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}.get(dataset, dataset)


#: What the paper or its code says otherwise, for every experiment that trains by its recipe.
ERRATA = (
    "The authors' released code weighs the REMOTE term of L2 with 1 - c_e + c_1 1[e != y]: the sign of c_1 is reversed "
    "against the paper, so that it rewards sending what the server gets wrong. The rows of the released loss are "
    "trained by that, all others of the paper's recipe by L2 as the paper prints it.",
    "Where c_e + c_1 > 1 the paper's L2 has a negative weight on samples that the server gets wrong and no lower "
    "bound: its rejector can run off to infinity. A cell that did is shown as n/a, beside the bounded form with the "
    "same Bayes rule.",
    "The authors' scripts never switch the server's dropout off, so there L2 learns from answers that dropout changes. "
    "Here 1[e = y] in L2 is judged with dropout off, as the server is when it answers.",
)
