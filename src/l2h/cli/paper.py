"""``l2h paper``: the experiments of the paper, one command each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from l2h.errors import RunError, SettingsError, UnknownNameError
from l2h.settings import Settings

if TYPE_CHECKING:
    from l2h.experiments.paper import Experiment, Study

SETS, VIT = ("cifar10", "svhn"), "cifar100-vit"


def paper(
    name: Annotated[
        str,
        typer.Argument(
            help="tradeoff, contrastive, async, brr, gallery, missing-class, cifar100-vit, or all.", show_default=False
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", help="The folder with cifar10, svhn and cifar100; or digits, to try it out with --quick."
        ),
    ],
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Only this data set; repeat for several. (default: cifar10 and svhn)"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: few images, small nets, few prices; minutes on a CPU.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder.")] = Path("runs/paper"),
    vit_weights: Annotated[
        Path | None,
        typer.Option(
            help="cifar100-vit: a .safetensors file to start the ViT from, of any size. (default: from scratch)"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Of our recipe: fp32, tf32 or bf16. The paper's runs in tf32.")
    ] = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Repeat the paper's experiments: its figures, ours by its recipe, and ours by our recipe, side by side.

    Trainings are kept under OUT/passes and shared by the experiments; after an interruption the same command goes on
    with what is there.

    Example: [bold]l2h paper contrastive --data data --out runs/paper[/]

    Example: [bold]l2h paper all --data digits --quick[/]
    """
    from l2h.cli.bars import telling
    from l2h.cli.console import log
    from l2h.cli.output import make_console, print_json
    from l2h.experiments.paper import EXPERIMENTS, Study
    from l2h.experiments.paper.grid import FULL, QUICK
    from l2h.experiments.paper.lab import find_named
    from l2h.report import experiment_tables, write_overview

    chosen = list(EXPERIMENTS) if name == "all" else [name]
    if chosen[0] not in EXPERIMENTS:
        raise UnknownNameError(f"unknown experiment {name!r}; known: {', '.join(EXPERIMENTS)}, all")
    if seeds < 1:
        raise SettingsError(f"--seeds {seeds}: at least 1")
    if data == "digits" and not quick:
        raise SettingsError("the digits stand in for the paper's data only with --quick")
    sets = _sets(data, dataset or [])
    Settings(device=device, precision=precision)  # told before anything is trained, as all that follows
    if out.exists() and not out.is_dir():
        raise RunError(f"{out} is a file: choose a folder with --out")
    if any(one != VIT for one in chosen):
        for one in sets:
            find_named(data, one)
    if VIT in chosen:
        find_named(data, "cifar100")
    results = []
    with telling() as progress:
        study = Study(
            data,
            sets,
            tuple(range(seeds)),
            QUICK if quick else FULL,
            out,
            device,
            precision,
            progress,
            vit_weights,
        )
        for one in chosen:
            experiment = EXPERIMENTS[one](study)
            results.append(_write(experiment, study, quick, out / one))
            log.info("%s: %s", one, out / one / "report.html")
    pages = write_overview(_gathered(out, results), out)
    if as_json:
        print_json(results)
        return
    console = make_console()
    for result in results:
        for table in experiment_tables(result):
            console.print(table)
        for sentence in result["findings"]:
            console.print(sentence, markup=False)
    log.info("All of it: %s", ", ".join(map(str, pages)))


def _sets(data: str, named: list[str]) -> tuple[str, ...]:
    """The data sets of the experiments on CIFAR-10 and SVHN."""
    if data == "digits":
        if named:
            raise SettingsError(f"--dataset {named[0]} goes with a folder of data sets; --data digits is one by itself")
        return ("digits",)
    for one in named:
        if one not in SETS:
            raise UnknownNameError(f"unknown data set {one!r}; known: {', '.join(SETS)}")
        if named.count(one) > 1:
            raise SettingsError(f"--dataset {one} is given twice")
    return tuple(named) or SETS


def _gathered(out: Path, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was run now, and what lies in the folder from before."""
    import json

    from l2h.experiments.paper import EXPERIMENTS

    now = {result["name"]: result for result in results}
    gathered = []
    for name in EXPERIMENTS:
        path = out / name / "experiment.json"
        if name in now:
            gathered.append(now[name])
        elif path.exists():
            gathered.append(json.loads(path.read_text()))
    return gathered


def _write(experiment: Experiment, study: Study, quick: bool, folder: Path) -> dict[str, Any]:
    """Plots, tables and page; gives the plain values."""
    import shlex

    from l2h.experiments.paper.study import SCHEMA
    from l2h.files import write_atomically
    from l2h.report import png, write_experiment

    for file, drawing in experiment.drawings.items():
        write_atomically(folder / file, png(_draw(drawing.plot, drawing.data)))
    values = {
        "schema": SCHEMA,
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "datasets": list(experiment.datasets or study.sets),
        "seeds": list(study.seeds),
        "quick": quick,
        "command": shlex.join(["l2h", *sys.argv[1:]]),
        "hardware": "; ".join(sorted(study.hardware)),
        "settings": {key: str(value) for key, value in vars(study.scale).items()},
        "findings": experiment.findings,
        "errata": experiment.errata,
        "sections": experiment.sections,
    }
    write_experiment(values, folder)
    return values


def _draw(plot: str, data: Any) -> Any:
    from l2h.report import plot_samples
    from l2h.report.paper import plots as paper_plots

    if plot == "samples":
        return plot_samples(data["report"], data["images"], seed=data["seed"])
    drawn: dict[str, Callable[..., Any]] = {
        "tradeoff": paper_plots.plot_tradeoff,
        "risk": paper_plots.plot_risk_curves,
        "losses": paper_plots.plot_losses,
        "bounds": paper_plots.plot_bounds,
        "per_class": paper_plots.plot_per_class,
    }
    return drawn[plot](**data)
