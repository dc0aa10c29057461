"""``l2h evaluate``: evaluate finished runs at other prices or on other data; several seeds with their spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from l2h.cli import options as shared
from l2h.cli.options import MoneyOptions, Texts, by_name, read_bounds, read_prices, takes_groups
from l2h.cli.output import grid_table, log, make_console, print_evaluations, print_json

if TYPE_CHECKING:
    from l2h.experiments.evaluating import SeedSpread
    from l2h.experiments.finished import Bound


@dataclass(frozen=True)
class EvaluateOptions:
    """Which runs, under which conditions, and where the results go."""

    run: Annotated[list[Path], Argument(help="One run folder, or several of different seeds.")]
    data: Annotated[
        str | None, Option("--data", "-d", help="Other data than the run's: its test part, or all where it has none.")
    ] = None
    test: shared.TestPart = None
    target: shared.Target = None
    cache: shared.Cache = None
    on_error: shared.OnError = None
    outcomes: Annotated[
        str | None, Option("--outcomes", help="Of a router: another table than the run's test part.")
    ] = None
    text_column: shared.TextColumn = None
    c_1: Annotated[shared.Prices, Option("--c-1", help="Repeat for a grid. (default: the run's)")] = None
    c_e: Annotated[shared.Prices, Option("--c-e", help="Repeat for a grid. (default: the run's)")] = None
    price: shared.ServerPrices = None
    second_opinion: shared.SecondOpinion = None
    limit: Annotated[
        Texts,
        Option(
            "--limit",
            help="A bound on asking: 20%, 20%@95% (guaranteed), 20%/1000 (of any 1000 in a row), 20%+-50 (tracked, at "
            "most 50 off), 100/1h; repeat for several. Of one of several servers NAME=10%, and all=20% for all of "
            "them, which hold together. Without prices asking is free.",
        ),
    ] = None
    rule: Annotated[
        str | None, Option(help="How a share is met: threshold, guaranteed or stochastic. (default: threshold)")
    ] = None
    out: Annotated[Path | None, Option("--out", "-o", help="Write metrics.json, plots and page here.")] = None
    force: Annotated[bool, Option("--force", help="Replace what is in the folder.")] = False
    method_files: shared.MethodFiles = None
    server_run: Annotated[
        Path | None, Option(help="The run of a server trained by itself (--role server), to evaluate with.")
    ] = None
    server: shared.Asked = None
    as_json: Annotated[
        bool, Option("--json", help="Print JSON: a list, one per price; over several runs mean, std and sem.")
    ] = False


@takes_groups
def evaluate(options: EvaluateOptions, money: MoneyOptions) -> None:
    """Evaluate a finished run on its test set, at its own prices or at others.

    Example: [bold]l2h evaluate runs/demo --c-e 0.05 --c-e 0.1 --c-e 0.2[/]

    Example: [bold]l2h evaluate runs/demo --limit 10% --limit 20% --rule stochastic[/] asks for at most so many.

    Example: [bold]l2h evaluate runs/two --price box=0.05 --price cloud=0.2:1.25 --limit cloud=10%[/] of a run with two
    servers.

    Example: [bold]l2h evaluate runs/demo --request-cost 0.002 --error-cost 0.5 --per-day 10000[/] says what it saves in
    money.

    Example: [bold]l2h evaluate runs/demo --second-opinion[/] as if the rejector's student could answer too.

    Example: [bold]l2h evaluate runs/seed-0 runs/seed-1 runs/seed-2[/] gives mean and standard error over the seeds.

    Example: [bold]l2h evaluate runs/router --outcomes other.parquet[/] measures a router on other outcomes.
    """
    from l2h.cli.bars import count_progress
    from l2h.experiments.evaluating import evaluate_run, evaluate_seeds
    from l2h.experiments.finished import Asking, Conditions
    from l2h.experiments.runs import require_empty
    from l2h.report import write_run_page
    from l2h.routing.saving import holds_router

    runs, out = options.run, options.out
    if out is not None:
        if len(runs) > 1:
            raise typer.BadParameter("--out goes with one run")
        require_empty(out, force=options.force)
    bounds = read_bounds(options.limit)
    if options.rule is not None and not bounds:
        raise typer.BadParameter("--rule goes with --limit", param_hint="--rule")
    if options.test is not None and options.data is None:
        raise typer.BadParameter("it is the test part of --data: give both, or --data alone", param_hint="--test")
    if any(map(holds_router, runs)):
        return _evaluate_router(options, money, bounds)
    if options.outcomes is not None:
        raise typer.BadParameter(f"{runs[0]} holds no router: --data names other data", param_hint="--outcomes")
    with count_progress("server: inputs asked") as asked:
        conditions = Conditions(
            data=options.data,
            test=options.test,
            target=options.target,
            cache=options.cache,
            on_error=options.on_error,
            c_1=options.c_1,
            c_e=options.c_e,
            prices=read_prices(options.price),
            money=money.read(options.c_e, options.c_1, options.price),
            bounds=bounds,
            rule=options.rule,
            server_run=options.server_run,
            asking=Asking(by_name(options.server, "--server"), asked),
            second_opinion=options.second_opinion,
        )
        if len(runs) > 1:
            return _print_spreads(evaluate_seeds(runs, conditions), options.as_json)
        evaluations = evaluate_run(runs[0], conditions, out)
    dataset = evaluations.dataset
    log.info("Evaluated on %d samples of %s", len(dataset.y_test), dataset.name)
    if out is not None:
        log.info("The page with every number and picture: %s", write_run_page(evaluations, out))
    print_evaluations(evaluations.results, options.as_json)


def _evaluate_router(options: EvaluateOptions, money: MoneyOptions, named: list[Bound]) -> None:
    from l2h.cli import routing
    from l2h.experiments.routing import RouterConditions
    from l2h.limits import RateLimit

    bounds = [bound for bound in named if isinstance(bound, RateLimit)]
    if options.price or len(bounds) < len(named):
        raise typer.BadParameter("a router has one server, without a name", param_hint="--price, --limit")
    if options.second_opinion is not None:
        raise typer.BadParameter("a router has no student", param_hint="--second-opinion")
    if len(options.run) > 1 or options.data is not None:
        raise typer.BadParameter("a router is evaluated alone, with --outcomes FILE", param_hint="RUN")
    prices = options.c_1, options.c_e
    conditions = RouterConditions(
        options.outcomes, options.text_column, *prices, bounds, options.rule, money.read(*prices)
    )
    routing.evaluate(options.run[0], conditions, options.out, options.as_json)


def _print_spreads(spreads: list[SeedSpread], as_json: bool) -> None:
    from l2h.report import spread_table

    if as_json:
        print_json([seeds.spread for seeds in spreads])
        return
    console = make_console()
    for seeds in spreads:
        console.print(spread_table(seeds.spread, seeds.count))
    if len(spreads) > 1:
        console.print(grid_table([seeds.mean for seeds in spreads]))
