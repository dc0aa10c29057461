"""``l2h demo``: show in half a minute that asking for help pays."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Option

from l2h.cli.options import MoneyOptions, takes_groups
from l2h.cli.output import log, print_json, print_results


@dataclass(frozen=True)
class DemoOptions:
    """Where the run goes, its seed and its prices."""

    out: Annotated[Path, Option("--out", "-o", help="The run folder.")] = Path("runs/demo")
    seed: Annotated[int, Option(help="Seed of split, training and everything drawn.", min=0)] = 0
    c_e: Annotated[float | None, Option("--c-e", help="Price of one request. (default: 0.1)")] = None
    c_1: Annotated[
        float | None, Option("--c-1", help="What a wrong answer of the server costs on top. (default: 1)")
    ] = None
    force: Annotated[bool, Option("--force", help="Replace the run that is in the folder.")] = False
    as_json: Annotated[bool, Option("--json", help="Print the metrics as JSON.")] = False


@takes_groups
def demo(options: DemoOptions, money: MoneyOptions) -> None:
    """Train and evaluate a small system on handwritten digits: no data and no GPU needed.

    The client is a decision tree of depth 6, fitted to its own old samples and never changed. The server is a small
    convolutional net. The rejector reads the tree's scores and the image and decides who answers.

    Example: [bold]l2h demo --seed 1 --out runs/demo-1[/]

    Example: [bold]l2h demo --request-cost 0.002 --error-cost 0.5 --currency EUR --per-day 10000[/] says what the system
    saves in money.
    """
    from l2h.cli.bars import training_progress
    from l2h.experiments.carry_out import load_data, train_run
    from l2h.experiments.evaluating import evaluate_plan
    from l2h.experiments.plan import demo_plan
    from l2h.experiments.runs import RunTarget
    from l2h.report import write_run_page

    c_1, c_e = (1.0 if options.c_1 is None else options.c_1,), (0.1 if options.c_e is None else options.c_e,)
    paid = money.read(options.c_e is not None, options.c_1 is not None)
    plan = demo_plan(options.seed, c_1, c_e)
    if paid is not None:
        plan = replace(plan, money=paid.as_dict())
    out = options.out
    _ = plan.specs  # a bad price is refused before anything is trained
    dataset = load_data(plan)
    with training_progress() as progress:
        system = train_run(plan, dataset, RunTarget(out, force=options.force), progress)
    evaluations = evaluate_plan(system, dataset, plan, out)
    page = write_run_page(evaluations, out)
    if options.as_json:
        print_json(evaluations.results[0].as_dict())
        return
    print_results(evaluations.results)
    log.info("The page with every number and picture: %s", page)
    log.info("Next: the same system at other prices, with no new training:")
    log.info("  l2h evaluate %s --c-e 0.05 --c-e 0.2", out)
    log.info("Then your own client and data: l2h train --help")
