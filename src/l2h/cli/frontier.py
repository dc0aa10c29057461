"""``l2h frontier``: what a rejector is worth against what it costs the device."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from l2h.cli import options as shared
from l2h.cli.options import Texts, run_option, takes_groups, training_option
from l2h.cli.output import log, make_console, print_json


@dataclass(frozen=True)
class FrontierOptions:
    """What is measured, on what, and where it goes."""

    data: Annotated[
        str,
        Option("--data", "-d", help="digits (with the demo's client and server), or whatever l2h train takes."),
    ] = "digits"
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
    seeds: Annotated[int, run_option(help="How many seeds.", min=1)] = 3
    first_seed: Annotated[int, run_option(help="The first of them.", min=0)] = 0
    out: Annotated[Path, run_option("--out", "-o", help="The folder.")] = Path("runs/frontier")
    rows: Annotated[
        list[Path] | None,
        run_option(
            "--rows",
            help="Measure nothing: draw the rows of this frontier.csv; repeat to join those of several calls.",
        ),
    ] = None
    test: shared.TestPart = None
    target: shared.Target = None
    limit: shared.Limit = None
    size: shared.Size = None
    client: Annotated[str | None, Option("--client", "-m", help="As in l2h train. (default: lenet5; digits: tree)")] = (
        None
    )
    server: Annotated[
        str | None, Option("--server", "-e", help="As in l2h train. (default: alexnet; digits: lenet5)")
    ] = None
    augment: Annotated[
        str | None, training_option(help="none, shift or flip+shift. (default: what suits the data)")
    ] = None
    device: shared.Device = "auto"
    precision: shared.Precision = "fp32"
    set_: shared.Set = None
    option: shared.ModelOption = None
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

    command = shlex.join(["l2h", *sys.argv[1:]])
    summary = summarise(read_rows(options.rows), command) if options.rows else _measure(options, command)
    picture = write_frontier(summary, options.out)
    if options.as_json:
        print_json(summary)
        return
    make_console().print(frontier_table(summary))
    log.info("The picture: %s", picture)


def _measure(options: FrontierOptions, command: str) -> dict[str, object]:
    from l2h.cli.bars import training_progress
    from l2h.experiments.compare.comparing import comparison_plan
    from l2h.experiments.frontier.study import BUDGETS, FrontierStudy, measure_frontier

    given = {name: getattr(options, name) for name in ("client", "server", "test", "target", "limit", "size")}
    settings = {"device": options.device, "precision": options.precision}
    study = FrontierStudy(
        comparison_plan(options.data, given, settings, options.set_ or [], options.option or [], sized=True),
        tuple(range(options.first_seed, options.first_seed + options.seeds)),
        tuple(options.budgets or BUDGETS),
        tuple(options.rivals or ()),
        options.part,
    )

    def tell(row: dict[str, object]) -> None:
        log.info("seed %s, budget %s: %s, mean risk %s", *(row.get(k) for k in ("seed", "budget", "method")),
                 row.get("risk_mean", "none at this budget"))  # fmt: skip

    with training_progress() as progress:
        return measure_frontier(
            study, options.out, progress, tell, augment=options.augment, command=command, force=options.force
        )
