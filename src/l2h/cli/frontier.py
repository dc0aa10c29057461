"""``l2h frontier``: what a rejector is worth against what it costs the device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from l2h.cli.options import StudyOptions, Texts, run_option, takes_groups
from l2h.cli.output import command_line, log, print_summary


@dataclass(frozen=True)
class FrontierOptions(StudyOptions):
    """What is measured, on what, and where it goes."""

    budgets: Annotated[
        Texts,
        Option(
            "--budget",
            "-b",
            help="What the rejector may cost: 0.3 (times the client's multiply-adds), 200k (multiply-adds) or 50us "
            "(time here); repeat. (default: 0, 0.1, 0.3, 1, 3 and 10)",
        ),
    ] = None
    rivals: Annotated[Texts, Option("--rivals", help="Selective query and AppealNet too, at this budget; repeat.")] = (
        None
    )
    part: Annotated[
        str,
        Option(
            "--test-part",
            help="What is measured on: validation (a tenth of the training samples; for choosing) or test (once, when "
            "every choice is made).",
        ),
    ] = "validation"
    out: Annotated[Path, run_option("--out", "-o", help="The folder.")] = Path("runs/frontier")
    rows: Annotated[
        list[Path] | None,
        run_option(
            "--rows", help="Measure nothing: draw the rows of this frontier.csv; repeat to join those of several calls."
        ),
    ] = None
    server: Annotated[
        str | None, Option("--server", "-e", help="As in l2h train. (default: alexnet; digits: lenet5)")
    ] = None
    force: Annotated[bool, run_option("--force", help="Replace the frontier that is in the folder.")] = False
    as_json: Annotated[bool, run_option("--json", help="Print frontier.json.")] = False


@takes_groups
def frontier(options: FrontierOptions) -> None:
    """Measure what a rejector is worth against what it costs the device, over budgets and seeds.

    Beside it: a threshold on confidence, the second opinion, the student alone, and a net in the client's place. Rows
    that the folder holds are kept: the same command goes on where it was broken off.

    Example: [bold]l2h frontier --data data/cifar10 --client legacy.onnx --budget 0.3 --budget 1 --out runs/afford[/]

    Example: [bold]l2h frontier --data data/cifar10 --rivals 0.3 --rivals 1 --test-part test --out runs/final[/]

    Example: [bold]l2h frontier --rows runs/a/frontier.csv --rows runs/b/frontier.csv --out runs/both[/]
    """
    from l2h.experiments.frontier.rows import read_rows, summarise
    from l2h.report import frontier_table, write_frontier

    summary = summarise(read_rows(options.rows), command_line()) if options.rows else _measure(options)
    picture = write_frontier(summary, options.out)
    print_summary(summary, options.as_json, [frontier_table(summary)])
    if not options.as_json:
        log.info("The picture: %s", picture)


def _measure(options: FrontierOptions) -> dict[str, object]:
    from l2h.cli.bars import training_progress
    from l2h.experiments.frontier.study import BUDGETS, FrontierStudy, measure_frontier

    study = FrontierStudy(
        options.plan(sized=True, server=options.server),
        options.all_seeds,
        budgets=tuple(options.budgets or BUDGETS),
        rivals=tuple(options.rivals or ()),
        part=options.part,
    )
    with training_progress() as progress:
        return measure_frontier(
            study, options.out, progress, augment=options.augment, command=command_line(), force=options.force
        )
