"""``l2h demo``: show in half a minute that asking for help pays."""

from pathlib import Path
from typing import Annotated

from typer import Option

from l2h.cli.output import log, print_json, print_results


def demo(
    out: Annotated[Path, Option("--out", "-o", help="The run folder.")] = Path("runs/demo"),
    seed: Annotated[int, Option(help="Seed of split, training and everything drawn.", min=0)] = 0,
    c_e: Annotated[float, Option("--c-e", help="Price of one request.")] = 0.1,
    c_1: Annotated[float, Option("--c-1", help="What a wrong answer of the server costs on top.")] = 1.0,
    force: Annotated[bool, Option("--force", help="Replace the run that is in the folder.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Train and evaluate a small system on handwritten digits: no data and no GPU needed.

    The client is a decision tree of depth 6, fitted to its own old samples and never changed. The server is a small
    convolutional net. The rejector reads the tree's scores and the image and decides who answers.

    Example: [bold]l2h demo --seed 1 --out runs/demo-1[/]
    """
    from l2h.cli.bars import training_progress
    from l2h.experiments.evaluating import evaluate_plan
    from l2h.experiments.plan import demo_plan, load_data, train_run
    from l2h.experiments.runs import RunTarget
    from l2h.report import write_run_page

    plan = demo_plan(seed, (c_1,), (c_e,))
    _ = plan.specs  # a bad price is refused before anything is trained
    dataset = load_data(plan)
    with training_progress() as progress:
        system = train_run(plan, dataset, RunTarget(out, force=force), progress)
    evaluations = evaluate_plan(system, dataset, plan, out)
    page = write_run_page(evaluations, out)
    if as_json:
        print_json(evaluations.results[0].as_dict())
        return
    print_results(evaluations.results)
    log.info("")
    log.info("The page with every number and picture: %s", page)
    log.info("Next: the same system at other prices, with no new training:")
    log.info("  l2h evaluate %s --c-e 0.05 --c-e 0.2", out)
    log.info("Then your own client and data: l2h train --help")
