"""``l2h paper``: the experiments of the paper, one command each."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from l2h.cli.options import On, Texts, takes_groups
from l2h.cli.output import command_line, log, make_console, print_json


@dataclass(frozen=True)
class PaperOptions:
    """Which experiments, on what, and where the results go."""

    name: Annotated[
        str,
        Argument(
            help="tradeoff, contrastive, async, brr, gallery, missing-class, cifar100-vit, reproduce, or all.",
            show_default=False,
        ),
    ]
    data: Annotated[
        str,
        Option(
            "--data",
            "-d",
            help="The folder with cifar10, svhn and cifar100; or one of them, as data/cifar10; or digits, to try it "
            "out with --quick.",
        ),
    ]
    dataset: Annotated[
        Texts, Option("--dataset", help="Only this data set; repeat for several. (default: cifar10 and svhn)")
    ] = None
    quick: Annotated[
        bool, Option("--quick", help="A small version: few images, small nets, few prices; minutes on a CPU.")
    ] = False
    seeds: Annotated[int, Option(help="How many seeds.")] = 3
    out: Annotated[Path, Option("--out", "-o", help="The folder.")] = Path("runs/paper")
    vit_weights: Annotated[
        Path | None,
        Option(help="cifar100-vit: a .safetensors file to start the ViT from, of any size. (default: from scratch)"),
    ] = None
    device: Annotated[str, Option(help="auto, cpu, cuda, cuda:1.")] = "auto"
    precision: Annotated[str, Option(help="Of our recipe: fp32, tf32 or bf16. The paper's runs in tf32.")] = "fp32"
    on: On = None
    as_json: Annotated[bool, Option("--json", help="Print the results as JSON.")] = False


@takes_groups
def paper(options: PaperOptions) -> None:
    """Repeat the paper's experiments: its figures, ours by its recipe, and ours by our recipe, side by side.

    Trainings are kept under OUT/passes and shared by the experiments; after an interruption the same command goes on
    with what is there.

    Example: [bold]l2h paper contrastive --data data --out runs/paper[/]

    "reproduce" trains by what the paper prints, by what its authors' code computes and by each deviation between them,
    and ranks these by their distance from the printed tables.

    Example: [bold]l2h paper reproduce --data data/cifar10[/]

    Example: [bold]l2h paper all --data digits --quick[/]

    Example: [bold]l2h paper all --data data --on ray://head:10001 --device cuda --out runs/paper[/]
    """
    from l2h.cli.bars import training_progress
    from l2h.experiments.paper.distributed import train_on_cluster
    from l2h.experiments.paper.repeating import EXPERIMENTS, experiment_values, gather_results, make_study
    from l2h.report import experiment_tables, write_experiment, write_overview

    experiments, study = make_study(
        options.name,
        options.data,
        options.dataset or [],
        options.seeds,
        options.out,
        quick=options.quick,
        device=options.device,
        precision=options.precision,
        vit_weights=options.vit_weights,
    )
    if options.on is not None:
        study = train_on_cluster(options.on, experiments, study)
    results = []
    with training_progress() as progress:
        study = replace(study, progress=progress)
        for name in experiments:
            experiment = EXPERIMENTS[name](study)
            folder = options.out / name
            results.append(experiment_values(experiment, study, command_line()))
            log.info("%s: %s", name, write_experiment(results[-1], folder, experiment.drawings))
    pages = write_overview(gather_results(options.out, results), options.out)
    if options.as_json:
        print_json(results)
        return
    console = make_console()
    for result in results:
        for table in experiment_tables(result):
            console.print(table)
        for sentence in result["findings"]:
            console.print(sentence, markup=False)
    log.info("All of it: %s", ", ".join(map(str, pages)))
